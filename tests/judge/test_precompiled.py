"""Precompiled headers: the same objects and messages as without, sooner; never another's bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from cuda_agent.backends import CpuBackend, toolchain
from cuda_agent.config import Track, cache_dir
from cuda_agent.judge import build as builds
from cuda_agent.judge.build import BuildOutcome, build, fixed_files
from cuda_agent.judge.precompiled import HeaderStore, header_text
from cuda_agent.workspace.snapshot import Snapshot

REGISTRY = '#include "../binding_registry.h"\n'
PYBIND = "#include <pybind11/pybind11.h>\n#include <pybind11/stl.h>\n"
BODY = """static int answer() {{ return {value}; }}
static void bind(pybind11::module& m) {{ m.def("answer", &answer); }}
REGISTER_BINDING(answer, bind)
"""
RUN = """
import sys, torch, importlib.util
spec = importlib.util.spec_from_file_location("cuda_extension", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.answer())
"""


def gnu() -> bool:
    cxx = toolchain.find_cxx()
    return cxx is not None and "Free Software Foundation" in toolchain.compiler_version(cxx)


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not gnu(), reason="precompiled headers are GCC's")]


def binding(head: str, value: str) -> Snapshot:
    source = (head + BODY.format(value=value)).encode()
    return Snapshot({"model_new.py": b"", "kernels/a_binding.cpp": source})


def run_build(snapshot: Snapshot, folder: Path) -> BuildOutcome:
    return build(snapshot, CpuBackend(), track=Track.MATCHED, folder=folder, limit_s=120.0)


def answer(outcome: BuildOutcome) -> str:
    assert outcome.ok, outcome.message
    argv = [sys.executable, "-c", RUN, str(outcome.library)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def made() -> list[Path]:
    return list((cache_dir() / "headers").glob("*/*.gch"))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own, in which the header of the registry is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_AGENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("warm")
        assert run_build(binding(REGISTRY, "1"), folder / "a").ok
        assert made() == []  # wanted once: reading the headers is quicker than making one
        assert run_build(binding(REGISTRY, "2"), folder / "b").ok
        assert len(made()) == 1
        yield folder


def name_of(text: str) -> str | None:
    files = {**fixed_files(), "kernels/a.cpp": text.encode(), "kernels/own.h": b"#define private public"}
    return header_text("kernels/a.cpp", files)


def test_what_a_source_begins_with_decides() -> None:
    extension = "#include <torch/extension.h>\n"
    assert name_of("// words\n/* more\n*/\n#include <vector>\n" + extension + "int x;") == extension
    assert name_of(REGISTRY) == PYBIND
    assert name_of("#include <torch/types.h>\n" + REGISTRY) == "#include <torch/types.h>\n"
    both = "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
    assert name_of(both + REGISTRY) == both


@pytest.mark.parametrize(
    "before",
    [
        "#define NDEBUG\n",
        '#include "own.h"\n',
        '#include "../kernels/own.h"\n',
        "int x;\n",
        "#if 0\n",
        "// continued \\\n",
        "// trigraph ??/\n",
        "#pragma GCC optimize(0)\n",
        "#include </tmp/x.h>\n",
        "#include <../../x.h>\n",
        "#include NAME\n",
        "/* open\n",
        "%:define x\n",
    ],
)
def test_nothing_is_read_before_what_could_change_it(before: str) -> None:
    assert name_of(before + "#include <torch/extension.h>\n") is None


def test_a_registry_of_the_candidates_own_is_not_ours() -> None:
    source = b'#include "binding_registry.h"\n'
    files = {**fixed_files(), "kernels/a.cpp": source, "kernels/binding_registry.h": b"#define x"}
    assert header_text("kernels/a.cpp", files) is None


def test_the_object_is_the_same_and_made_sooner(tmp_path: Path) -> None:
    objects = {}
    for name, value in (("with", "40"), ("again", "41")):
        outcome = run_build(binding(REGISTRY, value), tmp_path / name)
        assert answer(outcome) == value
        objects[name] = outcome.seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builds, "header_text", lambda *_: None)
        patch.setattr(builds, "_store", lambda: builds.ObjectStore(tmp_path / "objects"))
        plain = run_build(binding(REGISTRY, "41"), tmp_path / "plain")
    libraries = [(tmp_path / name / builds.LIBRARY).read_bytes() for name in ("again", "plain")]
    assert libraries[0] == libraries[1]
    assert min(objects.values()) < plain.seconds


def test_what_does_not_compile_is_told_as_without(tmp_path: Path) -> None:
    messages = [run_build(binding(REGISTRY, "missing"), tmp_path / "with").message]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builds, "header_text", lambda *_: None)
        messages.append(run_build(binding(REGISTRY, "missing"), tmp_path / "plain").message)
    assert messages[0].startswith("kernels/a_binding.cpp:2: error: 'missing' was not declared")
    assert messages[0] == messages[1]


def test_a_header_that_does_not_serve_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one that breaks every source, all builds as without it."""
    broken = tmp_path / "prefix.hpp"
    broken.write_text("#error no\n")
    monkeypatch.setattr(HeaderStore, "find", lambda *_: broken)
    assert answer(run_build(binding(REGISTRY, "77"), tmp_path / "b")) == "77"


def test_another_header_in_its_place_is_not_used(tmp_path: Path) -> None:
    """A valid one, of the same flags, which would change what the candidate says."""
    [entry] = made()
    evil = tmp_path / "prefix.hpp"
    evil.write_text(PYBIND + "#define answer() answer() { return 666; } static int other()\n")
    step = CpuBackend().compile_step(evil, tmp_path / entry.name, root=tmp_path, track=Track.MATCHED)
    subprocess.run(step.argv, cwd=tmp_path, check=True)
    status = entry.stat()
    entry.write_bytes((tmp_path / entry.name).read_bytes())
    os.utime(entry, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert answer(run_build(binding(REGISTRY, "5"), tmp_path / "b")) == "5"
    [again] = made()
    expected = json.loads((again.parent / "sum.json").read_text())["sha256"]
    assert sha256(again.read_bytes()).hexdigest() == expected


def test_a_compiler_of_a_candidate_cannot_write_the_cache(tmp_path: Path) -> None:
    [entry] = made()
    before = entry.stat()
    script = f"echo x > {entry}; mv {entry.parent} {entry.parent}x; echo y > {entry.parent}/y; echo ran"
    with (tmp_path / "log").open("wb") as log:
        process = builds._spawn(["/bin/sh", "-c", script], tmp_path, log, time.monotonic() + 30)
        process.wait(30)
        process.kill_group()
    assert "ran" in (tmp_path / "log").read_text()
    assert entry.stat() == before and not (entry.parent / "y").exists()
