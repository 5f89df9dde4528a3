"""The line between recorder and guardian: whole JSON messages over a SOCK_SEQPACKET pair, never blocking."""

from __future__ import annotations

import _socket
import json
import os
import select
from typing import Any

_MAX = 1 << 16


class Wire:
    """One end. `send` drops nothing silently: what the other side does not take now is kept and tried again."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.waiting: list[bytes] = []
        self.closed = False
        os.set_blocking(fd, False)

    def send(self, kind: str, **data: Any) -> None:
        """Queue a message and push what can be pushed."""
        self.waiting.append(json.dumps({"kind": kind, **data}, separators=(",", ":")).encode())
        self.flush()

    def flush(self) -> None:
        """Push queued messages as far as the other side takes them."""
        while self.waiting and not self.closed:
            try:
                os.write(self.fd, self.waiting[0])
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self.waiting.pop(0)

    def receive(self) -> list[dict[str, Any]]:
        """All messages that are there; `closed` is set when the other side has gone."""
        found = []
        while not self.closed:
            try:
                data = os.read(self.fd, _MAX)
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
                break
            if not data:
                self.closed = True
                break
            try:
                value = json.loads(data)
            except ValueError:
                continue
            if isinstance(value, dict) and isinstance(value.get("kind"), str):
                found.append(value)
        return found

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        try:
            os.close(self.fd)
        except OSError:
            pass


def pair() -> tuple[int, int]:
    """Two connected descriptors, closed at exec."""
    one, two = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
    return one.detach(), two.detach()


def wait(fds: list[int], seconds: float) -> None:
    """Sleep until one of `fds` is readable or `seconds` have gone by."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    try:
        poller.poll(max(0, int(seconds * 1000 + 0.999)))
    except InterruptedError:
        return


class ChildWatch:
    """Becomes readable when a child ends: SIGCHLD through a self-pipe."""

    def __init__(self) -> None:
        import signal

        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def clear(self) -> None:
        """Forget what was announced."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
