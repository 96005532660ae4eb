"""What an operator does, measured at one trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_agent.judge.exchange import leaves
from cuda_agent.synthesis.law import Law
from cuda_agent.synthesis.mine.subject import Subject, module_of
from cuda_agent.synthesis.mine.trial import Ran, Trial, equal, run
from cuda_agent.synthesis.seed_rules import Traits

_CLOSE = 1e-4


class Idle(Exception):
    """It runs, and is no work: one line."""


def refuse_idle(subject: Subject, trial: Trial) -> Ran:
    """Run, and refuse what is no work: random numbers, its input given back, an output that ignores it,
    an input or a weight changed in place.

    Raises:
        Idle: as it says.
    """
    ran = run(subject, trial)
    given = [x for x in ran.inputs if x is not None]
    _refuse_in_place(subject, trial, ran.inputs)
    torch.manual_seed(77)
    again = _called(ran, ran.inputs)
    if not equal(ran.outputs, again) and not all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        for a, b in zip(ran.outputs, again, strict=True)
    ):
        raise Idle("it draws random numbers")
    if len(ran.outputs) == 1 and any(equal(ran.outputs, [x]) for x in given):
        raise Idle("it gives its input back")
    torch.manual_seed(1234)
    other = [None if g is None else g.draw() for g in trial.givens]
    try:
        moved = _called(ran, other)
    except Exception:  # noqa: BLE001  shapes of the output may depend on values
        return ran
    if equal(ran.outputs, moved):
        raise Idle("its output does not depend on its input")
    return ran


def _refuse_in_place(subject: Subject, trial: Trial, inputs: Sequence[Tensor | None]) -> None:
    made = subject.build(trial.options)
    module = module_of(made) if subject.is_module else None
    before = [] if module is None else [weight.clone() for weight in module.state_dict().values()]
    given = [None if x is None else x.clone() for x in inputs]
    with torch.no_grad():
        made(*given)
    if not all(x is None or y is None or torch.equal(x, y) for x, y in zip(inputs, given, strict=True)):
        raise Idle("it changes its input in place")
    if module is not None and not equal(before, list(module.state_dict().values())):
        raise Idle("it changes its own weights in place")


def _called(ran: Ran, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    with torch.no_grad():
        return list(leaves(ran.made(*(None if x is None else x.clone() for x in inputs))))


def measured(subject: Subject, trial: Trial, ran: Ran, *, fake: bool) -> Traits:
    """The traits at a trial that runs.

    Args:
        subject, trial: what was run.
        ran: what it gave.
        fake: shapes follow on fake tensors.
    """
    index = next(i for i, x in enumerate(ran.inputs) if x is not None)
    x, y = ran.inputs[index], ran.outputs[0]
    assert x is not None

    def apply(value: Tensor) -> Tensor:
        given = [value if i == index else other for i, other in enumerate(ran.inputs)]
        return _called(ran, given)[0]

    module = module_of(ran.made) if subject.is_module else None
    floating = x.is_floating_point() and y.is_floating_point()
    linear, offset = (
        _tried(lambda: _linear(apply, trial, index), (False, False)) if floating else (False, False)
    )
    preserving = x.shape == y.shape
    return Traits(
        outputs=tuple(str(out.dtype)[6:] for out in ran.outputs),
        output_ranks=tuple(out.ndim for out in ran.outputs),
        shape_preserving=preserving,
        reduces=y.numel() < x.numel(),
        elementwise=preserving and floating and _tried(lambda: _elementwise(apply, x, y), default=False),
        linear=linear,
        offset=offset,
        idempotent=preserving and x.dtype == y.dtype and _tried(lambda: _close(apply(y), y), default=False),
        moves_only=linear and not offset and bool(torch.isin(y[y != 0], x).all()),
        has_parameters=module is not None and any(True for _ in module.parameters()),
        has_buffers=module is not None and any(True for _ in module.buffers()),
        by_mode=module is not None and _tried(lambda: _by_mode(module, ran), default=True),
        fake=fake,
        differentiable=floating and _tried(lambda: _differentiable(ran, index), default=False),
    )


def _tried(measure: Callable[[], Any], default: Any) -> Any:
    try:
        return measure()
    except Exception:  # noqa: BLE001  an operator may refuse what a measurement gives it
        return default


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=_CLOSE, atol=_CLOSE))


def _linear(apply: Callable[[Tensor], Tensor], trial: Trial, index: int) -> tuple[bool, bool]:
    """Additive and homogeneous about its value at zero; whether that value is not zero."""
    given = trial.givens[index]
    if given is None or given.law not in (Law.NORMAL, Law.SYMMETRIC_UNIT):
        return False, False
    torch.manual_seed(5)
    a, b = given.draw(), given.draw()
    zero = apply(torch.zeros_like(a))
    both = apply(2 * a - 3 * b) - zero
    linear = _close(both, 2 * (apply(a) - zero) - 3 * (apply(b) - zero))
    return linear, bool(zero.abs().max() > 1e-6)


def _elementwise(apply: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> bool:
    """A change of one element changes no other."""
    for place in (0, x.numel() // 2, x.numel() - 1):
        moved = x.clone().flatten()
        moved[place] = moved[place] * 0.5 + 0.2
        differs = (apply(moved.view_as(x)) != y).flatten().nonzero().flatten().tolist()
        if any(where != place for where in differs):
            return False
    return True


def _by_mode(module: Any, ran: Ran) -> bool:
    torch.manual_seed(3)
    module.train()
    outputs = _called(ran, ran.inputs)
    module.eval()
    return not (
        len(outputs) == len(ran.outputs)
        and all(_close(a, b) for a, b in zip(outputs, ran.outputs, strict=True))
    )


def _differentiable(ran: Ran, index: int) -> bool:
    given = [None if x is None else x.clone() for x in ran.inputs]
    first = given[index]
    assert first is not None
    first.requires_grad_(True)
    with torch.enable_grad():
        out: Tensor = next(iter(leaves(ran.made(*given))))
        return bool(out.requires_grad)
