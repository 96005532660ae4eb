"""Keys and values of many sequences in fixed memory: a slot for each sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class SlotCache(Cache):  # type: ignore[misc]
    """What transformers takes as ``past_key_values``; written in place, read up to a chosen length.

    A pass runs in one of two views. :meth:`prefill`: one slot, a run of tokens. :meth:`decode`: all slots,
    a token each, at places held in a tensor, so that a captured graph follows them. The last column is
    scratch: slots that take no part in a step write there.

    Args:
        config: of the model's decoder.
        num_slots: sequences, S.
        length: tokens of each, L.
    """

    def __init__(
        self, config: Any, *, num_slots: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (num_slots, heads, length + 1, size)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.scratch = length
        self._rows = torch.arange(num_slots, device=device)
        self._slot = 0
        self._start = self._end = 0
        self._places: Tensor | None = None

    def prefill(self, slot: int, start: int, end: int) -> None:
        """The next pass feeds positions ``start`` to ``end`` (exclusive) of one slot."""
        self._slot, self._start, self._end, self._places = slot, start, end, None

    def decode(self, places: Tensor, length: int) -> None:
        """The next pass feeds one token to every slot, at ``places`` (int64 [S]), and reads ``length``."""
        self._places, self._end = places, length

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Write a layer's new keys and values ([B, heads, T, size]); all that the pass may read."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self._places is not None:
            keys[self._rows, :, self._places] = key_states[:, :, 0]
            values[self._rows, :, self._places] = value_states[:, :, 0]
            return keys[:, :, : self._end], values[:, :, : self._end]
        one = slice(self._slot, self._slot + 1)
        keys[one, :, self._start : self._end] = key_states
        values[one, :, self._start : self._end] = value_states
        return keys[one, :, : self._end], values[one, :, : self._end]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first ``length`` keys and values of another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def free(self) -> None:
        """Let go of the memory; no pass may follow."""
        self.keys, self.values = [], []

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002  (transformers' signature)
        """Tokens before the pass; positions are given to the model, so nothing depends on it."""
        return self._start
