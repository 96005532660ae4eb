"""The API's way from a module instance to a task: own source where that rebuilds it, else its program."""

import json

import pytest
import torch
from torch import nn

import cuda_agent
from cuda_agent.api import make_task
from cuda_agent.errors import TaskError, UsageError
from cuda_agent.runs.loaded import task_module
from cuda_agent.runtime.candidate import construct
from cuda_agent.tasks.example_law import input_cases, law_of
from cuda_agent.tasks.targets import save_task


class Kept(nn.Module):
    """Keeps its constructor's arguments."""

    def __init__(self, width, scale=2.0):
        super().__init__()
        self.width, self.scale = width, scale
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return self.fc(x) * self.scale


class Lost(nn.Module):
    """Keeps none of them, has buffers of all kinds, tied weights, nested outputs."""

    def __init__(self, hidden):
        super().__init__()
        self.first = nn.Linear(8, hidden)
        self.tied = self.first
        self.layers = nn.Sequential(nn.Linear(hidden, 8), nn.Dropout(0.5))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("gain", torch.rand(8))
        self.register_buffer("hidden_gain", torch.rand(8), persistent=False)
        self.constant = torch.rand(8)

    def forward(self, x, factor=1, mask=None):
        y = self.norm(self.layers(self.tied(self.first.forward(x)[..., :8])))
        y = y * self.gain + self.hidden_gain - self.constant * factor
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return {"y": y, "parts": (y.half(), y.argmax(-1))}


def rebuilt(module, examples, folder):
    """(task, its Model with the module's weights), read back from where a run would save it."""
    folder.mkdir()
    task = make_task(module, examples, folder)
    save_task(task, folder / "task")
    namespace = task_module(task, folder / "task" / "model.py")
    model = construct(namespace.Model, namespace.get_init_inputs()).eval()
    assert set(model.state_dict()) == set(module.state_dict())
    model.load_state_dict(module.state_dict())
    return task, namespace, model


def agree(module, model, inputs):
    training = module.training
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), module(*inputs))
    module.train(training)


def test_own_source_where_it_rebuilds_the_module(tmp_path):
    module = Kept(8, 3.0)
    task, namespace, model = rebuilt(module, [(torch.randn(4, 8),)], tmp_path / "a")
    assert "class Kept(nn.Module)" in task.code
    assert "class Lost" not in task.code
    assert model.scale == 3.0
    agree(module, model, namespace.get_inputs())
    assert module.training, "the caller's mode is left as it was"


def test_exported_program_where_the_source_does_not_rebuild_it(tmp_path):
    torch.manual_seed(0)
    module = Lost(16).eval()
    example = (torch.randn(4, 8), 3, torch.rand(4, 8) < 0.5)
    task, namespace, model = rebuilt(module, [example], tmp_path / "a")
    assert task.data_source == "torch.export"
    assert set(task.assets) == {"weights.pt"}
    agree(module, model, example)
    agree(module, model, namespace.get_inputs())
    assert torch.equal(model.gain, module.gain)


def test_a_changed_constant_makes_the_source_unfit(tmp_path):
    module = Kept(8)
    module.forward_scale = 1
    module.fc.register_forward_hook(lambda _m, _i, out: out + 1)
    task, namespace, model = rebuilt(module, [(torch.randn(4, 8),)], tmp_path / "a")
    assert task.data_source == "torch.export"
    agree(module, model, namespace.get_inputs())


def test_several_examples_become_cases(tmp_path):
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval()
    examples = [(torch.randn(2, 8),), (torch.rand(5, 8),)]
    _, namespace, model = rebuilt(module, examples, tmp_path / "a")
    assert namespace.CASE_WEIGHTS == [0.5, 0.5]
    for case, (example,) in enumerate(examples):
        (drawn,) = namespace.get_inputs(case)
        assert drawn.shape == example.shape
        agree(module, model, (drawn,))
    with pytest.raises(ValueError, match="no program"):
        model(torch.randn(7, 8))


