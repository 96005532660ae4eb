"""OptimizedModule: one state_dict, kernels where verified, the original elsewhere, prepare() again."""

import copy
import warnings

import pytest
import torch
from torch import nn

from cuda_agent.runtime.guarded import Fallback, OptimizedModule, Verified


class Original(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.fc = nn.Linear(width, 3)
        self.register_buffer("gain", torch.ones(3))
        self.width = width

    def forward(self, x, scale=1.0):
        return self.fc(x) * self.gain * scale


class New(Original):
    """Stands for kernels: same function, and it counts its calls and its prepare()s."""

    calls = 0
    prepared = 0

    def prepare(self):
        New.prepared += 1
        self.folded = self.fc.weight.detach() * self.gain[:, None]

    def forward(self, x, scale=1.0):
        New.calls += 1
        if not hasattr(self, "folded"):
            self.prepare()
        return (x @ self.folded.T + self.fc.bias * self.gain) * scale


CASES = (("float32[2,4]",), ("float32[2,4]", "2.0"), ("float32[5,4]",))


@pytest.fixture
def module():
    New.calls = New.prepared = 0
    torch.manual_seed(0)
    return OptimizedModule(Original().eval(), New, Verified(CASES, "cpu"))


def same(module, *args, **kwargs):
    """Call under no_grad without any warning, compare with the original, say whether kernels ran."""
    before = New.calls
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = module(*args, **kwargs)
        torch.testing.assert_close(actual, module.original(*args, **kwargs))
    return New.calls - before == 1


def falls_back(module, reason, *args):
    """Call twice: the original runs both times, and exactly one warning with the reason comes."""
    before = New.calls
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = module(*args), module(*args)
    assert New.calls == before
    torch.testing.assert_close(first, module.original(*args))
    torch.testing.assert_close(first, second)
    assert [w.category for w in caught] == [RuntimeWarning]
    assert str(reason) in str(caught[0].message)
    assert caught[0].filename == __file__
    return str(caught[0].message)


def test_kernels_run_on_every_verified_case(module):
    assert same(module, torch.randn(2, 4))
    assert same(module, torch.randn(5, 4))
    assert same(module, torch.randn(2, 4), 2.0)
    assert same(module, x=torch.randn(2, 4))
    assert same(module, torch.randn(2, 4), scale=2.0)
    assert New.prepared == 1


def test_state_dict_and_parameters_are_the_originals(module):
    original = module.original
    assert list(module.state_dict()) == list(original.state_dict()) == ["gain", "fc.weight", "fc.bias"]
    assert dict(module.named_parameters()).keys() == dict(original.named_parameters()).keys()
    assert module.fc.weight is original.fc.weight
    assert module.width == 4
    outer = nn.Sequential(module)
    assert list(outer.state_dict()) == ["0.gain", "0.fc.weight", "0.fc.bias"]
    outer.load_state_dict({k: torch.zeros_like(v) for k, v in outer.state_dict().items()})
    assert same(module, torch.randn(2, 4))
    assert float(module.original.fc.weight.detach().abs().sum()) == 0.0


@pytest.mark.parametrize(
    "x",
    [torch.randn(3, 4), torch.randn(2, 4).double(), torch.randn(4, 2).T],
    ids=["shape", "dtype", "strides"],
)
def test_unverified_inputs_fall_back(module, x):
    module.original.to(x.dtype)
    with torch.no_grad():
        message = falls_back(module, Fallback.INPUTS, x)
    assert "float32[2,4]" in message


def test_unverified_device_falls_back(module):
    with torch.no_grad():
        falls_back(
            OptimizedModule(module.original, New, Verified(CASES, "cuda", "X")),
            Fallback.DEVICE,
            torch.ones(2, 4),
        )


def test_training_falls_back(module):
    module.train()
    assert module.original.training
    assert module.fc.training
    with torch.no_grad():
        falls_back(module, Fallback.TRAINING, torch.randn(2, 4))
    module.eval()
    assert same(module, torch.randn(2, 4))


def test_autocast_falls_back(module):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        falls_back(module, Fallback.AUTOCAST, torch.randn(2, 4))


def test_gradient_falls_back_and_flows(module):
    falls_back(module, Fallback.GRADIENT, torch.randn(2, 4))
    module(torch.randn(2, 4)).sum().backward()
    assert module.fc.weight.grad is not None


def test_frozen_parameters_need_no_gradient_but_an_input_may(module):
    module.requires_grad_(False)
    module(torch.randn(2, 4))
    assert New.calls == 1
    falls_back(module, Fallback.GRADIENT, torch.randn(2, 4, requires_grad=True))


def test_tensor_subclass_falls_back(module):
    class Marked(torch.Tensor):
        pass

    with torch.no_grad():
        falls_back(module, Fallback.TENSOR_TYPE, torch.randn(2, 4).as_subclass(Marked))


def test_parameters_of_another_dtype_fall_back(module):
    module.original.register_buffer("gain", torch.ones(3, dtype=torch.float64))
    with torch.no_grad():
        falls_back(module, Fallback.PARAMETERS, torch.randn(2, 4))


def test_no_kernels_falls_back():
    with torch.no_grad():
        falls_back(
            OptimizedModule(Original().eval(), None, Verified((), "cpu")),
            Fallback.NO_KERNELS,
            torch.ones(2, 4),
        )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: m.original.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
        lambda m: m.double().float(),
        lambda m: m.fc.weight.mul_(3),
        lambda m: m.gain.mul_(3),
        lambda m: setattr(m.fc, "weight", nn.Parameter(torch.ones(3, 4))),
        lambda m: setattr(m.fc.weight, "data", torch.ones(3, 4)),
        lambda m: m.refresh(),
    ],
    ids=["load", "load-original", "to", "in-place", "buffer-in-place", "replace", "set-data", "refresh"],
)
def test_prepare_runs_again_when_state_changes(module, change):
    x = torch.randn(2, 4)
    assert same(module, x)
    assert same(module, x)
    assert New.prepared == 1
    with torch.no_grad():
        change(module)
    assert same(module, x)
    assert same(module, x)
    assert New.prepared == 2


def test_making_the_kernels_draws_nothing_from_the_callers_generator(module):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    module(torch.zeros(2, 4)) if not torch.is_grad_enabled() else None
    with torch.no_grad():
        module(torch.zeros(2, 4))
    assert torch.equal(torch.rand(1), expected)


def test_deepcopy_is_independent(module):
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.fc.weight.zero_()
    assert same(other, torch.randn(2, 4))
    assert same(module, torch.randn(2, 4))
    assert float(module.fc.weight.detach().abs().sum()) > 0


def test_compile_traces_the_original(module):
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), module.original(x))
