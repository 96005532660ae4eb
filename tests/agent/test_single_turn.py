"""Files in the text of one answer, in the ways models write them."""

import pytest

from cuda_agent.agent.single_turn import answer_files
from cuda_agent.config import Precision, Track
from cuda_agent.skills import single_turn_prompt

MODEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
KERNEL = "#include <cmath>\nvoid f() {}\n"


@pytest.mark.parametrize(
    "heading",
    [
        "`kernels/a.cpp`",
        "**kernels/a.cpp**:",
        "### File: kernels/a.cpp",
        "Here is `kernels/a.cpp`, which replaces `model_new.py`'s old kernel in `kernels/a.cpp`:",
    ],
)
def test_a_path_before_the_fence(heading):
    text = f"First `model_new.py`:\n\n```python\n{MODEL}```\n\nThen\n{heading}\n\n```cpp\n{KERNEL}```\nDone."
    assert answer_files(text) == {"model_new.py": MODEL.encode(), "kernels/a.cpp": KERNEL.encode()}


def test_a_path_beside_the_language_in_a_comment_or_none_at_all():
    text = (
        f"```cpp kernels/a.cpp\n{KERNEL}```\n```cpp\n// kernels/deep/b.h\nint b;\n```\n"
        f"The module:\n```python\n{MODEL}```\n"
    )
    files = answer_files(text)
    assert sorted(files) == ["kernels/a.cpp", "kernels/deep/b.h", "model_new.py"]


def test_the_last_of_one_name_counts_and_thoughts_do_not():
    text = (
        f"<think>`model_new.py`\n```python\nwrong\n```\n</think>\n`model_new.py`\n```python\nold\n```\n"
        f"Better:\n\n`model_new.py`\n````python\n{MODEL}````\n"
    )
    assert answer_files(text) == {"model_new.py": MODEL.encode()}


def test_what_is_no_file_of_a_candidate_is_passed_over():
    text = (
        "`kernels/../../x.cpp`\n```cpp\nint a;\n```\n`utils/compile.py`\n```python\nx = 1\n```\nNo code here."
    )
    assert answer_files(text) == {}
    assert answer_files("I cannot help with that.") == {}
    assert answer_files("`model_new.py`\n```python\ncut off") == {}


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_prompt_holds_the_skill_and_the_model(backend):
    text = single_turn_prompt(
        backend, track=Track.PAPER, precision=Precision.DEFAULT, skill="THE @@SKILL TEXT", code="class Model"
    )
    assert "THE @@SKILL TEXT" in text and "class Model" in text and "track `paper`" in text
    assert answer_files(text.split("# SKILL.md")[0]) == {"model_new.py": b"...\n"}
