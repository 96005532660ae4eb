"""Reads a training configuration: an unknown key, a wrong type or a number out of range is one line."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from cuda_agent.errors import UsageError
from cuda_agent.rl.training_config import TrainConfig

_CHOICES = {"ppo.ratio": ("sampler", "decoupled"), "ppo.value_target": ("mc", "paper")}
_DTYPES = {"model.dtype": ("bfloat16", "float16", "float32", "float64")}


def load_config(path: Path) -> TrainConfig:
    """Read a TOML file.

    Raises:
        UsageError: no such file, not TOML, or a setting that is not allowed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name a .toml file (--config).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    return parse_config(data, where=str(path))


def parse_config(data: Mapping[str, Any], *, where: str = "config") -> TrainConfig:
    """Settings from tables; what is left out has its default.

    Raises:
        UsageError: a setting that is not allowed.
    """
    known = {f.name: f for f in dataclasses.fields(TrainConfig)}
    default = TrainConfig()
    tables: dict[str, Any] = {}
    for name, table in data.items():
        if name not in known:
            raise UsageError(f"{where}: unknown table [{name}]", f"Tables: {', '.join(known)}.")
        if not isinstance(table, Mapping):
            raise UsageError(f"{where}: {name} must be a table", f"Write [{name}].")
        if name != "deviations":
            tables[name] = _table(getattr(default, name), table, where=where, name=name)
    tables["deviations"] = _deviations(data.get("deviations", {}), default, where)
    config = dataclasses.replace(default, **tables)
    _check_together(config, where)
    return config


def _table(default: Any, given: Mapping[str, Any], *, where: str, name: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(default)}
    types = typing.get_type_hints(type(default))
    values = {}
    for key, value in given.items():
        if key not in fields:
            raise UsageError(f"{where}: unknown key {name}.{key}", f"Keys: {', '.join(fields)}.")
        values[key] = _value(value, types[key], f"{where}: {name}.{key}", f"{name}.{key}")
        _check_range(values[key], fields[key].metadata, f"{where}: {name}.{key}")
    return dataclasses.replace(default, **values)


def _value(value: Any, kind: type, about: str, key: str) -> Any:
    if issubclass(kind, StrEnum):
        return _chosen(value, tuple(kind), about, kind)
    if choices := {**_CHOICES, **_DTYPES}.get(key):
        return _chosen(value, choices, about, str)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{about} is {value!r}", f"It must be {_TYPE_NAMES[kind]}.")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}


def _chosen(value: Any, choices: tuple[str, ...], about: str, kind: type) -> Any:
    if value not in choices:
        raise UsageError(f"{about} is {value!r}", f"Choose one of: {', '.join(choices)}.")
    return kind(value)


def _check_range(value: Any, limits: Mapping[str, float], about: str) -> None:
    if not limits or isinstance(value, bool | str):
        return
    low, high = limits["low"], limits["high"]
    if not low <= value <= high:
        allowed = f"between {low:g} and {high:g}" if high < float("inf") else f"at least {low:g}"
        raise UsageError(f"{about} is {value}", f"It must be {allowed}.")


def _deviations(given: Mapping[str, Any], default: TrainConfig, where: str) -> dict[str, str]:
    known = default.flat()
    for key, reason in given.items():
        if key not in known:
            raise UsageError(f"{where}: [deviations] names no setting {key!r}")
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(f"{where}: deviation {key} has no reason", "Say why in one sentence.")
    return dict(given)


def _check_together(config: TrainConfig, where: str) -> None:
    """What no single key shows."""
    if config.ppo.dual_clip <= 1 + config.ppo.clip_high:
        raise UsageError(f"{where}: ppo.dual_clip must be above 1 + ppo.clip_high")
    if config.ppo.reference_kl and not config.model.rank:
        raise UsageError(
            f"{where}: ppo.reference_kl needs the frozen backbone", "Set it to 0, or model.rank above 0."
        )
    if config.warmup.max_turns != 1:
        raise UsageError(f"{where}: warmup.max_turns must be 1", "Several turns are [agentic].")
    if not config.ppo.critic and max(config.warmup.samples, config.agentic.samples) < 2:
        raise UsageError(f"{where}: without a critic each task needs at least 2 samples")
