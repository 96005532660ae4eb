"""The composer that asks a model, against a real endpoint that plays recorded answers."""

from __future__ import annotations

import json
from pathlib import Path

import handmade
import pytest

from cuda_agent.agent.recorded_server import RecordedServer
from cuda_agent.agent.recording import load_recording
from cuda_agent.errors import PolicyError
from cuda_agent.synthesis.compose.llm_composer import (
    LlmComposer,
    Malformed,
    endpoint_completer,
    prompt,
    record_of,
)
from cuda_agent.synthesis.compose.mix import Mix
from cuda_agent.synthesis.compose.sizing import cost_of
from cuda_agent.synthesis.record import Form, Size

ANSWER = """Here it is.

```python
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    \"\"\"GELU of a running sum.\"\"\"

    def forward(self, x):
        return F.gelu(torch.cumsum(x, dim=-1))


batch_size = 4096  # small: 4
features = 8192  # small: 32


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
```
"""
SEEDS = (handmade.GELU, handmade.CUMSUM)
TWO = Mix({"torch#2": 1.0})


def test_an_answer_becomes_a_record_of_both_sizes() -> None:
    record = record_of(ANSWER, SEEDS, "torch#2", composer="llm:some")
    assert record.ops == ("F.gelu", "torch.cumsum")
    assert record.sizes["batch_size"] == Size(4, 4096, free=True)
    assert record.sizes["features"] == Size(32, 8192, free=False)
    assert "batch_size = 4 " in record.code_at(Form.SMALL)
    assert cost_of(record.code_at(Form.SMALL)) is not None


MALFORMED = {
    "no fenced block": ANSWER.replace("```", ""),
    "several fenced blocks": ANSWER * 2,
    "does not parse": ANSWER.replace("return F", "return return F"),
    "a name is missing": ANSWER.replace("def get_init_inputs", "def other"),
    "no size names its small value": ANSWER.replace("# small", "# tiny"),
    "a small size is larger than its large one": ANSWER.replace("small: 4", "small: 40000"),
    "leaves out 1 of its operators": ANSWER.replace("torch.cumsum(x, dim=-1)", "x"),
}


@pytest.mark.parametrize("reason", MALFORMED)
def test_a_malformed_answer_is_named(reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        record_of(MALFORMED[reason], SEEDS, "torch#2", composer="llm:some")


def test_the_prompt_shows_the_operators_and_the_rules() -> None:
    text = prompt(SEEDS)
    assert "@@" not in text
    assert "torch.cumsum(input, self.dim)" in text
    assert "get_init_inputs" in text


def served(tmp_path: Path, *answers: str) -> RecordedServer:
    """An endpoint that gives one answer to every first message."""
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([{"text": answer} for answer in answers]), encoding="utf-8")
    return RecordedServer(load_recording(path))


def test_tasks_come_from_an_endpoint_and_malformed_ones_are_counted(tmp_path: Path) -> None:
    with served(tmp_path, ANSWER) as server:
        complete = endpoint_completer("recorded", base_url=server.url, max_retries=0)
        composer = LlmComposer(SEEDS, TWO, complete, name="recorded")
        record = composer.one(0)
        assert record is not None
        assert record.composer == "llm:recorded"
        assert "torch.cumsum" in server.requests[0]["messages"][0]["content"]
    with served(tmp_path, "I would rather not.") as server:
        complete = endpoint_completer("recorded", base_url=server.url, max_retries=0)
        composer = LlmComposer(SEEDS, TWO, complete, name="recorded")
        assert composer.one(0) is None
        assert composer.dropped == {"no fenced block": 1}


def test_an_endpoint_that_is_down_is_an_error_of_one_line() -> None:
    complete = endpoint_completer("any", base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(PolicyError, match="cannot be reached"):
        LlmComposer(SEEDS, TWO, complete, name="any").one(0)
