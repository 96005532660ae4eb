"""Low-rank adapters (arXiv 2106.09685) over one frozen backbone, several side by side, applied unmerged.

Actor and critic are two adapters of one model: the backbone is in memory once. Weights are float32 whatever
the backbone's dtype, since steps of a young adapter vanish in bfloat16. Files are those of PEFT, so that it,
vLLM and others read them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class AdaptedLinear(nn.Module):  # type: ignore[misc]
    """A frozen linear layer, plus (alpha / rank) B A x for the adapter that is active.

    Args:
        base: the layer.
        names: adapters.
        rank: of each.
        alpha: scale, as in the paper on LoRA.
    """

    def __init__(self, base: nn.Linear, names: Sequence[str], *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.active: str | None = None
        where = base.weight.device
        self.a = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(rank, base.in_features, device=where)) for name in names}
        )
        self.b = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(base.out_features, rank, device=where)) for name in names}
        )
        for matrix in self.a.values():
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, [..., out]."""
        y: Tensor = self.base(x)
        if self.active is None:
            return y
        a, b = self.a[self.active].to(x.dtype), self.b[self.active].to(x.dtype)
        return y + self.scale * nn.functional.linear(nn.functional.linear(x, a), b)


def add_adapters(model: nn.Module, names: Sequence[str], *, rank: int, alpha: float) -> None:
    """Freeze a decoder and put adapters on all its linear layers (the vocabulary's head is not among them).

    A new adapter changes nothing: B is 0. Drawn from torch's global generator.
    """
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(parent, AdaptedLinear):
                setattr(parent, key, AdaptedLinear(child, names, rank=rank, alpha=alpha))


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    """Every adapted layer and its name."""
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, AdaptedLinear))


@contextmanager
def adapter(model: nn.Module, name: str | None) -> Iterator[None]:
    """Within the block the named adapter is active; ``None``: the frozen backbone alone.

    The backward pass of a checkpointed model runs layers again: it belongs into the block too.
    """
    layers = [layer for _, layer in adapted_layers(model)]
    before = [layer.active for layer in layers]
    for layer in layers:
        layer.active = name
    try:
        yield
    finally:
        for layer, earlier in zip(layers, before, strict=True):
            layer.active = earlier


def adapter_parameters(model: nn.Module, name: str) -> list[nn.Parameter]:
    """The weights of one adapter."""
    return [weight for _, layer in adapted_layers(model) for weight in (layer.a[name], layer.b[name])]


def adapter_state(model: nn.Module, name: str) -> dict[str, Tensor]:
    """The weights of one adapter, by PEFT's names where ``model`` is the whole model."""
    state = {}
    for path, layer in adapted_layers(model):
        prefix = f"base_model.model.{path}"
        state[f"{prefix}.lora_A.weight"] = layer.a[name].detach()
        state[f"{prefix}.lora_B.weight"] = layer.b[name].detach()
    return state


@torch.no_grad()  # type: ignore[untyped-decorator]
def load_adapter_state(model: nn.Module, name: str, state: dict[str, Tensor]) -> None:
    """Inverse of :func:`adapter_state`.

    Raises:
        KeyError: a weight is missing.
    """
    for key, weight in adapter_state(model, name).items():
        weight.copy_(state[key])


def save_adapter(model: nn.Module, name: str, folder: Path, *, rank: int, alpha: float) -> None:
    """Write an adapter of a whole model as PEFT does: its weights and ``adapter_config.json``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    state = {key: weight.contiguous().cpu() for key, weight in adapter_state(model, name).items()}
    save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted({path.rsplit(".", 1)[-1] for path, _ in adapted_layers(model)})
    described: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "base_model_name_or_path": str(getattr(getattr(model, "config", None), "_name_or_path", "")),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
