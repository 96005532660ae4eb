"""Builds a candidate: its sources and our fixed files, our flags, a content-addressed object cache.

Covers: prebuilt libraries (never linked), links and foreign files (a snapshot holds none), headers from
outside the workspace and the toolchain (refused), endless compiles (the whole group is killed at the
limit), builds at the same time and builds killed half way (objects appear by rename only). Does not
cover: what the object files do, and files that inline assembly pulls in; the symbol scan and the
sandbox are for that.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO

from cuda_agent.backends import toolchain
from cuda_agent.backends.base import Backend, CompileStep
from cuda_agent.config import Track, cache_dir
from cuda_agent.errors import InfrastructureError
from cuda_agent.judge.compile_errors import summarise
from cuda_agent.judge.object_cache import ObjectStore, object_key
from cuda_agent.judge.precompiled import HeaderStore, header_text
from cuda_agent.sandbox.process import Limits, Process, clean_env, spawn
from cuda_agent.sandbox.scratch import Scratch
from cuda_agent.sandbox.view import View
from cuda_agent.workspace.light import LightFormError, public_form
from cuda_agent.workspace.snapshot import KERNEL_DIR, Snapshot

LIBRARY = "cuda_extension.so"
FIXED_SOURCES = ("binding.cpp", "binding_registry.h")
_POLL_S = 0.01
_HEADER_LIMIT_S = 300.0
_LEAST_FREE_BYTES = 64 << 20
# A binding with PyTorch's headers takes about 1.2 GiB; cicc on large templates several times that.
_BYTES_PER_JOB = 1536 << 20
# An absolute path that a message is about: "/x.h:3:7: error", "/x.h(3): error".
_ABSOLUTE = re.compile(r"^(/[^:(\n]+)(?::\d+|\(\d+\))", re.MULTILINE)
_LIMITS = Limits(
    memory_bytes=8 << 30,
    limit_address_space=True,
    file_bytes=1 << 30,
    processes=256,
)


@dataclass(frozen=True)
class BuildOutcome:
    """How a build ended.

    Attributes:
        ok: the extension module was made.
        library: its path, if made.
        message: compile errors as ``file:line: error: text``, short enough for a model; else empty.
        seconds: wall time.
        timed_out: the time limit ended it.
    """

    ok: bool
    library: Path | None
    message: str
    seconds: float
    timed_out: bool


@dataclass
class _Job:
    """One compiler at work: the step's output becomes ``final`` when it succeeds.

    With ``header``, a precompiled one is read first; when it fails, the step is run again without.
    """

    step: CompileStep
    final: Path
    log: Path
    process: Process
    header: Path | None
    started: float


@dataclass(frozen=True)
class _Pending:
    """A source to compile, the cache's place for its object, and a precompiled header to read first."""

    step: CompileStep
    final: Path
    header: Path | None


class _Failed(Exception):
    """The candidate does not build; the message says why."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def build(
    snapshot: Snapshot, backend: Backend, *, track: Track, folder: Path, limit_s: float
) -> BuildOutcome:
    """Compile and link a candidate in ``folder``, which must be empty or absent.

    Sources are ``binding.cpp`` and those directly in ``kernels/`` (as in the public layout); files in
    folders below it can only be included.

    Raises:
        ToolchainError: a compiler is missing.
        InfrastructureError: the disk is full or the cache cannot be written.
    """
    started = time.monotonic()
    try:
        library = _build(snapshot, backend, track, folder, limit_s)
    except _Failed as failure:
        return BuildOutcome(False, None, str(failure), time.monotonic() - started, failure.timed_out)
    except OSError as error:
        raise InfrastructureError(
            f"cannot build in {folder}: {error}", "Free some disk space, or set CUDA_AGENT_CACHE."
        ) from None
    return BuildOutcome(True, library, "", time.monotonic() - started, False)


def fixed_files() -> dict[str, bytes]:
    """Our binding.cpp and binding_registry.h."""
    root = resources.files("cuda_agent.workspace") / "files"
    return {name: (root / name).read_bytes() for name in FIXED_SOURCES}


def _build(snapshot: Snapshot, backend: Backend, track: Track, folder: Path, limit_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    snapshot = _with_binding(snapshot, backend)
    snapshot.write(folder)
    files = {**snapshot.files, **fixed_files()}
    for name in FIXED_SOURCES:
        (folder / name).write_bytes(files[name])
    sources = ["binding.cpp", *_kernel_sources(snapshot, backend)]
    store = _store()
    objects: list[Path] = []
    pending: list[_Pending] = []
    for source in sources:
        draft = backend.compile_step(folder / source, Path("OUTPUT"), root=folder, track=track)
        final = store.path(object_key(source, files, draft, backend.fingerprint()))
        objects.append(final)
        if not store.has(final):
            output = folder / f".{uuid.uuid4().hex}.o"  # the compilers' user cannot write the cache
            step = backend.compile_step(folder / source, output, root=folder, track=track)
            pending.append(_Pending(step, final, _header(source, files, backend, track)))
    deadline = _compile_all(pending, folder, time.monotonic() + limit_s)
    library = _link(backend, objects, folder, deadline)
    if pending:
        store.prune()
    return library


def _with_binding(snapshot: Snapshot, backend: Backend) -> Snapshot:
    """A candidate in light form with the binding that we write for it; another as it is."""
    try:
        return public_form(snapshot) if backend.name == "cuda" else snapshot
    except LightFormError as error:
        raise _Failed(f"{error}") from None


def _store() -> ObjectStore:
    return ObjectStore(cache_dir() / "objects")


def _headers() -> HeaderStore:
    return HeaderStore(cache_dir() / "headers")


def _header(source: str, files: Mapping[str, bytes], backend: Backend, track: Track) -> Path | None:
    """The precompiled header for a host source; making one is our own work, outside any candidate's limit."""
    cxx = toolchain.find_cxx()
    is_gcc = cxx is not None and "Free Software Foundation" in toolchain.compiler_version(cxx)
    is_ours = source in FIXED_SOURCES  # compiled once, then in the cache
    text = header_text(source, files) if source.endswith(".cpp") and is_gcc and not is_ours else None
    if text is None:
        return None
    step = backend.compile_step(Path("/header.hpp"), Path("OUTPUT"), root=Path("/"), track=track)
    store = _headers()
    key = store.key(text, step.argv, backend.fingerprint())
    return store.find(key, text, functools.partial(_compile_header, backend, track))


