"""A GGUF file as a folder of transformers: dequantized to bfloat16, embeddings tied again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from cuda_agent.errors import InfrastructureError, UsageError


def require() -> None:
    """See that what converts is installed, before anything is downloaded.

    Raises:
        UsageError: a package is missing.
    """
    try:
        import gguf  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed", "Install it: pip install 'cuda-agent[torch,models]'."
        ) from None


def convert(file: Path, folder: Path, *, end_of_turn: str) -> None:
    """Write model and tokenizer of a GGUF file into ``folder``.

    Args:
        file: the model.
        folder: exists and is empty.
        end_of_turn: token that ends a chat turn; generation stops there, and at the end of text.

    Raises:
        InfrastructureError: the file is no model that transformers reads.
    """
    import transformers

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with _quiet(transformers):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
            model = _load(transformers, place)
        except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            raise InfrastructureError(
                f"cannot convert {file.name}: {str(error)[:300]}", "Is transformers 5.17 or newer installed?"
            ) from None
        retie(model)
        end = tokenizer.convert_tokens_to_ids(end_of_turn)
        model.generation_config.eos_token_id = sorted({int(end), int(tokenizer.eos_token_id)})
        tokenizer.eos_token = end_of_turn
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def retie(model: Any) -> None:
    """Let input embedding and head share the head's weights.

    The file stores the tied matrix twice, the head less coarsely, and loads it untied.
    """
    head = model.get_output_embeddings()
    model.get_input_embeddings().weight = head.weight
    model.config.tie_word_embeddings = True


def _load(transformers: Any, place: dict[str, str]) -> Any:
    import torch

    more = {}
    if hasattr(transformers, "GgufConfig"):  # where files would stay packed otherwise
        more["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16, **more)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Any:
    """Without the progress bars of a library: ours says what is done."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
