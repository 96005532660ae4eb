"""Tokens a second of our engine against transformers' generate and its continuous batching, in one run.

First greedy tokens and log-probabilities of the engine are held against the model itself; a run whose
log-probabilities differ says so and exits with 1. Weights are random, of Qwen2.5-0.5B's shape, unless
``--model`` names a folder. Every engine makes the same number of tokens from the same prompts, end of text
ignored. Lines that the time did not allow are named in the output.

    PYTHONPATH=src python3 benchmarks/generation.py --out generation.json --limit 150
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_agent.generation.contract import GenerationRequest, SamplingParams
from cuda_agent.generation.slots import SlotEngine

Run = Callable[[Any, list[list[int]], int], int]


def model_of(folder: str, device: str, *, tiny: bool) -> Any:
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    large = dict(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2,
    )  # fmt: skip
    small = dict(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2Config(
        **(small if tiny else large), max_position_embeddings=32_768, tie_word_embeddings=True
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(dtype).eval()


def ours(model: Any, prompts: list[list[int]], new: int) -> int:
    """Tokens made by our engine, kept between two calls of a size: the first captures its graphs."""
    engine = _engine(model, prompts, new)
    params = SamplingParams(max_tokens=new, seed=0)
    made = engine.generate([GenerationRequest(tuple(p), params) for p in prompts])
    return sum(len(one.ids) for one in made)


def _engine(model: Any, prompts: list[list[int]], new: int) -> SlotEngine:
    size = (len(prompts), len(prompts[0]) + new)
    if (held := _ENGINES.get(size)) is None:
        for other in _ENGINES.values():
            other.close()
        _ENGINES.clear()
        held = _ENGINES[size] = SlotEngine(model, num_slots=size[0], length=size[1] + 1)
    return held


_ENGINES: dict[tuple[int, int], SlotEngine] = {}


def generate(model: Any, prompts: list[list[int]], new: int) -> int:
    """Tokens made by transformers' generate with its dynamic cache."""
    ids = torch.tensor(prompts, device=model.device)
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    return int(out.shape[0] * (out.shape[1] - ids.shape[1]))


def continuous(model: Any, prompts: list[list[int]], new: int) -> int:
    """Tokens made by transformers' continuous batching."""
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=new, do_sample=True, eos_token_id=-1, pad_token_id=0)
    made = model.generate_batch(inputs=prompts, generation_config=config)
    return sum(len(one.generated_tokens) for one in made.values())


RUNS: dict[str, Run] = {"ours": ours, "generate": generate, "continuous": continuous}


def checked(model: Any) -> dict[str, float]:
    """Our log-probabilities against one full pass each, and the share of greedy tokens that are the same.

    In bfloat16 two kernels round differently, so ties may break another way: the share says how often.
    """
    vocabulary = model.config.vocab_size
    prompts = [torch.randint(vocabulary, (n,)).tolist() for n in (1000, 37, 511)]
    engine = SlotEngine(model, num_slots=2, length=1200)
    greedy = SamplingParams(max_tokens=48, temperature=0.0)
    asked = [GenerationRequest(tuple(p), greedy) for p in prompts]
    asked += [GenerationRequest(tuple(p), SamplingParams(max_tokens=48, seed=1)) for p in prompts]
    made = engine.generate(asked)
    engine.close()
    worst, total, same = 0.0, 0.0, 0
    for request, one in zip(asked, made, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *one.ids]], device=model.device)
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1].float()
        chosen = torch.tensor(one.ids, device=model.device)
        expected = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        off = (expected - torch.tensor(one.logprobs, device=model.device)).abs()
        worst, total = max(worst, float(off.max())), total + float(off.mean())
        if request.params is greedy:
            same += int((logits.argmax(-1) == chosen).sum())
    return {
        "max_logprob_difference": worst,
        "mean_logprob_difference": total / len(made),
        "greedy_same": same / (48 * len(prompts)),
    }


def measured(run: Run, model: Any, prompts: list[list[int]], new: int) -> float:
    """Tokens a second of the second of two calls: the first warms up, with prompts that share no prefix."""
    run(model, [[(i + 1) % model.config.vocab_size for i in prompt] for prompt in prompts], new)
    _wait(model)
    start = time.perf_counter()
    number = run(model, prompts, new)
    _wait(model)
    return number / (time.perf_counter() - start)


def _wait(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="", help="folder of transformers")
    parser.add_argument("--tiny", action="store_true", help="two small layers: tries the script")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which no line is begun")
    options = parser.parse_args()
    begun = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model_of(options.model, device, tiny=options.tiny)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    report: dict[str, Any] = {"device": name, "torch": torch.__version__, "model": options.model or "random"}
    report |= {"prompt": options.prompt, "new": options.new, "check": checked(model), "lines": []}
    print(f"check {report['check']}", flush=True)
    for batch in options.batches:
        prompts = torch.randint(model.config.vocab_size, (batch, options.prompt)).tolist()
        for engine, run in RUNS.items():
            line: dict[str, Any] = {"engine": engine, "batch": batch}
            if time.monotonic() - begun > options.limit:
                line["not_run"] = "time"
            else:
                line["tokens_per_s"] = round(measured(run, model, prompts, options.new), 1)
            report["lines"].append(line)
            print(line, flush=True)
            options.out.write_text(json.dumps(report, indent=2) + "\n")
    limit = 1e-3 if device == "cpu" else 0.05
    return int(report["check"]["mean_logprob_difference"] > limit)


if __name__ == "__main__":
    raise SystemExit(main())
