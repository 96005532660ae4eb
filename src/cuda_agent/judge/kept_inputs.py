"""A candidate's input tensors, kept as objects from call to call.

A caller in a loop passes the same tensor object with new values. A cache keyed by ``id(x)`` answers such a
call with what it kept; with a new object for each call it is found or not as the allocator pleases.
"""

from __future__ import annotations

from typing import Any

import torch

from cuda_agent.judge import exchange

_Form = list[tuple[int, torch.Size, tuple[int, ...], torch.dtype]]


class KeptInputs:
    """Inputs by slot; the same objects while the slot's block and the inputs' form stay the same."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, _Form, Any]] = {}

    def of(self, slot: str, block: exchange.Block, plan: exchange.Plan, device: str) -> Any:
        """The inputs in a slot, as views of its block where the device can read it, else as a copy.

        Objects that a candidate changed in shape, dtype or place are not used again.

        Raises:
            ValueError: the plan does not fit the block.
        """
        kept = self._kept.get(slot)
        if kept is not None and kept[0] == plan and _form(kept[2]) == kept[1]:
            return kept[2]
        inputs = exchange.read(plan, block, device=device, copy=False)
        if torch.device(device) == block.bytes.device:
            self._kept[slot] = (plan, _form(inputs), inputs)
        return inputs

    def forget(self, slot: str) -> None:
        """Drop a slot's tensors, before its block goes."""
        self._kept.pop(slot, None)


def _form(inputs: Any) -> _Form:
    return [(x.data_ptr(), x.shape, x.stride(), x.dtype) for x in exchange.leaves(inputs)]
