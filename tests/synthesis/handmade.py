"""A dozen seeds written by hand: what mining gives, without mining."""

from __future__ import annotations

from typing import Any

from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.seed import Origin, Seed
from cuda_agent.synthesis.seed_rules import Form, InputRule, OptionRule, SizeRule, Spelling, Traits

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
BATCH = SizeRule("batch", 4)
PLANE = (SizeRule("height", 20), SizeRule("width", 24))
HALVES = ("float32", "float16", "bfloat16")
POINTWISE = Traits(shape_preserving=True, elementwise=True)


def function_seed(name: str, target: str, body: str, **known: Any) -> Seed:
    """A function of its inputs, without options in the constructor."""
    inputs = known.pop("inputs", (InputRule("input", dtypes=HALVES),))
    arguments = ", ".join(rule.name for rule in inputs)
    options = known.get("options", ())
    parameters = "".join(f", {rule.name}={rule.choices[0]!r}" for rule in options)
    stored = "".join(f"\n        self.{rule.name} = {rule.name}" for rule in options)
    source = (
        f"{HEAD}class {name}(nn.Module):\n"
        f"    def __init__(self{parameters}):\n        super().__init__(){stored}\n\n"
        f"    def forward(self, {arguments}):\n        return {body}\n"
    )
    positional = tuple(rule.name for rule in inputs)
    return Seed(
        id=target,
        op=target,
        origin=Origin.TORCH,
        kind="function",
        class_name=name,
        source=source,
        inputs=inputs,
        spelling=Spelling(target, is_module=False, positional=positional),
        **known,
    )


def module_seed(name: str, *, shape: tuple[str, ...], sizes: tuple[SizeRule, ...], **known: Any) -> Seed:
    """A module of torch.nn, its sizes by position."""
    arguments = tuple(rule.name for rule in sizes if rule.argument)
    source = (
        f"{HEAD}class {name}(nn.Module):\n"
        f"    def __init__(self, {', '.join(arguments)}):\n        super().__init__()\n"
        f"        self.op = nn.{name}({', '.join(arguments)})\n\n"
        f"    def forward(self, input):\n        return self.op(input)\n"
    )
    return Seed(
        id=f"torch.nn.{name}",
        op=f"nn.{name}",
        origin=Origin.TORCH,
        kind="module",
        class_name=name,
        source=source,
        sizes=sizes,
        inputs=(InputRule("input", dtypes=HALVES),),
        forms=(Form((shape,)),),
        spelling=Spelling(f"nn.{name}", is_module=True, positional=arguments),
        **known,
    )


ANY = (
    Form((("batch", "channels", "height", "width"),)),
    Form((("batch", "length", "features"),)),
    Form((("batch", "features"),)),
)
ANY_SIZES = (BATCH, SizeRule("channels", 12), *PLANE, SizeRule("length", 28), SizeRule("features", 36))

CONV = module_seed(
    "Conv2d",
    shape=("batch", "in_channels", "height", "width"),
    sizes=(
        SizeRule("in_channels", 12, argument=True),
        SizeRule("out_channels", 18, argument=True),
        SizeRule("kernel_size", 3, argument=True),
        BATCH,
        SizeRule("height", 20, least=3),
        SizeRule("width", 24, least=3),
    ),
    traits=Traits(has_parameters=True, linear=True, offset=True),
)
LINEAR = module_seed(
    "Linear",
    shape=("batch", "length", "in_features"),
    sizes=(
        SizeRule("in_features", 36, argument=True),
        SizeRule("out_features", 44, argument=True),
        BATCH,
        SizeRule("length", 28),
    ),
    traits=Traits(has_parameters=True, linear=True, offset=True),
)
GROUP_NORM = module_seed(
    "GroupNorm",
    shape=("batch", "num_channels", "height", "width"),
    sizes=(
        SizeRule("num_groups", 4, argument=True),
        SizeRule("num_channels", 24, multiple_of=4, argument=True),
        BATCH,
        *PLANE,
    ),
    traits=Traits(has_parameters=True, shape_preserving=True),
)
GELU = function_seed("Gelu", "F.gelu", "F.gelu(input)", sizes=ANY_SIZES, forms=ANY, traits=POINTWISE)
EXP = function_seed("Exp", "torch.exp", "torch.exp(input)", sizes=ANY_SIZES, forms=ANY, traits=POINTWISE)
TANH = function_seed("Tanh", "torch.tanh", "torch.tanh(input)", sizes=ANY_SIZES, forms=ANY, traits=POINTWISE)
CUMSUM = function_seed(
    "Cumsum",
    "torch.cumsum",
    "torch.cumsum(input, self.dim)",
    sizes=ANY_SIZES,
    forms=ANY,
    options=(OptionRule("dim", (1, -1), required=True),),
    traits=Traits(shape_preserving=True, linear=True),
)
AMAX = function_seed(
    "Amax",
    "torch.amax",
    "torch.amax(input, self.dim)",
    sizes=ANY_SIZES,
    forms=ANY,
    options=(OptionRule("dim", (-1, 1), required=True),),
    traits=Traits(reduces=True),
)
LOG = function_seed(
    "Log",
    "torch.log",
    "torch.log(input)",
    sizes=ANY_SIZES,
    forms=ANY,
    inputs=(InputRule("input", Law.POSITIVE, HALVES),),
    traits=POINTWISE,
)
BMM = function_seed(
    "Bmm",
    "torch.bmm",
    "torch.bmm(input, mat2)",
    sizes=(BATCH, SizeRule("rows", 20), SizeRule("inner", 28), SizeRule("columns", 36)),
    forms=(Form((("batch", "rows", "inner"), ("batch", "inner", "columns"))),),
    inputs=(InputRule("input", dtypes=HALVES), InputRule("mat2", dtypes=HALVES)),
    traits=Traits(linear=True),
)
RMS_NORM = Seed(
    id="transformers.LlamaRMSNorm",
    op="LlamaRMSNorm",
    origin=Origin.TRANSFORMERS,
    kind="norm",
    class_name="LlamaRMSNorm",
    source=(
        "import torch\nfrom torch import nn\n\n\nclass LlamaRMSNorm(nn.Module):\n"
        "    def __init__(self, hidden_size, eps=1e-6):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(hidden_size))\n        self.variance_epsilon = eps\n\n"
        "    def forward(self, hidden_states):\n"
        "        variance = hidden_states.pow(2).mean(-1, keepdim=True)\n"
        "        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))\n"
    ),
    sizes=(SizeRule("hidden_size", 36, argument=True), BATCH, SizeRule("length", 28)),
    options=(OptionRule("eps", (1e-6,), 1e-6),),
    inputs=(InputRule("hidden_states"),),
    forms=(Form((("batch", "length", "hidden_size"),)),),
    traits=Traits(has_parameters=True, shape_preserving=True),
)
SEEDS = (CONV, LINEAR, GROUP_NORM, GELU, EXP, TANH, CUMSUM, AMAX, LOG, BMM, RMS_NORM)
