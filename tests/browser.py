"""A headless Chromium that is controlled through a pipe with the DevTools protocol."""

import base64
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest

needs_chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run --hide-scrollbars --remote-debugging-pipe"
)
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
TIMEOUT = 60  # seconds


class Browser:
    """One tab of Chromium. errors: exceptions thrown by the scripts of its pages."""

    def __init__(self, profile: Path):
        (commands, self._commands), (self._messages, messages) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, messages)]  # not 3 or 4
        command = f'exec chromium {FLAGS} --user-data-dir="$0" about:blank 3<&{ends[0]} 4>&{ends[1]}'
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", command, profile], pass_fds=ends, **quiet)
        for end in (commands, messages, *ends):
            os.close(end)
        self._number, self._rest, self._tab, self.errors = 0, b"", {}, []
        (tab,) = (one for one in self.do("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.do("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._tab = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Accessibility"):
            self.do(f"{domain}.enable")

    def close(self):
        self._tab = {}
        self.do("Browser.close")
        self._process.wait(TIMEOUT)
        os.close(self._commands)
        os.close(self._messages)

    def do(self, method: str, **values) -> dict:
        """Send a DevTools command, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values, **self._tab}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda message: message.get("id") == self._number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _until(self, wanted):
        """Read messages until one is wanted, and return it."""
        while True:
            while b"\0" not in self._rest:
                assert select.select([self._messages], [], [], TIMEOUT)[0], "the browser does not answer"
                more = os.read(self._messages, 2**20)
                assert more, "the browser has ended"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            message = json.loads(text)
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            if wanted(message):
                return message

    def open(self, page: Path, width: int, dark: bool = False):
        """Load a page in a window `width` pixels wide."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[theme])
        self.point(0, 0)
        self.do("Page.navigate", url=page.as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def ask(self, expression: str):
        """Evaluate a JavaScript expression in the page."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """Scroll to an element, and return the position of its center in the window."""
        return tuple(
            self.ask(f"""(() => {{ const part = document.querySelector({json.dumps(selector)});
            part.scrollIntoView({{block: "center"}}); const box = part.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2]; }})()""")
        )

    def point(self, x: float, y: float, kind: str = "mouseMoved"):
        self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str):
        self.point(*self.middle(selector))

    def click(self, selector: str):
        x, y = self.middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.point(x, y, kind)

    def touch(self, selector: str):
        x, y = self.middle(selector)
        self.do("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])

    def press(self, key: str):
        values = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "text": "\r" if key == "Enter" else ""}
        self.do("Input.dispatchKeyEvent", type="keyDown", **values)
        self.do("Input.dispatchKeyEvent", type="keyUp", **{**values, "text": ""})

    def print_to(self, file: Path) -> int:
        """Write the page as a PDF, and return the number of pages."""
        file.write_bytes(base64.b64decode(self.do("Page.printToPDF", preferCSSPageSize=True)["data"]))
        return len(re.findall(rb"/Type\s*/Page\b", file.read_bytes()))

    def roles(self) -> list[tuple[str, str]]:
        """Return (role, name) of every node of the accessibility tree."""
        nodes = [node for node in self.do("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
