"""The memory floor of a task: the time that moving its inputs, weights and outputs once would take."""

from __future__ import annotations

import dataclasses

from cuda_agent.backends.base import DeviceFacts
from cuda_agent.judge.floor import effective_bandwidth
from cuda_agent.synthesis.record import TaskRecord


def with_floor(record: TaskRecord, device: DeviceFacts | None) -> TaskRecord:
    """The record with fact ``floor``; unchanged where bytes or bandwidth are not known.

    The read peak of the device's memory as measured; on a CPU the share that its cache holds may be faster.
    A roofline, not the judge's refusal bound: that one leaves a margin.
    """
    abstract = record.facts.get("abstract", {})
    if device is None or device.read_bandwidth is None or "input_bytes" not in abstract:
        return record
    moved = abstract["input_bytes"] + abstract["state_bytes"] + abstract["output_bytes"]
    bandwidth = device.read_bandwidth
    if device.kind == "cpu" and moved:
        bandwidth = effective_bandwidth(
            moved, memory=bandwidth, cache_bytes=device.cache_bytes or 0, num_cores=device.num_units
        )
    floor = {"floor_us": round(moved / bandwidth * 1e6, 3), "bytes": moved}
    return dataclasses.replace(record, facts={**record.facts, "floor": floor})


def device_facts(device: str) -> DeviceFacts | None:
    """What is known of the target's device; ``None`` where its toolchain is missing.

    Args:
        device: ``cpu`` or ``cuda:N``.
    """
    from cuda_agent.backends import get_backend
    from cuda_agent.config import Device
    from cuda_agent.errors import ToolchainError

    try:
        kind = Device.CPU if device == "cpu" else Device.CUDA
        return get_backend(kind, gpu=int(device.partition(":")[2] or 0)).facts()
    except ToolchainError:
        return None
