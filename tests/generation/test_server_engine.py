"""The engine of a server, against an HTTP server that answers as vLLM does, with our engine behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from generation_model import Bytes, full_logprobs, greedy_ids, tiny_model

from cuda_agent.errors import PolicyError, UsageError
from cuda_agent.generation.contract import (
    Completion,
    FinishReason,
    GenerationEngine,
    GenerationRequest,
    SamplingParams,
)
from cuda_agent.generation.server import ServerEngine
from cuda_agent.generation.slots import SlotEngine

PROMPTS = [tuple(range(90, 107)), tuple(range(7, 20)), (3, 1, 4)]


class Completions(ThreadingHTTPServer):
    """``/v1/completions`` over an engine; ``form`` says how ids are returned, ``failures`` come first."""

    def __init__(self, engine: GenerationEngine) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.form, self.failures = engine, "token_ids", 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Completions

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.failures:
            self.server.failures -= 1
            self._send(503, {"error": {"message": "busy"}})
            return
        params = SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            stop_ids=frozenset(body["stop_token_ids"]),
            stop_strings=tuple(body.get("stop", ())),
            seed=body.get("seed"),
        )
        (made,) = self.server.engine.generate([GenerationRequest(tuple(body["prompt"]), params)])
        self._send(200, {"id": "1", "object": "text_completion", "choices": [self._choice(made)]})

    def _choice(self, made: Completion) -> dict[str, Any]:
        spelt = self.server.form == "spelt"
        tokens = [f"token_id:{i}" if spelt else chr(i) for i in made.ids]
        choice = {
            "index": 0,
            "text": "",
            "finish_reason": "length" if made.finish is FinishReason.LENGTH else "stop",
            "logprobs": {"tokens": tokens, "token_logprobs": list(made.logprobs)},
        }
        return choice | ({"token_ids": list(made.ids)} if self.server.form == "token_ids" else {})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def slots(model: Any) -> Iterator[SlotEngine]:
    engine = SlotEngine(model, Bytes(), num_slots=2, length=96)
    yield engine
    engine.close()


@pytest.fixture
def server(slots: SlotEngine) -> Iterator[Completions]:
    made = Completions(slots)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def remote(server: Completions) -> Iterator[ServerEngine]:
    engine = ServerEngine(server.url, "tiny", policy_version="v1")
    yield engine
    engine.close()


@pytest.mark.parametrize("form", ["token_ids", "spelt"])
def test_both_engines_give_the_same_tokens(
    form: str, server: Completions, remote: ServerEngine, slots: SlotEngine, model: Any
) -> None:
    server.form = form
    asked = [GenerationRequest(p, SamplingParams(max_tokens=9, temperature=0.0)) for p in PROMPTS]
    asked += [GenerationRequest(p, SamplingParams(max_tokens=9, seed=3)) for p in PROMPTS]
    ours, theirs = slots.generate(asked), remote.generate(asked)
    assert [one.ids for one in theirs] == [one.ids for one in ours]
    assert [list(one.ids) for one in theirs[:3]] == [greedy_ids(model, p, 9) for p in PROMPTS]
    for request, one in zip(asked, theirs, strict=True):
        expected = full_logprobs(model, request.prompt_ids, one.ids)
        torch.testing.assert_close(torch.tensor(one.logprobs), expected, rtol=0, atol=1e-4)
        assert (one.finish, one.policy_version) == (FinishReason.LENGTH, "v1")


def test_stops_are_passed_on(remote: ServerEngine, model: Any) -> None:
    expected = greedy_ids(model, PROMPTS[0], 12)
    stop = SamplingParams(max_tokens=12, temperature=0.0, stop_ids=frozenset({expected[4]}))
    text = SamplingParams(max_tokens=12, temperature=0.0, stop_strings=(chr(expected[2]) + chr(expected[3]),))
    by_id, by_text = remote.generate([GenerationRequest(PROMPTS[0], p) for p in (stop, text)])
    assert by_id.finish is FinishReason.STOP_ID
    assert list(by_id.ids) == expected[: expected.index(expected[4]) + 1]
    assert (by_text.finish, list(by_text.ids)) == (FinishReason.STOP_STRING, expected[:4])


def test_a_busy_server_is_asked_again(server: Completions, remote: ServerEngine) -> None:
    server.failures = 1
    assert len(remote.generate([GenerationRequest(PROMPTS[0], SamplingParams(max_tokens=2))])[0].ids) == 2


def test_text_alone_is_refused(server: Completions, remote: ServerEngine) -> None:
    server.form = "text"
    with pytest.raises(PolicyError, match="no token ids"):
        remote.generate([GenerationRequest(PROMPTS[0], SamplingParams(max_tokens=2))])


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.7), SamplingParams(top_p=0.9)])
def test_another_distribution_is_refused(remote: ServerEngine, params: SamplingParams) -> None:
    with pytest.raises(UsageError, match="temperature 1 and top-p 1"):
        remote.generate([GenerationRequest(PROMPTS[0], params)])


def test_a_server_that_is_down_is_an_error_in_a_line() -> None:
    engine = ServerEngine("http://127.0.0.1:9/v1", "tiny", max_retries=0)
    with pytest.raises(PolicyError, match=r"127\.0\.0\.1:9") as caught:
        engine.generate([GenerationRequest(PROMPTS[0])])
    assert "\n" not in str(caught.value)
    engine.close()
    engine.close()
