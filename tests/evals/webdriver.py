"""A headless Chromium over the WebDriver protocol, with the standard library alone.

Covers what the tests of pages need: open, find, click, type, run a script, screenshot. The browser and its
driver are Debian's packages ``chromium`` and ``chromium-driver``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One session of a driver."""

    def __init__(self, base: str, *, dark: bool = False, width: int = 1300, height: int = 900) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},{height}"]
        arguments += ["--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"]
        arguments += ["--blink-settings=preferredColorScheme=0"] if dark else []
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        found = _send("POST", f"{base}/session", {"capabilities": {"alwaysMatch": options}})
        self._base = f"{base}/session/{found['sessionId']}"

    def open(self, path: Path) -> float:
        """Open a file; seconds until it was loaded."""
        started = time.monotonic()
        self._post("url", {"url": path.resolve().as_uri()})
        return time.monotonic() - started

    def click(self, selector: str) -> None:
        """Click the first element, as a person would: it must be visible and not covered."""
        self._post(f"element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into the first element."""
        self._post(f"element/{self._find(selector)}/value", {"text": text})

    def script(self, body: str, *arguments: Any) -> Any:
        """Run a script's body in the page; what it returns."""
        return self._post("execute/sync", {"script": body, "args": list(arguments)})

    def texts(self, selector: str) -> list[str]:
        """Rendered text of every element that is shown."""
        shown = "[...document.querySelectorAll(arguments[0])].filter(n => n.offsetParent)"
        return list(self.script(f"return {shown}.map(n => n.innerText)", selector))

    def wait(self, condition: str, seconds: float = 20.0) -> Any:
        """Until an expression of the page is true; its value."""
        limit = time.monotonic() + seconds
        while not (value := self.script(f"return {condition}")):
            assert time.monotonic() < limit, f"never true: {condition}"
            time.sleep(0.05)
        return value

    def errors(self) -> list[str]:
        """What the page's console has of errors and refused loads."""
        entries = self._post("se/log", {"type": "browser"})
        return [e["message"] for e in entries if e["level"] == "SEVERE"]

    def screenshot(self, path: Path) -> None:
        """The visible part, as PNG."""
        path.write_bytes(base64.b64decode(_send("GET", f"{self._base}/screenshot")))

    def close(self) -> None:
        """End the session."""
        _send("DELETE", self._base)

    def _find(self, selector: str) -> str:
        return str(self._post("element", {"using": "css selector", "value": selector})[_ELEMENT])

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _send("POST", f"{self._base}/{path}", body)


@contextlib.contextmanager
def browser(**options: Any) -> Iterator[Browser]:
    """A browser of its own driver; skips the test where there is none."""
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [driver, f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        _ready(base)
        found = Browser(base, **options)
        try:
            yield found
        finally:
            found.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _ready(base: str) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError):
            if _send("GET", f"{base}/status")["ready"]:
                return
        time.sleep(0.05)
    raise AssertionError("chromedriver did not start")


def _send(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error.read().decode()[:500]}") from None
