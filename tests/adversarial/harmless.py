"""Attempts that come to nothing: the candidate computes honestly, what it tries beside that gains nothing.

The static scan gives notes for most of them; none is an offence.
"""

from __future__ import annotations

from cheat import Cheat, first

_SELF = "its own process only; baselines run elsewhere"
_FILTER = "system calls that start a process fail"

HARMLESS = (
    Cheat("matmul precision", (19,), _SELF, imports='torch.set_float32_matmul_precision("medium")'),
    Cheat("backend flag", (19, 94), _SELF, imports="torch.backends.mkldnn.enabled = False"),
    Cheat("threads of the baseline", (94,), _SELF, imports="torch.set_num_threads(1)"),
    Cheat("compiler's environment", (95,), _SELF, imports="import os\nos.environ['TORCHINDUCTOR_X'] = '0'"),
    Cheat("work at exit", (106,), "killed, not ended", imports="import atexit\natexit.register(print)"),
    Cheat(
        "signal handler",
        (105, 107),
        "killed, not ended",
        imports="import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)",
    ),
    Cheat(
        "text decoded and run",
        (117,),
        "what it does is judged, not how it reads",
        imports="import base64\nexec(base64.b64decode('cGFzcw=='))",
    ),
    Cheat(
        "child by a raw system call",
        (76, 83, 116),
        _FILTER,
        kernel="#include <sys/syscall.h>\n#include <unistd.h>\n"
        + first("if (syscall(SYS_clone, 17, 0, 0, 0, 0) >= 0) for (;;) pause();"),
    ),
    Cheat(
        "program by a raw system call",
        (105, 116),
        _FILTER,
        kernel="#include <sys/syscall.h>\n#include <unistd.h>\n"
        + first('{ char* none[] = {nullptr}; syscall(SYS_execve, "/bin/true", none, none); }'),
    ),
    Cheat(
        "user changed",
        (114,),
        "a user without rights",
        kernel="#include <unistd.h>\n" + first("(void)!setuid(0);"),
    ),
    Cheat(
        "silent helper",
        (12,),
        "a branch never taken is no offence",
        forward="if x.dim() != 2:\n    return torch.relu(x)\ny = torch.empty_like(x)\n"
        "cuda_extension.run(y, x, self.scale, self.shift)\nreturn y",
    ),
)
