"""Compiler output cut to what a model can use: real compilers' words, kept and dropped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cuda_agent.backends.toolchain import find_cuda, find_cxx
from cuda_agent.judge.compile_errors import MAX_CHARS, summarise

TEMPLATES = """#include <map>
#include <string>
#include <vector>
#include <algorithm>
struct Odd {};
int main() {
    std::map<std::string, std::vector<std::string>> m;
    std::vector<Odd> odds(3);
    std::sort(odds.begin(), odds.end());
    m.push_back(1);
    return 0;
}
"""


def compile_cxx(text: str, folder: Path) -> str:
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "a.cpp").write_text(text)
    argv = [str(find_cxx()), "-fmax-errors=20", "-fdiagnostics-color=never", "-c", "kernels/a.cpp"]
    env = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, env=env, check=False).stderr


def test_template_noise_is_dropped_and_the_workspace_line_kept(tmp_path: Path) -> None:
    raw = compile_cxx(TEMPLATES, tmp_path)
    text = summarise(raw)
    assert len(raw) > 3 * len(text)
    assert "note:" not in text and "required from" not in text and "In file included" not in text
    assert "kernels/a.cpp:10: error:" in text and "push_back" in text
    assert "no match for 'operator<'" in text and "(from kernels/a.cpp:9)" in text


def test_length_is_bounded_and_errors_are_whole(tmp_path: Path) -> None:
    lines = "\n".join(f"int f{i}() {{ return {'n' * 60}{i}; }}" for i in range(300))
    raw = "".join(
        f"kernels/a.cpp:{i}:5: error: '{'n' * 60}{i}' was not declared\n   {i} | x\n" for i in range(300)
    )
    for output in (raw, compile_cxx(lines, tmp_path)):
        text = summarise(output)
        assert len(text) <= MAX_CHARS
    assert summarise(raw).splitlines()[-1].endswith("more errors")
    assert summarise(raw).startswith("kernels/a.cpp:0: error:")


def test_the_same_error_is_said_once() -> None:
    raw = "kernels/a.h:1:1: error: 'x' does not name a type\n" * 5
    assert summarise(raw) == "kernels/a.h:1: error: 'x' does not name a type"


def test_build_folder_is_cut_from_paths() -> None:
    raw = "/tmp/build-1/kernels/a.cpp:4:2: fatal error: nothere.h: No such file or directory\n"
    assert summarise(raw, root=Path("/tmp/build-1")).startswith("kernels/a.cpp:4: error: nothere.h")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "/usr/bin/ld: /cache/ab/1.o: in function `f':\na.cpp:(.text+0x0): multiple definition of `f'; "
            "/cache/cd/2.o:b.cpp:(.text+0x0): first defined here\n"
            "collect2: error: ld returned 1 exit status\n",
            "error: multiple definition of `f'",
        ),
        (
            "ptxas error   : Entry function '_Z1kv' uses too much shared data (0x20000 bytes, 0xc000 max)\n",
            "ptxas: error: Entry function '_Z1kv' uses too much shared data",
        ),
        (
            'kernels/k.cu(7): error: expected a ";"\n\n1 error detected in the compilation of "k.cu".\n',
            'kernels/k.cu:7: error: expected a ";"',
        ),
        (
            "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
            "error: Killed signal terminated program cc1plus",
        ),
        ("something nobody foresaw\n", "something nobody foresaw"),
        ("", "the compiler failed and said nothing"),
    ],
)
def test_known_shapes(raw: str, expected: str) -> None:
    text = summarise(raw)
    assert text.startswith(expected), text
    assert "detected in the compilation" not in text and "ld returned" not in text


def test_running_out_of_memory_says_what_to_do() -> None:
    assert "ran out of memory" in summarise("cc1plus: out of memory allocating 65536 bytes\n")


def test_nvcc_errors_come_in_one_form(tmp_path: Path) -> None:
    cuda = find_cuda()
    if cuda is None:
        pytest.skip("no nvcc on this machine")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.h").write_text(
        "template <class T> __device__ T twice(T x) { return x.nothing; }\n"
    )
    texts = []
    for line in ("y[0] = undeclared;", "y[1] = twice(1.f);"):
        (tmp_path / "kernels" / "k.cu").write_text(
            f'#include "k.h"\n\n__global__ void k(float* y) {{ {line} }}\n'
        )
        argv = [str(cuda.nvcc), "-arch=sm_90", "-c", "kernels/k.cu", "-o", "k.o"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
        texts.append(summarise(done.stdout + done.stderr))
    assert 'kernels/k.cu:3: error: identifier "undeclared" is undefined' in texts[0]
    assert texts[1].startswith("kernels/k.h:1: error:") and "(from kernels/k.cu:3)" in texts[1], texts[1]
    assert "detected during" not in texts[1]
