"""CUDA kernels for odd widths, run on the host: every lane, every distance from a boundary, no byte outside.

The text is what the emitters write; only the launch syntax and the headers are replaced (cuda_on_host.h).
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cuda_agent.agent.playbook import library
from cuda_agent.agent.playbook.emit_cuda import Launch
from cuda_agent.agent.playbook.emit_cuda_edge import cuda_source, edge_emitter
from cuda_agent.agent.playbook.expr import functions_used
from cuda_agent.agent.playbook.ir import CType, Pointwise, Program, Reduce, Source, Value
from cuda_agent.agent.playbook.kernel import Kernel
from cuda_agent.agent.playbook.plan import plan

ROWS = 8  # every distance of a row from a boundary, and as many bytes as end at a page
HOST = Path(__file__).with_name("cuda_on_host.h")

CHECK = """
template <typename X, typename F>
static int check(const char* name, int width, int configs, bool reduces, F run) {
  int wrong = 0;
  for (int config = 0; config <= configs; ++config) {
    for (int at_end = 0; at_end < 2; ++at_end) {
      const size_t n = (size_t)ROWS * width;
      X* x = (X*)guarded(n * sizeof(X), at_end);
      X* z = (X*)guarded(n * sizeof(X), at_end);
      X* y = (X*)guarded(n * sizeof(X), at_end);
      X* w = (X*)guarded(width * sizeof(X), false);
      for (size_t k = 0; k < n; ++k) {
        x[k] = (X)std::sin(k * 0.7 + 1), z[k] = (X)std::cos(k * 0.3), y[k] = (X)99;
      }
      for (int k = 0; k < width; ++k) w[k] = (X)(1 + 0.01 * k);
      backwards = at_end;
      if (run(x, w, z, y, config == configs ? -1 : config)) ++wrong;
      for (int row = 0; row < ROWS; ++row) {
        double top = -1e30, sum = 0;
        for (int c = 0; c < width; ++c) top = std::max(top, (double)x[row * width + c]);
        for (int c = 0; c < width; ++c) sum += std::exp((double)x[row * width + c] - top);
        for (int c = 0; c < width; ++c) {
          const size_t k = (size_t)row * width + c;
          const double e = reduces ? std::exp((double)x[k] - top) / sum : (double)x[k];
          const double exact = e * (double)w[c] + (double)z[k];
          if (!(std::fabs(exact - (double)y[k]) <= (sizeof(X) == 4 ? 1e-6 : 4e-3) * (1 + std::fabs(exact)))) {
            if (++wrong < 4) printf("%s width %d config %d row %d lane %d: %g for %g\\n", name, width, config,
                                    row, c, (double)y[k], exact);
          }
        }
      }
    }
  }
  return wrong;
}
"""


def kernel(width: int, dtype: str, *, reduces: bool) -> Kernel:
    """``softmax(x) * w + z`` over rows of a width, or ``x * w + z``: two inputs of rows, one of columns."""
    shape = (ROWS, width)
    x, z = (Source(shape, dtype, name, (width, 1)) for name in ("x", "z"))
    w = Source((width,), dtype, "w", (1,))
    value: Value = x
    if reduces:
        top = Reduce((ROWS, 1), dtype, "max", x, (1,))
        e = Pointwise(shape, dtype, "exp", (Pointwise(shape, dtype, "sub", (x, top), CType.F),), CType.F)
        value = Pointwise(shape, dtype, "div", (e, Reduce((ROWS, 1), dtype, "sum", e, (1,))), CType.F)
    scaled = Pointwise(shape, dtype, "mul", (value, w), CType.F)
    out = Pointwise(shape, dtype, "add", (scaled, z), CType.F)
    [step] = plan(Program({"x": x, "z": z, "w": w}, [out])).steps
    assert isinstance(step, Kernel)
    return step


def hosted(text: str) -> str:
    """Kernel text with host launches."""
    pattern = r"(\w+_kernel<[^>]*>)<<<(dim3\([^)]*\)), (dim3\([^)]*\)), 0, stream>>>\((.*?)\);"
    text = text.replace("__shared__ alignas(16)", "alignas(16) __shared__")
    return re.sub(pattern, r"pb_launch(\2, \3, [&] { \1(\4); });", text)


def program(cases: list[tuple[int, str, bool]]) -> tuple[str, list[Launch]]:
    """A whole host program that checks the cases (width, dtype, with reductions), and all launches in it."""
    parts, calls, used, every = [CHECK], [], {"reduce", "divisor", "edge"}, []
    for width, dtype, reduces in cases:
        made, name = kernel(width, dtype, reduces=reduces), f"k_{width}_{dtype}_{int(reduces)}"
        text, launches = cuda_source(made, name)
        every += launches
        used |= functions_used([made])
        parts.append(hosted(text))
        order = ", ".join(made.buffers).replace("o0", "y")
        x = "__half" if dtype == "float16" else "float"
        calls.append(
            f'wrong += check<{x}>("{name}", {width}, {len(launches) - 1}, {str(reduces).lower()}, []({x}* x, '
            f"{x}* w, {x}* z, {x}* y, int64_t config) {{ return {name}({order}, config, nullptr); }});"
        )
    prelude = library.select("cuda_math.cuh", [])
    vector = prelude[prelude.index("// V neighbouring") :]
    sections = library.select("cuda_math.cuh", used).removeprefix(prelude.rstrip())
    head = f'#include "{HOST}"\n#include <algorithm>\n#define ROWS {ROWS}\n{vector}\n{sections}\n'
    main = "int main() {\n  int wrong = 0;\n  " + "\n  ".join(calls) + "\n  return wrong ? 1 : 0;\n}\n"
    return head + "\n".join(parts) + main, every


CASES = {
    "rows": [(width, "float32", True) for width in range(16, 71)],
    "half_rows": [(width, "float16", True) for width in range(33, 70, 5)],
    "flat": [(width, "float32", False) for width in range(17, 71, 7)] + [(77, "float16", False)],
    "long_rows": [(1027, "float32", True), (8189, "float32", True), (4099, "float16", True)],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_lane_is_lost_and_nothing_outside_is_touched(name: str, tmp_path: Path) -> None:
    text, launches = program(CASES[name])
    assert any(launch.edge for launch in launches)
    (tmp_path / "host.cpp").write_text(text)
    argv = ["g++", "-std=c++20", "-O1", "-w", "host.cpp", "-o", "host"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run(["./host"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("width", "offered"), [(8189, True), (8190, True), (8192, False), (9, False)])
def test_vectors_across_row_starts_come_first_where_the_width_is_odd(width: int, offered: bool) -> None:
    made = kernel(width, "float32", reduces=True)
    _, launches = cuda_source(made, "k")
    assert (edge_emitter(made) is not None) == offered
    assert launches[0].edge == offered
    assert not launches[-1].edge
    assert launches[-1].v == 1, "unaligned pointers take the scalar kernel"