def test_weights_are_part_of_the_task(tmp_path):
    first, second = (nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    x = [(torch.ones(2, 4),)]
    a, _, _ = rebuilt(first, x, tmp_path / "a")
    b, _, _ = rebuilt(second, x, tmp_path / "b")
    assert a.code == b.code
    assert a.hash != b.hash


@pytest.mark.parametrize(
    ("example", "check"),
    [
        (torch.randn(4000) * 3 + 7, lambda v: abs(v.mean() - 7) < 0.5 and abs(v.std() - 3) < 0.3),
        (torch.rand(4000), lambda v: v.min() >= 0 and v.max() <= 1 and abs(v.mean() - 0.5) < 0.1),
        (-torch.rand(4000), lambda v: v.max() <= 0),
        (torch.full((8,), 2.5), lambda v: bool((v == 2.5).all())),
        (torch.randint(3, 9, (4000,)), lambda v: (v.min(), v.max()) == (3, 8)),
        (torch.rand(4000) < 0.9, lambda v: v.dtype is torch.bool and v.double().mean() > 0.8),
        (torch.randn(4000).half(), lambda v: v.dtype is torch.float16 and abs(v.float().std() - 1) < 0.1),
        (torch.randn(4000).bfloat16(), lambda v: v.dtype is torch.bfloat16),
        (torch.tensor(3.0), lambda v: v.dim() == 0 and v == 3.0),
    ],
)
def test_inputs_are_drawn_like_the_examples(example, check):
    (case,) = law_of([(example,)])
    drawn = eval(case.items[0].expression(), {"torch": torch})
    assert (drawn.shape, drawn.dtype) == (example.shape, example.dtype)
    assert check(drawn)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ([torch.ones(2)], "is a list"),
        (torch.tensor([1.0, float("inf")]), "not finite"),
        (torch.ones(0), "no elements"),
        (torch.ones(2, dtype=torch.complex64), "dense real"),
    ],
)
def test_examples_without_a_law_are_refused(example, words):
    with pytest.raises(UsageError, match=words):
        law_of([(example,)])


def test_forms_of_example_inputs():
    x, y = torch.ones(1), torch.ones(2)
    assert input_cases(x) == ((x,),)
    assert input_cases((x, y)) == ((x, y),)
    assert input_cases([x, y]) == ((x, y),)
    assert input_cases([(x,), (y,)]) == ((x,), (y,))
    for bad in ((), [], None, [(x,), (x, y)], "x"):
        with pytest.raises(UsageError):
            input_cases(bad)


class Mutates(nn.Module):
    def __init__(self, unknown):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


class Branches(nn.Module):
    def __init__(self, unknown):
        super().__init__()

    def forward(self, x):
        return x if x.sum().item() > 0 else -x


class Text(nn.Module):
    def __init__(self, unknown):
        super().__init__()

    def forward(self, x):
        return x, "text"


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Mutates, "changes its state"), (Branches, "cannot export"), (Text, "no tensor")],
)
def test_modules_that_cannot_be_a_reference_say_why(kind, words, tmp_path):
    with pytest.raises(TaskError, match=words) as caught:
        make_task(kind(1), [(torch.ones(3),)], tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("example", [(torch.ones(3, 5),), (torch.ones(3, 8), torch.ones(3, 8)), ()])
def test_inputs_that_the_module_does_not_take(example, tmp_path):
    with pytest.raises(UsageError, match="Kept fails on its example inputs: ") as caught:
        make_task(Kept(8), [example], tmp_path)
    assert "\n" not in str(caught.value)


def test_bad_arguments_of_optimize():
    with pytest.raises(UsageError, match=r"nn\.Module"):
        cuda_agent.optimize(lambda x: x, torch.ones(1))
    with pytest.raises(UsageError, match="device"):
        cuda_agent.optimize(nn.ReLU(), torch.ones(1), device="tpu")
    with pytest.raises(UsageError, match="track"):
        cuda_agent.optimize(nn.ReLU(), torch.ones(1), track="none")


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "has no verdict"), ({"stage": "verify", "correct": False}, "not verified")],
)
def test_load_refuses_what_is_not_verified(tmp_path, content, words):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "model.py").write_text("Model = get_inputs = get_init_inputs = None\n")
    (tmp_path / "settings.json").write_text("{}")
    if content is not None:
        (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=words) as caught:
        cuda_agent.load(tmp_path)
    assert caught.value.remedy
    with pytest.raises(UsageError, match="no run"):
        cuda_agent.load(tmp_path / "task")
