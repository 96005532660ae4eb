"""Others on the GPU and slowed clocks: seen through NVML (a fake one, compiled), timed again, then void."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from candidates import KERNEL, TASK, write_candidate
from cuda_candidates import LARGE, candidate
from fake_nvml import UUID, FakeNvml

from cuda_agent.backends.cuda import list_gpus
from cuda_agent.config import Device, JudgeConfig, Scope
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge import JudgeSession
from cuda_agent.judge import session as judge_session
from cuda_agent.judge.bystanders import GpuWatch, Seen, Watch, open_watch
from cuda_agent.judge.devices import choose_place
from cuda_agent.judge.failure_kind import FailureKind
from cuda_agent.judge.nvml import Gpu, NvmlError
from cuda_agent.judge.processes import WorkerDied, WorkerError
from cuda_agent.judge.undisturbed import undisturbed
from cuda_agent.pool.lease import attendance, attendants
from cuda_agent.result import Fault, Stage
from cuda_agent.sandbox.process_tree import members
from cuda_agent.workspace.snapshot import freeze

US, OTHER = os.getpid(), os.getppid()  # who started us does not descend from us
THERMAL, POWER_CAP, IDLE, SETTINGS = 0x40, 0x4, 0x1, 0x2


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    return FakeNvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def watch(nvml: FakeNvml) -> Iterator[Watch]:
    nvml.say()
    opened = GpuWatch(Gpu(UUID, nvml.library), lambda: {US})
    yield opened
    opened.close()


def looked(watch: Watch) -> Seen:
    seen = Seen()
    with watch.window(seen):
        pass
    return seen


def test_without_the_library_or_the_gpu_it_says_so(nvml: FakeNvml) -> None:
    with pytest.raises(NvmlError, match="does not load"):
        Gpu(UUID, "libnvidia-ml-of-no-machine.so.1")
    with pytest.raises(NvmlError, match="not found"):
        Gpu("GPU-another", nvml.library)


def test_our_own_processes_disturb_nothing(nvml: FakeNvml, watch: Watch) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in members(US)
        nvml.say(processes=members(US), busy=[US, 90, child.pid, 99], reasons=IDLE | SETTINGS)
        seen = looked(watch)
    finally:
        child.communicate()
    assert (seen.disturbed, seen.remarks) == (False, set())


def test_a_busy_process_of_others_disturbs_an_idle_one_is_a_remark(nvml: FakeNvml, watch: Watch) -> None:
    nvml.say(processes=[US, OTHER], busy=[US, 90, OTHER, 7])
    [other] = looked(watch).others
    assert f"process {OTHER} (" in other and "7 %" in other
    nvml.say(processes=[US, OTHER], busy=[US, 90])
    seen = looked(watch)
    assert not seen.disturbed and "idle" in next(iter(seen.remarks))
    nvml.say(processes=[US, OTHER])  # no samples by process: being there counts
    assert "may have used" in str(looked(watch))


def test_another_judge_of_the_device_is_ours(nvml: FakeNvml, tmp_path: Path) -> None:
    code = "from cuda_agent.pool.lease import attendance\nwith attendance('cuda:7'): print('in'); input()"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-c", code]
    with attendance("cuda:7"):
        judge = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert judge.stdout is not None and judge.stdout.readline() == "in\n"
        assert attendants("cuda:7") == {US, judge.pid}
        assert attendants("cuda:8") == {US}
        judge.kill()
        judge.communicate()
        assert attendants("cuda:7") == {US}


def test_ids_of_another_namespace_are_counted(nvml: FakeNvml, watch: Watch) -> None:
    """None of the listed is us, so they cannot be looked up; we hold no NVIDIA device here."""
    if any(entry.resolve().name.startswith("nvidia") for entry in Path("/proc/self/fd").iterdir()):
        pytest.skip("this process holds a GPU")
    nvml.say(processes=[4000001, 4000002])
    assert "2 processes of others" in str(looked(watch))


def test_ids_of_another_namespace_as_many_as_ours(nvml: FakeNvml) -> None:
    """A process whose descriptors cannot be read may hold a context: it counts as ours."""
    watch = GpuWatch(Gpu(UUID, nvml.library), lambda: {4000009})  # nobody: unreadable
    nvml.say(processes=[4000001])
    seen = looked(watch)
    watch.close()
    assert not seen.disturbed


def test_an_empty_list_says_nothing_and_that_is_said(watch: Watch) -> None:
    seen = looked(watch)
    assert not seen.disturbed and "lists no process" in next(iter(seen.remarks))


@pytest.mark.parametrize(
    ("reasons", "disturbed", "remarked"),
    [(0, False, False), (IDLE | SETTINGS, False, False), (THERMAL, True, False), (POWER_CAP, False, True)],
)
def test_clocks(nvml: FakeNvml, watch: Watch, reasons: int, disturbed: bool, remarked: bool) -> None:
    nvml.say(processes=[US], reasons=reasons)
    seen = looked(watch)
    assert (seen.disturbed, bool(seen.remarks)) == (disturbed, remarked)


def test_what_passes_in_the_middle_of_a_window_is_seen(nvml: FakeNvml, watch: Watch) -> None:
    nvml.say(processes=[US])
    seen = Seen()
    with watch.window(seen):
        nvml.say(processes=[US, OTHER], busy=[OTHER, 50], reasons=THERMAL)
        time.sleep(0.5)
        nvml.say(processes=[US], busy=[OTHER, 50])
    assert len(seen.others) == len(seen.slowdowns) == 1


def test_a_library_that_refuses_is_a_remark(nvml: FakeNvml, watch: Watch) -> None:
    nvml.say(processes_error=4, reasons_error=15)
    seen = looked(watch)
    assert not seen.disturbed
    assert any("no permission" in r for r in seen.remarks) and any("lost" in r for r in seen.remarks)


# -- a second measurement, then none


class Script(Watch):
    """A watch whose windows are written down: what each one sees."""

    def __init__(self, *windows: Seen) -> None:
        super().__init__()
        self._windows = iter(windows)

    @contextmanager
    def window(self, seen: Seen) -> Iterator[None]:
        try:
            yield
        finally:
            seen.others |= next(self._windows).others


CALM, BUSY = Seen(), Seen(others={"process 7 took up to 50 % of the GPU"})


@pytest.mark.parametrize("strict", [True, False])
def test_disturbed_once_is_measured_again(strict: bool) -> None:
    notes: list[str] = []
    values = iter([1, 2])
    value = undisturbed(lambda: next(values), Script(BUSY, CALM), strict=strict, note=notes.append)
    assert value == 2 and len(notes) == 1 and "process 7" in notes[0]


def test_disturbed_twice_is_no_verdict_or_where_nothing_hangs_on_it_a_note() -> None:
    with pytest.raises(InfrastructureError, match="process 7"):
        undisturbed(lambda: 1, Script(BUSY, BUSY), strict=True, note=lambda _: None)
    notes: list[str] = []
    assert undisturbed(lambda: 1, Script(BUSY, BUSY), strict=False, note=notes.append) == 1
    assert "disturbed" in notes[0]


FAULTS = [
    (WorkerDied(Fault.TIME_OUT, "no answer"), True),
    (WorkerError(FailureKind.OUT_OF_MEMORY, "out of memory"), True),
    (WorkerDied(Fault.CRASH, "died"), False),
    (WorkerError(FailureKind.ILLEGAL_ACCESS, "illegal"), False),
]


@pytest.mark.parametrize(("fault", "may_be_others"), FAULTS, ids=["time", "memory", "crash", "illegal"])
def test_time_or_memory_that_ran_out_beside_others_says_nothing(
    fault: Exception, may_be_others: bool
) -> None:
    def measure() -> int:
        raise fault

    with pytest.raises(InfrastructureError if may_be_others else type(fault)):
        undisturbed(measure, Script(BUSY), strict=True, note=lambda _: None)
    with pytest.raises(type(fault)):
        undisturbed(measure, Script(CALM), strict=True, note=lambda _: None)


@pytest.fixture
def session(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeSession]:
    """A judge on the CPU that asks the fake NVML about itself."""

    def watch(*_: object) -> Watch:
        return GpuWatch(Gpu(UUID, nvml.library), lambda: {US})

    monkeypatch.setattr(judge_session, "open_watch", watch)
    with JudgeSession(TASK, JudgeConfig(device=Device.CPU, timing_budget_s=0.3)) as opened:
        yield opened


@pytest.mark.slow
def test_a_verdict_beside_others_is_void(session: JudgeSession, nvml: FakeNvml, tmp_path: Path) -> None:
    frozen = freeze(write_candidate(tmp_path, kernel=KERNEL))
    nvml.say(processes=[US, OTHER], busy=[OTHER, 80], reasons=THERMAL)
    void = session.judge(frozen, Scope.FULL)
    assert (void.correct, void.reward, void.violations) == (None, None, ()), void.to_json()
    assert void.infrastructure is not None
    assert f"process {OTHER}" in void.infrastructure and "thermal" in void.infrastructure
    public = session.judge(frozen, Scope.PROFILE)
    assert public.correct is True and any("disturbed" in note for note in public.notes)
    nvml.say(processes=members(US), busy=[US, 80])
    calm = session.judge(frozen, Scope.FULL)
    assert calm.stage is Stage.DONE and not any("disturbed" in note for note in calm.notes)


# -- on a GPU

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
BUSY_ELSEWHERE = """
import os, torch
if os.fork() == 0:  # its parent ends: not one of ours any more
    x = torch.ones(8192, 8192, device="cuda")
    print(os.getpid(), flush=True)
    while os.path.exists({flag!r}):
        for _ in range(20): x @ x
        torch.cuda.synchronize()
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[int]:
    """Multiplies matrices on the GPU, and descends from process 1 (or whoever takes orphans)."""
    flag = tmp_path / "run"
    flag.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY_ELSEWHERE.format(flag=str(flag))], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.wait()
    yield pid
    flag.unlink()
    process.stdout.read()  # until it ends


