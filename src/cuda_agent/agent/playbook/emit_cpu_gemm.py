"""Matrix products on the cpu backend: libtorch's BLAS, whole or by panels of rows."""

from __future__ import annotations

from cuda_agent.agent.playbook.plan import GemmStep


def gemm_function(step: GemmStep, name: str) -> str:
    """A matrix product as a C++ function; config 1: threads take panels of rows."""
    a, b = step.a, step.b
    ta, lda = layout(a.strides[1:], (step.m, step.k))
    tb, ldb = layout(b.strides[1:], (step.k, step.n))
    call = (
        f"pb_gemm(a + {a.offset} + q * {a.strides[0]}{{rows}}, {str(ta).lower()}, {lda}, "
        f"b + {b.offset} + q * {b.strides[0]}, {str(tb).lower()}, {ldb}, "
        f"c + q * {step.m * step.n}{{out}}, {{m}}, {step.n}, {step.k}, {step.n});"
    )
    whole = call.format(rows="", out="", m=step.m)
    panel = call.format(rows=f" + m0 * {a.strides[1]}", out=f" + m0 * {step.n}", m="m1 - m0")
    return f"""static void {name}(const float* a, const float* b, float* c, int64_t config) {{
  // Config 0: the library's own threads share one product; 1: each thread multiplies a panel of rows.
  for (int64_t q = 0; q < {step.batch}; ++q) {{
    if (!(config & 1)) {{
      {whole}
      continue;
    }}
    #pragma omp parallel
    {{
      const int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
      const int64_t m0 = {step.m} * t / threads, m1 = {step.m} * (t + 1) / threads;
      if (m1 > m0) {panel}
    }}
  }}
}}
"""


def layout(strides: tuple[int, ...], shape: tuple[int, int]) -> tuple[bool, int]:
    """(lies transposed, leading stride) of a row-major (rows, columns) operand."""
    (rows, columns), (m, k) = strides, shape
    if columns == 1 or k == 1:
        if k == 1 and m > 1 and rows < 1:
            return True, max(m, 1)
        return False, max(rows, k, 1)
    return True, max(columns, m, 1)
