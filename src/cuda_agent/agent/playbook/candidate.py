"""A whole candidate: kernels, binding and model_new.py, and what can be tuned in it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from cuda_agent.agent.playbook import library
from cuda_agent.agent.playbook.affine import Shape, is_contiguous
from cuda_agent.agent.playbook.backends import Emitted, KernelBackend, Knob
from cuda_agent.agent.playbook.graph import Captured, Case, GraphInput
from cuda_agent.agent.playbook.ir import Unsupported
from cuda_agent.agent.playbook.lower import lower
from cuda_agent.agent.playbook.model_source import Skeleton, bound_names, skeleton
from cuda_agent.agent.playbook.plan import ITEMSIZE, GemmStep, Plan, plan

ALIGNMENT = 256
"""Bytes that temporaries are aligned to."""


@dataclass(frozen=True)
class CasePlan:
    """One input case: its graph, its plan, its kernels in order, and where temporaries lie.

    Attributes:
        offsets: byte offset of each temporary in the workspace.
        workspace: its size, bytes.
        tensors: names of the buffers passed in, in order (sources, workspace, outputs).
    """

    case: Case
    plan: Plan
    emitted: tuple[Emitted, ...]
    offsets: dict[str, int]
    workspace: int
    tensors: tuple[str, ...]

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What can be tuned, one for each step."""
        return tuple(e.knob for e in self.emitted)


@dataclass
class Candidate:
    """Everything written to a workspace; ``config`` holds one number for each step of each case."""

    backend: KernelBackend
    cases: list[CasePlan]
    frame: Skeleton
    config: list[list[int]] = field(default_factory=list)

    def kernel_file(self) -> str:
        """Path of the generated kernels."""
        return f"kernels/fused{self.backend.suffix}"

    def binding_file(self) -> str:
        """Path of the binding."""
        return "kernels/fused_binding.cpp"

    def kernel_source(self) -> str:
        """Text of the generated kernels."""
        functions: dict[str, str] = {}
        entries = []
        for index, case in enumerate(self.cases):
            functions.update((e.name, e.text) for e in case.emitted)
            entries.append(_entry(self.backend, index, case))
        names = {name for case in self.cases for e in case.emitted for name in e.sections}
        parts = [
            library.select(self.backend.library, names | {"pack"}),
            *functions.values(),
            *entries,
            _dispatch(len(entries)),
        ]
        return "\n".join(parts)

    def binding_source(self) -> str:
        """Text of the binding; the same for every candidate of a backend."""
        return library.text(self.backend.binding)

    def config_text(self) -> str:
        """The line of model_new.py that sets CONFIG."""
        return f"CONFIG = {self.config!r}"

    def model_source(self) -> str:
        """Text of model_new.py."""
        return _model(self)


def make_candidate(captured: Captured, source: str, backend: KernelBackend) -> Candidate:
    """Plan and emit a captured module.

    Args:
        source: text of model.py.

    Raises:
        Unsupported: names the first thing that is not covered.
    """
    cases = []
    names: dict[str, str] = {}
    for case in captured.cases:
        planned = plan(backend.rewrite(lower(case)))
        emitted = tuple(_named(backend, step, names) for step in planned.steps)
        cases.append(_case_plan(case, planned, emitted))
    frame = skeleton(source, captured.state)
    attributes = any(i.kind == "const" and i.value is None for c in captured.cases for i in c.inputs)
    if attributes and not frame.owns_attributes:
        raise Unsupported("the constructor cannot be reused and a tensor attribute is not in the state_dict")
    return Candidate(backend, cases, frame, [[k.default for k in c.knobs] for c in cases])


def _named(backend: KernelBackend, step: Any, names: dict[str, str]) -> Emitted:
    """Emit a step; a kernel whose text exists already (another case) is shared."""
    anonymous = backend.emit(step, "NAME")
    name = names.setdefault(anonymous.text, f"k{len(names)}")
    return backend.emit(step, name)


def _case_plan(case: Case, planned: Plan, emitted: tuple[Emitted, ...]) -> CasePlan:
    used = {b for step in planned.steps for b in step.buffers}
    sources = [i.name for i in case.inputs if i.name in used]
    scratch = {f"x{k}": e.scratch for k, e in enumerate(emitted) if e.scratch}
    offsets, size = _offsets(planned, scratch)
    outputs = list(dict.fromkeys(planned.outputs))
    tensors = [*sources, *(["workspace"] if size else []), *outputs]
    if len(tensors) > 1024:
        raise Unsupported("the module uses more than 1024 tensors")
    return CasePlan(case, planned, emitted, offsets, size, tuple(tensors))


