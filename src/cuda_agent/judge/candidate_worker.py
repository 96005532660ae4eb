"""The candidate's process: untrusted code runs here and nowhere else. Thrown away after one candidate.

It holds no expected outputs, no seeds and no reference. It returns output bytes into memory the judge
owns; its times, kernel lists and guard reports are evidence that can lower a verdict, never raise one.
Started by the judge as ``python candidate_worker.py FD``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from cuda_agent.judge import exchange
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.guard import ComputeGuard
from cuda_agent.judge.kept_inputs import KeptInputs
from cuda_agent.judge.settings import Settings
from cuda_agent.judge.thread_watch import ThreadWatch
from cuda_agent.judge.timing import kernel_times, make_timer, run_burst, time_calls, time_released
from cuda_agent.judge.worker import (
    Refused,
    Worker,
    connect,
    import_file,
    settle,
    shares_memory,
)
from cuda_agent.runtime.candidate import EXTENSION, construct, load_extension
from cuda_agent.sandbox.no_children import forbid_children

_LATE_DELAY_S = 0.005


class CandidateWorker(Worker):
    """Holds one candidate's module on the device."""

    def __init__(self) -> None:
        super().__init__(connect())
        self.model: Any = None
        self.settings: Settings | None = None
        self.inputs = KeptInputs()
        self.held: dict[str, Any] = {}
        self.timed: list[tuple[int, Any]] = []
        self.handlers |= {
            "settle": self._settle,
            "import": self._import,
            "load": self._load,
            "set_state": self._set_state,
            "run": self._run,
            "fetch": self._fetch,
            "time": self._time,
            "burst": self._burst,
            "time_one": self._time_one,
            "kernels": self._kernels,
        }

    def _settle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.device = message["device"]
        settle(self.device, message["num_threads"])
        self.settings = Settings()
        return {}

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """As every worker; settings that the candidate's code changed meanwhile are put back, and named."""
        answer = super()._answer(message)
        return answer if self.settings is None else {**answer, "settings": self.settings.put_back()}

    # -- loading ------------------------------------------------------------------------------

    def _import(self, message: Mapping[str, Any]) -> dict[str, Any]:
        _import_extension(message["library"])
        return {}

    def _load(self, message: Mapping[str, Any]) -> dict[str, Any]:
        sys.path.insert(0, message["folder"])
        _import_extension(message["library"])
        module = import_file("model_new", f"{message['folder']}/model_new.py")
        if not hasattr(module, "ModelNew"):
            raise Refused(FailureKind.CANDIDATE, "model_new.py defines no class ModelNew")
        init_inputs, state = exchange.read(message["plan"], self.slots["state"], device=self.device)
        init_inputs = _on_host(init_inputs)
        torch.manual_seed(message["seed"])
        model = construct(module.ModelNew, init_inputs)
        if not isinstance(model, torch.nn.Module):
            raise Refused(FailureKind.CANDIDATE, "ModelNew is not an nn.Module")
        self.model = model.eval().to(self.device)
        return {"prepare_us": self._load_state(state)}

    def _set_state(self, message: Mapping[str, Any]) -> dict[str, Any]:
        state = exchange.read(message["plan"], self.slots["state"], device=self.device)
        return {"prepare_us": self._load_state(state)}

    def _load_state(self, state: Mapping[str, torch.Tensor]) -> float | None:
        own = self.model.state_dict()
        _check_state(own, state)
        self.model.load_state_dict(state, strict=True)
        if not callable(getattr(self.model, "prepare", None)):
            return None
        start = time.perf_counter_ns()
        with ComputeGuard(capture_only=True):
            self.model.prepare()
        self._synchronize()
        return (time.perf_counter_ns() - start) / 1e3

    # -- running ------------------------------------------------------------------------------

    def _inputs(self, message: Mapping[str, Any]) -> list[Any]:
        return [
            self.inputs.of(slot, self.slots[slot], plan, self.device)
            for slot, plan in zip(message["slots"], message["plans"], strict=True)
        ]

    def _map(self, message: Mapping[str, Any]) -> dict[str, Any]:
        for slot in message["slots"]:
            self.inputs.forget(slot["name"])  # tensors over a block that goes would keep its memory
        return super()._map(message)

    def _run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One call under the guard; output bytes at return and again after a delay."""
        inputs = self._inputs(message)[0]
        guard, watch = ComputeGuard(), ThreadWatch()
        _fill_empty_with_nan(True)
        try:
            with watch if self.device == "cpu" else nullcontext(), guard:
                output = self.model(*inputs)
            unfilled = not _fills_empty_with_nan()
        except Exception:
            if guard.violations:
                return {"operators": sorted(guard.violations), "plan": None, "tampered": False}
            raise
        finally:
            _fill_empty_with_nan(False)
        answer = self._store(output, "out0")
        self._synchronize()
        time.sleep(_LATE_DELAY_S)
        if not answer["overflow"]:
            self._store(output, "out1")
            self._synchronize()
        if message.get("hold"):
            self.held[message["hold"]] = output
        answer["operators"] = sorted({**guard.violations, **watch.violations})
        answer["tampered"] = guard.tampered or unfilled
        answer["shared"] = shares_memory(output, inputs)
        return answer

    def _store(self, output: Any, slot: str) -> dict[str, Any]:
        """Copy an output into the judge's memory, on the current stream."""
        for leaf in exchange.leaves(output):
            if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                raise Refused(
                    FailureKind.CANDIDATE, f"forward() returned a {type(leaf).__name__}, not a tensor"
                )
        try:
            plan = exchange.describe(output)
        except exchange.NotExchangeable as error:
            raise Refused(FailureKind.CANDIDATE, f"forward() returned {error}") from None
        devices = sorted({leaf.device.type for leaf in exchange.leaves(output)})
        block = self.slots[slot]
        overflow = plan["nbytes"] > block.nbytes
        if not overflow:
            exchange.write(output, plan, block)
            if self.device != "cpu":
                torch.cuda.current_stream().synchronize()
        return {"plan": plan, "overflow": overflow, "devices": devices}

    def _fetch(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """An output held earlier (``hold``), or of a timed call (``timed``), as it is now."""
        output = self.timed[message["timed"]][1] if "timed" in message else self.held[message["hold"]]
        return self._store(output, "out0")

    # -- timing -------------------------------------------------------------------------------

    def _time(self, message: Mapping[str, Any]) -> dict[str, Any]:
        sets = self._inputs(message)
        self.timed = []
        samples, self.timed = time_calls(
            make_timer(self.device),
            lambda index: self.model(*sets[index]),
            order=message["order"],
            warmup=message["warmup"],
            keep_last=message["keep_last"],
        )
        return {"samples": samples, "held": [index for index, _ in self.timed]}

    def _burst(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Calls back to back, for the judge's own clock."""
        sets = self._inputs(message)
        self.timed = []
        self.timed = run_burst(
            make_timer(self.device),
            lambda index: self.model(*sets[index]),
            num_sets=len(sets),
            num_calls=message["num_calls"],
            keep_last=message["keep_last"],
        )
        return {"held": [index for index, _ in self.timed]}

    def _time_one(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One call on values that are written while calls on older ones run."""
        seen, new = self._inputs(message)
        self.timed = []
        sample, output = time_released(
            make_timer(self.device),
            lambda: self.model(*new),
            warm_up=lambda: self.model(*seen),
            flags=self.slots[message["flags"]].bytes,
        )
        self.timed = [(0, output)]
        return {"sample": sample}

    def _kernels(self, message: Mapping[str, Any]) -> dict[str, Any]:
        sets = self._inputs(message)
        samples, by_name = kernel_times(lambda: self.model(*sets[0]), message["num_calls"])
        return {"samples": samples, "by_name": by_name}

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def _fill_empty_with_nan(on: bool) -> None:
    """What ``torch.use_deterministic_algorithms`` does to ``torch.empty``, without the seconds that its
    import of the compiler stack costs a fresh process."""
    torch._C._set_deterministic_algorithms(on, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)


def _fills_empty_with_nan() -> bool:
    """Whether :func:`_fill_empty_with_nan` is still in force, after code that may have lifted it."""
    return bool(
        torch._C._get_deterministic_algorithms() and torch._C._get_deterministic_fill_uninitialized_memory()
    )


def _import_extension(path: str) -> None:
    forbid_children()  # not earlier: bringing a device up may start helpers
    sys.modules[EXTENSION] = load_extension(Path(path))


def _check_state(own: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    missing, extra = sorted(set(state) - set(own)), sorted(set(own) - set(state))
    if missing or extra:
        raise Refused(FailureKind.CANDIDATE, f"state_dict keys differ: missing {missing}, unexpected {extra}")
    for key, value in state.items():
        if own[key].shape != value.shape or own[key].dtype != value.dtype:
            raise Refused(
                FailureKind.CANDIDATE,
                f"state_dict[{key!r}] is {own[key].dtype} {tuple(own[key].shape)}, "
                f"the reference has {value.dtype} {tuple(value.shape)}",
            )


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, list | tuple):
        return type(value)(_on_host(item) for item in value)
    if isinstance(value, Mapping):
        return {key: _on_host(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    CandidateWorker().serve()
