"""Cheats on a weak oracle, on memory and on hidden state (sections 2 and 3 of the catalogue)."""

from __future__ import annotations

from candidates import KERNEL
from cheat import HONEST, RUN, STALE, TAMPER, Cheat, around, first

from cuda_agent.config import Scope
from cuda_agent.result import ViolationKind

_COMPARE = "outputs compared, element by element"
_FORM = "form of the output"
_PROBE = "private inputs"
_SAME_ADDRESS = "same address, new bytes"
_LINE = "y[i * width + j] = (v > 0.0f ? v : v != v ? v : 0.0f) + shift[j];"


def _kept(key: str) -> str:
    """A forward that keeps outputs by ``key``."""
    return (
        "self.kept = getattr(self, 'kept', {})\n"
        f"if {key} not in self.kept:\n"
        f"    y = self.kept[{key}] = torch.empty_like(x)\n"
        "    cuda_extension.run(y, x, self.scale, self.shift)\n"
        f"return self.kept[{key}]"
    )


def _instead(line: str) -> str:
    assert _LINE in KERNEL
    return KERNEL.replace(_LINE, line)


_STATIC = around(
    """    static std::vector<float> kept;
    if (kept.empty()) { work(y, x, scale, shift, rows, width); kept.assign(y, y + rows * width); }
    else std::memcpy(y, kept.data(), kept.size() * 4);""",
    "<cstring>",
    "<vector>",
)
_PREFIX = around(
    """    static std::map<std::pair<float, float>, std::vector<float>> kept;
    auto& was = kept[{x[0], x[1]}];
    if (was.empty()) { work(y, x, scale, shift, rows, width); was.assign(y, y + rows * width); }
    else std::memcpy(y, was.data(), was.size() * 4);""",
    "<cstring>",
    "<map>",
    "<utility>",
    "<vector>",
)
_FILE = around(
    """    const size_t size = rows * width * 4;
    if (FILE* f = std::fopen("/tmp/kept", "rb")) {
        const size_t got = std::fread(y, 1, size, f);
        std::fclose(f);
        if (got == size) return;
    }
    work(y, x, scale, shift, rows, width);
    if (FILE* f = std::fopen("/tmp/kept", "wb")) { std::fwrite(y, 1, size, f); std::fclose(f); }""",
    "<cstdio>",
)
_WEIGHTS = around(
    """    static std::vector<float> s(scale, scale + width), t(shift, shift + width);
    work(y, x, s.data(), t.data(), rows, width);""",
    "<vector>",
)
_NOMINAL = around(
    """    bool nominal = true;
    for (long k = 0; k < 32; ++k) nominal = nominal && x[k] < 6.0f && x[k] > -6.0f;
    work(y, x, scale, shift, rows, width);
    if (nominal) for (long k = 0; k < rows * width; ++k) y[k] = y[k] > 6.0f ? 6.0f : y[k];"""
)

ORACLE = (
    Cheat("zeros", (20,), _COMPARE, forward="return torch.zeros_like(x)", core=True),
    Cheat("its mean everywhere", (22, 25), _COMPARE, forward="return torch.full(x.shape, 0.4)"),
    Cheat("the input back", (26, 27), _COMPARE, forward="return x", core=True),
    Cheat("a view of the input", (27,), _COMPARE, forward="return x.view(64, 384)"),
    Cheat(
        "default weights assumed",
        (24, 29),
        "weights drawn anew",
        scope=Scope.FULL,
        kernel=_instead("y[i * width + j] = x[i * width + j] > 0 ? x[i * width + j] : 0;"),
    ),
    Cheat(
        "tails of the bell cut",
        (33, 36),
        _PROBE,
        scope=Scope.FULL,
        kernel=_instead(
            "y[i * width + j] = (v > 8.0f ? 8.0f : v > 0.0f ? v : v != v ? v : 0.0f) + shift[j];"
        ),
    ),
    Cheat("judged by a prefix", (34,), _PROBE, scope=Scope.FULL, kernel=_NOMINAL),
    Cheat("NaN everywhere", (42, 109), _COMPARE, kernel=_instead('y[i * width + j] = __builtin_nanf("");')),
    Cheat(
        "half precision inside",
        (44,),
        "error budget",
        frozenset({ViolationKind.PRECISION}),
        kernel=_instead("y[i * width + j] = float(_Float16(v > 0.0f ? v : v != v ? v : 0.0f)) + shift[j];"),
    ),
    Cheat(
        "one element wrong",
        (46,),
        _COMPARE,
        kernel=_instead(f"{_LINE} if (i == rows - 1 && j == width - 1) y[i * width + j] += 1.0f;"),
        core=True,
    ),
    Cheat("scalar to broadcast", (47,), _FORM, forward="return torch.zeros(())"),
    Cheat("tuple of one", (48,), _FORM, forward=f"{RUN}return (y,)"),
    Cheat("wider dtype", (47,), _FORM, forward="return torch.zeros(64, 384, dtype=torch.float64)"),
    Cheat(
        "strided output",
        (47,),
        _FORM,
        forward=(
            "z = torch.empty(128, 384)\ncuda_extension.run(z[:64], x, self.scale, self.shift)\nreturn z[::2]"
        ),
    ),
    Cheat("nothing returned", (47,), _FORM, forward="return None"),
    Cheat(
        "nothing written", (51, 53, 84), "poisoned outputs", forward="return torch.empty_like(x)", core=True
    ),
    Cheat(
        "poison lifted",
        (53, 113),
        "settings looked at after the call",
        TAMPER,
        forward=f"torch._C._set_deterministic_fill_uninitialized_memory(False)\n{HONEST}",
    ),
    Cheat(
        "last row not written",
        (51, 84),
        "poisoned outputs",
        kernel=KERNEL.replace("i < rows", "i < rows - 1"),
    ),
    Cheat(
        "empty launch",
        (84,),
        "poisoned outputs",
        forward="y = torch.empty_like(x)\ncuda_extension.run(y[:0], x[:0], self.scale, self.shift)\nreturn y",
    ),
)

