"""Looking at what a user's program left (checkpoints, the end of its output) in a short-lived forked child.

Those folders may lie on a file system that hangs; then the child hangs, and nobody waits for it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from . import causes, checkpoints

_TAIL = 65536


class Inspection:
    """One look under way. `poll` gives its answer once; a child that hangs is left to itself."""

    def __init__(self, folder: str, fmt: str, output: str = "") -> None:
        self.fd, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.answer: dict[str, Any] | None = None
        self._data = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.set_blocking(theirs, True)
            _inspect(theirs, folder, fmt, output)
        os.close(theirs)

    def poll(self) -> dict[str, Any] | None:
        """The answer when it is complete, else None. {} when the child failed."""
        if self.answer is not None:
            return self.answer
        try:
            while True:
                chunk = os.read(self.fd, 1 << 16)
                if not chunk:
                    break
                self._data += chunk
        except BlockingIOError:
            return None
        except OSError:
            pass
        os.close(self.fd)
        try:
            value = json.loads(self._data)
        except ValueError:
            value = {}
        self.answer = value if isinstance(value, dict) else {}
        try:
            os.waitpid(self.pid, 0)  # it has closed its end: it is leaving
        except ChildProcessError:
            pass
        return self.answer

    def abandon(self) -> None:
        """Stop listening to a child that hangs, and end it where a signal still reaches it."""
        if self.answer is None:
            self.answer = {}
            os.close(self.fd)
            try:
                os.kill(self.pid, 9)  # our own unreaped child: its pid cannot have been recycled
                os.waitpid(self.pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass


def _inspect(fd: int, folder: str, fmt: str, output: str) -> None:
    from .processes import reset_signals

    code = 1
    try:
        reset_signals()
        answer: dict[str, Any] = {"newest": None, "broken": [], "cause": "", "cause_text": ""}
        if folder:
            found = checkpoints.find(folder, fmt or "auto")
            answer["newest"] = asdict(found.newest) if found.newest else None
            answer["broken"] = [[broken.path, broken.reason] for broken in found.broken[:10]]
        if output:
            cause = causes.classify(tail(output))
            if cause is not None:
                answer["cause"], answer["cause_text"] = cause.name, cause.text
        view = memoryview(json.dumps(answer).encode())
        while view:
            view = view[os.write(fd, view) :]
        code = 0
    finally:
        os._exit(code)


def tail(path: str) -> str:
    """The last 64 KiB of a file as text; '' when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, _TAIL, max(0, size - _TAIL)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
