"""Started first in every sandboxed process: sets limits, cuts the network, then becomes the program.

Runs as ``python -I -S launch.py LIMITS_JSON -- ARGV...`` with the standard library only. It exists
because limits set between fork and exec from a threaded parent can deadlock.

Covers: memory, file size, process count, core dumps, death with the parent, no network (as root, by a
new network namespace). Does not cover: reading files of the host, other users' processes; ``doctor``
says which isolation this machine has.
"""

import ctypes
import json
import os
import resource
import signal
import sys

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38


def main() -> None:
    """Set the limits, then replace this process by the program."""
    limits = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if limits["die_with_parent"]:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == 1:
            sys.exit("the parent is gone")
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not limits["network"]:
        libc.unshare(CLONE_NEWNET)  # EPERM where we may not: doctor tells
    for name, number in (
        ("memory_bytes", resource.RLIMIT_AS),
        ("file_bytes", resource.RLIMIT_FSIZE),
        ("processes", resource.RLIMIT_NPROC),
        ("cpu_s", resource.RLIMIT_CPU),
    ):
        if limits[name] is not None:
            _, hard = resource.getrlimit(number)
            value = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
            resource.setrlimit(number, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    argv = sys.argv[3:]
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        sys.exit(f"cannot start {argv[0]}: {error.strerror}")


main()
