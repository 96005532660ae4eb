"""The file system a sandboxed process sees; run by process 1 of its mount namespace. Standard library only.

The new root is an empty tmpfs. Into it are bound, read-only, the system's folders and those the program
names; writable, its work folders; /tmp and /dev/shm are its own, of limited size, and /proc shows its own
processes only.
"""

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
SYS_PIVOT_ROOT, SYS_MOUNT_SETATTR = 155, 442
AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = -100, 0x8000, 1, 2, 4
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
KERNEL_KNOBS = ("sys", "sysrq-trigger", "irq", "bus", "fs")
SECRETS = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/sys")
LIBC = ctypes.CDLL(None, use_errno=True)
if os.uname().machine == "aarch64":
    SYS_PIVOT_ROOT = 41


def build(spec: dict[str, Any]) -> None:
    """Make the view and move into it; the host's files are then out of reach.

    Raises:
        OSError: the kernel forbids a step.
    """
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    os.mkdir("/tmp/new")
    os.mkdir("/tmp/old")
    mount("tmpfs", "/tmp/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=16m")
    pivot("/tmp", "/tmp/old")
    for path in SYSTEM:
        add_system(path)
    for path in SECRETS:
        hide(path)
    make_dev(spec)
    os.makedirs("/new/tmp")
    mount("tmpfs", "/new/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={spec['tmp_bytes']}")
    os.makedirs("/new/proc")
    # Below the rest in order of depth: an inner folder may be writable inside a read-only one.
    writable = set(spec["write"])
    for path in sorted({*spec["read"], *spec["owned"], *writable}, key=lambda path: path.count("/")):
        bind(path, readonly=path not in writable)
    mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV)
    for name in KERNEL_KNOBS:  # their owner may write them, and without a user of our own that is us
        if os.path.exists("/new/proc/" + name):
            mount("/new/proc/" + name, "/new/proc/" + name, None, MS_BIND)
            lock("/new/proc/" + name, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)
    mount(None, "/new", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/new")
    pivot(".", ".")
    detach(".")
    os.chdir("/")


def add_system(path: str) -> None:
    """A folder of the system, or the link that stands for it (/bin on most systems)."""
    old = "/old" + path
    if os.path.islink(old):
        os.symlink(os.readlink(old), "/new" + path)
    elif os.path.isdir(old):
        bind(path, readonly=True)


def bind(path: str, readonly: bool) -> None:
    """Show a host's path at its own place; what is missing there is left out."""
    source, target = "/old" + path, "/new" + path
    if not os.path.exists(source):
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        touch(target)
    mount(source, target, None, MS_BIND | MS_REC)
    lock(target, ATTR_NOSUID | ATTR_NODEV | (ATTR_RDONLY if readonly else 0))


def hide(path: str) -> None:
    """Put nothing in a path's place."""
    target = "/new" + path
    if os.path.isdir(target):
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4k,mode=755")
    elif os.path.exists(target):
        mount("/old/dev/null", target, None, MS_BIND)


def make_dev(spec: dict[str, Any]) -> None:
    """/dev with the harmless nodes, shared memory of limited size, and the GPU's nodes where wanted."""
    os.makedirs("/new/dev")
    mount("tmpfs", "/new/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in (*DEVICES, *(gpu_nodes() if spec["gpu"] else ())):
        if os.path.exists("/old/dev/" + name):
            touch("/new/dev/" + name)
            mount("/old/dev/" + name, "/new/dev/" + name, None, MS_BIND)
    os.mkdir("/new/dev/shm")
    mount("tmpfs", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={spec['tmp_bytes']}")
    os.symlink("/proc/self/fd", "/new/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", "/new/dev/" + name)


def gpu_nodes() -> list[str]:
    """Device nodes of NVIDIA's driver below /dev."""
    found = []
    for name in sorted(os.listdir("/old/dev")):
        if not name.startswith("nvidia"):
            continue
        path = "/old/dev/" + name
        if stat.S_ISCHR(os.stat(path).st_mode):
            found.append(name)
        elif name == "nvidia-caps":
            found += [f"{name}/{inner}" for inner in sorted(os.listdir(path))]
    return found


def touch(path: str) -> None:
    """An empty file to mount on."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2), as an exception when it fails."""
    arguments = [item.encode() if item else None for item in (source, target, kind)]
    if LIBC.mount(*arguments, ctypes.c_ulong(flags), data.encode()) != 0:
        raise failure(target)


def lock(path: str, attributes: int) -> None:
    """Set attributes on a mount and all below it (mount_setattr, Linux 5.12)."""
    words = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    number = ctypes.c_long(SYS_MOUNT_SETATTR)
    if LIBC.syscall(number, AT_FDCWD, path.encode(), AT_RECURSIVE, words, ctypes.c_size_t(32)) != 0:
        raise failure(path)


def pivot(new: str, old: str) -> None:
    """pivot_root(2), then a working folder inside."""
    if LIBC.syscall(ctypes.c_long(SYS_PIVOT_ROOT), new.encode(), old.encode()) != 0:
        raise failure(new)
    if new != ".":
        os.chdir("/")


def detach(path: str) -> None:
    """Lazily unmount what lies below."""
    if LIBC.umount2(path.encode(), MNT_DETACH) != 0:
        raise failure(path)


def failure(path: str) -> OSError:
    """The last call's error."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)
