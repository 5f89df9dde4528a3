"""Text for terminals: nothing that a user wrote reaches one raw, and plain tables without a table library."""

from __future__ import annotations

import time


def safe(text: str) -> str:
    """`text` with control characters, escapes, line breaks and stray bytes shown escaped; letters stay letters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table(heads: list[str], rows: list[list[str]], *, right: frozenset[str] = frozenset()) -> str:
    """A plain table; columns in which no row holds anything are not shown."""
    kept = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    widths = [max(len(heads[index]), *(len(row[index]) for row in rows)) for index in kept]
    lines = []
    for row in [heads, *rows]:
        cells = [
            row[index].rjust(width) if heads[index] in right else row[index].ljust(width)
            for index, width in zip(kept, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def local(at: float | None) -> str:
    """A moment in local time; '' for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at is not None else ""


def iso(at: float | None) -> str | None:
    """A moment as JSON has it: ISO 8601, UTC."""
    if at is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` letters."""
    return text if len(text) <= width else text[: width - 1] + "…"
