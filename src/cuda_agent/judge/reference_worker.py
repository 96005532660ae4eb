"""The reference runner: task code only, never candidate code. Disposable.

Draws inputs, runs the reference in eager and in float64, and times eager and torch.compile. Started by
the judge as ``python reference_worker.py FD``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from cuda_agent.judge import exchange
from cuda_agent.judge.channel import ChannelClosed
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.promote import run_in_float64
from cuda_agent.judge.timing import make_timer, run_burst, time_calls, time_released
from cuda_agent.judge.worker import (
    Refused,
    Worker,
    connect,
    describe_error,
    import_file,
    settle,
    shares_memory,
)
from cuda_agent.runtime.candidate import construct
from cuda_agent.signature import describe_inputs


class ReferenceWorker(Worker):
    """Holds one task's module on the device."""

    def __init__(self) -> None:
        super().__init__(connect())
        self.module: Any = None
        self.model: Any = None
        self.compiled: Any = None
        self.other: Any = None
        self.transport = "host"
        self.pending: exchange.Block | None = None
        self.handlers |= {
            "load": self._load,
            "construct_other": self._construct_other,
            "set_state": self._set_state,
            "draw": self._draw,
            "run": self._run,
            "compile": self._compile,
            "time": self._time,
            "burst": self._burst,
            "time_one": self._time_one,
        }

    # -- loading ------------------------------------------------------------------------------

    def _load(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self.device = message["device"]
        settle(self.device, message["num_threads"])
        set_precision(message["precision"])
        sys.path[:0] = message["search_path"]
        self.module = _import_task(message["path"])
        init_inputs = _call(self.module, "get_init_inputs")
        _check_size(self.module, self.device)
        torch.manual_seed(message["seed"])
        self.model = self._construct(init_inputs)
        state = self.model.state_dict()
        try:
            plan = exchange.describe([init_inputs, state])
        except exchange.NotExchangeable as error:
            raise Refused(FailureKind.TASK, f"get_init_inputs() or the state_dict holds {error}") from None
        weights = getattr(self.module, "CASE_WEIGHTS", None) or [1.0]
        return {
            "plan": plan,
            "weights": [float(w) for w in weights],
            **self._publish([init_inputs, state], plan),
        }

    def _construct(self, init_inputs: Any) -> Any:
        try:
            model = construct(self.module.Model, init_inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  task code may raise anything
            raise Refused(FailureKind.TASK, f"Model(*get_init_inputs()) raised {_short(error)}") from None
        if not isinstance(model, torch.nn.Module):
            raise Refused(FailureKind.TASK, "Model is not an nn.Module")
        return model.eval().to(self.device)

    def _construct_other(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A second model, its weights from another seed; ``run`` uses it where asked for ``other``."""
        init_inputs = _call(self.module, "get_init_inputs")
        torch.manual_seed(message["seed"])
        self.other = self._construct(init_inputs)
        ours, theirs = self.model.state_dict(), self.other.state_dict()
        return {"same": ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k]) for k in ours)}

    def _set_state(self, message: Mapping[str, Any]) -> dict[str, Any]:
        state = exchange.read(message["plan"], self.slots["state"], device=self.device)
        self.model.load_state_dict(state, strict=True)
        return {}

    # -- drawing and running ------------------------------------------------------------------

    def _draw(self, message: Mapping[str, Any]) -> dict[str, Any]:
        inputs = self._draw_inputs(message["seed"], message["case"])
        try:
            plan = exchange.describe(inputs)
        except exchange.NotExchangeable as error:
            raise Refused(FailureKind.TASK, f"get_inputs() returned {error}") from None
        return {"plan": plan, "inputs": list(describe_inputs(inputs)), **self._publish(inputs, plan)}

    def _draw_inputs(self, seed: int, case: int) -> list[Any]:
        arguments = (case,) if hasattr(self.module, "CASE_WEIGHTS") else ()
        if self.device != "cpu":
            # Drawn on the device where the task's code allows it: tens of seconds faster when large.
            try:
                torch.manual_seed(seed)
                with torch.device(self.device):
                    return self._to_device(self.module.get_inputs(*arguments))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # noqa: BLE001  the plain way below says what is wrong
                pass
        torch.manual_seed(seed)
        return self._to_device(_call(self.module, "get_inputs", *arguments))

    def _to_device(self, inputs: Any) -> list[Any]:
        if not isinstance(inputs, list | tuple):
            raise Refused(FailureKind.TASK, f"get_inputs() returned a {type(inputs).__name__}, not a list")
        return [_map_tensors(value, lambda t: t.detach().to(self.device)) for value in inputs]

    def _run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Eager and float64 outputs for the inputs in a slot; the inputs are left as they are."""
        inputs = exchange.read(message["plan"], self.slots[message["slot"]], device=self.device)
        before = torch.random.get_rng_state(), _cuda_rng(self.device)
        outputs = self._forward(inputs, self.other if message.get("other") else self.model)
        if message.get("check"):
            _check_outputs(outputs)
            self._check_function(message, before, outputs)
        original = exchange.read(message["plan"], self.slots[message["slot"]], device=self.device, copy=False)
        changed = {
            str(index): after
            for index, (was, after) in enumerate(
                zip(exchange.leaves(original), exchange.leaves(inputs), strict=True)
            )
            if not _same(was, after)
        }
        outputs64, why64 = None, ""
        if message["float64"]:
            outputs64, why64 = self._float64(original)
        answer = self._package(outputs, outputs64, changed, why64)
        return {**answer, "shared": shares_memory(outputs, inputs)}

    def _package(
        self, outputs: Any, outputs64: Any, changed: Mapping[str, Any], why64: str
    ) -> dict[str, Any]:
        tree = {"outputs": outputs, "outputs64": outputs64, "changed": changed}
        plan = _described(tree)
        finite = all(bool(torch.isfinite(leaf).all()) for leaf in exchange.leaves(outputs))
        return {"plan": plan, "finite": finite, "why64": why64, **self._publish(tree, plan)}

    def _forward(self, inputs: Any, model: Any) -> Any:
        try:
            return model(*inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  task code may raise anything
            raise Refused(FailureKind.TASK, f"the reference's forward raised {_short(error)}") from None

    def _check_function(self, message: Mapping[str, Any], before: Any, outputs: Any) -> None:
        """The reference must be a function of its inputs: no random ops, no hidden state."""
        after = torch.random.get_rng_state(), _cuda_rng(self.device)
        if not (torch.equal(before[0], after[0]) and _equal_or_none(before[1], after[1])):
            raise Refused(FailureKind.RANDOM, "the reference draws random numbers in eval mode")
        inputs = exchange.read(message["plan"], self.slots[message["slot"]], device=self.device)
        again = self._forward(inputs, self.model)
        for first, second in zip(exchange.leaves(outputs), exchange.leaves(again), strict=True):
            if not _close(first, second):
                raise Refused(FailureKind.RANDOM, "two calls of the reference on one input disagree")

    def _float64(self, inputs: Any) -> tuple[Any, str]:
        try:
            return run_in_float64(self.model, inputs), ""
        except Exception as error:  # noqa: BLE001  a task may refuse float64 in any way
            return None, f"no float64 reference ({_short(error)}): compared with eager"

    # -- timing -------------------------------------------------------------------------------

    def _compile(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Compile and warm up on the inputs in the slots; the first call compiles."""
        torch._dynamo.reset()
        self.compiled = torch.compile(self.model, dynamic=False, mode=message.get("mode"))
        for slot, plan in zip(message["slots"], message["plans"], strict=True):
            self.compiled(*exchange.read(plan, self.slots[slot], copy=True, device=self.device))
        if self.device != "cpu":
            torch.cuda.synchronize()
        return {}

    def _time(self, message: Mapping[str, Any]) -> dict[str, Any]:
        model = self.compiled if message["which"] == "compile" else self.model
        sets = self._sets(message)
        samples, _ = time_calls(
            make_timer(self.device),
            lambda index: model(*sets[index]),
            order=message["order"],
            warmup=message["warmup"],
            keep_last=message["keep_last"],
        )
        return {"samples": samples}

    def _burst(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Calls back to back: what the judge's clock says of eager calibrates it."""
        sets = self._sets(message)
        run_burst(
            make_timer(self.device),
            lambda index: self.model(*sets[index]),
            num_sets=len(sets),
            num_calls=message["num_calls"],
            keep_last=message["keep_last"],
        )
        return {}

    def _time_one(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """One eager call, timed as the candidate's call on the same values is."""
        seen, new = self._sets(message)
        sample, _ = time_released(
            make_timer(self.device),
            lambda: self.model(*new),
            warm_up=lambda: self.model(*seen),
            flags=self.slots[message["flags"]].bytes,
        )
        return {"sample": sample}

    def _sets(self, message: Mapping[str, Any]) -> list[Any]:
        return [
            exchange.read(plan, self.slots[slot], copy=False, device=self.device)
            for slot, plan in zip(message["slots"], message["plans"], strict=True)
        ]

    # -- sending ------------------------------------------------------------------------------

    def _publish(self, value: Any, plan: exchange.Plan) -> dict[str, Any]:
        """Put a value's tensors into a new block whose descriptor goes with the next answer."""
        device = self.device if self.transport == "device" else "cpu"
        block = exchange.Block(plan["nbytes"], device=device)
        exchange.write(value, plan, block)
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.pending = block
        return {"nbytes": plan["nbytes"], "block_device": device}

    def serve(self) -> None:
        """As the base class, with a block's descriptor attached to an answer that has one."""
        while True:
            try:
                message, self.fds = self.channel.receive()
            except ChannelClosed:
                return
            self.transport = message.get("transport", self.transport)
            answer = self._answer(message)
            block, self.pending = self.pending, None
            self.channel.send(answer, [block.fd] if block is not None else [])
            if block is not None:
                block.close()


def _check_outputs(outputs: Any) -> None:
    """What forward returned must be tensors that can be compared, with something in them."""
    _described(outputs)
    sizes = [leaf.numel() for leaf in exchange.leaves(outputs)]
    if not sizes:
        raise Refused(FailureKind.TASK, "forward() returned no tensor")
    if not any(sizes):
        raise Refused(FailureKind.TASK, "forward() returned tensors without elements")


def _described(value: Any) -> exchange.Plan:
    try:
        return exchange.describe(value)
    except exchange.NotExchangeable as error:
        raise Refused(FailureKind.TASK, f"forward() returned {error}") from None
    except RecursionError:
        raise Refused(FailureKind.TASK, "forward() returned a container that holds itself") from None


def set_precision(precision: str) -> None:
    """Backend flags of a precision contract; ``default`` leaves PyTorch's own."""
    if precision == "default":
        return
    allow = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allow
    torch.backends.cudnn.allow_tf32 = allow


def _import_task(path: str) -> Any:
    try:
        return import_file("model", path)
    except SystemExit:
        raise Refused(FailureKind.TASK, "the module exits while it is imported") from None
    except Exception as error:  # noqa: BLE001  task code may raise anything
        frame = describe_error(error)["trace"].splitlines()
        where = f" at {frame[-1]}" if frame else ""
        raise Refused(FailureKind.TASK, f"the module does not import: {_short(error)}{where}") from None


def _call(module: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(module, name)(*arguments)
    except torch.OutOfMemoryError:
        raise
    except AttributeError as error:
        if not hasattr(module, name):
            raise Refused(FailureKind.TASK, f"the module defines no {name}()") from None
        raise Refused(FailureKind.TASK, f"{name}() raised {_short(error)}") from None
    except Exception as error:
        if describe_error(error)["kind"] is FailureKind.OUT_OF_MEMORY:
            raise
        raise Refused(FailureKind.TASK, f"{name}() raised {_short(error)}") from None


def _check_size(module: Any, device: str) -> None:
    """Refuse inputs that cannot fit, before anything is allocated."""
    try:
        with torch.device("meta"):
            inputs = module.get_inputs()
        nbytes = sum(leaf.numel() * leaf.element_size() for leaf in exchange.leaves(list(inputs)))
    except Exception:  # noqa: BLE001  code that meta tensors cannot run is simply tried
        return
    if device == "cpu":
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        available = torch.cuda.mem_get_info(device)[0]
    if 4 * nbytes > available:
        raise Refused(
            FailureKind.TOO_LARGE,
            f"its inputs take {nbytes / 2**30:.1f} GiB and four times that is needed; "
            f"{available / 2**30:.1f} GiB are free on {device}",
        )


def _map_tensors(value: Any, function: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {key: _map_tensors(item, function) for key, item in value.items()}
    return value


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point() or a.is_complex():
        return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))
    return bool(torch.equal(a, b))


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a.double(), b.double(), rtol=1e-2, atol=1e-3, equal_nan=True))


def _cuda_rng(device: str) -> torch.Tensor | None:
    return None if device == "cpu" else torch.cuda.get_rng_state(device)


def _equal_or_none(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and bool(torch.equal(a, b)))


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    ReferenceWorker().serve()
