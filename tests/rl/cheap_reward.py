"""A declared cheap source of verdicts for tests of the stages: what is scored is the answer's text."""

from __future__ import annotations

from cuda_agent.result import Result, Stage, Times
from cuda_agent.rl.scoring import Answer
from cuda_agent.task import Task


def score(task: Task, answer: Answer) -> Result:
    """Right when the text has an even number of letters ``a``; faster with more distinct characters."""
    if answer.text.count("a") % 2:
        return Result(Stage.VERIFY, compiled=True, correct=False, reward=-1, task_hash=task.hash)
    times = Times.of([10.0 / (1 + len(set(answer.text)) % 5)])
    ten, five = Times.of([10.0]), Times.of([5.0])
    return Result(
        Stage.DONE,
        compiled=True,
        correct=True,
        reward=1,
        candidate_us=times,
        eager_us=ten,
        compile_us=five,
        task_hash=task.hash,
        candidate_hash="cheap",
    )


def broken(task: Task, answer: Answer) -> Result:
    """Our own side fails on every second task."""
    if int(task.hash, 16) % 2:
        return Result(Stage.BUILD, infrastructure="a worker was lost", task_hash=task.hash)
    return score(task, answer)
