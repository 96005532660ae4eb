"""Output is printable and bounded."""

from __future__ import annotations

import pytest

from cuda_agent.agent.output import HeadTail, cap, printable


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("größer\n".encode(), "größer\n"),
        (b"\xff\xfe\x00\x07", "\\xff\\xfe\\x00\\x07"),
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        (b"10%\r50%\r100%\ndone\r\n", "100%\ndone\n"),
        (b"tab\there\n", "tab\there\n"),
    ],
)
def test_printable(data: bytes, text: str) -> None:
    assert printable(data) == text


def test_cap_keeps_head_and_tail_and_counts_the_rest() -> None:
    text = "".join(f"{n}\n" for n in range(1000))
    short = cap(text, 200)
    head, tail = short.split("[... ")[0], short.split("...]\n")[1]
    assert text.startswith(head) and text.endswith(tail) and len(short) < 260
    assert cap("short", 200) == "short"
    assert cap("x" * 500, 200) == "x" * 100 + "\n[... 300 characters left out ...]\n" + "x" * 100


def test_head_tail_is_bounded_and_exact() -> None:
    kept = HeadTail(100)
    for n in range(100_000):
        kept.add(b"%d\n" % n)
    text = kept.take()
    assert text.startswith("0\n1\n") and text.endswith("99998\n99999\n") and len(text) < 300
    assert "bytes left out" in text and kept.take() == ""
    for piece in ("ä".encode()[:1], "ä".encode()[1:]):
        kept.add(piece)
    assert kept.take() == "ä", "a character over two reads stays whole"
    split = HeadTail(1)
    split.add("ä".encode())
    assert split.take() == "ä", "and one over the seam of head and tail"
