"""The Python API: a module in, the same module with new kernels out."""

from __future__ import annotations

import inspect
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuda_agent.config import Device, EpisodeConfig, JudgeConfig
from cuda_agent.errors import CudaAgentError, TaskError, UsageError
from cuda_agent.runs.loaded import attach, task_module
from cuda_agent.runs.optimization import optimize_task
from cuda_agent.runs.reporting import Reporter
from cuda_agent.runs.settings import OptimizeSettings
from cuda_agent.runs.summary import Outcome, reasons, verdict
from cuda_agent.runtime.candidate import construct
from cuda_agent.runtime.guarded import OptimizedModule, Verified
from cuda_agent.task import Task
from cuda_agent.tasks.example_law import PLAIN_TYPES, input_cases, law_of
from cuda_agent.tasks.exported import WEIGHTS, exported_source, save_weights
from cuda_agent.tasks.input_spec import inputs_source
from cuda_agent.tasks.module_source import find_class
from cuda_agent.tasks.targets import class_task_source

log = logging.getLogger(__name__)


def optimize(
    module: nn.Module,
    example_inputs: Any,
    *,
    policy: str = "playbook",
    device: str = "auto",
    track: str = "matched",
    precision: str = "default",
    gpu: int = 0,
    max_turns: int = 200,
    max_context: int = 131_072,
    time_limit_s: float | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    **policy_options: Any,
) -> OptimizedModule:
    """Optimise a module for inputs like the examples.

    The reference is the class's own source where that rebuilds the module, else its exported program.
    The result shares the module's parameters and buffers, runs the new kernels on what was verified and
    the module itself elsewhere (see :class:`OptimizedModule`). Inference only. Where no kernel could be
    verified, a module that always runs the original is returned; its ``result`` says why.

    Args:
        module: an ``nn.Module``; its mode, device and weights are left as they are.
        example_inputs: a tuple of arguments; a list of such tuples for several shapes. Inputs are drawn
            with their shapes, dtypes, mean and spread.
        policy: as ``--policy`` of the command line.
        device: ``cpu`` or ``cuda``; ``auto`` is where the examples lie.
        track, precision: the contract to be verified under.
        gpu: index of the GPU.
        max_turns, max_context, time_limit_s: limits of the episode.
        out: an empty or new folder for everything that is written; ``cuda-agent-out/NAME`` if left out.
        reporter: told what happens.
        policy_options: ``base_url``, ``temperature`` and the like.

    Raises:
        UsageError: arguments that do not fit.
        TaskError: the module cannot be judged (random in eval mode, no tensor output, not exportable).
        ToolchainError: a compiler or the device is missing.
        PolicyError: the policy cannot start.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"module is a {type(module).__name__}", "Give an nn.Module instance.")
    examples = input_cases(example_inputs)
    settings = OptimizeSettings(
        policy=policy,
        policy_options=policy_options,
        judge=JudgeConfig(
            device=_device(device, module, examples),
            track=track,  # type: ignore[arg-type]  # checked and made an enum there
            precision=precision,  # type: ignore[arg-type]
            gpu=gpu,
        ),
        episode=EpisodeConfig(max_turns=max_turns, max_context=max_context, time_limit_s=time_limit_s),
    )
    with tempfile.TemporaryDirectory(prefix="cuda-agent-") as folder:
        task = make_task(module, examples, Path(folder))
        outcome = optimize_task(task, settings, out=None if out is None else Path(out), reporter=reporter)
    return _optimized(module, outcome)


def _optimized(module: nn.Module, outcome: Outcome) -> OptimizedModule:
    """The module with what a run gave, its original alone where that is nothing."""
    run, result = outcome.folder, outcome.result
    if result is None or not result.correct:
        why = "; ".join([verdict(result), *(reasons(result)[:1] if result else [])])
        log.warning("no verified kernel for %s: it runs as it is (%s)", outcome.task.name, why)
        optimized = OptimizedModule(module, None, Verified((), "cpu"))
    else:
        arguments = task_module(run.load_task(), run.task / "model.py").get_init_inputs()
        optimized = attach(module, run, result, arguments=arguments)
    optimized.result = result
    optimized.folder = run.root
    return optimized


def make_task(module: nn.Module, examples: Sequence[tuple[Any, ...]], folder: Path) -> Task:
    """The task of a module; assets are written to ``folder``.

    Raises:
        UsageError: an example that no law describes, or that the module does not take.
        TaskError: neither its source nor its exported program gives a reference.
    """
    cases = inputs_source(law_of(examples))
    name = type(module).__name__.lower()
    with _evaluating(module):
        if task := _source_task(module, examples, cases, folder):
            return task
        try:
            source = exported_source(module, examples, name=type(module).__name__)
        except TaskError:
            _check_inputs(module, examples)
            raise
        save_weights(module, examples, folder / WEIGHTS)
    code = f"{source}\n\n{cases}\n\ndef get_init_inputs():\n    return []\n"
    task = Task(code=code, name=name, assets={WEIGHTS: folder / WEIGHTS}, data_source="torch.export")
    task.check_names()
    return task


def _check_inputs(module: nn.Module, examples: Sequence[tuple[Any, ...]]) -> None:
    """Raises a :class:`UsageError` where the module fails on an example."""
    for case in examples:
        try:
            with torch.no_grad():
                module(*_copied(case))
        except Exception as error:  # noqa: BLE001  the user's code may raise anything
            words = (str(error).strip().splitlines() or [""])[0]
            raise UsageError(
                f"{type(module).__name__} fails on its example inputs: {type(error).__name__}: {words}",
                "Give inputs that the module takes.",
            ) from None


def _source_task(
    module: nn.Module, examples: Sequence[tuple[Any, ...]], cases: str, folder: Path
) -> Task | None:
    """A task of the class's own source, if that gives the same module; the reason is logged if not."""
    kind = type(module)
    try:
        source = find_class(_module_name(kind), kind.__qualname__)
        kwargs = _constructor_arguments(module)
        code = class_task_source(source, args=(), kwargs=kwargs, cases=cases)
        task = Task(
            code=code,
            name=kind.__name__.lower(),
            search_path=source.search_path,
            data_source=f"{kind.__module__}:{kind.__qualname__}",
        )
        path = folder / "candidate_source.py"
        path.write_text(code, encoding="utf-8")
        namespace = task_module(task, path)
        rebuilt = construct(namespace.Model, namespace.get_init_inputs())
        difference = _difference(module, rebuilt, examples)
    except CudaAgentError as error:
        difference = str(error)
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        difference = f"{type(error).__name__}: {error}"
    if difference:
        log.info("the source of %s does not rebuild it: %s", kind.__name__, difference)
        return None
    return task


