"""Targets: what each spec becomes, and one clear line for each that is malformed."""

import json
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import TaskError, UsageError
from cuda_agent.tasks.input_spec import parse_inputs
from cuda_agent.tasks.targets import load_task_file, resolve_target, save_task

MODULE = '''
import os
import torch
import torch.nn as nn
from torch.nn import functional as F

SCALE = 3.0
raise_if_run = os.environ["CUDA_AGENT_TEST_MUST_NOT_RUN"]


def helper(x):
    return F.relu(x) * SCALE


class Net(nn.Module):
    """Docstring."""

    def __init__(self, width, *, bias=True):
        super(Net, self).__init__()
        self.fc = nn.Linear(width, width, bias=bias)

    def forward(self, x, mask=None):
        return helper(self.fc(x))


def function(x):
    return x


if __name__ == "__main__":
    Net(4)
'''


def run(code, folder, name="task"):
    """Execute a task's source as the judge does: from a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(code)
    namespace = {"__name__": "model", "__file__": str(path)}
    exec(compile(code, str(path), "exec"), namespace)
    return namespace


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return path


@pytest.mark.parametrize(
    ("spec", "dtype", "shape"),
    [
        ("f64[2,3]", torch.float64, (2, 3)),
        ("f32[4]", torch.float32, (4,)),
        ("f16[2,3,4]", torch.float16, (2, 3, 4)),
        ("bf16[1]", torch.bfloat16, (1,)),
        ("f32[]", torch.float32, ()),
        ("f32[ 2 , 3 ]:rand", torch.float32, (2, 3)),
        ("i64[8]<1000", torch.int64, (8,)),
        ("i32[8]<1000", torch.int32, (8,)),
        ("i16[8]<1000", torch.int16, (8,)),
        ("i8[8]<100", torch.int8, (8,)),
        ("u8[8]", torch.uint8, (8,)),
        ("u8[8]<7", torch.uint8, (8,)),
        ("bool[4,4]", torch.bool, (4, 4)),
    ],
)
def test_each_dtype_draws_what_it_says(spec, dtype, shape):
    (case,) = parse_inputs([spec])
    value = eval(case.items[0].expression(), {"torch": torch})
    assert (value.dtype, tuple(value.shape)) == (dtype, shape)


def test_bounds_hold_and_are_reached():
    (case,) = parse_inputs(["i64[4000]<5,u8[9000],f32[4000]:rand,bool[4000]"])
    five, byte, unit, flag = (eval(item.expression(), {"torch": torch}) for item in case.items)
    assert (five.min(), five.max()) == (0, 4)
    assert (byte.min(), byte.max()) == (0, 255)
    assert unit.min() >= 0 and unit.max() < 1
    assert 0.4 < flag.double().mean() < 0.6


def test_scalars_pass_through():
    (case,) = parse_inputs(["3,-0.5,true,False,none,1e-5"])
    assert [item.value for item in case.items] == [3, -0.5, True, False, None, 1e-5]
    assert [type(item.value) for item in case.items] == [int, float, bool, bool, type(None), float]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (["f32[8,64"], "no tensor and no number"),
        (["f32[8x64]"], "Separate sizes with commas"),
        (["f33[8]"], "unknown dtype 'f33'"),
        (["f32[0]"], "not a list of sizes above 0"),
        (["f32[-1]"], "not a list of sizes above 0"),
        (["f32[8]<4"], "no law of a float"),
        (["i64[8]"], "Write i64[8]<N"),
        (["i64[8]<0"], "no bound"),
        (["i64[8]<x"], "no bound"),
        (["i8[8]<1000"], "more than int8 holds"),
        (["bool[2]<2"], "a bool has no bound"),
        ([""], "an item is empty"),
        (["f32[2],,3"], "an item is empty"),
        (["hello"], "no tensor and no number"),
        (["0*f32[8]"], "weight 0 is not a number above 0"),
        (["1.2.3*f32[8]"], "weight 1.2.3"),
        (["0.5*f32[8]", "f32[8]"], "some have none"),
        (["f32[8]", "f32[8],3"], "differ in their number of items"),
    ],
)
def test_malformed_inputs_name_the_fault(specs, words):
    with pytest.raises(UsageError) as caught:
        parse_inputs(specs)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_class_source_stands_alone_and_leaves_the_rest(module, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_AGENT_TEST_MUST_NOT_RUN", raising=False)
    task = resolve_target(f"{module}:Net", inputs=["f32[2,8]"], init="[8]")
    assert task.search_path == ()
    assert "raise_if_run" not in task.code
    space = run(task.code, tmp_path)
    model = space["Model"](*space["get_init_inputs"]())
    assert model(*space["get_inputs"]()).shape == (2, 8)
    assert model.fc.bias is not None


def test_keyword_arguments_go_through_a_subclass_with_the_same_state(module, tmp_path):
    task = resolve_target(f"{module}:Net", inputs=["f32[2,8],none"], init='{"width": 8, "bias": false}')
    space = run(task.code, tmp_path)
    model = space["Model"](*space["get_init_inputs"]())
    assert list(model.state_dict()) == ["fc.weight"]
    assert space["get_inputs"]()[1] is None


def test_a_class_called_model_with_keywords(tmp_path):
    path = tmp_path / "named.py"
    path.write_text(MODULE.replace("Net", "Model"))
    task = resolve_target(f"{path}:Model", inputs=["f32[2,8]"], init='{"width": 8}')
    space = run(task.code, tmp_path)
    assert space["Model"](**space["get_init_inputs"]()).fc.in_features == 8


def test_a_class_that_needs_its_package_is_imported(tmp_path, monkeypatch):
    package = tmp_path / "somepackage_for_targets"
    package.mkdir()
    (package / "__init__.py").write_text("from .net import Net\n")
    (package / "parts.py").write_text("def twice(x):\n    return 2 * x\n")
    (package / "net.py").write_text(
        "from torch import nn\n\nfrom .parts import twice\n\n\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return twice(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    for target in ("somepackage_for_targets.net:Net", "somepackage_for_targets:Net"):
        task = resolve_target(target, inputs=["f32[3]"])
        assert task.search_path == (str(tmp_path),)
        assert "from somepackage_for_targets.net import Net" in task.code
        assert "#     def forward(self, x):" in task.code
    monkeypatch.syspath_prepend(task.search_path[0])
    space = run(task.code, tmp_path)
    x = torch.ones(3)
    assert torch.equal(space["Model"]()(x), 2 * x)


def test_several_shapes_become_cases(module, tmp_path):
    task = resolve_target(f"{module}:Net", inputs=["3*f32[2,8]", "1*f32[5,8]"], init="[8]")
    space = run(task.code, tmp_path)
    assert space["CASE_WEIGHTS"] == [0.75, 0.25]
    assert [space["get_inputs"](case)[0].shape[0] for case in (0, 1)] == [2, 5]
    assert space["get_inputs"]()[0].shape[0] == 2
    with pytest.raises(ValueError, match="no input case 2"):
        space["get_inputs"](2)


def test_a_file_is_found_without_running_it():
    # torch.nn is long imported, but its re-exports are followed by reading.
    task = resolve_target("torch.nn:GELU", inputs=["f32[4]"])
    assert "from torch.nn.modules.activation import GELU" in task.code


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("nofile.py", {}, "there is no file nofile.py"),
        ("no_such_module_xyz:Net", {"inputs": ["f32[1]"]}, "no module 'no_such_module_xyz'"),
        ("torch.no_such_part:Net", {"inputs": ["f32[1]"]}, "no module 'torch.no_such_part'"),
        ("torch.nn:NoSuchClass", {"inputs": ["f32[1]"]}, "defines no NoSuchClass"),
        ("torch.nn:", {}, "is no class name"),
        ("{module}:function", {"inputs": ["f32[1]"]}, "is a function, not a class"),
        ("{module}:Net", {}, "needs constructor arguments: width"),
        ("{module}:Net", {"init": "[8]"}, "no input shapes known, Net.forward takes (x, mask)"),
        ("{module}:Net", {"init": "[8]", "inputs": ["f32[1],1,1"]}, "--inputs has 3 items"),
        ("{module}:Net", {"init": "{8", "inputs": ["f32[1]"]}, "--init is not JSON"),
        ("{module}:Net", {"init": "8", "inputs": ["f32[1]"]}, "not a list or an object"),
        ("{module}:Net", {"init": '{"a b": 1}', "inputs": ["f32[1]"]}, "'a b' is no argument name"),
        ("{task}", {"inputs": ["f32[1]"]}, "is a task file, which has inputs of its own"),
        ("{folder}", {}, "is a folder"),
    ],
)
def test_bad_targets_end_in_one_line(module, tmp_path, target, options, words):
    task = tmp_path / "task.py"
    task.write_text("Model = get_inputs = get_init_inputs = None\n")
    with pytest.raises(UsageError) as caught:
        resolve_target(target.format(module=module, task=task, folder=tmp_path), **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_task_file_without_model_says_how_to_name_a_class(module):
    with pytest.raises(TaskError, match="defines no Model, get_inputs") as caught:
        load_task_file(module)
    assert f"{module}:Class" in caught.value.remedy


def test_a_syntax_error_names_the_line(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("x = 1\ndef f(:\n")
    with pytest.raises(TaskError, match="line 2"):
        load_task_file(path)
    with pytest.raises(TaskError, match="line 2"):
        resolve_target(f"{path}:Net", inputs=["f32[1]"])


def test_a_saved_task_is_the_same_task(tmp_path):
    weights = tmp_path / "weights.pt"
    torch.save({"a": torch.ones(2)}, weights)
    (tmp_path / "t.py").write_text("# weights\nModel = get_inputs = get_init_inputs = None\n")
    task = load_task_file(tmp_path / "t.py")
    assert set(task.assets) == {"weights.pt"}
    save_task(task, tmp_path / "saved")
    again = load_task_file(tmp_path / "saved" / "model.py")
    assert again.hash == task.hash
    assert again.name == "t"
    assert json.loads((tmp_path / "saved" / "task.json").read_text())["hash"] == task.hash
    assert Path(again.assets["weights.pt"]).parent == tmp_path / "saved"
