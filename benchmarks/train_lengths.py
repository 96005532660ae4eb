"""Memory and seconds of one PPO update by trajectory length, actor and critic of 0.5 B weights.

Weights are random, of Qwen2.5-0.5B's shape: nothing is downloaded. One trajectory of up to 150 turns, a
third of it acted, one update of actor and critic with adapters, then with all weights. Lengths go up until
the time is spent; each line says what was not run.

    PYTHONPATH=src python3 benchmarks/train_lengths.py --out lengths.json --limit 165
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from cuda_agent.rl.networks import NetworkOptions, Networks
from cuda_agent.rl.rollouts import Rollout
from cuda_agent.rl.trainer import Trainer, TrainerOptions

LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)
SMALL = (256, 512)


def model_of(shape: str, device: str, dtype: torch.dtype) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {
        "qwen2.5-0.5b": dict(
            vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
            num_attention_heads=14, num_key_value_heads=2,
        ),
        "tiny": dict(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        ),
    }[shape]  # fmt: skip
    config = Qwen2Config(
        **sizes, max_position_embeddings=131_072, rope_theta=1e6, tie_word_embeddings=True, use_cache=False
    )
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(dtype).eval()


def rollout(length: int, vocabulary: int, *, turns: int = 150) -> Rollout:
    """A trajectory: of each turn's tokens the last third is acted."""
    generator = torch.Generator().manual_seed(length)
    size = length // min(turns, length // 6)
    acted = [position % size >= size - size // 3 for position in range(length)]
    return Rollout(
        task="length",
        token_ids=tuple(torch.randint(0, vocabulary, (length,), generator=generator).tolist()),
        acted=tuple(acted),
        logprobs=tuple(-10.0 if a else 0.0 for a in acted),
        turns=tuple(position // size for position in range(length)),
        outcome=1.0,
    )


def measure(trainer: Trainer, length: int, vocabulary: int, device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    try:
        metrics = trainer.ppo_step([rollout(length, vocabulary)], seed=length)
    except torch.OutOfMemoryError as error:
        return {"length": length, "error": str(error)[:200]}
    if cuda:
        torch.cuda.synchronize()
    return {
        "length": length,
        "seconds": round(time.monotonic() - started, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
        "acted": int(metrics["tokens"]),
        "entropy": round(metrics["entropy"], 3),
        "value_loss": round(metrics["value_loss"], 4),
    }


def attention_error(device: str, dtype: torch.dtype) -> float | None:
    """Largest difference between fused and plain packed attention, relative to the largest output."""
    from cuda_agent.rl import attention

    if device != "cuda":
        return None
    q, k, v = (torch.randn(1, h, 3000, 64, device=device, dtype=dtype) for h in (14, 2, 2))
    bounds = torch.tensor([0, 700, 701, 3000], device=device, dtype=torch.int32)
    options = {"cu_seq_lens_q": bounds, "max_length_q": 2299, "scaling": 0.125}
    module = torch.nn.Module()
    fused, _ = attention.packed_attention(module, q, k, v, **options)
    plain, _ = attention.packed_attention(module, q.float(), k.float(), v.float(), **options)
    return float((fused.float() - plain).abs().max() / plain.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=165.0, help="seconds in all")
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    asked = parser.parse_args()
    started = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    lengths = LENGTHS if device == "cuda" else SMALL
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "shape": asked.shape,
        "attention_error": attention_error(device, dtype),
        "runs": [],
    }
    for rank in (16, 0):
        model = model_of(asked.shape, device, dtype)
        trainer = Trainer(Networks(model, NetworkOptions(rank=rank)), TrainerOptions(num_minibatches=1))
        trainer.ppo_step([rollout(192, model.config.vocab_size)], seed=0)  # kernels loaded
        took = 1.0
        for length in lengths:
            if time.monotonic() - started + 4.5 * took > asked.limit:
                found["runs"].append({"length": length, "rank": rank, "error": "not run: no time left"})
                continue
            line = measure(trainer, length, model.config.vocab_size, device)
            took = line.get("seconds", took)
            found["runs"].append({**line, "rank": rank})
            asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            print(found["runs"][-1], flush=True)
        del model, trainer
    asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
