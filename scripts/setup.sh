#!/usr/bin/env bash
# Make the virtual environment: scripts/setup.sh FOLDER. Idempotent; needs no rights beyond the folder's.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$1
python=${PYTHON:-python3}
torch_version=2.13.0

say() { printf 'setup: %s\n' "$*" >&2; }
stop() {
    say "$1"
    say "remedy: $2"
    exit 1
}

command -v "$python" >/dev/null || stop "$python is missing" "apt-get install python3 python3-venv python3-dev"
"$python" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' ||
    stop "$("$python" --version) is too old" "install Python 3.11 or newer, or set PYTHON=/path/to/python"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    stop "Python's venv module is missing" "apt-get install python3-venv"
[ -f "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ] ||
    stop "Python.h is missing: extensions cannot be built" "apt-get install python3-dev"
command -v g++ >/dev/null || stop "g++ is missing: kernels cannot be built" "apt-get install g++"

# A torch with CUDA that is here already is kept: the environment then sees the system's packages.
site=()
if "$python" -c 'import torch; raise SystemExit(torch.version.cuda is None)' 2>/dev/null; then
    say "using the CUDA build of torch that $python has"
    site=(--system-site-packages)
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "${site[@]}" "$venv"

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
if [ ${#site[@]} -eq 0 ]; then
    # First, so that nothing that depends on torch picks another build.
    say "installing torch $torch_version"
    pip install "torch==$torch_version"
fi
say "installing requirements.txt"
pip install -r "$root/requirements.txt"
pip install --no-deps --no-build-isolation -e "$root"
"$venv/bin/python" -c 'import cuda_agent, torch' || stop "the environment does not import torch" "rm -r $venv and try again"
say "ready: $venv ($("$venv/bin/python" -c 'import torch; print("torch", torch.__version__)'))"
