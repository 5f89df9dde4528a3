"""Text for terminals: nothing that a user wrote reaches one raw, and plain tables without a table library."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

#: State → colour, on a terminal only.
_COLOURS = {
    "initializing": "36",
    "running": "32",
    "stopping": "33",
    "failed": "31",
    "cancelled": "35",
}


def safe(text: str) -> str:
    """`text` with control characters, escapes, line breaks and stray bytes shown escaped; letters stay letters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that is no UTF-8, as Python reads it from a command line
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def safe_lines(text: str) -> str:
    """As `safe`, for a message of ours that may have several lines: line feeds stay."""
    return "\n".join(safe(line) for line in text.split("\n"))


def width(text: str) -> int:
    """How many columns of a terminal `text` takes: wide letters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` columns, with an ellipsis where something was cut off."""
    if width(text) <= limit:
        return text
    kept, used = [], 0
    for char in text:
        used += width(char)
        if used > limit - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def table(
    heads: list[str],
    rows: list[list[str]],
    *,
    right: frozenset[str] = frozenset(),
    columns: int | None = None,
    paint: dict[str, Callable[[str], str]] | None = None,
) -> str:
    """A plain table; columns in which no row holds anything are not shown.

    With `columns` (a terminal's) the last column is cut so that a line fits. `paint` colours the cells of a column.
    """
    kept = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    widths = [max(width(heads[index]), *(width(row[index]) for row in rows)) for index in kept]
    if columns is not None and kept:
        room = columns - sum(size + 2 for size in widths[:-1])
        widths[-1] = max(min(widths[-1], room), min(widths[-1], 16), width(heads[kept[-1]]))
    lines = []
    for number, row in enumerate([heads, *rows]):
        cells = []
        for index, size in zip(kept, widths, strict=True):
            text = shorten(row[index], size)
            gap = " " * (size - width(text))
            shown = paint[heads[index]](text) if paint and number and heads[index] in paint else text
            cells.append(gap + shown if heads[index] in right else shown + gap)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def terminal_columns() -> int | None:
    """How wide the terminal is that standard output goes to; None when it goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns) or None
    except (OSError, ValueError):
        return None


def state_painter() -> dict[str, Callable[[str], str]]:
    """The colouring of a STATE column: none unless a person looks, and none under NO_COLOR."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return {}

    def paint(state: str) -> str:
        return f"\033[{_COLOURS[state]}m{state}\033[0m" if state in _COLOURS else state

    return {"STATE": paint}


def count(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def local(at: float | None) -> str:
    """A moment in local time; '' for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at is not None else ""


def iso(at: float | None) -> str | None:
    """A moment as JSON has it: ISO 8601, UTC."""
    if at is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"
