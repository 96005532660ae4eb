"""One answer without tools: what the policy reads, and the files that its text holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cuda_agent.errors import WorkspaceError
from cuda_agent.workspace.snapshot import KERNEL_DIR, MODEL_FILE, SUFFIXES, checked_name

SYSTEM = (
    "You are an engineer who writes fast compute kernels. You answer once, with whole files; nobody answers "
    "back. Stay within the rules given: an answer that breaks one counts as wrong, however fast it is."
)

_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)[ \t]*$", re.M | re.S)
_SUFFIX = "|".join(sorted(suffix.removeprefix(".") for suffix in SUFFIXES))
_PATH = re.compile(rf"(?:{re.escape(MODEL_FILE)}|{KERNEL_DIR}/[\w./-]+?\.(?:{_SUFFIX}))(?![\w.])")
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)
_CLASS_NEW = re.compile(r"^class ModelNew\b", re.M)


def answer_files(text: str) -> Mapping[str, bytes]:
    """The files of an answer: fenced blocks, each named by the last path on the line or lines before it.

    A name may also stand beside the fence's language, or in the block's first line when that is a comment;
    a block without any that defines ``ModelNew`` is ``model_new.py``. Of blocks with one name the last
    counts. Names that a candidate may not have are passed over.

    Returns:
        Content by path, empty where there is none.
    """
    text = _THOUGHT.sub("", text).replace("\r\n", "\n")
    files: dict[str, bytes] = {}
    end = 0
    for fence in _FENCE.finditer(text):
        name = _name(text[end : fence.start()], fence["info"], fence["body"])
        end = fence.end()
        if name is not None:
            files[name] = fence["body"].encode()
    return files


def _name(before: str, info: str, body: str) -> str | None:
    lines = [line for line in before.splitlines() if line.strip()]
    first = body.split("\n", 1)[0].strip()
    comment = first if first.startswith(("//", "#", "/*")) and not first.startswith("#include") else ""
    for text in (info, *reversed(lines[-2:]), comment):
        if found := _PATH.findall(text):
            try:
                return str(checked_name(found[-1]))
            except WorkspaceError:
                return None
    return MODEL_FILE if _CLASS_NEW.search(body) else None
