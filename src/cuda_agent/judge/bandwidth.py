"""Is a time believable for the bytes a call must move? The floor, applied to one case.

Covers: a call faster than its outputs and the inputs shown to matter can be moved. Does not cover: a
call that is slower than that and still skips work.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.judge import exchange
from cuda_agent.judge.exchange import Block
from cuda_agent.judge.floor import effective_bandwidth, floor_us, tensor_bytes
from cuda_agent.judge.reference import Drawn
from cuda_agent.judge.verify import Subject

# An input of which less than 5/6 matters passes for one that matters once in nine at most: (5/6)**12.
_NUM_PROBED = 12
# Smaller inputs are not worth the reference runs: they hardly move the floor.
_MIN_BYTES = 1 << 20


def least_us(subject: Subject, facts: DeviceFacts, case: int, time_us: float) -> float:
    """Least believable time of a call of one case, microseconds; 0 when nothing speaks against ``time_us``.

    Inputs are shown to matter one element at a time, which costs reference runs: done only when the time
    is short for all bytes together.
    """
    if facts.read_bandwidth is None:
        return 0.0
    drawn = subject.reference.draw(case=case)
    try:
        expected = subject.reference.run(drawn, float64=False)
        output_bytes = tensor_bytes(expected.outputs)
        expected.close()
        inputs = exchange.read(drawn.plan, drawn.block, copy=False)
        if time_us >= _floor(tensor_bytes(inputs) + output_bytes, 0, facts, subject.place.num_threads):
            return 0.0
        read_bytes = sum(_mattering(subject, drawn))
        return _floor(read_bytes, output_bytes, facts, subject.place.num_threads)
    finally:
        drawn.close()


def _floor(read_bytes: int, written_bytes: int, facts: DeviceFacts, num_cores: int) -> float:
    memory, cache = facts.read_bandwidth or 1.0, facts.cache_bytes or 0
    if facts.kind == "cpu":
        total = read_bytes + written_bytes
        if total == 0:
            return 0.0
        return floor_us(
            total, effective_bandwidth(total, memory=memory, cache_bytes=cache, num_cores=num_cores)
        )
    # The cache is flushed before each call, but what a call writes may stay in it.
    return floor_us(read_bytes + max(0, written_bytes - cache), memory)


def _mattering(subject: Subject, drawn: Drawn) -> Iterator[int]:
    """Bytes of each large floating input nearly all of whose elements change the output."""
    for index, leaf in enumerate(exchange.leaves(exchange.read(drawn.plan, drawn.block, copy=False))):
        num_bytes = tensor_bytes(leaf)
        if leaf.is_floating_point() and num_bytes >= _MIN_BYTES:
            picks = torch.randint(leaf.numel(), (_NUM_PROBED,)).tolist()
            if all(_matters(subject, drawn, index, pick) for pick in picks):
                yield num_bytes


def _matters(subject: Subject, drawn: Drawn, index: int, element: int) -> bool:
    plain = subject.reference.run(drawn, float64=False)
    try:
        for sign in (1.0, -1.0):
            with Block(drawn.block.nbytes, device=drawn.block.device) as block:
                block.bytes.copy_(drawn.block.bytes[: block.bytes.numel()])
                leaf = list(exchange.leaves(exchange.read(drawn.plan, block, copy=False)))[index]
                scale = leaf.double().square().mean().sqrt().clamp(min=1e-3)
                position = torch.unravel_index(torch.tensor(element), leaf.shape)
                leaf[position] = (sign * 100.0 * scale).to(leaf.dtype)
                subject.place.synchronize()
                changed = subject.reference.run(Drawn(drawn.plan, block, ()), float64=False)
                pairs = zip(exchange.leaves(plain.outputs), exchange.leaves(changed.outputs), strict=True)
                differs = any(not torch.equal(a, b) for a, b in pairs)
                changed.close()
            if differs:
                return True
        return False
    finally:
        plain.close()
