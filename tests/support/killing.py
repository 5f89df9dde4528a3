"""SIGKILL between any two lines: run an action again and again in forked children, each killed one line later.

For scripts of their own (`spools.python`), not for the test process: forking needs a process without threads.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def killed_at(number: int, action: Callable[[], object], *files: str) -> bool:
    """Whether `action` was killed before it reached its end, at the `number`-th line that it ran in one of `files`."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.settrace(_tracer(number, frozenset(os.path.realpath(file) for file in files)))
            action()
        except BaseException:
            sys.settrace(None)
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action itself failed"
    return False


def each_line(action: Callable[[], object], *files: str) -> Iterator[int]:
    """1, 2, 3, … each time after `action` was killed at that line; ends once it came to its end unharmed."""
    number = 1
    while killed_at(number, action, *files):
        yield number
        number += 1


def _tracer(number: int, files: frozenset[str]) -> Any:
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if os.path.realpath(frame.f_code.co_filename) not in files:
            return None
        if event in ("line", "return"):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace
