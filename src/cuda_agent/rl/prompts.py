"""What a model in training reads at action level ``file``: whole files in fenced blocks, short answers."""

from __future__ import annotations

from cuda_agent.config import Precision, Track
from cuda_agent.result import Result, Stage
from cuda_agent.rl.training_config import JudgeTable
from cuda_agent.skills import single_turn_prompt, skill_text
from cuda_agent.task import Task

MAX_OBSERVATION = 900
"""Characters of an observation, about 250 tokens."""

_SHORT = """Rewrite the module below with a {kind} kernel of your own, so that it runs faster.

Answer with whole files, each in a fenced block whose first line is a comment with its path:
- model_new.py: class ModelNew, constructor and state_dict as Model; forward calls the extension only:
  `import cuda_extension`, then cuda_extension.NAME(...). No torch operator computes anything.
- kernels/NAME.{suffix}: the kernel and an extern "C" launcher.
- kernels/NAME_binding.cpp: includes <torch/types.h> and "../binding_registry.h"; a function on tensors that
  allocates the output with torch::empty_like and calls the launcher; then
  REGISTER_BINDING(NAME, [](pybind11::module& m) {{ m.def("NAME", &function); }});
Outputs must equal the reference's. Reward: -1 wrong, 1 right, 2 also over 5 % faster than eager, 3 also over
5 % faster than torch.compile.

```python
{code}
```"""


def file_prompt(task: Task, backend: str, *, judge: JudgeTable, short: bool) -> str:
    """The message that asks for files.

    Args:
        backend: ``cpu`` or ``cuda``.
        judge: the contract that is told.
        short: a few hundred tokens in place of the whole skill text.
    """
    if not short:
        return _long(task, backend, track=judge.track, precision=judge.precision)
    return _SHORT.format(
        kind="CUDA" if backend == "cuda" else "C++ (CPU, OpenMP)",
        suffix="cu" if backend == "cuda" else "cpp",
        code=task.code.strip(),
    )


def observation(result: Result | None, turns_left: int) -> str:
    """What the policy is told of its answer; ``None``: it held no file."""
    if result is None:
        said = "No file was found. Put each file in a fenced block that begins with its path."
    elif result.infrastructure is not None:
        said = "The judge could not work. Answer again."
    elif result.correct is False:
        where = "does not compile" if result.stage is Stage.BUILD else f"failed at {result.stage}"
        said = f"The candidate {where}.\n{result.detail}"
    else:
        said = f"Correct. {_times(result)}"
    left = f"\nTurns left: {turns_left}. Answer with whole files again, or without files to stop."
    return said[: MAX_OBSERVATION - len(left)] + left


def _times(result: Result) -> str:
    rows = (("yours", result.candidate_us), ("eager", result.eager_us), ("compile", result.compile_us))
    return ", ".join(f"{name} {times.median:.1f} us" for name, times in rows if times is not None)


def _long(task: Task, backend: str, *, track: Track, precision: Precision) -> str:
    from cuda_agent.backends import get_backend
    from cuda_agent.config import Device

    facts = get_backend(Device(backend)).facts()
    skill = skill_text(backend, track=track, precision=precision, facts=facts)
    return single_turn_prompt(backend, track=track, precision=precision, skill=skill, code=task.code)
