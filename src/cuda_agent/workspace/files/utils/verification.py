"""Check ModelNew against Model on fresh inputs."""

import sys

from utils._client import main

if __name__ == "__main__":
    sys.exit(main("verify"))
