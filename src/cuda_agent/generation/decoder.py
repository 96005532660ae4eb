"""The model's passes over slots: prefill in chunks, decode as one CUDA graph for each length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.errors import UsageError
from cuda_agent.generation.attention import slot_attention_of
from cuda_agent.generation.cache import SlotCache

_PREFILL_CHUNK = 2048
"""Prompt tokens in one pass: bounds its memory."""
_FIRST_LENGTH = 256
"""Shortest length that decode reads; it doubles from there, so few graphs are captured."""
_WARM_UP = 3
"""Passes before a capture, as torch asks, for lazily made workspaces."""


class Decoder:
    """Feeds a causal language model of transformers.

    Args:
        model: in eval mode; adapters of it stay unmerged, since its own layers are called.
        num_slots: sequences at once.
        length: tokens of each.
        graphs: capture decode as CUDA graphs (CUDA only).

    Raises:
        UsageError: the model keeps more than keys and values of all positions.
    """

    def __init__(self, model: Any, *, num_slots: int, length: int, graphs: bool) -> None:
        config = model.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise UsageError(
                f"this engine has full attention only, the model {', '.join(sorted(kinds))}",
                "Use a server: vLLM or SGLang.",
            )
        self._model, self._length = model, length
        device = model.device
        self._cache = SlotCache(config, num_slots=num_slots, length=length, dtype=model.dtype, device=device)
        self._ids = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._ids)
        self._places = torch.full_like(self._ids, self._cache.scratch)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] | None = None
        if graphs and device.type == "cuda":
            self._graphs = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def prefill(self, slot: int, start: int, ids: Sequence[int]) -> Tensor:
        """Feed ``ids`` to a slot from position ``start``; logits [V] after the last."""
        for offset in range(0, len(ids), _PREFILL_CHUNK):
            chunk = torch.tensor(ids[offset : offset + _PREFILL_CHUNK], device=self._model.device)
            first = start + offset
            last = first + len(chunk)
            self._cache.prefill(slot, first, last)
            positions = torch.arange(first, last, device=chunk.device)
            seen = torch.arange(last, device=chunk.device)[None, :] <= positions[:, None]
            logits = self._forward(chunk[None], positions[None], seen[None, None])
        return logits[0, -1]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def decode(self, fed: Sequence[tuple[int, int, int]]) -> Tensor:
        """Feed one token to some slots: (slot, position, id) each; logits [S, V] of all slots.

        Rows of slots that were not fed hold nothing of use, and their cache is untouched.
        """
        slots, positions, ids = zip(*fed, strict=True)
        size = len(self._ids)
        self._ids.copy_(_scattered(size, slots, ids, 0))
        self._positions.copy_(_scattered(size, slots, positions, 0))
        self._places.copy_(_scattered(size, slots, positions, self._cache.scratch))
        length = self._read_length(max(positions) + 1)
        if self._graphs is None:
            return self._decode_pass(length)
        if length not in self._graphs:
            self._graphs[length] = self._capture(length)
        graph, logits = self._graphs[length]
        graph.replay()
        return logits

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first ``length`` keys and values of another."""
        self._cache.copy(source, target, length)

    def forget_graphs(self) -> None:
        """Drop captured graphs: another adapter may be active, or weights may lie elsewhere."""
        if self._graphs:
            self._graphs.clear()

    def free(self) -> None:
        """Let go of the slots' memory and the graphs; no pass may follow."""
        self._graphs = None
        self._cache.free()

    def _read_length(self, needed: int) -> int:
        length = _FIRST_LENGTH
        while length < needed:
            length *= 2
        return min(length, self._length)

    def _decode_pass(self, length: int) -> Tensor:
        self._cache.decode(self._places, length)
        seen = torch.arange(length, device=self._ids.device)[None, :] <= self._positions[:, None]
        return self._forward(self._ids[:, None], self._positions[:, None], seen[:, None, None])[:, -1]

    def _capture(self, length: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Repeated passes write the same keys to the same places: the cache is what one pass would leave.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._decode_pass(length)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls matter to the capture; others may ask the device something meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = self._decode_pass(length)
        return graph, logits

    def _forward(self, ids: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        with slot_attention_of(self._model):
            out = self._model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=seen,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        logits: Tensor = out.logits
        return logits


def _scattered(size: int, slots: Sequence[int], values: Sequence[int], fill: int) -> Tensor:
    row = [fill] * size
    for slot, value in zip(slots, values, strict=True):
        row[slot] = value
    return torch.tensor(row)
