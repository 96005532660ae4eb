"""Building candidates with the real compiler: cache, errors, limits, what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cuda_agent.backends import CpuBackend, get_backend
from cuda_agent.backends.base import Backend
from cuda_agent.config import Device, Track
from cuda_agent.judge import build as builds
from cuda_agent.judge.build import BuildOutcome, build
from cuda_agent.judge.object_cache import ObjectStore, _included
from cuda_agent.workspace.snapshot import Snapshot

KERNEL = b"""#include "scale.h"
extern "C" void scale(const float* x, float* y, long n, float a) {
#pragma omp parallel for simd
    for (long i = 0; i < n; ++i) y[i] = a * x[i] + OFFSET;
}
"""
BINDING = b"""#include <cstdint>
#include "../binding_registry.h"
extern "C" void scale(const float*, float*, long, float);
static void run(std::uintptr_t x, std::uintptr_t y, long n, float a) {
    scale(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n, a);
}
static void bind(pybind11::module& m) { m.def("scale", &run); }
REGISTER_BINDING(scale, bind)
"""
RUN = """
import sys, torch, importlib.util
spec = importlib.util.spec_from_file_location("cuda_extension", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
x, y = torch.arange(4.0), torch.empty(4)
module.scale(x.data_ptr(), y.data_ptr(), 4, 2.0)
print(y.tolist())
"""


@pytest.fixture(scope="module")
def cpu() -> Backend:
    return get_backend(Device.CPU)


def candidate(**files: str | bytes) -> Snapshot:
    contents: dict[str, bytes] = {
        "model_new.py": b"",
        "kernels/scale.cpp": KERNEL,
        "kernels/scale_binding.cpp": BINDING,
        "kernels/scale.h": b"#define OFFSET 1\n",
    }
    for name, text in files.items():
        contents[f"kernels/{name}"] = text.encode() if isinstance(text, str) else text
    return Snapshot(contents)


def run_build(snapshot: Snapshot, backend: Backend, folder: Path, *, limit_s: float = 120.0) -> BuildOutcome:
    return build(snapshot, backend, track=Track.MATCHED, folder=folder, limit_s=limit_s)


def only(text: str) -> Snapshot:
    return Snapshot({"model_new.py": b"", "kernels/one.cpp": text.encode()})


def test_builds_and_a_header_change_is_seen(cpu: Backend, tmp_path: Path) -> None:
    answers = []
    for offset in (1, 5):
        outcome = run_build(
            candidate(**{"scale.h": f"#define OFFSET {offset}\n"}), cpu, tmp_path / str(offset)
        )
        assert outcome.ok and outcome.message == ""
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(outcome.library)], capture_output=True, text=True, check=True
        )
        answers.append(done.stdout.strip())
    assert answers == ["[1.0, 3.0, 5.0, 7.0]", "[5.0, 7.0, 9.0, 11.0]"]


def test_the_second_build_compiles_nothing(cpu: Backend, tmp_path: Path) -> None:
    assert run_build(candidate(), cpu, tmp_path / "a").ok
    again = run_build(candidate(), cpu, tmp_path / "b")
    assert again.ok and again.seconds < 5
    assert (tmp_path / "a" / builds.LIBRARY).stat().st_size == again.library.stat().st_size  # type: ignore[union-attr]


def test_our_fixed_files_win(cpu: Backend, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "binding.cpp").write_text("#error replaced")
    assert run_build(candidate(), cpu, tmp_path / "b").ok


def test_bindings_register_with_and_without_semicolon_by_both_paths(cpu: Backend, tmp_path: Path) -> None:
    second = BINDING.replace(b"../binding_registry.h", b"binding_registry.h")
    second = second.replace(b"REGISTER_BINDING(scale, bind)", b"REGISTER_BINDING(other, bind);")
    second = second.replace(b'm.def("scale"', b'm.def("again"')
    outcome = run_build(candidate(**{"again_binding.cpp": second}), cpu, tmp_path / "b")
    assert outcome.ok, outcome.message
    script = (
        "import torch, sys; sys.path.insert(0, sys.argv[1])\n"
        "import cuda_extension as c; print(c.again, c.scale)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "b")], check=True, stdout=subprocess.DEVNULL)


def test_two_extensions_in_one_process_keep_their_own_bindings(cpu: Backend, tmp_path: Path) -> None:
    renamed = BINDING.replace(b'm.def("scale"', b'm.def("twice"')
    run_build(candidate(), cpu, tmp_path / "a")
    run_build(candidate(**{"scale_binding.cpp": renamed}), cpu, tmp_path / "b")
    script = RUN.split("x, y =", maxsplit=1)[0] + (
        "other = importlib.util.spec_from_file_location('cuda_extension', sys.argv[2])\n"
        "second = importlib.util.module_from_spec(other)\nother.loader.exec_module(second)\n"
        "public = lambda m: [n for n in dir(m) if not n.startswith('_')]\n"
        "print(public(module), public(second))\n"
    )
    libraries = [str(tmp_path / name / builds.LIBRARY) for name in ("a", "b")]
    done = subprocess.run(
        [sys.executable, "-c", script, *libraries], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['scale'] ['twice']"


def test_errors_name_workspace_file_and_line(cpu: Backend, tmp_path: Path) -> None:
    outcome = run_build(only("int f() {\n    return missing;\n}\n"), cpu, tmp_path / "b")
    assert not outcome.ok and outcome.library is None and not outcome.timed_out
    assert outcome.message.startswith("kernels/one.cpp:2: error: 'missing' was not declared")
    assert str(tmp_path) not in outcome.message


def test_duplicate_definitions_are_a_build_error(cpu: Backend, tmp_path: Path) -> None:
    files = {
        "model_new.py": b"",
        "kernels/a.cpp": b'extern "C" void f() {}',
        "kernels/b.cpp": b'extern "C" void f() {}',
    }
    outcome = run_build(Snapshot(files), cpu, tmp_path / "b")
    assert not outcome.ok and "multiple definition of" in outcome.message


def test_cuda_sources_on_cpu_are_refused_in_words(cpu: Backend, tmp_path: Path) -> None:
    outcome = run_build(candidate(**{"a.cu": "__global__ void f() {}"}), cpu, tmp_path / "b")
    assert not outcome.ok and "kernels/a.cu" in outcome.message and "cpu backend" in outcome.message


def test_headers_of_the_host_are_refused_and_not_quoted(cpu: Backend, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("password swordfish\n")
    outcome = run_build(only(f'#include "{secret}"\n'), cpu, tmp_path / "b")
    # Isolated compilers do not see the file; others read it and are refused.
    refusals = ("outside the workspace", "No such file")
    assert not outcome.ok and any(words in outcome.message for words in refusals)
    assert "swordfish" not in outcome.message
    secret.write_text("int fine;\n")
    outcome = run_build(only(f'#include "{secret}"\n'), cpu, tmp_path / "c")
    assert not outcome.ok and any(words in outcome.message for words in refusals)


def test_time_limit_kills_the_whole_compiler(cpu: Backend, tmp_path: Path) -> None:
    doubling = "\n".join(f"#define M{i} M{i - 1} M{i - 1}" for i in range(1, 26))
    slow = only(f"// {tmp_path}\n#define M0 int f();\n{doubling}\nM25\n")
    begin = time.monotonic()
    outcome = run_build(slow, cpu, tmp_path / "b", limit_s=1.0)
    assert outcome.timed_out and not outcome.ok and time.monotonic() - begin < 10
    assert "kernels/one.cpp" in outcome.message and "time limit" in outcome.message
    patience = time.monotonic() + 10
    while _processes_in(tmp_path / "b"):  # killed processes take a moment to vanish
        assert time.monotonic() < patience
        time.sleep(0.05)


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder.resolve():
                found.append((process / "comm").read_text())
        except OSError:
            continue
    return found


def test_memory_limit_ends_in_a_message(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_LIMITS", builds.Limits(memory_bytes=200 << 20))
    doubling = "\n".join(f"#define M{i} M{i - 1} M{i - 1}" for i in range(1, 24))
    outcome = run_build(
        only(f"// {tmp_path}\n#define M0 int f();\n{doubling}\nM23\n"), cpu, tmp_path / "b", limit_s=60
    )
    assert not outcome.ok and not outcome.timed_out
    assert "memory" in outcome.message


def test_builds_at_the_same_time_share_a_fresh_cache(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "fixed_files", lambda: {"binding.cpp": b"int x;", "binding_registry.h": b""})
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    snapshot = only("int answer() { return 42; }\n")
    outcomes: list[BuildOutcome] = []

    def work(index: int) -> None:
        outcomes.append(run_build(snapshot, cpu, tmp_path / str(index)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [o.ok for o in outcomes] == [True] * 4, outcomes
    assert len(list((tmp_path / "cache" / "objects").glob("??/*.o"))) == 2
    assert not list((tmp_path / "cache" / "objects" / "tmp").iterdir())


KILLED = """
import sys
from pathlib import Path
from cuda_agent.backends import get_backend
from cuda_agent.config import Device, Track
from cuda_agent.judge.build import build
from cuda_agent.workspace.snapshot import freeze
print("ready", flush=True)
snapshot, folder = freeze(Path(sys.argv[1])), Path(sys.argv[2])
build(snapshot, get_backend(Device.CPU), track=Track.MATCHED, folder=folder, limit_s=3)
"""


def test_a_build_killed_half_way_leaves_no_broken_object(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    doubling = "\n".join(f"#define M{i} M{i - 1} M{i - 1}" for i in range(1, 24))
    only(f"#define M0 int f();\n{doubling}\nM23\n").write(tmp_path / "w")
    argv = [sys.executable, "-c", KILLED, str(tmp_path / "w"), str(tmp_path / "killed")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    patience = time.monotonic() + 30
    while not _processes_in(tmp_path / "killed"):
        assert time.monotonic() < patience
        time.sleep(0.02)
    process.kill()
    process.wait()
    process.stdout.close()
    assert not list((tmp_path / "cache" / "objects").glob("??/*.o"))
    monkeypatch.setattr(builds, "fixed_files", lambda: {"binding.cpp": b"int x;", "binding_registry.h": b""})
    assert run_build(only("int answer() { return 42; }\n"), cpu, tmp_path / "after").ok
    while _processes_in(tmp_path / "killed"):  # what the driver left behind ends with its own limit
        assert time.monotonic() < patience
        time.sleep(0.05)


def test_a_damaged_object_is_made_again(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "fixed_files", lambda: {"binding.cpp": b"int x;", "binding_registry.h": b""})
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    snapshot = only("int answer() { return 42; }\n")
    assert run_build(snapshot, cpu, tmp_path / "a").ok
    for path in (tmp_path / "cache" / "objects").glob("??/*.o"):
        path.write_bytes(b"garbage")
    assert run_build(snapshot, cpu, tmp_path / "b").ok


def test_a_cache_that_cannot_be_written_is_our_failure(
    cpu: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_agent.errors import InfrastructureError

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "file"))
    with pytest.raises(InfrastructureError, match="CUDA_AGENT_CACHE"):
        run_build(candidate(), cpu, tmp_path / "b")


@pytest.mark.parametrize(
    ("source", "used"),
    [
        (b'#include "a.h"\n', {"a.h"}),
        (b'#include "deep/b.h"\n', {"deep/b.h", "a.h"}),
        (b"#include <vector>\n", set()),
        (b'#define H "a.h"\n#include H\n', {"a.h", "deep/b.h", "c.h"}),
        (b'#inc\\\nlude "a.h"\n', {"a.h"}),
        (b'%:include "a.h"\n', {"a.h", "deep/b.h", "c.h"}),
        (b'#/**/include "c.h"\n', {"a.h", "deep/b.h", "c.h"}),
    ],
)
def test_which_files_an_object_depends_on(source: bytes, used: set[str]) -> None:
    files = {
        "kernels/x.cpp": source,
        "kernels/a.h": b"",
        "kernels/deep/b.h": b'#include "../a.h"\n',
        "kernels/c.h": b"",
    }
    assert _included("kernels/x.cpp", files) == {"kernels/x.cpp", *(f"kernels/{name}" for name in used)}


def test_the_cache_is_pruned_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from cuda_agent.judge import object_cache

    monkeypatch.setattr(object_cache, "_MAX_CACHE_BYTES", 250)
    store = ObjectStore(tmp_path)
    store.temporary().parent.mkdir(parents=True)
    stale = store.temporary()
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    for age, key in enumerate(("aa1", "bb2", "cc3")):
        path = store.path(key)
        path.parent.mkdir()
        path.write_bytes(b"\x7fELF" + b"x" * 96)
        os.utime(path, (1000 + age, 1000 + age))
    assert store.has(store.path("aa1"))  # used now: bb2 is the longest unused
    store.prune()
    assert not stale.exists()
    assert [store.path(k).exists() for k in ("aa1", "bb2", "cc3")] == [True, False, True]


def test_flags_decide_objects(tmp_path: Path) -> None:
    step = CpuBackend().compile_step(tmp_path / "kernels/a.cpp", Path("o"), root=tmp_path, track=Track.PAPER)
    assert {"-O3", "-march=native", "-fopenmp"} <= set(step.argv) and "-ffast-math" not in step.argv
    assert "kernels/a.cpp" in step.argv