def _offsets(planned: Plan, scratch: dict[str, int]) -> tuple[dict[str, int], int]:
    """Place temporaries; memory is used again after the last step that reads it."""
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for index, step in enumerate(planned.steps):
        for name in step.buffers:
            last[name] = index
            first.setdefault(name, index)
    spans = {n: (first[n], last[n], _bytes(planned, n)) for n in planned.temporaries if n in first}
    spans.update({n: (int(n[1:]), int(n[1:]), size) for n, size in scratch.items()})
    placed: list[tuple[int, int, str]] = []  # start byte, end byte, name
    offsets: dict[str, int] = {}
    for name, (begin, end, size) in sorted(spans.items(), key=lambda item: -item[1][2]):
        rounded = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        alive = sorted(p for p in placed if spans[p[2]][0] <= end and spans[p[2]][1] >= begin)
        position = 0
        for start, stop, _ in alive:
            if start - position >= rounded:
                break
            position = max(position, stop)
        offsets[name] = position
        placed.append((position, position + rounded, name))
    return offsets, max((stop for _, stop, _ in placed), default=0)


def _bytes(planned: Plan, name: str) -> int:
    return prod(planned.shapes[name]) * ITEMSIZE[planned.storage[name]]


# C side


def _pointer(backend: KernelBackend, case: CasePlan, name: str) -> str:
    ctype = backend.c_types[case.plan.storage[name]]
    if name in case.offsets:
        slot = case.tensors.index("workspace")
        return f"({ctype}*)((char*)p[{slot}] + {case.offsets[name]})"
    return f"({ctype}*)p[{case.tensors.index(name)}]"


def _entry(backend: KernelBackend, index: int, case: CasePlan) -> str:
    lines = [f"static const char* case{index}(void* const* p, const int64_t* config, void* stream) {{"]
    for position, (step, emitted) in enumerate(zip(case.plan.steps, case.emitted, strict=True)):
        names = [step.a.buffer, step.b.buffer, step.out] if isinstance(step, GemmStep) else step.buffers
        args = [_pointer(backend, case, n) for n in names]
        if emitted.scratch:
            slot = case.tensors.index("workspace")
            args.append(f"(char*)p[{slot}] + {case.offsets[f'x{position}']}")
        lines.append("  " + backend.call(emitted.name, args, f"config[{position}]"))
    return "\n".join([*lines, "  (void)stream;", "  return nullptr;", "}"])


def _dispatch(num_cases: int) -> str:
    cases = "\n".join(f"    case {k}: return case{k}(p, config, stream);" for k in range(num_cases))
    return f"""extern "C" const char* playbook_run(
    int entry, void* const* p, const int64_t* config, void* stream) {{
  switch (entry) {{
{cases}
  }}
  return "no such entry";
}}
"""


# Python side

_HEADER = '''"""{title}

{summary}
"""

{imports}

import cuda_extension

{head}
{config}
"""Launch parameters of each kernel, for each input case: {legend}."""


def _contiguous(tensor, strides):
    """The tensor itself where it lies as the kernels expect, else packed by a kernel of ours."""
    if tensor.stride() == strides or tensor.is_contiguous() and strides is None:
        return tensor
    packed = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    cuda_extension.pack(tensor, packed)
    return packed


class ModelNew(nn.Module):
{body}
'''


def _model(candidate: Candidate) -> str:
    frame = candidate.frame
    head = frame.head
    bound = bound_names(head)
    imports = [
        line
        for line, name in (("import torch", "torch"), ("from torch import nn", "nn"))
        if name not in bound
    ]
    future = "from __future__ import annotations\n"
    if future in head + "\n":
        head = (head + "\n").replace(future, "")
        imports.insert(0, future)
    methods = [frame.body, _forward(candidate)]
    methods += [_run(candidate, index) for index in range(len(candidate.cases))]
    if held := _held(candidate):
        methods.append(held)
    legend = "; ".join(dict.fromkeys(k.legend for c in candidate.cases for k in c.knobs))
    steps = [len(c.plan.steps) for c in candidate.cases]
    return _HEADER.format(
        title=f"{sum(steps)} kernel launches instead of one for each operator.",
        summary=textwrap.fill(_summary(candidate), 100),
        imports="\n".join(imports),
        head=head.strip() + "\n",
        config=candidate.config_text(),
        legend=legend or "none",
        body=textwrap.indent("\n\n".join(methods), "    "),
    )


def _summary(candidate: Candidate) -> str:
    kinds = [e.knob.what for e in candidate.cases[0].emitted]
    return "In order: " + ", ".join(kinds) + "."


def _inputs(case: CasePlan) -> list[GraphInput]:
    return [i for i in case.case.inputs if i.kind == "input"]


def _test(candidate: Candidate, case: CasePlan) -> str:
    tests = []
    for entry in _inputs(case):
        name = candidate.frame.argument(entry.path)
        tests.append(f"{name}.shape == {_tuple(entry.shape)} and {name}.dtype == torch.{entry.dtype}")
    tests += _fixed_tests(candidate.frame, case)
    return " and ".join(tests) or "True"


def _fixed_tests(frame: Skeleton, case: CasePlan) -> list[str]:
    """Arguments that are no tensors went into the kernels as they were: others need other kernels."""
    passed = {frame.argument(path): value for path, value in case.case.fixed}
    used = {frame.argument(i.path[:1]) for i in _inputs(case)}
    for name, default in frame.defaults:
        if name not in used and name not in passed:
            passed[name] = default
    return [f"{n} is {v}" if v in ("None", "True", "False") else f"{n} == {v}" for n, v in passed.items()]


