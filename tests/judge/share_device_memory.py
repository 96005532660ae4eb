"""Device memory by descriptor between a parent and a child of uid 65534; prints the bandwidth seen.

Run by test_judge_cuda.py, and by hand: ``python tests/judge/share_device_memory.py``. The child is
forked before CUDA is touched, so that it needs no file of the parent's.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from cuda_agent.judge.channel import Channel
from cuda_agent.judge.exchange import Block

NUM_BYTES = 1 << 30


def child(channel: Channel) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    message, fds = channel.receive()
    block = Block(message["nbytes"], device="cuda:0", fd=fds[0])
    block.bytes[: message["nbytes"]].fill_(7)
    torch.cuda.synchronize()
    channel.send({"uid": os.getuid()})
    channel.receive()
    os._exit(0)


def main() -> int:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        child(Channel(theirs))
    theirs.close()
    channel = Channel(ours)
    start = time.perf_counter()
    block = Block(NUM_BYTES, device="cuda:0")
    block.bytes.fill_(1)
    torch.cuda.synchronize()
    made = time.perf_counter() - start
    start = time.perf_counter()
    channel.send({"nbytes": NUM_BYTES}, [block.fd])
    answer, _ = channel.receive(60)
    shared = time.perf_counter() - start
    seen = int(block.bytes[:NUM_BYTES].min()), int(block.bytes[:NUM_BYTES].max())
    copy = torch.empty(NUM_BYTES, dtype=torch.uint8, device="cuda")
    copy.copy_(block.bytes[:NUM_BYTES])
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        copy.copy_(block.bytes[:NUM_BYTES])
    torch.cuda.synchronize()
    rate = 20 * 2 * NUM_BYTES / (time.perf_counter() - start)
    print(
        f"child uid {answer['uid']}, values {seen}, made in {made:.3f} s, "
        f"child's context, mapping and fill {shared:.3f} s, copy {rate / 1e12:.2f} TB/s"
    )
    channel.send({})
    block.close()
    return 0 if seen == (7, 7) else 1


if __name__ == "__main__":
    sys.exit(main())
