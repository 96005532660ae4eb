"""The device and versions that an evaluation or a baseline stands under, found without touching the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.backends import get_backend, resolve_device
from cuda_agent.backends.base import DeviceFacts
from cuda_agent.config import Device, JudgeConfig


@dataclass(frozen=True)
class DeviceSetting:
    """Where times are measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        facts: of the device; measured, or read from the cache.
        versions: torch, cuda, driver, python, cuda_agent.
    """

    device: Device
    facts: DeviceFacts
    versions: Mapping[str, str]

    @property
    def name(self) -> str:
        """As the driver says."""
        return self.facts.name


def device_setting(config: JudgeConfig) -> DeviceSetting:
    """Resolve a configuration's device.

    Raises:
        ToolchainError: no such device, or no compiler.
        InfrastructureError: the cache cannot be written.
    """
    from cuda_agent.judge.devices import Place, versions

    device = resolve_device(config.device)
    facts = get_backend(device, gpu=config.gpu).facts()
    # Only the kind matters here; the judge's own place would make a context on the GPU.
    place = Place(str(device), str(device), str(device), "host", 1)
    return DeviceSetting(device, facts, versions(place, facts.driver))
