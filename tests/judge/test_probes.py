"""Derived inputs keep what an input stands for; perturbed states leave their defaults."""

from __future__ import annotations

import math

import pytest
import torch

from cuda_agent.judge.probes import derive, perturb_state, probe_names

VALUE_PROBES = [name for name in probe_names() if name != "permute_batch"]


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def test_names():
    assert probe_names() == ("sign_flip", "scale_up", "scale_down", "mixed", "shift", "permute_batch")
    with pytest.raises(KeyError):
        derive([torch.rand(3)], "no_such", gen())


def test_scaling_by_hand():
    x = torch.tensor([[0.0, 1.5, -2.25, 4.5]])
    assert derive([x], "scale_up", gen())[0].tolist() == [[0.0, 12.0, -18.0, 36.0]]
    assert derive([x], "scale_down", gen())[0].tolist() == [[0.0, 1.5 / 8, -2.25 / 8, 4.5 / 8]]
    assert derive([x], "mixed", gen())[0].tolist() == [[0.0, 1.5, -18.0, 36.0]]
    assert x.tolist() == [[0.0, 1.5, -2.25, 4.5]]


def test_shift_skips_exact_zeros():
    x = torch.tensor([0.0, 1.5, 2.5, 0.0])
    y = derive([x], "shift", gen())[0]
    assert y[0] == 0 and y[3] == 0
    amount = y[1] - 1.5
    spread = math.sqrt(0.5)  # of 1.5 and 2.5
    assert 0.5 * spread <= amount <= 1.5 * spread
    assert y[2] - 2.5 == pytest.approx(amount.item(), rel=1e-5)


def test_sign_flip_keeps_magnitude_and_has_both_signs():
    x = torch.rand(5, 7, generator=gen()) + 0.25
    y = derive([x], "sign_flip", gen())[0]
    assert torch.equal(y.abs(), x)
    assert (y < 0).any() and (y > 0).any()


@pytest.mark.parametrize("seed", range(10))
def test_sign_flip_is_never_the_identity(seed):
    x = torch.tensor([0.25, 0.5])
    assert sorted(derive([x], "sign_flip", gen(seed))[0].sign().tolist()) == [-1.0, 1.0]


@pytest.mark.parametrize("name", VALUE_PROBES)
def test_symmetry_and_triangles_stay(name):
    a = torch.randn(2, 6, 6, generator=gen())
    symmetric, triangular = a + a.mT, torch.tril(a[0])
    s, t = derive([symmetric, triangular], name, gen())
    assert torch.equal(s, s.mT) and not torch.equal(s, symmetric)
    assert torch.equal(t, torch.tril(t)) and not torch.equal(t, triangular)


@pytest.mark.parametrize("name", ["sign_flip", "scale_up", "mixed"])
def test_positive_definite_stays(name):
    a = torch.randn(6, 6, generator=gen(), dtype=torch.float64)
    spd = a @ a.T + torch.eye(6, dtype=torch.float64)
    spd = (spd + spd.T) / 2
    torch.linalg.cholesky(derive([spd], name, gen())[0])  # raises when it is not


@pytest.mark.parametrize("name", VALUE_PROBES)
def test_tables_are_left_alone(name):
    tables = [
        torch.randint(0, 10, (4, 3), generator=gen()),
        torch.rand(4, 3, generator=gen()) > 0.5,
        torch.softmax(torch.randn(4, 3, generator=gen()), -1),
        torch.eye(3),
        torch.tensor([1.0, -1.0, -1.0]),
        torch.tensor([0.0, -math.inf]),
        torch.tensor(2.5),
        torch.zeros(0, 3),
        3,
        "mean",
    ]
    assert derive(tables, name, gen()) is None
    derived = derive([*tables, torch.rand(3)], name, gen())
    assert all(new is old for new, old in zip(derived[:-1], tables, strict=True))


def test_half_probability_rows_are_recognised():
    rows = torch.softmax(torch.randn(8, 1000, generator=gen()), -1).half()
    assert derive([rows], "shift", gen()) is None


def test_permutation_is_shared_by_the_batch():
    x = torch.arange(5.0)[:, None] + 0.5 * torch.ones(5, 2)
    labels = torch.tensor([4, 0, 3, 1, 2])
    rows = torch.softmax(torch.randn(5, 3, generator=gen()), -1)
    other = torch.rand(7, 2, generator=gen())
    px, plabels, prows, pother = derive([x, labels, rows, other], "permute_batch", gen())
    order = (px[:, 0] - 0.5).long()
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4] and order.tolist() != [0, 1, 2, 3, 4]
    assert torch.equal(plabels, labels[order])
    assert torch.equal(prows, rows[order])
    assert pother is other