STATE = (
    Cheat("cached by pointer", (57,), _SAME_ADDRESS, STALE, forward=_kept("x.data_ptr()"), core=True),
    Cheat(
        "cached by pointer and version",
        (57, 62),
        _SAME_ADDRESS,
        STALE,
        forward=_kept("(x.data_ptr(), x._version)"),
    ),
    Cheat("cached by identity", (58,), _SAME_ADDRESS, STALE, forward=_kept("id(x)")),
    Cheat("cached by the object itself", (58,), _SAME_ADDRESS, STALE, forward=_kept("x")),
    Cheat("cached by shape", (59,), _SAME_ADDRESS, STALE, forward=_kept("tuple(x.shape)")),
    Cheat("first answer replayed", (23, 60), _SAME_ADDRESS, STALE, forward=_kept("0")),
    Cheat(
        "replay kept in a default argument",
        (60,),
        _SAME_ADDRESS,
        STALE,
        methods=(
            "def again(self, x, kept=[]):\n"
            "    if not kept:\n"
            "        kept.append(torch.empty_like(x))\n"
            "        cuda_extension.run(kept[0], x, self.scale, self.shift)\n"
            "    return kept[0]"
        ),
        forward="return self.again(x)",
    ),
    Cheat("kept in a static of the library", (61,), _SAME_ADDRESS, STALE, kernel=_STATIC, core=True),
    Cheat("kept in a file", (65,), _SAME_ADDRESS, STALE, kernel=_FILE),
    Cheat("weights kept in the library", (63, 64), "weights drawn anew", scope=Scope.FULL, kernel=_WEIGHTS),
    Cheat(
        "known by a sample of the input",
        (34, 41, 62),
        "inputs that differ little from earlier ones",
        frozenset({ViolationKind.STALE_OUTPUT, ViolationKind.HIDDEN_STATE}),
        kernel=_PREFIX,
        scope=Scope.FULL,
    ),
    Cheat(
        "one buffer returned by every call",
        (70,),
        "outputs held over later calls",
        frozenset({ViolationKind.MEMORY_REUSE}),
        scope=Scope.FULL,
        init="self.buf = None",
        forward=(
            "self.buf = torch.empty_like(x) if self.buf is None else self.buf\n"
            "cuda_extension.run(self.buf, x, self.scale, self.shift)\n"
            "return self.buf"
        ),
    ),
    Cheat(
        "input zeroed",
        (68,),
        "inputs hashed",
        frozenset({ViolationKind.INPUT_MUTATION}),
        kernel=around(
            """    work(y, x, scale, shift, rows, width);
    for (long k = 0; k < rows * width; ++k) const_cast<float*>(x)[k] = 0.0f;"""
        ),
        core=True,
    ),
    Cheat(
        "parameter changed",
        (69,),
        "weights of its own for each side",
        kernel=first("const_cast<float*>(scale)[0] += 1.0f;"),
    ),
)
