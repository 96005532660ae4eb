"""A library with NVML's interface, compiled from C, that says what a file says: see :class:`FakeNvml`."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = r"""
#include <stdio.h>
#include <string.h>
#include <time.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { unsigned pid; unsigned long long when; unsigned sm, memory, encoder, decoder; } Sample;
static int opened = 0;

/* Numbers behind a word in the state file; the count, or -1 when the word is not there. */
static int state(const char* word, long* numbers, int most) {
    char line[4096], key[64];
    int count = -1, used, step;
    FILE* file = fopen(STATE, "r");
    if (!file) return -1;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s%n", key, &used) != 1 || strcmp(key, word)) continue;
        for (count = 0; count < most && sscanf(line + used, "%ld%n", numbers + count, &step) == 1; ++count)
            used += step;
    }
    fclose(file);
    return count;
}
static int error(const char* word) {
    long code;
    return !opened ? 1 : state(word, &code, 1) == 1 ? (int)code : 0;
}
int nvmlInit_v2(void) { ++opened; return 0; }
int nvmlShutdown(void) { --opened; return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    *device = (void*)1;
    return strcmp(uuid, "GPU-fake") ? 6 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* infos) {
    long pids[256];
    const int found = state("processes", pids, 256);
    if (error("processes_error")) return error("processes_error");
    if (found > (int)*count) return 7;
    for (int i = 0; i < found; ++i) infos[i] = (Process){(unsigned)pids[i], 1 << 20, -1, -1};
    *count = found < 0 ? 0 : found;
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
    long bits = 0;
    state("reasons", &bits, 1);
    *reasons = bits;
    return error("reasons_error");
}
int nvmlDeviceGetProcessUtilization(void* device, Sample* samples, unsigned* count,
                                    unsigned long long since) {
    long pairs[256];
    const int found = state("busy", pairs, 256);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found < 0) return 3;
    if (found == 0) return 6;
    for (int i = 0; i < found / 2; ++i)
        samples[i] = (Sample){(unsigned)pairs[2 * i], now.tv_sec * 1000000ull + now.tv_nsec / 1000,
                              (unsigned)pairs[2 * i + 1], 0, 0, 0};
    *count = found / 2;
    return 0;
}
"""
UUID = "GPU-fake"


class FakeNvml:
    """The library, and the file that it reads at every call.

    Attributes:
        library: to hand to ``Gpu``.
    """

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        source = folder / "fake_nvml.c"
        source.write_text(SOURCE)
        self.library = str(folder / "libfake-nvidia-ml.so")
        macro = f'-DSTATE="{self._state}"'
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", macro, str(source), "-o", self.library], check=True)
        self.say()

    def say(self, **words: object) -> None:
        """What NVML shall say from now on.

        Args:
            words: ``processes``, ``reasons``, ``busy`` (pid and percent in turn), ``processes_error``,
                ``reasons_error``.
        """
        lines = [f"{word} {' '.join(map(str, _many(value)))}\n" for word, value in words.items()]
        fresh = self._state.with_suffix(".new")
        fresh.write_text("".join(lines))
        fresh.replace(self._state)


def _many(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
