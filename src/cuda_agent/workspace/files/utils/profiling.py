"""Time Model, torch.compile(Model) and ModelNew."""

import sys

from utils._client import main

if __name__ == "__main__":
    sys.exit(main("profile"))
