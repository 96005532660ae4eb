"""Started first in every sandboxed process: builds its view of the machine, then becomes the program.

Runs as ``python -I -S launch.py SPEC_JSON -- ARGV...`` with the standard library only. It exists because
limits and namespaces set between fork and exec from a threaded parent can deadlock.

With namespaces three processes take part: this one waits outside and ends as the program ended; an init
(process 1 inside, root where we are root) reaps; the program runs as a user of its own. When init dies the
kernel kills everything inside, daemons in sessions of their own included.

Covers and does not cover: docs/isolation.md.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from cuda_agent.sandbox import groups, mounts

    Spec = dict[str, Any]
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import groups
    import mounts

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
NEW_MOUNTS = 0x00020000
NAMESPACES = 0x04000000 | 0x08000000 | 0x20000000  # uts, ipc, pid
NEW_USER = 0x10000000
NEW_NET = 0x40000000
FIRST_UID, MANY_UIDS = 0x20000000, 1 << 22
SMALL_UIDS = (20_000, 20_000)  # first and count, in containers with 65,536 users
# What the launcher reports to sandbox.process: that the program was reached, and of what it died.
LAUNCHED, OUT_OF_MEMORY, NOT_OUT_OF_MEMORY = b"L", b"O", b"N"
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Build the sandbox, run the program in it, end as it ended."""
    spec = json.loads(sys.argv[1])
    argv = sys.argv[3:]
    if spec["die_with_parent"]:
        die_with_parent()
    if spec["mode"] == "none":
        if not spec["network"]:
            LIBC.unshare(NEW_NET)  # EPERM where we may not: doctor tells
        become(spec, argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    uid = pick_uid(spec["user"]) if spec["mode"] == "root" else os.getuid()
    if spec["mode"] == "root":
        for path in (*spec["write"], *spec["owned"]):
            give(path, uid)
    group = groups.make(spec["memory_bytes"], spec["processes"]) if os.geteuid() == 0 else None
    if group is not None and not spec["limit_address_space"]:
        spec["memory_bytes"] = None
    reader, writer = os.pipe()
    init = None
    try:
        enter(spec)
        init = os.fork()
        if init == 0:
            os.close(reader)
            run_init(spec, argv, uid, group, writer)
    except OSError as error:
        sys.exit(f"cannot isolate {argv[0]}: {error.strerror}")
    finally:
        if init is None and group is not None:
            group.remove()
    os.close(writer)
    wait_outside(init, reader, group, spec["report_fd"])


def die_with_parent() -> None:
    """SIGKILL when the parent dies; at once when it is dead already."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("the parent is gone")


def pick_uid(name: str) -> int:
    """A user that no other sandbox has while this process lives; with a name, always the same one."""
    with open("/proc/self/uid_map") as file:
        num_uids = sum(int(line.split()[2]) for line in file)
    first, count = (FIRST_UID, MANY_UIDS) if num_uids > FIRST_UID + 2 * MANY_UIDS else SMALL_UIDS
    if name:
        return first + count + zlib.crc32(name.encode()) % count
    return first + os.getpid() % count


def give(path: str, uid: int) -> None:
    """Make the sandbox's user the owner of a folder and all in it that is not yet."""
    if os.lstat(path).st_uid == uid:
        return
    os.chown(path, uid, uid, follow_symlinks=False)
    if not os.path.isdir(path):
        return
    for _, folders, files, fd in os.fwalk(path, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)


def enter(spec: Spec) -> None:
    """Leave the host's namespaces; the next fork is process 1 of its own."""
    flags = NAMESPACES | (0 if spec["network"] else NEW_NET)
    uid, gid = os.getuid(), os.getgid()
    if spec["mode"] == "user":
        flags |= NEW_USER
    unshare(flags)
    if spec["mode"] == "user":
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def unshare(flags: int) -> None:
    """unshare(2), as an exception when it fails."""
    if LIBC.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def wait_outside(init: int, reader: int, group: groups.Group | None, report_fd: int) -> NoReturn:
    """Wait until all inside is dead, report how it ended, and end the same way.

    SIGTERM, which only the judge can send us, kills all inside.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    close_all_but(reader, report_fd)  # the program's pipes must end with it
    text = b""
    while data := os.read(reader, 64):
        text += data
    os.waitpid(init, 0)
    status = int(text) if text.endswith(b"\n") else signal.SIGKILL
    if group is not None:
        oom_kills = group.num_oom_kills()
        group.remove()
        report(report_fd, OUT_OF_MEMORY if oom_kills else NOT_OUT_OF_MEMORY)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def report(fd: int, text: bytes) -> None:
    """Tell the judge, who may be gone or not be listening."""
    if fd >= 0:
        try:
            os.write(fd, text)
        except BrokenPipeError:
            pass


def run_init(spec: Spec, argv: list[str], uid: int, group: groups.Group | None, writer: int) -> NoReturn:
    """Process 1 inside: mounts, the program as its child, reaping. Does not return."""
    status = 127 << 8
    try:
        die_with_parent_outside()
        if group is not None:
            group.add(os.getpid())
        unshare(NEW_MOUNTS)  # here, not outside: there the host's files and control groups are still needed
        mounts.build(spec)
        os.chdir(spec["cwd"])
        program = os.fork()
        if program == 0:
            os.close(writer)
            drop(spec, uid)
            become(spec, argv)
        close_all_but(writer)
        while True:
            pid, ended = os.wait()
            if pid == program:
                status = ended
                break
    except OSError as error:
        os.write(2, f"cannot isolate {argv[0]}: {error}\n".encode())
    finally:
        os.write(writer, b"%d\n" % status)
        os._exit(0)


def die_with_parent_outside() -> None:
    """As :func:`die_with_parent` for process 1, whose parent's id reads as 0."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def close_all_but(*kept: int) -> None:
    """Close every other descriptor."""
    first = 0
    for fd in (*sorted(fd for fd in kept if fd >= 0), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        os.closerange(first, fd)
        first = fd + 1


def drop(spec: Spec, uid: int) -> None:
    """Become the sandbox's user, without any privilege.

    In a user namespace of ours we could else undo its mounts; were we root, files of root would follow.
    """
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if spec["mode"] == "root":
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if LIBC.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # changing the user cleared it
    if not spec["gpu"]:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def close_on_exec(fd: int) -> None:
    """The program must not inherit the descriptor."""
    if fd >= 0:
        os.set_inheritable(fd, False)


def num_tasks() -> int:
    """Threads on this machine."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[2])


def become(spec: Spec, argv: list[str]) -> NoReturn:
    """Set the limits, then replace this process by the program."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if spec["processes"] is not None and spec["mode"] == "none":
        spec["processes"] += num_tasks()  # the limit counts all of the user's
    for name, number in (
        ("memory_bytes", resource.RLIMIT_AS),
        ("file_bytes", resource.RLIMIT_FSIZE),
        ("processes", resource.RLIMIT_NPROC),
        ("cpu_s", resource.RLIMIT_CPU),
    ):
        if spec[name] is not None and not (name == "memory_bytes" and spec["gpu"]):
            _, hard = resource.getrlimit(number)
            value = spec[name] if hard == resource.RLIM_INFINITY else min(spec[name], hard)
            resource.setrlimit(number, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    report(spec["report_fd"], LAUNCHED)
    close_on_exec(spec["report_fd"])
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        os._exit(1)


main()
