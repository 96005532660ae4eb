"""A filter on system calls: this process and its threads can start no process from here on.

Threads still start; what would make a child, replace the program, or reach into another process fails with
"operation not permitted". Covers x86-64 and 64-bit Arm under Linux; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_CLONE_THREAD = 0x0001_0000
_EPERM, _ENOSYS = 1, 38
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1

# Berkeley packet filter: load a word, jump if equal, if at least, if any bit is set, return.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_X32 = 0x4000_0000  # from here on, x86-64 kernels may know the same calls by other numbers

_ARCHITECTURES = {
    # machine: (audit number, seccomp, clone, clone3, refused)
    # fork, vfork, execve, ptrace, execveat, process_vm_readv, process_vm_writev
    "x86_64": (0xC000_003E, 317, 56, 435, (57, 58, 59, 101, 322, 310, 311)),
    # execve, ptrace, execveat, process_vm_readv, process_vm_writev
    "aarch64": (0xC000_00B7, 277, 220, 435, (221, 117, 281, 270, 271)),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def forbid_children() -> bool:
    """Apply the filter to all threads of this process; it cannot be taken off again.

    Returns:
        Whether it was applied; not on other architectures, nor where the kernel has no such filters.
    """
    if platform.machine() not in _ARCHITECTURES:
        return False
    audit, seccomp, clone, clone3, refused = _ARCHITECTURES[platform.machine()]
    code = _program(audit, clone, clone3, refused)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    done = libc.syscall(seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))
    return bool(done == 0)


def _program(audit: int, clone: int, clone3: int, refused: tuple[int, ...]) -> bytes:
    steps = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),  # numbers of another architecture mean other calls
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        # clone3 hides its flags in memory; without it the C library starts threads by clone.
        (_IF_EQUAL, 0, 1, clone3),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]
    for number in refused:
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    steps += [
        (_IF_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_IF_BITS, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