def _gpu_watch() -> Watch:
    place = choose_place("cuda", JudgeConfig(device=Device.CUDA))
    return open_watch(place, 0)


@pytest.mark.gpu
@gpu
def test_nvml_of_this_machine() -> None:
    device = Gpu(list_gpus()[0]["uuid"])
    torch.zeros(1, device="cuda")
    print("listed:", device.compute_processes(), "us:", US, "reasons:", hex(device.slowdowns()))
    print("busy:", device.busy(int((time.time() - 5) * 1e6)))
    device.close()
    seen = looked(_gpu_watch())
    print(seen)
    assert not seen.others


@pytest.mark.gpu
@gpu
def test_an_honest_one_is_not_void(tmp_path: Path) -> None:
    with JudgeSession(LARGE, JudgeConfig(device=Device.CUDA, timing_budget_s=1.0)) as session:
        result = session.judge(candidate(), Scope.FULL)
    print(result.notes)
    assert result.infrastructure is None and result.stage is Stage.DONE


@pytest.mark.gpu
@gpu
def test_a_verdict_beside_a_busy_process_of_others_is_void(other_process: int) -> None:
    probe = Gpu(list_gpus()[0]["uuid"])
    torch.zeros(1, device="cuda")
    listed = probe.compute_processes()
    probe.close()
    if len(listed) < 2:
        pytest.skip(f"NVML lists {listed} here, not {other_process}: others cannot be seen")
    with JudgeSession(LARGE, JudgeConfig(device=Device.CUDA, timing_budget_s=1.0)) as session:
        result = session.judge(candidate(), Scope.FULL)
    print(result.infrastructure)
    assert result.infrastructure is not None and "GPU" in result.infrastructure
    assert (result.correct, result.reward) == (None, None)
