"""Order and bounds of the queue."""

from __future__ import annotations

import pytest

from cuda_agent.pool.contract import QueueFullError
from cuda_agent.pool.fair import FairQueue


def always(_: str) -> bool:
    return True


def test_callers_take_turns_and_each_line_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue(limit=10, caller_limit=10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(item[0], item)
    assert [queue.take(always) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]


def test_a_latecomer_waits_for_one_job_of_each_other_caller_at_most() -> None:
    queue: FairQueue[str] = FairQueue(limit=200, caller_limit=200)
    for number in range(100):
        queue.put("busy", f"busy {number}")
    assert queue.take(always) == "busy 0"
    queue.put("late", "late")
    assert "late" in [queue.take(always) for _ in range(2)]


def test_what_does_not_suit_is_passed_over_without_losing_its_turn() -> None:
    queue: FairQueue[str] = FairQueue(limit=10, caller_limit=10)
    for item in ("a1", "b1"):
        queue.put(item[0], item)
    assert queue.take(lambda item: item == "b1") == "b1"
    assert queue.take(lambda item: item == "b1") is None
    assert queue.take(always) == "a1"


def test_both_bounds_hold_and_room_comes_back() -> None:
    queue: FairQueue[str] = FairQueue(limit=3, caller_limit=2)
    queue.put("a", "a1")
    queue.put("a", "a2")
    with pytest.raises(QueueFullError, match="caller a"):
        queue.put("a", "a3")
    queue.put("b", "b1")
    with pytest.raises(QueueFullError, match="full"):
        queue.put("c", "c1")
    assert queue.remove("a", "a1") and not queue.remove("a", "a1")
    queue.put("c", "c1")
    assert len(queue) == 3 and queue.position("a", "a2") == 0


def test_what_is_put_back_comes_next_even_into_a_full_queue() -> None:
    queue: FairQueue[str] = FairQueue(limit=2, caller_limit=1)
    queue.put("a", "a1")
    queue.put("b", "b1")
    taken = queue.take(always)
    queue.put("a", "a2")
    queue.put_back("a", "a1")
    assert (taken, queue.take(always), len(queue)) == ("a1", "a1", 2)
