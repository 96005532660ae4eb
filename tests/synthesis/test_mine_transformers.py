"""Mining of transformers: classes with plain arguments, tried, and equal to what they derive from."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.synthesis.compose.abstract import seed_class
from cuda_agent.synthesis.jsonl import read_rows
from cuda_agent.synthesis.mine.modelling import copies, graphs
from cuda_agent.synthesis.mine.modelling import seed as modelling
from cuda_agent.synthesis.mine.running import seed_runs
from cuda_agent.synthesis.mine.sources import SOURCES
from cuda_agent.synthesis.mine.traits import Idle
from cuda_agent.synthesis.seed import Origin, Seed, read_seeds
from cuda_agent.synthesis.stages.folder import SynthFolder
from cuda_agent.synthesis.stages.mine_stage import Mining, run_mine

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test mines as if it were the first."""
    monkeypatch.setattr(modelling, "_seen", {})


def mined(name: str) -> Seed:
    """The seed of one class, by model and class."""
    return SOURCES["transformers"].mine(f"transformers.{name}")


def shapes(seed: Seed) -> tuple[tuple[str, ...] | None, ...]:
    """Of the first form."""
    return seed.forms[0].shapes


def imports(source: str) -> set[str]:
    """Modules that a source imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def agrees(seed: Seed, original: Any, sizes: dict[str, Any], *inputs: torch.Tensor, **more: Any) -> bool:
    """Whether the seed's class gives what the library's gives, with the same weights."""
    made = seed_class(seed)(**sizes).eval()
    made.load_state_dict(original.state_dict())
    with torch.no_grad():
        theirs = original.eval()(inputs[0], **more) if more else original.eval()(*inputs)
        ours = made(*inputs)
    theirs = theirs[0] if isinstance(theirs, tuple) and isinstance(ours, torch.Tensor) else theirs
    return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_norm_keeps_its_arguments() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    seed = mined("llama.LlamaRMSNorm")
    assert (seed.op, seed.origin, seed.kind, seed.licence) == (
        "LlamaRMSNorm",
        Origin.TRANSFORMERS,
        "norm",
        "Apache-2.0",
    )
    assert seed.derived_from == "transformers/models/llama/modeling_llama.py, class LlamaRMSNorm"
    assert seed.version.startswith("transformers ")
    assert shapes(seed) == (("batch", "length", "hidden_size"),)
    assert seed.inputs[0].dtypes == ("float32", "float16", "bfloat16")
    assert [(o.name, o.default) for o in seed.options] == [("eps", 1e-6)]
    assert seed.traits.shape_preserving and seed.traits.has_parameters and seed.traits.fake
    assert agrees(seed, LlamaRMSNorm(40), {"hidden_size": 40}, torch.randn(2, 5, 40))


def test_a_configuration_becomes_plain_arguments() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    seed = mined("llama.LlamaMLP")
    assert {rule.name for rule in seed.sizes if rule.argument} == {"hidden_size", "intermediate_size"}
    assert "config" not in seed.source and imports(seed.source) == {"torch"}
    sizes = {"hidden_size": 32, "intermediate_size": 56}
    assert agrees(seed, LlamaMLP(LlamaConfig(**sizes)), sizes, torch.randn(2, 5, 32))


def test_attention_takes_its_rotary_pair_and_brings_its_helpers() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    seed = mined("llama.LlamaAttention")
    assert shapes(seed) == (
        ("batch", "length", "hidden_size"),
        ("batch", "length", "head_dim"),
        ("batch", "length", "head_dim"),
    )
    names = {node.name for node in ast.parse(seed.source).body if isinstance(node, ast.FunctionDef)}
    assert names == {"apply_rotary_pos_emb", "rotate_half", "eager_attention_forward", "repeat_kv"}
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    config = LlamaConfig(**sizes, attn_implementation="eager")
    x, cos, sin = torch.randn(2, 6, 48), torch.randn(2, 6, 12), torch.randn(2, 6, 12)
    original = LlamaAttention(config, layer_idx=0)
    assert agrees(seed, original, sizes, x, cos, sin, position_embeddings=(cos, sin), attention_mask=None)


def test_parts_with_a_configuration_of_their_own_receive_its_numbers() -> None:
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    seed = mined("vit.ViTEmbeddings")
    assert shapes(seed) == (("batch", "num_channels", "image_size", "image_size"),)
    sizes = {"hidden_size": 20, "patch_size": 4, "image_size": 24, "num_channels": 3}
    config = ViTConfig(**sizes, hidden_dropout_prob=0.0)
    assert agrees(seed, ViTEmbeddings(config), sizes, torch.randn(2, 3, 24, 24))


def test_indices_stay_below_the_table_they_read() -> None:
    seed = mined("bert.BertEmbeddings")
    assert seed.inputs[0].dtypes == ("int64",) and seed.inputs[0].high == "vocab_size"
    length = next(rule for rule in seed.sizes if rule.name == "length")
    choices = {option.name: option.choices for option in seed.options}
    assert choices["max_position_embeddings"] == (length.most,)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("convnext.ConvNextDropPath", "it gives its input back"),
        ("resnet.ResNetConvLayer", "differs in train and eval mode"),
        ("mask2former.Mask2FormerHungarianMatcher", "needs linear_sum_assignment"),
        ("lxmert.LxmertXLayer", "longer than an operator"),
    ],
)
def test_what_is_no_seed_says_why(name: str, reason: str) -> None:
    with pytest.raises(Idle, match=reason):
        mined(name)


def test_copies_are_told_by_text_and_by_what_they_compute() -> None:
    first = mined("llama.LlamaRMSNorm")
    with pytest.raises(Idle, match=r"a copy of transformers\.llama\.LlamaRMSNorm"):
        mined("mistral.MistralRMSNorm")
    with pytest.raises(Idle, match=r"computes what transformers\.llama\.LlamaRMSNorm computes"):
        mined("t5.T5LayerNorm")
    gated = mined("llama.LlamaMLP")
    assert graphs.graph_of(gated) != graphs.graph_of(first)
    renamed = first.source.replace("variance", "mean_square").replace("LlamaRMSNorm", "Other")
    assert copies.fingerprint(renamed) == copies.fingerprint(first.source)
    assert copies.fingerprint(first.source.replace("pow(2)", "pow(3)")) != copies.fingerprint(first.source)


def test_the_stage_mines_in_processes_of_its_own_and_keeps_reasons(tmp_path: Path) -> None:
    names = ["bert.BertIntermediate", "bert.BertPooler", "bit.BitDropPath"]
    subjects = [("transformers", f"transformers.{name}") for name in names]
    folder = SynthFolder(tmp_path)
    counts = run_mine(folder, subjects, Mining(num_workers=1))
    assert counts["seed"] == 2
    assert [seed.op for seed in read_seeds(folder.seeds)] == ["BertIntermediate", "BertPooler"]
    assert all(seed_runs(seed) for seed in read_seeds(folder.seeds))
    assert list(read_rows(folder.unfit)) == [
        {"id": "transformers.bit.BitDropPath", "reason": "it gives its input back"}
    ]
