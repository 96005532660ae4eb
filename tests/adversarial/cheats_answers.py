"""Answers that no worker gives (section 6 of the catalogue): forged on the channel, or honest and hostile."""

from __future__ import annotations

import json

from cheat import Cheat, first

_FORM = "an answer of no known form is a crash"
_TEXT = "texts of a worker are cut and made plain"
_HEADERS = "".join(f"#include <{name}>\n" for name in ("cstdint", "string", "sys/stat.h", "unistd.h"))
_SEND = """{
        std::string said = R"__(%s)__";
        const uint32_t size = said.size();
        said = std::string((const char*)&size, 4) + std::string(1, 0) + said;
        struct stat s;
        for (int fd = 3; fd < 64; ++fd)
            if (fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode)) (void)!write(fd, said.data(), said.size());
    }"""
_TENSOR = {"tensor": "float32", "offset": 0, "extent": 24576, "shape": [64, 384], "stride": [384, 1]}


def _forged(message: str) -> str:
    """The kernel, which first answers the judge in its worker's place."""
    return _HEADERS + first(_SEND % message)


def _answer(root: object = _TENSOR, **fields: object) -> str:
    honest = {"overflow": False, "devices": ["cpu"], "operators": [], "shared": False, "tampered": False}
    return json.dumps({"plan": {"root": root, "nbytes": 98304}, **honest, **fields})


def _nested(depth: int) -> object:
    node: object = {"value": 1}
    for _ in range(depth):
        node = {"list": [node]}
    return node


_FORGED = {
    "operators without names": _answer(operators=[1, None]),
    "devices without names": _answer(devices=[[]]),
    "a plan that is none": _answer(5, overflow=True),
    "a plan nested deep": _answer(_nested(200), overflow=True),
    "a tensor without a shape": _answer({"list": [{"tensor": 1}]}, overflow=True),
    "a tensor past its memory": _answer({**_TENSOR, "offset": 1 << 40}),
    "few bytes as a huge tensor": _answer(
        {**_TENSOR, "extent": 1, "shape": [400_000, 400_000], "stride": [0, 0]}
    ),
    "keys missing": "{}",
    "an error that is none": '{"error": 7}',
    "blame on the task": '{"error": {"kind": "task", "message": "m", "trace": ""}}',
}
_CORE = ("operators without names",)

ANSWERS = (
    *(
        Cheat(f"forged: {name}", (106, 107, 109), _FORM, kernel=_forged(message), core=name in _CORE)
        for name, message in _FORGED.items()
    ),
    Cheat(
        "one element as a huge output",
        (47, 96),
        "only small failures are copied for `explain`",
        forward="return torch.zeros(1).expand(400_000, 400_000)",
        core=True,
    ),
    Cheat("error that cannot be written", (104,), _TEXT, forward="raise ValueError(chr(0xD800))"),
    Cheat("output that cannot be written", (104,), _TEXT, forward="return chr(0xD800)"),
    Cheat("output of endless text", (104,), _TEXT, forward="return 'x' * 30_000_000"),
)
