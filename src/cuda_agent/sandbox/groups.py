"""Memory and process limits of a whole sandbox by control group, version 1 or 2. Standard library only.

The launcher makes one where it may (as root), named by its process id, and removes it when all inside is
dead; groups of launchers that were killed are removed by the next. The group's counter also tells a kill
for want of memory from any other SIGKILL.
"""

from __future__ import annotations

import os
import time

ROOT = "/sys/fs/cgroup"
PREFIX = "cuda-agent-"


class Group:
    """Folders of one sandbox in the control group trees."""

    def __init__(self, folders: list[str]) -> None:
        self.folders = folders

    def add(self, pid: int) -> None:
        """Move a process in; its children are born inside."""
        for folder in self.folders:
            write(folder, "cgroup.procs", pid)

    def num_oom_kills(self) -> int:
        """Processes of this sandbox that the kernel killed for want of memory."""
        count = 0
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                try:
                    with open(f"{folder}/{name}") as file:
                        rows = dict(line.split()[:2] for line in file)
                except OSError:
                    continue
                count += int(rows.get("oom_kill", 0))
        return count

    def remove(self) -> None:
        """Remove the empty folders; may run twice. The kernel may take a moment to find them empty."""
        for folder in self.folders:
            for _ in range(20):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)  # else the next launcher sweeps it
                else:
                    break


def make(memory_bytes: int | None, processes: int | None) -> Group | None:
    """A group with these limits, or ``None`` where none can be made; ``None`` limits are left open."""
    folders: list[str] = []
    limits = (("memory", memory_bytes), ("pids", processes))
    try:
        for tree, files in trees(limits).items():
            sweep(tree)
            folder = f"{tree}/{PREFIX}{os.getpid()}"
            os.mkdir(folder)
            folders.append(folder)
            for name, value in files:
                write(folder, name, value)
    except OSError:
        Group(folders).remove()
        return None
    return Group(folders)


def trees(limits: tuple[tuple[str, int | None], ...]) -> dict[str, list[tuple[str, int]]]:
    """Files to write by tree, for the version that has the controllers.

    Raises:
        OSError: neither has.
    """
    if all(os.path.isdir(f"{ROOT}/{name}") for name, _ in limits):
        files = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
        return {f"{ROOT}/{name}": [(files[name], value)] if value else [] for name, value in limits}
    with open(f"{ROOT}/cgroup.subtree_control") as file:
        have = file.read().split()
    if "memory" not in have or "pids" not in have:
        write(ROOT, "cgroup.subtree_control", "+memory +pids")
    files = {"memory": "memory.max", "pids": "pids.max"}
    rows = [(files[name], value) for name, value in limits if value]
    return {ROOT: rows}


def sweep(tree: str) -> None:
    """Remove groups whose launcher is gone."""
    for name in os.listdir(tree):
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{name[len(PREFIX) :]}"):
            try:
                os.rmdir(f"{tree}/{name}")
            except OSError:
                pass


def write(folder: str, name: str, value: int | str) -> None:
    """Write one control file."""
    with open(f"{folder}/{name}", "w") as file:
        file.write(str(value))
