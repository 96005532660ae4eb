"""The page used in a real browser: sorted, filtered, opened, attacked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic_eval import HOSTILE, write_eval
from webdriver import Browser, browser

from cuda_agent.evals.report.page import html_report
from cuda_agent.evals.report.reading import read_run
from cuda_agent.evals.report.tables import analyse

pytestmark = pytest.mark.slow

CHOOSE = """const box = document.querySelector(arguments[0]);
box.value = arguments[1]; box.dispatchEvent(new Event('input'))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folders = [
        write_eval(root / "first", num_tasks=24, seed=1),
        write_eval(root / "second", num_tasks=24, seed=2, track="paper", samples=2, skill=0.45),
    ]
    out = root / "report.html"
    out.write_text(html_report({f: analyse(read_run(f)) for f in folders}))
    return out


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def shown(chromium: Browser, page: Path) -> Browser:
    chromium.open(page)
    return chromium


def column(shown: Browser, index: int) -> list[str]:
    return shown.texts(f"#tasks tbody tr td:nth-child({index})")


def test_nothing_hostile_runs_and_nothing_fails(shown: Browser) -> None:
    assert shown.script("return document.title").startswith("cuda-agent: ")
    assert shown.script("return document.querySelectorAll('img').length") == 0
    assert shown.errors() == []


def test_a_click_sorts_by_number_and_again_turns_it_round(shown: Browser) -> None:
    shown.click("#tasks th:nth-child(10) button")
    values = [float(v.rstrip("x")) for v in column(shown, 10) if v != "-"]
    assert len(values) > 10
    assert values == sorted(values, reverse=True)
    assert column(shown, 10)[-1] == "-"  # what has no value is last either way
    shown.click("#tasks th:nth-child(10) button")
    values = [float(v.rstrip("x")) for v in column(shown, 10) if v != "-"]
    assert values == sorted(values)
    assert column(shown, 10)[-1] == "-"
    assert shown.script("return document.querySelectorAll('#tasks th[aria-sort]').length") == 1


def test_filters_narrow_the_rows_together(shown: Browser) -> None:
    shown.script(CHOOSE, "#f-verdict", "correct")
    assert set(column(shown, 6)) == {"correct"}
    shown.script(CHOOSE, "#f-run", "second")
    assert set(column(shown, 1)) == {"second"}
    shown.type("#f-text", "level2")
    rows = column(shown, 2)
    assert rows
    assert all(key.startswith("level2/") for key in rows)
    assert shown.texts("#shown") == [f"{len(rows)} shown"]


def test_a_row_opens_its_sources_and_turns_as_text(shown: Browser) -> None:
    shown.click("#tasks tbody tr:nth-child(2)")
    shown.wait("document.querySelectorAll('#detail .turn').length === 5")
    assert shown.script("return document.querySelector('#detail').open")
    shown.click("#detail .turn:nth-last-child(1) summary")
    text = shown.script("return document.querySelector('#detail .turn:nth-last-child(1)').innerText")
    assert "I will vectorise the loads, step 4" in text
    assert HOSTILE in text
    sources = shown.script("return document.querySelector('#detail').textContent")
    assert "class Model(torch.nn.Module)" in sources
    assert "__global__ void k" in sources
    assert shown.script("return document.querySelectorAll('img').length") == 0
    assert shown.script("return document.title").startswith("cuda-agent: ")
    shown.click("#close")
    assert not shown.script("return document.querySelector('#detail').open")
    assert shown.errors() == []


def test_a_keyboard_is_enough(shown: Browser) -> None:
    shown.type("#tasks tbody tr:nth-child(3) button", "\ue007")  # Enter
    shown.wait("document.querySelectorAll('#detail .turn').length > 0")
    assert shown.script("return document.querySelector('#detail').open")
    assert shown.script("return document.activeElement.closest('#detail') !== null")
    shown.type("#close", "\ue007")
    assert not shown.script("return document.querySelector('#detail').open")
    back = "return document.activeElement.closest('tr') === document.querySelectorAll('#tasks tbody tr')[2]"
    assert shown.script(back)


def test_plots_are_drawn_and_named(shown: Browser) -> None:
    names = shown.script(
        "return [...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert names == [
        "Speed-up over eager",
        "Speed-up over torch.compile",
        "fast_p against torch.compile",
        "Achieved time against the floor",
    ]
    dots = shown.script("return document.querySelectorAll('svg circle').length")
    assert dots > 20
    outside = """return [...document.querySelectorAll('svg circle, svg rect')].filter(n => {
        const a = n.getBoundingClientRect(), b = n.closest('svg').getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
    }).length"""
    assert shown.script(outside) == 0


def test_ours_and_published_rows_name_track_and_device(shown: Browser) -> None:
    ours = shown.texts("tr.ours")
    assert any("first (ours)" in row and "matched" in row and "Synthetic device" in row for row in ours)
    assert any("CUDA Agent (published)" in row and "not named" in row for row in shown.texts("main tbody tr"))


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (420, True)])
def test_the_page_itself_never_scrolls_sideways(page: Path, width: int, dark: bool) -> None:
    with browser(width=width, dark=dark) as found:
        found.open(page)
        widths = found.script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1]
        background = found.script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(21, 23, 26)") is dark


def test_a_page_of_250_tasks_opens_at_once(chromium: Browser, tmp_path: Path) -> None:
    folder = write_eval(tmp_path / "large", num_tasks=250, seed=3, turns=40)
    out = tmp_path / "large.html"
    out.write_text(html_report({folder: analyse(read_run(folder))}))
    seconds = chromium.open(out)
    assert len(column(chromium, 1)) == 250
    # 2 s on a quiet machine; a busy one may take longer, hence measured by the page's own processor time.
    timing = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd - t.startTime"
    assert chromium.script(timing) < 6000, f"opened in {seconds:.1f} s"
    chromium.click("#tasks tbody tr:nth-child(200)")
    chromium.wait("document.querySelectorAll('#detail .turn').length === 40")
