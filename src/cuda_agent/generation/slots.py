"""Our engine: a fixed number of slots, each refilled as soon as its completion ends.

One thread runs the model; callers of any number queue requests. A finished slot keeps its keys and values,
and the next turn of its episode goes there: it feeds only what is new. A prompt that begins as another slot's
does has the shared part copied.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_agent.errors import CudaAgentError, InfrastructureError, PolicyError, UsageError
from cuda_agent.generation.contract import Completion, FinishReason, GenerationRequest
from cuda_agent.generation.decoder import Decoder
from cuda_agent.generation.sampling import Dice, draw

_TAIL = 64
"""Tokens decoded at the end of a completion when it is searched for stop strings; more for longer strings."""


@dataclass
class EngineUse:
    """Work of an engine since it was made.

    Attributes:
        num_fed: prompt tokens fed, reused ones not counted.
        num_reused: prompt tokens whose keys and values were still there.
        num_sampled: tokens drawn.
        seconds: with a completion under way.
    """

    num_fed: int = 0
    num_reused: int = 0
    num_sampled: int = 0
    seconds: float = 0.0


@dataclass
class _Job:
    request: GenerationRequest
    future: Future[Completion]
    dice: Dice
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_reused: int = 0


@dataclass
class _Slot:
    number: int
    cached: list[int] = field(default_factory=list)
    job: _Job | None = None
    last_used: int = 0


class SlotEngine:
    """Implements :class:`~cuda_agent.generation.contract.GenerationEngine` over one model.

    Args:
        model: causal language model of transformers, in eval mode, in memory that it keeps.
        tokenizer: decodes for stop strings; may be ``None`` where none are used.
        num_slots: completions at once.
        length: longest context, tokens; the memory of all slots is taken at once.
        graphs: CUDA graphs for decode, where the model is on CUDA.
        exact: each completion in passes of its own, its whole prompt fed anew: slower, but then no bit of its
            numbers depends on what is generated beside it (on a CPU; a GPU sums in no fixed order).
        policy_version: version of the weights.

    Raises:
        UsageError: the model does not fit this engine.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        num_slots: int = 16,
        length: int = 8192,
        graphs: bool = True,
        exact: bool = False,
        policy_version: str = "",
    ) -> None:
        if num_slots < 1:
            raise UsageError(f"{num_slots} slots", "Give 1 or more.")
        limit = getattr(model.config, "max_position_embeddings", None) or length
        self._length = min(length, int(limit))
        self._tokenizer, self._device, self._exact = tokenizer, model.device, exact
        self.policy_version = policy_version
        self._decoder = Decoder(model, num_slots=num_slots, length=self._length, graphs=graphs)
        self._slots = [_Slot(number) for number in range(num_slots)]
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._clock = itertools.count(1)
        self._passes = threading.Lock()
        """Held during one step: the weights do not change within it."""
        self._closed = threading.Event()
        self._admission = threading.Lock()
        self.use = EngineUse()
        """What was done so far."""
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    # -- what callers use ------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request; see the protocol."""
        job = _Job(request, Future(), Dice(request.params.seed))
        if (fault := self._fault(request)) is not None:
            job.future.set_exception(fault)
            return job.future
        with self._admission:  # a closed engine's queue is read no more
            if self._closed.is_set():
                job.future.set_exception(UsageError("the engine is closed", "Make a new one."))
            else:
                self._waiting.put(job)
        return job.future

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions in the order of the requests; see the protocol."""
        futures = [self.submit(request) for request in requests]
        return [future.result() for future in futures]

    def weights_changed(self, policy_version: str) -> None:
        """Forget all keys and values and the captured graphs.

        Raises:
            UsageError: completions are under way; they would mix two policies.
        """
        with self._passes:
            if any(slot.job is not None for slot in self._slots) or not self._waiting.empty():
                raise UsageError("weights changed while completions are under way", "Wait for them first.")
            for slot in self._slots:
                slot.cached = []
            self._decoder.forget_graphs()
            self.policy_version = policy_version

    def close(self) -> None:
        """End the thread and free the slots' memory; what is under way fails. May run twice."""
        with self._admission:
            self._closed.set()
            self._waiting.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        on_device = torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
        try:
            with on_device:  # a new thread begins on the first one
                self._serve()
        finally:
            with self._admission:
                self._closed.set()
            self._abandon()
            self._decoder.free()

    def _serve(self) -> None:
        while not self._closed.is_set():
            idle = all(slot.job is None for slot in self._slots)
            first = self._waiting.get() if idle else None
            with self._passes:
                started = time.monotonic()
                self._step(first)
                self.use.seconds += time.monotonic() - started

    def _step(self, first: _Job | None) -> None:
        try:
            self._refill(first)
            self._decode()
        except torch.OutOfMemoryError:
            self._fail(PolicyError("out of device memory", "Use fewer slots or a shorter length."))
        except RuntimeError as error:  # a device fault: those who wait are told, the next batch may work
            self._fail(InfrastructureError(f"generation failed: {str(error)[:300]}"))

    def _refill(self, first: _Job | None) -> None:
        """Fill free slots; each job is in its slot before the next leaves the queue, so none is lost."""
        if first is not None:
            self._place(first)
        while any(slot.job is None for slot in self._slots) and not self._waiting.empty():
            if (job := self._waiting.get()) is not None:
                self._place(job)

    def _place(self, job: _Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        prompt = job.request.prompt_ids
        slot, donor, shared = self._choose(prompt)
        job.num_reused = min(shared, len(prompt) - 1)  # the last is fed: its logits are wanted
        slot.job, slot.cached, slot.last_used = job, [], next(self._clock)
        if donor is not slot:
            self._decoder.copy(donor.number, slot.number, job.num_reused)
        new = prompt[job.num_reused :]
        logits = self._decoder.prefill(slot.number, job.num_reused, new)
        self.use.num_fed += len(new)
        self.use.num_reused += job.num_reused
        slot.cached = list(prompt)
        self._take([slot], logits[None])

    def _choose(self, prompt: Sequence[int]) -> tuple[_Slot, _Slot, int]:
        """A free slot for a prompt, the slot that holds the longest prefix of it, and that prefix's length.

        The slot of the turn before, if it is free; else the one that nobody used for longest. So a prompt
        that others began with is copied from them, and their own next turns still find what they need.
        """
        free = [slot for slot in self._slots if slot.job is None]
        slot = min(free, key=lambda s: s.last_used)
        if self._exact:
            return slot, slot, 0
        shared = {slot.number: _common(slot.cached, prompt) for slot in self._slots}
        continued = [s for s in free if s.cached and shared[s.number] == len(s.cached)]
        if continued:
            slot = max(continued, key=lambda s: shared[s.number])
        donor = max(self._slots, key=lambda s: (shared[s.number], s is slot))
        return slot, donor, shared[donor.number]

    def _decode(self) -> None:
        active = [slot for slot in self._slots if slot.job is not None]
        if not active:
            return
        if self._exact:
            self._decode_alone(active)
            return
        fed = [(s.number, len(s.cached), s.job.ids[-1]) for s in active if s.job is not None]
        logits = self._decoder.decode(fed)
        for slot, (_, _, token) in zip(active, fed, strict=True):
            slot.cached.append(token)
        self._take(active, logits[[slot.number for slot in active]])

    def _decode_alone(self, active: Sequence[_Slot]) -> None:
        for slot in active:
            assert slot.job is not None  # active
            token = slot.job.ids[-1]
            logits = self._decoder.prefill(slot.number, len(slot.cached), [token])
            slot.cached.append(token)
            self._take([slot], logits[None])

    def _take(self, slots: Sequence[_Slot], logits: torch.Tensor) -> None:
        """Draw a token for each slot; end those that are done."""
        jobs = [slot.job for slot in slots if slot.job is not None]
        ids, logprobs = draw(logits, [job.request.params for job in jobs], [job.dice for job in jobs])
        self.use.num_sampled += len(ids)
        for slot, job, token, logprob in zip(slots, jobs, ids, logprobs, strict=True):
            job.ids.append(token)
            job.logprobs.append(logprob)
            if (finish := self._finish(job)) is not None:
                slot.job = None
                job.future.set_result(
                    Completion(
                        tuple(job.ids), tuple(job.logprobs), finish, self.policy_version, job.num_reused
                    )
                )

    def _finish(self, job: _Job) -> FinishReason | None:
        params, deadline = job.request.params, job.request.deadline
        if job.ids[-1] in params.stop_ids:
            return FinishReason.STOP_ID
        if params.stop_strings and self._holds_stop_string(job):
            return FinishReason.STOP_STRING
        if len(job.ids) >= params.max_tokens:
            return FinishReason.LENGTH
        if len(job.request.prompt_ids) + len(job.ids) >= self._length:
            return FinishReason.CONTEXT
        if deadline is not None and time.monotonic() >= deadline:
            return FinishReason.DEADLINE
        return None

    def _holds_stop_string(self, job: _Job) -> bool:
        strings = job.request.params.stop_strings
        # A token of byte-level vocabularies is a byte at least: a string has no more tokens than bytes.
        tail = max(_TAIL, *(len(text.encode()) + 4 for text in strings))
        text = self._tokenizer.decode(job.ids[-tail:], skip_special_tokens=False)
        return any(string in text for string in strings)

    def _fault(self, request: GenerationRequest) -> CudaAgentError | None:
        if len(request.prompt_ids) >= self._length:
            return UsageError(
                f"a prompt of {len(request.prompt_ids)} tokens in a context of {self._length}",
                "Give the engine a greater length, or a shorter prompt.",
            )
        if request.params.stop_strings and self._tokenizer is None:
            return UsageError("stop strings without a tokenizer", "Give the engine one, or use stop_ids.")
        return None

    def _fail(self, error: CudaAgentError) -> None:
        for slot in self._slots:
            job, slot.job, slot.cached = slot.job, None, []
            if job is not None:
                job.future.set_exception(error)

    def _abandon(self) -> None:
        error = InfrastructureError("the engine was closed")
        self._fail(error)
        while not self._waiting.empty():
            job = self._waiting.get()
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)


def _common(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """Tokens that both begin with."""
    for number, (a, b) in enumerate(zip(cached, prompt, strict=False)):
        if a != b:
            return number
    return min(len(cached), len(prompt))
