"""What a cheat is: a candidate that must be refused, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from candidates import KERNEL, write_candidate

from cuda_agent.config import Scope
from cuda_agent.result import ViolationKind

RUN = """
y = torch.empty_like(x)
cuda_extension.run(y, x, self.scale, self.shift)
"""
HONEST = f"{RUN}return y"
TORCH = "return torch.relu(x * self.scale) + self.shift"

COMPUTE = frozenset({ViolationKind.TORCH_COMPUTE})
STALE = frozenset({ViolationKind.STALE_OUTPUT})
TAMPER = frozenset({ViolationKind.TAMPERING})
ESCAPE = frozenset({ViolationKind.PROCESS_ESCAPE})
IMPORT = frozenset({ViolationKind.FORBIDDEN_IMPORT})
# Refused as wrong or failed: no rule is named, the output or the process speaks for itself.
WRONG: frozenset[ViolationKind] = frozenset()


@dataclass(frozen=True)
class Cheat:
    """One candidate that cheats on the task of ``candidates.py``.

    Attributes:
        name: unique; the test's id and the key in docs/cheats.md.
        hacks: its numbers in the catalogue of exploits that docs/cheats.md follows.
        defence: what refuses it, as docs/cheats.md says.
        kinds: rules of which one must be named, and no other; empty: none may be named.
        scope: what of the judge runs.
        core: in the default suite; else slow.
    """

    name: str
    hacks: tuple[int, ...]
    defence: str
    kinds: frozenset[ViolationKind] = WRONG
    forward: str = HONEST
    imports: str = ""
    init: str = ""
    methods: str = ""
    kernel: str = KERNEL
    files: dict[str, str] = field(default_factory=dict)
    scope: Scope = Scope.VERIFY
    core: bool = False

    def write(self, folder: Path) -> Path:
        """Its workspace, in ``folder``."""
        write_candidate(
            folder,
            kernel=self.kernel,
            forward=self.forward,
            imports=self.imports,
            init=self.init,
            methods=self.methods,
        )
        for name, text in self.files.items():
            (folder / name).write_text(text)
        return folder


def first(statement: str, kernel: str = KERNEL) -> str:
    """A kernel with a statement before its loops."""
    return kernel.replace("    for (long i", f"    {statement}\n    for (long i", 1)


def as_work(kernel: str = KERNEL) -> str:
    """A kernel as a function named ``work``, for others to call."""
    return kernel.replace('extern "C" void run_kernel', "static void work")


def around(body: str, *headers: str) -> str:
    """An entry whose body may call ``work``, the honest kernel."""
    return (
        "".join(f"#include {header}\n" for header in headers)
        + as_work()
        + 'extern "C" void run_kernel(float* y, const float* x, const float* scale, const float* shift,\n'
        + f"                           long rows, long width) {{\n{body}\n}}\n"
    )