def _compile_header(backend: Backend, track: Track, header: Path, output: Path) -> bool:
    """In a sandbox and a folder that hold nothing else; the compiler's user cannot write the cache."""
    with Scratch() as folder:
        copy, made = folder / header.name, folder / output.name
        shutil.copyfile(header, copy)
        step = backend.compile_step(copy, made, root=folder, track=track)
        with (folder / "log").open("wb") as log:
            process = _spawn(step.argv, folder, log, time.monotonic() + _HEADER_LIMIT_S)
            try:
                status = process.wait(_HEADER_LIMIT_S)
            finally:
                process.kill_group()
        if status == 0:
            shutil.copyfile(made, output)
        return status == 0


def _kernel_sources(snapshot: Snapshot, backend: Backend) -> list[str]:
    names = []
    for name in sorted(snapshot.files):
        path = PurePosixPath(name)
        if path.parent != PurePosixPath(KERNEL_DIR) or path.suffix not in (".cpp", ".cu"):
            continue
        if path.suffix == ".cu" and backend.name == "cpu":
            raise _Failed(
                f"{name}:1: error: the cpu backend builds kernels/*.cpp only; this is a CUDA source"
            )
        names.append(name)
    return names


def _compile_all(pending: Sequence[_Pending], folder: Path, deadline: float) -> float:
    """Run the compilers side by side; every object that is made is kept, whatever the others do.

    Returns:
        The deadline, later by what attempts with a precompiled header took that were made again without.
    """
    waiting = list(pending)
    running: list[_Job] = []
    logs: list[str] = []
    try:
        while waiting or running:
            while waiting and len(running) < _num_jobs():
                running.append(_start(waiting.pop(0), folder, deadline))
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                log = _finish(job, folder)
                if log and job.header is not None:  # what the candidate is told comes from a plain compile
                    deadline += time.monotonic() - job.started
                    waiting.append(_Pending(job.step, job.final, None))
                else:
                    logs.append(log)
            if running and time.monotonic() > deadline:
                raise _too_long([str(job.step.source.relative_to(folder)) for job in running])
            if running:
                time.sleep(_POLL_S)
    finally:
        for job in running:
            job.process.kill_group()
            job.step.output.unlink(missing_ok=True)
    if any(logs):
        _check_disk("\n".join(logs), folder)
        raise _Failed(summarise("\n".join(filter(None, logs)), root=folder))
    return deadline


def _num_jobs() -> int:
    cores = len(os.sched_getaffinity(0))
    # Pages of the file cache count as free here: on a long-running machine few others are.
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", text, re.MULTILINE)
    most = int(available[1]) * 1024 // _BYTES_PER_JOB if available else cores
    return max(1, min(cores, most))


def _start(pending: _Pending, folder: Path, deadline: float) -> _Job:
    step, header = pending.step, pending.header
    log = folder / f".{uuid.uuid4().hex}.log"
    first = ("-include", str(header)) if header else ()
    argv = (step.argv[0], *first, *step.argv[1:], "-MD", "-MF", f"{step.output}.d")
    with log.open("wb") as stream:
        # Both streams: nvcc writes some errors to stdout.
        process = _spawn(argv, folder, stream, deadline)
    return _Job(step, pending.final, log, process, header, time.monotonic())