def test_permutation_keeps_symmetry_triangles_and_offsets():
    a = torch.randn(4, 4, generator=gen())
    symmetric, upper = a + a.T, torch.triu(a)
    offsets = torch.tensor([0, 2, 3, 9])
    s, u, o = derive([symmetric, upper, offsets], "permute_batch", gen())
    assert torch.equal(s, s.T) and not torch.equal(s, symmetric)
    assert u is upper and o is offsets


@pytest.mark.parametrize("inputs", [[torch.rand(1, 8)], [torch.tensor(1.0)], [], [torch.ones(4, 2)]])
def test_permutation_that_changes_nothing(inputs):
    assert derive(inputs, "permute_batch", gen()) is None


def test_nested_inputs_and_layout():
    x = torch.randn(2, 3, 4, 5, generator=gen()).to(memory_format=torch.channels_last)
    (pair,) = derive([(x, {"scale": 2})], "scale_up", gen())
    assert isinstance(pair, tuple)
    assert pair[0].stride() == x.stride() and torch.equal(pair[0], x * 8)
    assert pair[1] == {"scale": 2}
    half = derive([x.half()], "shift", gen())[0]
    assert half.dtype == torch.float16 and half.stride() == x.stride()


def test_complex_inputs():
    x = torch.randn(3, 4, dtype=torch.complex64, generator=gen())
    for name in VALUE_PROBES:
        assert derive([x], name, gen())[0].dtype == torch.complex64


def module_state():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    return module, dict(module.state_dict())


def test_state_leaves_its_defaults():
    module, state = module_state()
    before = {key: value.clone() for key, value in state.items()}
    new = perturb_state(state, gen())
    assert list(new) == list(state)
    assert all(torch.equal(state[key], before[key]) for key in state)
    assert torch.equal(new["1.num_batches_tracked"], state["1.num_batches_tracked"])
    assert (new["1.running_var"] > 0.49).all() and (new["1.running_var"] < 2.01).all()
    for key in ("1.running_var", "1.running_mean", "1.weight", "1.bias", "2.weight", "2.bias", "0.weight"):
        assert (new[key] - state[key]).abs().mean() > 0.02, key
        assert new[key].dtype == state[key].dtype
    assert (new["2.weight"] > 0).all()
    module.load_state_dict(new, strict=True)


def test_constant_tables_keep_zeros_and_infinities():
    causal = torch.full((4, 4), -math.inf).triu(1)
    mask = torch.tril(torch.ones(4, 4))
    mixed = torch.tensor([0.0, -math.inf, 0.5, -1.5])
    state = {"causal": causal, "mask": mask, "mixed": mixed, "index": torch.arange(5), "b": mask.bool()}
    new = perturb_state(state, gen())
    for key in ("causal", "mask", "index", "b"):
        assert torch.equal(new[key], state[key])
    assert new["mixed"][0] == 0 and new["mixed"][1] == -math.inf
    assert new["mixed"][2] != 0.5 and new["mixed"][3] != -1.5


def test_frequencies_stay_positive_and_ties_stay_tied():
    inv_freq = 10000 ** (-torch.arange(0, 64, 2) / 64)
    shared = torch.randn(5, 3, generator=gen())
    state = {"rope.inv_freq": inv_freq, "embed": shared, "head": shared, "copy": shared.clone()}
    new = perturb_state(state, gen())
    assert (new["rope.inv_freq"] > 0).all()
    assert torch.equal(new["embed"], new["head"]) and torch.equal(new["embed"], new["copy"])
    biases = perturb_state({"a.bias": torch.zeros(4), "b.bias": torch.zeros(4)}, gen())
    assert not torch.equal(biases["a.bias"], biases["b.bias"])


def test_half_and_complex_state():
    state = {"w": torch.randn(8, generator=gen()).half(), "z": torch.randn(4, dtype=torch.complex64)}
    new = perturb_state(state, gen())
    assert new["w"].dtype == torch.float16 and not torch.equal(new["w"], state["w"])
    assert new["z"].dtype == torch.complex64 and not torch.equal(new["z"], state["z"])


def test_one_row_changes_one_row_only() -> None:
    generator = torch.Generator().manual_seed(0)
    x, labels = torch.rand(16, 5) + 1, torch.arange(16)
    derived = derive([x, labels], "one_row", generator)
    assert derived is not None
    changed = (derived[0] != x).any(dim=1)
    assert int(changed.sum()) == 1 and torch.equal(derived[0][changed], x[changed] / 2)
    assert torch.equal(derived[1], labels)
    assert derive([torch.arange(4), torch.ones(1)], "one_row", generator) is None
