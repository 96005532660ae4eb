"""Every cheat that runs on a CPU, in one list."""

from __future__ import annotations

from cheats_answers import ANSWERS
from cheats_compute import ROUTES
from cheats_memory import ORACLE, STATE
from cheats_process import RESULT, TIME

CHEATS = (*ROUTES, *ORACLE, *STATE, *TIME, *RESULT, *ANSWERS)
