"""The modules that the main job is measured on: one for each kind the playbook covers.

``source(name, device)`` gives a task file in KernelBench's form, sized for the device: on a GPU about a
gigabyte moves in one call, on a CPU a few tens of megabytes.
"""

from __future__ import annotations

from textwrap import dedent, indent

_SIZES = {
    "cpu": {"N": 512, "D": 2048, "B": 256, "H": 512},
    "cuda": {"N": 16384, "D": 8192, "B": 4096, "H": 4096},
}

_MODULES: dict[str, tuple[str, str, str]] = {
    # name: (body of __init__, body of forward, inputs)
    "fused_chain": (
        "",
        "return torch.tanh(torch.nn.functional.leaky_relu(x * 1.5 + 0.25, 0.1)) * torch.sigmoid(x)",
        "torch.randn(N, D)",
    ),
    "softmax_odd_width": ("", "return torch.softmax(x, dim=-1)", "torch.randn(N, D - 3)"),
    "layernorm_gelu": (
        "self.norm = nn.LayerNorm(D)",
        "return torch.nn.functional.gelu(self.norm(x))",
        "torch.randn(N, D)",
    ),
    "linear_bias_silu": (
        "self.linear = nn.Linear(H, H)",
        "return torch.nn.functional.silu(self.linear(x))",
        "torch.randn(B, H)",
    ),
    "two_outputs": (
        "",
        "y = x * torch.sigmoid(x)\nreturn y, y.mean(dim=-1)",
        "torch.randn(N, D)",
    ),
    "buffer": (
        'self.register_buffer("table", torch.linspace(-1, 1, D))\nself.gain = nn.Parameter(torch.ones(D))',
        "return torch.relu(x - self.table) * self.gain",
        "torch.randn(N, D)",
    ),
    "float16_rmsnorm": (
        "self.weight = nn.Parameter(torch.ones(D, dtype=torch.float16))",
        "v = x.float()\n"
        "return (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6)).half() * self.weight",
        "torch.randn(N, D).half()",
    ),
}

NAMES = tuple(_MODULES)


def source(name: str, device: str) -> str:
    """Task source of a module for ``cpu`` or ``cuda``."""
    init, forward, inputs = _MODULES[name]
    sizes = "\n".join(f"{key} = {value}" for key, value in _SIZES[device].items())
    body = dedent(
        """
        import torch
        import torch.nn as nn

        {sizes}


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
        {init}
            def forward(self, x):
        {forward}


        def get_inputs():
            return [{inputs}]


        def get_init_inputs():
            return []
        """
    )
    return body.format(
        sizes=sizes, init=indent(init, " " * 8), forward=indent(forward, " " * 8), inputs=inputs
    )