def _tuple(shape: Shape) -> str:
    return repr(tuple(shape))


def _forward(candidate: Candidate) -> str:
    lines = [f"def forward({candidate.frame.signature}):"]
    for index, case in enumerate(candidate.cases):
        args = [candidate.frame.argument(i.path) for i in _inputs(case)]
        lines.append(f"    if {_test(candidate, case)}:")
        own = candidate.frame.signature.split(",")[0].strip()
        lines.append(f"        return {own}._case{index}({', '.join(args)})")
    lines.append(
        '    raise ValueError("these shapes or dtypes are not among those the kernels were made for")'
    )
    return "\n".join(lines)


def _run(candidate: Candidate, index: int) -> str:
    case = candidate.cases[index]
    inputs = {i.name: f"a{k}" for k, i in enumerate(_inputs(case))}
    lines = [f"def _case{index}({', '.join(['self', *inputs.values()])}):"]
    expressions = dict(inputs)
    device = next((f"{a}.device" for a in inputs.values()), "")
    for entry in case.case.inputs:
        if entry.name not in case.tensors:
            continue
        if entry.kind == "input":
            lines.append("    " + _ready(entry, inputs[entry.name]))
        else:
            expressions[entry.name] = _state(candidate, entry)
            device = device or f"{expressions[entry.name]}.device"
    if not device:
        raise Unsupported("the module's output depends on no tensor")
    lines.append(f"    device = {device}")
    shapes = _output_shapes(case)
    for name in dict.fromkeys(case.plan.outputs):
        dtype = case.plan.storage[name]
        shape = _tuple(shapes[name])
        lines.append(f"    {name} = torch.empty({shape}, dtype=torch.{dtype}, device=device)")
    if case.workspace:
        lines.append(f"    workspace = torch.empty(({case.workspace},), dtype=torch.uint8, device=device)")
    tensors = ", ".join(expressions.get(n, n) for n in case.tensors)
    lines.append(f"    cuda_extension.run({index}, [{tensors}], CONFIG[{index}])")
    lines.append(f"    return {_structure(case, shapes)}")
    return "\n".join(lines)


def _ready(entry: GraphInput, name: str) -> str:
    if is_contiguous(entry.shape, entry.strides):
        return f"{name} = {name} if {name}.is_contiguous() else _contiguous({name}, None)"
    return f"{name} = _contiguous({name}, {_tuple(entry.strides)})"


def _state(candidate: Candidate, entry: GraphInput) -> str:
    if entry.kind == "const" and candidate.backend.holds_constants:
        return f"self._constant({entry.target!r}, device)"
    return "self." + ".".join(
        f"{part}" if part.isidentifier() else f"_modules[{part!r}]" for part in entry.target.split(".")
    ).replace("._modules", "._modules")


def _held(candidate: Candidate) -> str:
    """Plain tensor attributes do not follow the module to the device: keep copies there."""
    entries = [i for c in candidate.cases for i in c.case.inputs if i.kind == "const" and i.value is None]
    if not entries or not candidate.backend.holds_constants:
        return ""
    names = sorted({i.target for i in entries})
    reads = ", ".join(f"{n!r}: self.{n}.to(device)" for n in names)
    return f"""def prepare(self, device=None):
    if device is None:
        held = next((t for t in (*self.parameters(), *self.buffers())), None)
        device = torch.device("cuda") if held is None else held.device
    self._constants = {{{reads}}}

def _constant(self, name, device):
    if "_constants" not in self.__dict__:
        self.prepare(device)
    return self._constants[name]"""


def _output_shapes(case: CasePlan) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, shape in zip(case.plan.outputs, case.plan.output_shapes, strict=True):
        shapes.setdefault(name, shape)
    return shapes


def _structure(case: CasePlan, shapes: dict[str, Shape]) -> str:
    leaves = iter(zip(case.plan.outputs, case.plan.output_shapes, strict=True))

    def text(tree: Any) -> str:
        if "v" in tree:
            name, shape = next(leaves)
            return name if shapes[name] == shape else f"{name}.view({_tuple(shape)})"
        if "c" in tree:
            return repr(tree["c"])
        if "dict" in tree:
            return "{" + ", ".join(f"{k!r}: {text(v)}" for k, v in tree["dict"]) + "}"
        kind, children = next(iter(tree.items()))
        inner = ", ".join(text(c) for c in children)
        if kind == "list":
            return f"[{inner}]"
        return f"({inner},)" if len(children) == 1 else f"({inner})"

    return text(case.case.tree)


def variants(candidate: Candidate) -> Sequence[tuple[int, int, int]]:
    """Every alternative to the current configuration: (case, step, value), most promising first."""
    found = []
    for c, case in enumerate(candidate.cases):
        for s, knob in enumerate(case.knobs):
            found += [(rank, c, s, v) for rank, v in enumerate(knob.choices) if v != candidate.config[c][s]]
    return [(c, s, v) for _, c, s, v in sorted(found)]
