"""A headless Chromium, spoken to by its own protocol (CDP) over a pipe: no driver and no library."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 30
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe"
)


class Page:
    """One tab.

    Args:
        to: the pipe that the browser reads.
        back: the pipe that it writes.
    """

    def __init__(self, to: Any, back: Any) -> None:
        self._to, self._back, self._number, self._session = to, back, 0, ""
        self.complaints: list[str] = []  # errors and warnings of the console, exceptions, refused resources
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        self._to.write(json.dumps(asked).encode() + b"\0")
        self._to.flush()
        while (message := self._read()).get("id") != self._number:
            self._note(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def run(self, script: str) -> Any:
        """Return the value of a script; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        ends = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            if time.monotonic() > ends:
                raise TimeoutError(f"{script} is {found!r}: {self.run('document.body.innerText')}")
            time.sleep(0.02)
        return found

    def open(self, url: str, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """Open an address in a window of some size and color scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, control: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=2 if control else 0)

    def _read(self) -> dict[str, Any]:
        found = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("the browser has ended")
            found += byte
        return json.loads(found)

    def _note(self, message: Mapping[str, Any]) -> None:
        what, found = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif what == "Log.entryAdded":
            self.complaints.append(f"{found['entry']['level']}: {found['entry']['text']}")
        elif what == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(found["args"]))


@contextmanager
def browser(folder: Path, flags: Sequence[str] = ()) -> Iterator[Page]:
    """Start Chromium with a new profile in a folder."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    arguments = [CHROMIUM, *_FLAGS.split(), f"--user-data-dir={folder}", *flags]
    process = subprocess.Popen(
        ["bash", "-c", command, *map(str, arguments)],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb") as back:
            yield Page(to, back)
    finally:
        process.terminate()
        process.wait(SECONDS)
