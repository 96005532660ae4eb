"""Build kernels/ into cuda_extension.so."""

import sys

from utils._client import main

if __name__ == "__main__":
    sys.exit(main("compile"))
