"""A model with its adapter merged, as a folder that transformers and vLLM load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_agent.errors import InfrastructureError, UsageError

_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def export_model(base: Path, adapter: Path | None, out: Path) -> int:
    """Merge an adapter into a model and save it, in the dtype the model is stored in.

    The sum W + (alpha / rank) B A is made in float32 and rounded once.

    Args:
        base: folder of the model.
        adapter: folder as PEFT and ``cuda-agent train`` write it; ``None`` copies the model as it is.
        out: folder to make.

    Returns:
        Matrices that an adapter was merged into.

    Raises:
        UsageError: a folder is missing or taken, or the adapter is of another model or kind.
        InfrastructureError: the model cannot be read, or there is no room.
    """
    if out.exists():
        raise UsageError(f"{out} exists", "Name a new --out.")
    if not (base / "config.json").is_file():
        raise UsageError(f"no model at {base}", "Name a folder of transformers: cuda-agent models list.")
    model, tokenizer = _load(base)
    merged = 0 if adapter is None else merge(model, adapter)
    fresh = out.with_name(f".{out.name}.partial")
    try:
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        fresh.rename(out)
    except OSError as error:
        raise InfrastructureError(
            f"cannot write {out}: {error.strerror or error}", "Is there room?"
        ) from None
    return merged


def merge(model: Any, adapter: Path) -> int:
    """Add an adapter's product to the weights of a model, in place.

    Returns:
        Matrices changed.

    Raises:
        UsageError: no adapter there, one of another kind, or one whose layers the model lacks.
    """
    import torch

    config, state = _read(adapter)
    scale = float(config["lora_alpha"]) / float(config["r"])
    weights = dict(model.named_parameters())
    number = 0
    with torch.no_grad():
        for path, a, b in _pairs(state, adapter):
            weight = weights.get(f"{path}.weight")
            if weight is None or weight.shape != (b.shape[0], a.shape[1]):
                raise UsageError(f"{adapter} has an adapter of {path}, the model no such layer", _WRONG)
            weight.copy_(weight.float() + scale * (b.float() @ a.float()))
            number += 1
    if number == 0:
        raise UsageError(f"{adapter} holds no adapter matrices", _WRONG)
    return number


_WRONG = "Is it the adapter of this model?"


def _read(adapter: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        state = load_file(adapter / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError):
        raise UsageError(
            f"no adapter at {adapter}", "It holds adapter_config.json and adapter_model.safetensors."
        ) from None
    plain = not any(config.get(key) for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern"))
    if config.get("peft_type") != "LORA" or not plain or config.get("bias", "none") != "none":
        raise UsageError(f"{adapter} is no plain LoRA adapter", "Merge it with peft.")
    return config, state


def _pairs(state: dict[str, Any], adapter: Path) -> Iterator[tuple[str, Any, Any]]:
    """Path of each layer, with A [r, in] and B [out, r]; every tensor of the file is used."""
    others = [key for key in state if not key.endswith((_A, _B))]
    if others:
        raise UsageError(f"{adapter} holds {others[0]}, which is no LoRA matrix", "Merge it with peft.")
    for key in state:
        path = key.removesuffix(_A).removesuffix(_B)
        if path + _A not in state or path + _B not in state:
            raise UsageError(f"{adapter} lacks one of the matrices of {path}", _WRONG)
        if key.endswith(_A):
            yield path.removeprefix(_PREFIX), state[path + _A], state[path + _B]


def _load(base: Path) -> tuple[Any, Any]:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed", "Install it: pip install 'cuda-agent[torch,models]'."
        ) from None
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(base, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise InfrastructureError(f"cannot load {base}: {str(error)[:300]}") from None
    return model, tokenizer
