"""Call a candidate a few times and end: what a profiler or a sanitizer is put around.

``python one_call.py MODEL_NEW LIBRARY MODEL [SEARCH_PATH ...]``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cuda_agent.runtime.candidate import NewModule, load_source


def main() -> None:
    """Build the candidate on the GPU (where there is one), draw inputs, call it twice."""
    model_new, library, model = (Path(argument) for argument in sys.argv[1:4])
    sys.path[:0] = sys.argv[4:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    task = load_source(model, name="model")
    module = NewModule(model_new, library, task.get_init_inputs())().eval().to(device)
    inputs = [_moved(value, device) for value in task.get_inputs()]
    with torch.no_grad():
        if callable(prepare := getattr(module, "prepare", None)):
            prepare()
        for _ in range(2):
            module(*inputs)
    if device == "cuda":
        torch.cuda.synchronize()


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    main()
