"""`metrics.jsonl`: the curve of a run as one history over all its attempts, one JSON object a line.

Each line has step, loss, learning_rate, grad_norm, epoch and attempt; numbers are written so that reading them gives
the same float back, and those that JSON cannot hold (NaN, infinity) are null.
"""

from __future__ import annotations

import errno
import json
import math
import os
from typing import Any

from .checkpointing import sync_folder, write_atomically

NAME = "metrics.jsonl"


class History:
    """The file of one run, which one process writes. Raises OSError when it cannot."""

    def __init__(self, folder: str, attempt: int | None = None) -> None:
        """Open the file in `folder`; without a number from the spool, the attempt is the next after the last line's."""
        self.path = os.path.join(folder, NAME)
        if attempt is None:
            attempt = 1 + max((_whole(line.get("attempt")) or 0 for line in self.lines()), default=0)
        self.attempt = attempt
        self._fd: int | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines; a torn one, left by a crash, is no line."""
        try:
            with open(self.path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return []
        parsed = (_parsed(line) for line in raw.split(b"\n")[:-1])
        return [line for line in parsed if line is not None]

    def cut(self, step: int) -> int:
        """Drop, atomically, the lines beyond `step`, from which the run goes on; returns how many.

        What an attempt logged after its last checkpoint happens again, and must not stand there twice.
        """
        try:
            with open(self.path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return 0
        lines = raw.split(b"\n")
        kept = []
        for line in lines[:-1]:
            parsed = _parsed(line)
            number = _whole(parsed.get("step")) if parsed is not None else None
            if number is not None and number <= step:
                kept.append(line)
        content = b"".join(line + b"\n" for line in kept)
        if content != raw:
            self.close()
            write_atomically(self.path, content)
        return len([line for line in lines if line.strip()]) - len(kept)

    def append(self, step: int, values: dict[str, Any]) -> None:
        """Add one line with one write, so that a reader sees it whole or not at all."""
        if self._fd is None:
            created = not os.path.exists(self.path)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if created:
                sync_folder(os.path.dirname(self.path))
        line = (
            {"step": step}
            | {key: _finite(value) for key, value in values.items()}
            | {"attempt": self.attempt}
        )
        raw = json.dumps(line, allow_nan=False).encode() + b"\n"
        if os.write(self._fd, raw) < len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def sync(self) -> None:
        """Put the lines on disk: a checkpoint must never outlive the lines that lead to it."""
        if self._fd is not None:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
