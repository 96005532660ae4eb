"""Trees of tensors in shared memory, and the messages that carry them."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
import torch

from cuda_agent.judge.channel import Channel, ChannelClosed
from cuda_agent.judge.exchange import Block, NotExchangeable, describe, leaves, read, write


def round_trip(value: object) -> object:
    plan = describe(value)
    block = Block(plan["nbytes"], device="cpu")
    write(value, plan, block)
    return read(plan, Block(plan["nbytes"], device="cpu", fd=os.dup(block.fd)), copy=True)


def test_a_tree_comes_back_as_it_was() -> None:
    value = {
        "x": torch.randn(3, 4, dtype=torch.float16),
        "rest": (torch.tensor(True), [torch.arange(5), None, 1, 0.1, "name", torch.float32]),
        "empty": torch.empty(0, 7),
    }
    back = round_trip(value)
    assert isinstance(back, dict) and list(back) == list(value)
    for a, b in zip(leaves(value), leaves(back), strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape and torch.equal(a, b)
    assert back["rest"][1][1:] == [None, 1, 0.1, "name", torch.float32]


def shared_memory() -> list[str]:
    """What of our shared memory this process has open: one entry for each descriptor."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [target for path in links if "memfd:cuda-agent" in (target := str(path.readlink()))]


def test_a_block_leaves_no_descriptor_closed_or_dropped() -> None:
    before = len(shared_memory())
    block = Block(64, device="cpu")
    view = read(describe(torch.arange(4)), block, copy=False)
    assert len(shared_memory()) == before + 2  # the block's, and the map's
    block.close()
    block.close()
    assert len(shared_memory()) == before + 1
    view += 1  # still mapped: a tensor lies in it
    del view
    assert len(shared_memory()) == before
    dropped = Block(64, device="cpu")
    del dropped
    with pytest.raises(OSError, match="shorter"):
        Block(1 << 20, device="cpu", fd=os.memfd_create("cuda-agent"))
    assert len(shared_memory()) == before


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(6, 5).t(),
        torch.randn(1, 5).expand(4, 5),
        torch.randn(40)[3:33:2],
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=["transposed", "expanded", "sliced", "channels-last"],
)
def test_strides_are_kept(tensor: torch.Tensor) -> None:
    back = round_trip([tensor])
    assert isinstance(back, list)
    assert back[0].stride() == tensor.stride() and torch.equal(back[0], tensor)


def test_both_sides_see_one_memory() -> None:
    value = [torch.zeros(8)]
    plan = describe(value)
    block = Block(plan["nbytes"], device="cpu")
    other = Block(plan["nbytes"], device="cpu", fd=os.dup(block.fd))
    read(plan, other, copy=False)[0].fill_(3.0)
    assert torch.equal(read(plan, block, copy=False)[0], torch.full((8,), 3.0))


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, torch.eye(2).to_sparse()], ids=["object", "keys", "sparse"]
)
def test_what_cannot_travel_is_refused(value: object) -> None:
    with pytest.raises(NotExchangeable):
        describe([value])


def test_a_plan_that_lies_about_its_size_is_refused() -> None:
    plan = describe([torch.zeros(4)])
    with pytest.raises(ValueError, match="larger than its block"):
        read(
            {**plan, "root": {"list": [{**plan["root"]["list"][0], "offset": 512}]}}, Block(512, device="cpu")
        )
    with pytest.raises(ValueError, match="extent"):
        read(
            {**plan, "root": {"list": [{**plan["root"]["list"][0], "extent": 100}]}}, Block(512, device="cpu")
        )


def pair() -> tuple[Channel, Channel]:
    a, b = socket.socketpair()
    return Channel(a), Channel(b)


def test_a_large_message_arrives_whole_with_its_descriptor() -> None:
    ours, theirs = pair()
    text = "x" * 3_000_000
    block = Block(16, device="cpu")
    thread = threading.Thread(target=lambda: ours.send({"text": text}, [block.fd]))
    thread.start()
    message, fds = theirs.receive(10)
    thread.join()
    assert message == {"text": text} and len(fds) == 1
    os.close(fds[0])


def test_silence_times_out_and_a_closed_end_is_named() -> None:
    ours, theirs = pair()
    with pytest.raises(TimeoutError):
        theirs.receive(0.05)
    ours.close()
    with pytest.raises(ChannelClosed):
        theirs.receive(1)


def test_garbage_is_a_closed_channel() -> None:
    a, b = socket.socketpair()
    a.sendall(b"\xff\xff\xff\xff\x00garbage")
    with pytest.raises(ChannelClosed, match="oversized"):
        Channel(b).receive(1)
    c, d = socket.socketpair()
    c.sendall(b"\x03\x00\x00\x00\x00[1]")
    with pytest.raises(ChannelClosed, match="malformed"):
        Channel(d).receive(1)
