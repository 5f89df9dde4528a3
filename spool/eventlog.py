"""The event file of one rank: one numbered JSON line an event, written with one write and fsynced.

Readers never pass a gap in the numbers, and put up with torn tails, runs of NUL (a block that reached the disk
before its data) and files that come late.
"""

from __future__ import annotations

import errno
import json
import math
import os
from typing import Any

from .values import dataclass

FORMAT = 1
#: A line longer than this is not one of ours; the reader stops there rather than load it.
MAX_LINE = 1 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One event as read: its number, UTC time, kind and the other fields."""

    number: int
    at: float
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a read gave: the events, and the offset and number to go on from. `trouble` says why it stopped early."""

    lines: list[Line]
    offset: int
    next_number: int
    trouble: str = ""


class EventWriter:
    """Appends to an event file; a new writer goes on where the last whole line ends.

    Whoever gets an OSError from `write` may repeat that event or go on with another one: each that was written
    without an error is read exactly once.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        before, tail = 0, read(path, 0, 1)
        while tail.offset > before:
            before, tail = tail.offset, read(path, tail.offset, tail.next_number)
        self.next_number = tail.next_number
        self._unsynced = b""  # the last line, when it went to the file and fsync failed
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._fresh_line = os.fstat(self._fd).st_size <= tail.offset

    def write(self, kind: str, at: float, **data: Any) -> int:
        """Append one event; its number. Raises OSError (a full disk, say), and then it was not counted."""
        text = self._line(kind, at, data)
        if text != self._unsynced:
            if self._unsynced:  # not this event again: the one before has its number in the file
                self.next_number += 1
                self._unsynced = b""
                text = self._line(kind, at, data)
            # A torn line at the end is closed with what makes it no JSON, even if only its newline was missing: it
            # was not counted, and must not be taken for the event that gets its number now.
            whole = text if self._fresh_line else b"!\n" + text
            written = os.write(self._fd, whole)
            self._fresh_line = written == len(whole)
            if not self._fresh_line:
                why = f"only {written} of {len(whole)} bytes went to {self.path}"
                raise OSError(errno.ENOSPC, why)
            self._unsynced = text
        os.fsync(self._fd)
        self._unsynced = b""
        self.next_number += 1
        return self.next_number - 1

    def _line(self, kind: str, at: float, data: dict[str, Any]) -> bytes:
        record = {"v": FORMAT, "n": self.next_number, "at": round(at, 3), "kind": kind, **data}
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

    def close(self) -> None:
        """Close the file; the event file itself stays."""
        os.close(self._fd)


def read(path: str, offset: int, next_number: int) -> Batch:
    """The whole, consecutively numbered events of `path` from `offset` on; a missing file gives none.

    `next_number` is the number that the first event must have; lower ones are repeats and are passed over, a higher
    one is a gap at which reading stops. Raises OSError other than "not there".
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return Batch([], offset, next_number)
    try:
        data = os.pread(fd, _CHUNK, offset)
    finally:
        os.close(fd)
    lines: list[Line] = []
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        raw = data[position:end]
        if b"\0" in raw:
            stripped = raw.strip(b"\0")
            if not stripped or b"\0" in stripped or _parse(stripped) is None:
                return Batch(
                    lines, offset + position, next_number, "a hole in the file; waiting for its data"
                )
            raw = stripped
        line = _parse(raw)
        if line is not None:
            if line.number > next_number:
                return Batch(
                    lines,
                    offset + position,
                    next_number,
                    f"event {next_number} is missing before {line.number}",
                )
            if line.number == next_number:
                lines.append(line)
                next_number += 1
        position = end + 1
    trouble = ""
    if position == 0 and len(data) >= MAX_LINE:
        trouble = f"a line longer than {MAX_LINE} bytes"
    return Batch(lines, offset + position, next_number, trouble)


def _parse(raw: bytes) -> Line | None:
    """One line as an event; None for a torn or foreign one, which costs only itself."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    number, at, kind = value.pop("n", None), value.pop("at", None), value.pop("kind", None)
    value.pop("v", None)
    if type(number) is not int or type(at) not in (int, float) or not isinstance(kind, str):
        return None
    try:
        at = float(at)
    except OverflowError:
        return None
    return Line(number, at, kind, value) if math.isfinite(at) else None
