"""Durations, memory sizes and points in time as people write them: Slurm's forms and forms with suffixes."""

from __future__ import annotations

import re

from .errors import BadRequest

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SUFFIXED = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:w|d|h|min|m|sec|s)\s*)+", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(w|d|h|min|m|sec|s)", re.IGNORECASE)
_SLURM = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_DURATION_FORMS = (
    "minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]], or 90s, 10m, 2h, 1d12h"
)


def duration(text: str, *, what: str, bare: str = "m", zero: bool = False) -> int:
    """`text` in seconds. A bare number has the unit `bare` ('m' as Slurm's walltimes, 's' as its grace times).

    Raises BadRequest, with the forms that are taken, for anything else and (unless `zero`) for nothing at all.
    """
    value = text.strip()
    seconds: float | None = None
    if len(value) > 64:
        pass  # int() refuses thousands of digits with an error of its own
    elif value.isascii() and value.isdigit():
        seconds = int(value) * _UNITS[bare]
    elif _SUFFIXED.fullmatch(value):
        seconds = sum(float(number) * _UNITS[unit[0].lower()] for number, unit in _PART.findall(value))
    elif match := _SLURM.fullmatch(value):
        days, first, second, third = match.groups()
        if days is not None:
            seconds = int(days) * 86400 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
        elif third is not None:
            seconds = int(first) * 3600 + int(second) * 60 + int(third)
        else:
            seconds = int(first) * 60 + int(second or 0)
    if seconds is None:
        raise BadRequest(what=what, value=text, why="it is no duration", remedy=f"Write {_DURATION_FORMS}.")
    if seconds > 10 * 366 * 86400:
        raise BadRequest(
            what=what, value=text, why="it is more than ten years", remedy="Write a shorter one."
        )
    if seconds < 1 and not (zero and seconds == 0):
        raise BadRequest(
            what=what,
            value=text,
            why="it leaves no time at all",
            remedy="Write at least one second, or leave the option out.",
        )
    return int(seconds)


def show_duration(seconds: float) -> str:
    """Seconds as people read them: 45s, 10m, 1h30m, 2d4h."""
    left = int(seconds)
    if left < 60:
        return f"{left}s"
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


_MEMORY = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([KMGTP])(?:i?B)?)?", re.IGNORECASE)
_MEMORY_UNITS = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


def memory(text: str, *, what: str) -> int:
    """`text` in MiB, rounded up; a bare number is MiB as in Slurm. Raises BadRequest."""
    match = _MEMORY.fullmatch(text.strip())
    size = float(match[1]) * _MEMORY_UNITS[(match[2] or "").upper()] if match else 0.0
    if not 0 < size < 2**50:
        raise BadRequest(
            what=what,
            value=text,
            why="it is no amount of memory",
            remedy="Write 500M, 20G or 1.5T; a bare number is MiB.",
        )
    return max(1, -int(-size // 1))


def moment(text: str, *, what: str, now: float) -> float:
    """A point in time as UTC seconds: `now+2h`, `16:00`, `tomorrow`, `2026-12-01T08:00`, in local time.

    A time of day that has passed today means tomorrow, as in Slurm. Raises BadRequest.
    """
    import datetime as dt

    value = text.strip().lower()
    here = dt.datetime.fromtimestamp(now)
    if value == "now":
        return now
    if value.startswith("now+"):
        rest = value[4:]
        rest = re.sub(r"(seconds?|minutes?|hours?|days?|weeks?)$", lambda m: m[0][0], rest)
        return now + duration(rest, what=what, bare="s", zero=True)
    if value == "today":
        return now
    if value == "tomorrow":
        return (here + dt.timedelta(days=1)).timestamp()
    clock = {"midnight": dt.time(0), "noon": dt.time(12), "teatime": dt.time(16)}.get(value)
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", value):
        try:
            clock = dt.time(int(match[1]), int(match[2]), int(match[3] or 0))
        except ValueError:
            clock = None
    if clock is not None:
        then = dt.datetime.combine(here.date(), clock)
        if then.timestamp() < now:
            then += dt.timedelta(days=1)
        return then.timestamp()
    try:
        return dt.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadRequest(
            what=what,
            value=text,
            why="it is no point in time",
            remedy="Write now+2h, 16:00, tomorrow or 2030-01-31T08:00.",
        ) from None