def _spawn(argv: Sequence[str], folder: Path, log: IO[bytes], deadline: float) -> Process:
    """A compiler or linker in a group of its own, in a plain locale (English, plain quotes).

    Its processor time is limited too: should we be killed, a compiler that its driver left behind ends.
    """
    limits = replace(_LIMITS, cpu_s=int(max(0.0, deadline - time.monotonic())) + 2)
    env = clean_env({"LC_ALL": "C"})
    # One user for all compilers of a build: they share its folder.
    read = (_store().root, _headers().root, *_toolchain_roots())
    view = View(write=(folder,), read=read, user=f"build {folder}")
    return spawn(argv, cwd=folder, env=env, limits=limits, view=view, stdout=log, stderr=subprocess.STDOUT)


def _finish(job: _Job, folder: Path) -> str:
    """Move a finished object into the cache; returns what the compiler said if it failed."""
    output = job.log.read_text(encoding="utf-8", errors="replace")
    dependencies = Path(f"{job.step.output}.d")
    status = job.process.poll()
    _check_launched(job.process, output)
    job.process.kill_group()
    job.log.unlink(missing_ok=True)
    try:
        name = job.step.source.relative_to(folder)
        # On failure there may be no dependency file, but the messages name the files they are about,
        # and must not quote one of the host's.
        read = _ABSOLUTE.findall(output) if status != 0 else _dependencies(dependencies)
        if foreign := _foreign(read, folder):
            return f"{name}:1: error: includes {foreign}, which is outside the workspace and the toolchain"
        if status != 0:
            return output or f"{name}:1: error: the compiler ended with status {status}"
        _store().put(job.step.output, job.final)
        return ""
    finally:
        job.step.output.unlink(missing_ok=True)
        dependencies.unlink(missing_ok=True)


def _dependencies(path: Path) -> list[str]:
    """Files that the compiler read, from its ``-MD`` output."""
    text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
    return text.partition(":")[2].split()


def _foreign(names: Sequence[str], folder: Path) -> str | None:
    """The first file that is neither the candidate's nor the toolchain's."""
    allowed = [folder, _headers().root.resolve(), *_toolchain_roots()]
    for name in names:
        path = (folder / name).resolve()
        if not any(path.is_relative_to(root) for root in allowed):
            return name
    return None


def _toolchain_roots() -> list[Path]:
    roots = [Path("/usr/include"), Path("/usr/lib"), Path("/usr/local/include"), Path("/usr/lib64")]
    roots.append(toolchain.python_include())
    if torch := toolchain.find_torch():
        roots += torch.include_dirs
    if cuda := toolchain.find_cuda():
        roots += [cuda.root, *toolchain.wheel_dirs("include")]
    if cxx := toolchain.find_cxx():
        roots.append(cxx.resolve().parent.parent / "lib")
        roots.append(cxx.resolve().parent.parent / "include")
    return [root.resolve() for root in roots]


def _link(backend: Backend, objects: Sequence[Path], folder: Path, deadline: float) -> Path:
    library = folder / LIBRARY
    log = folder / f".{uuid.uuid4().hex}.log"
    with log.open("wb") as stream:
        argv = backend.link_argv(objects, library)
        process = _spawn(argv, folder, stream, deadline)
    try:
        status = process.wait(max(1.0, deadline - time.monotonic()))
    finally:
        process.kill_group()
    output = log.read_text(encoding="utf-8", errors="replace")
    log.unlink(missing_ok=True)
    if status is None:
        raise _too_long(["linking"])
    _check_launched(process, output)
    if status != 0:
        _check_disk(output, folder)
        _drop_broken(output, objects)
        raise _Failed(summarise(output, root=folder))
    return library


def _check_launched(process: Process, output: str) -> None:
    if not process.was_launched():
        raise InfrastructureError(f"the sandbox of a compiler failed: {output.strip()[-300:]}", "")


def _check_disk(output: str, folder: Path) -> None:
    """A compiler that failed because our disk is full says nothing of the candidate.

    One that filled its own /tmp, which is of limited size, did so by what it was given to compile.
    """
    if os.strerror(errno.ENOSPC) in output and shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _drop_broken(output: str, objects: Sequence[Path]) -> None:
    """Forget cached objects that the linker cannot read (a disk that lost bytes)."""
    if re.search(r"file (?:format )?not recognized|file truncated", output):
        for path in objects:
            path.unlink(missing_ok=True)


def _too_long(what: Sequence[str]) -> _Failed:
    return _Failed(f"{', '.join(what)}: error: the build took longer than its time limit", timed_out=True)


def copy_library(outcome: BuildOutcome, target: Path) -> None:
    """Put the extension module at ``target`` in one step, for scripts that import it meanwhile."""
    if outcome.library is None:
        return
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        shutil.copyfile(outcome.library, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
