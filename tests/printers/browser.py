"""Headless Chromium, spoken to over its pipe: pages are tested as people see them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Browser:
    """One page of a browser of its own; to be used in a `with`."""

    def __init__(self, profile: Path) -> None:
        from_us, self._to_it = os.pipe()
        self._from_it, to_us = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        command = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [
            f"--user-data-dir={profile}",
            "--window-size=1300,900",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), *options],
            pass_fds=(from_us, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to_it)
        os.close(self._from_it)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to a command of its debugging protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_it, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _message(self) -> bytes:
        while b"\0" not in self._rest:
            got = os.read(self._from_it, 1 << 16)
            assert got, "the browser has ended"
            self._rest += got
        message, self._rest = self._rest.split(b"\0", 1)
        return message

    def show(self, html: str) -> None:
        """Makes `html` the page."""
        self.run(f"document.open(); document.write({json.dumps(html)}); document.close()")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        done = self.command("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def point_at(self, selector: str, n: int = 0, *, click: bool = False) -> None:
        """Moves the pointer over the n-th element of a CSS selector."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{n}]"
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased") if click else ("mouseMoved",):
            button = "none" if kind == "mouseMoved" else "left"
            self.command(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1
            )

    def picture(self, path: Path) -> None:
        """Writes a PNG of what is seen."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))
