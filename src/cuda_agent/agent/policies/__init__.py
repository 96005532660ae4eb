"""Policies by name. To add one: a module here with a class that implements Policy, and a row below."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from cuda_agent.agent.policies.options import PolicyOptions, ToolFormat
from cuda_agent.agent.policy import Policy
from cuda_agent.errors import UsageError

__all__ = ["PolicyOptions", "ToolFormat", "make_policy"]

_FORMS = "playbook, chat:MODEL, local:PATH or replay:FILE"


def make_policy(spec: str, *, base_url: str | None = None, **options: Any) -> Policy:
    """The policy that ``spec`` names: ``playbook``, ``chat:MODEL``, ``local:PATH`` or ``replay:FILE``.

    Args:
        base_url: endpoint of ``chat`` (``http://localhost:8000/v1``); the client's default when left out.
        options: fields of :class:`PolicyOptions`.

    Raises:
        UsageError: no such policy or option, a missing file, package or key.
        PolicyError: a local model cannot be loaded.
    """
    kind, _, argument = spec.partition(":")
    try:
        settings = PolicyOptions(**options)
    except TypeError:
        known = ", ".join(field.name for field in fields(PolicyOptions))
        raise UsageError(f"unknown policy option among {', '.join(options)}", f"Known: {known}.") from None
    if base_url is not None and kind != "chat":
        raise UsageError(f"policy {spec} has no endpoint", "Use --base-url with --policy chat:MODEL only.")
    if kind == "playbook" and not argument:
        from cuda_agent.agent.policies.playbook import PlaybookPolicy

        return PlaybookPolicy()
    if kind == "chat" and argument:
        from cuda_agent.agent.policies.chat import ChatPolicy

        return ChatPolicy(argument, base_url=base_url, options=settings)
    if kind == "local" and argument:
        from cuda_agent.agent.policies.local import LocalPolicy

        return LocalPolicy(Path(argument), options=settings)
    if kind == "replay" and argument:
        from cuda_agent.agent.policies.replay import ReplayPolicy

        return ReplayPolicy(Path(argument))
    raise UsageError(f"there is no policy {spec!r}", f"Choose {_FORMS}.")
