"""A real browser for tests of pages."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT_S = 60


class Browser:
    """Chromium without a window, by its DevTools protocol over two pipes: JSON texts that end in a zero byte."""

    def __init__(self, profile):
        to_read, self.write_to = os.pipe()
        self.read_from, to_write = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        line = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        command = ["bash", "-c", line, CHROMIUM, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self.rest, self.number, self.events, self.session = b"", 0, [], None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """The answer to a command; what happens until then is kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self.rest:
            assert select.select([self.read_from], [], [], WAIT_S)[0], "the browser does not answer"
            chunk = os.read(self.read_from, 1 << 20)
            assert chunk, "the browser has ended"
            self.rest += chunk
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def js(self, expression):
        """The value of an expression in the page, awaited."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression):
        """Wait until it is true in the page."""
        end = time.monotonic() + WAIT_S
        while not self.js(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def open(self, file, *, width=1600, height=1000):
        self("Page.navigate", url="about:blank")
        self.events.clear()  # what the page before had to say
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self("Page.navigate", url=file.as_uri())
        self.until("document.documentElement?.dataset.drawn === 'yes'")

    def place(self, expression):
        """The middle of an element, in the window."""
        self.js(f"{expression}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.js(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({expression}.getBoundingClientRect())")
        return {"x": box[0], "y": box[1]}

    def click(self, expression):
        at = self.place(expression)
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def press(self, key, code):
        for kind in ("rawKeyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def complaints(self):
        """Errors and warnings of the console, and exceptions."""
        found = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        for event in self.events:
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in (
                "error",
                "warning",
            ):
                found.append(event["params"]["args"])
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in (
                "error",
                "warning",
            ):
                found.append(event["params"]["entry"])
        return found

    def end(self):
        self.session = None
        self("Browser.close")
        self.process.wait(WAIT_S)
        os.close(self.read_from)
        os.close(self.write_to)