def _module_name(kind: type) -> str:
    if kind.__module__ != "__main__":
        return kind.__module__
    file = inspect.getsourcefile(kind)
    if file is None or not Path(file).is_file():
        raise UsageError(f"{kind.__name__} has no source file")
    return file


def _constructor_arguments(module: nn.Module) -> dict[str, Any]:
    """Arguments of the constructor as far as the instance keeps them under their own names.

    Raises:
        UsageError: a required argument is not kept.
    """
    found = {}
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        value = getattr(module, name, parameter.empty)
        if _is_plain(value):
            if value != parameter.default or type(value) is not type(parameter.default):
                found[name] = value
        elif parameter.default is parameter.empty:
            raise UsageError(f"constructor argument {name} is not kept by the instance")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, PLAIN_TYPES)


def _difference(module: nn.Module, rebuilt: nn.Module, examples: Sequence[tuple[Any, ...]]) -> str:
    """How a rebuilt module differs from the given one; empty where it does not."""
    first = next(iter(module.state_dict().values()), None)
    if first is not None:
        rebuilt.to(first.device)
    expected = {k: (v.shape, v.dtype) for k, v in module.state_dict().items()}
    if expected != {k: (v.shape, v.dtype) for k, v in rebuilt.state_dict().items()}:
        return "its state_dict differs"
    rebuilt.load_state_dict(module.state_dict())
    rebuilt.eval()
    for case in examples:
        with torch.no_grad():
            a, b = module(*_copied(case)), rebuilt(*_copied(case))
        try:
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6, equal_nan=True)
        except (AssertionError, TypeError, ValueError) as error:
            return f"its outputs differ: {str(error).splitlines()[0]}"
    return ""


def _copied(case: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in case)


def _device(device: str, module: nn.Module, examples: Sequence[tuple[Any, ...]]) -> Device:
    if device not in tuple(Device):
        raise UsageError(f"device is {device!r}", f"Choose one of: {', '.join(Device)}.")
    if device != Device.AUTO:
        return Device(device)
    tensors = [value for case in examples for value in case if isinstance(value, torch.Tensor)]
    found = next(iter([*tensors, *module.parameters(), *module.buffers()]), None)
    return Device.CUDA if found is not None and found.is_cuda else Device.CPU


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside; every submodule's own mode again after."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
