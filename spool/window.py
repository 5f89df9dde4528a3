"""Weekly windows in local time: when an off-peak class may run.

A window is a set of continuous instants. A span that crosses midnight belongs to the day on which it begins, so a
holiday adds to the window that *begins* on it; on the night on which the clock goes back the window is an hour
longer, on the other one an hour shorter. A wall time that comes twice means its first coming, one that the clock
skips means the moment of the jump.
"""

from __future__ import annotations

import datetime as dt
import re

from .errors import BadRequest
from .values import dataclass

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(
    r"(daily|[a-z]{3}(?:-[a-z]{3})?(?:,[a-z]{3}(?:-[a-z]{3})?)*)\s+(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})"
)
#: Windows of a week, and one more for what crosses midnight; looked at further ahead only where they never close.
_AHEAD_DAYS = 9
_FURTHEST_DAYS = 366
_REMEDY = "Write spans such as 'mon-fri 20:00-07:00', 'sat,sun 00:00-24:00' or 'daily 22:00-06:00'."


@dataclass(frozen=True, slots=True)
class Span:
    """Open from `opens` to `closes`, minutes after the local midnight of each day in `days` (0: Monday)."""

    days: frozenset[int]
    opens: int
    closes: int  # may lie beyond 24 h: the next day


@dataclass(frozen=True, slots=True)
class Window:
    """A named set of weekly spans with its time zone and holidays (on which the window is open all day)."""

    name: str
    zone: str
    spans: tuple[Span, ...]
    holidays: frozenset[dt.date] = frozenset()

    def closes_after(self, now: float) -> float | None:
        """When the window that is open at `now` closes (UTC seconds); None when it is closed at `now`.

        A window without a gap in the next year closes, as far as this goes, at the end of that year.
        """
        ahead = _AHEAD_DAYS
        while True:
            intervals = self._intervals(now, ahead)
            found = next((end for start, end in intervals if start <= now < end), None)
            # What is open until the horizon may be open beyond it: a week round the clock, a run of holidays.
            if found is None or found < now + (ahead - 2) * 86400 or ahead >= _FURTHEST_DAYS:
                return found
            ahead = min(4 * ahead, _FURTHEST_DAYS)

    def opens_after(self, now: float) -> float | None:
        """When it opens next after `now`, or `now` when it is open; None when it never does."""
        for start, end in self._intervals(now, _AHEAD_DAYS):
            if now < end:
                return max(start, now)
        return None

    def _intervals(self, now: float, ahead: int) -> list[tuple[float, float]]:
        """The open intervals from two days before `now` to `ahead` days after it, merged and in order."""
        from zoneinfo import ZoneInfo

        zone = ZoneInfo(self.zone)
        today = dt.datetime.fromtimestamp(now, zone).date()
        found: list[tuple[float, float]] = []
        for offset in range(-2, ahead + 1):
            day = today + dt.timedelta(days=offset)
            if day in self.holidays:
                found.append((_instant(day, 0, zone), _instant(day, 24 * 60, zone)))
            for span in self.spans:
                if day.weekday() in span.days:
                    found.append((_instant(day, span.opens, zone), _instant(day, span.closes, zone)))
        merged: list[tuple[float, float]] = []
        for start, end in sorted(found):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            elif end > start:
                merged.append((start, end))
        return merged


def _instant(day: dt.date, minutes: int, zone: dt.tzinfo) -> float:
    """The first instant (UTC seconds) at which the clock shows `minutes` after `day`'s midnight, or later."""
    days, rest = divmod(minutes, 24 * 60)
    local = dt.datetime.combine(day + dt.timedelta(days=days), dt.time(rest // 60, rest % 60), tzinfo=zone)
    late, early = local.timestamp(), local.replace(fold=1).timestamp()
    if late <= early:  # an ordinary time, or one that comes twice
        return late
    # The clock skips it: by the offset before the jump it lies after the jump, by the one after it before. In between
    # the jump is found by halving, to the second.
    before = dt.datetime.fromtimestamp(early, zone).utcoffset()
    low, high = int(early), int(late)
    while high - low > 1:
        middle = (low + high) // 2
        if dt.datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return float(high)


def parse_window(name: str, zone: str, spans: list[str], holidays: list[str] | None = None) -> Window:
    """A window from its configuration. Raises BadRequest naming the part at fault."""
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(zone)
    except Exception:  # zoneinfo raises half a dozen kinds for a bad name
        raise BadRequest(
            what=f"the time zone of window {name!r}",
            value=zone,
            why="it is not in the time zone database",
            remedy="Write a name such as Europe/Berlin, America/New_York or UTC.",
        ) from None
    parsed = tuple(_parse_span(name, span) for span in spans)
    if not parsed:
        raise BadRequest(what=f"window {name!r}", value=spans, why="it never opens", remedy=_REMEDY)
    days = frozenset(_parse_day(name, day) for day in holidays or [])
    return Window(name, zone, parsed, days)


def _parse_day(name: str, text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            what=f"a holiday of window {name!r}", value=text, why="it is no date", remedy="Write 2030-12-25."
        ) from None


def _parse_span(name: str, text: str) -> Span:
    match = _SPAN.fullmatch(text.strip().lower())
    if not match:
        raise BadRequest(
            what=f"a span of window {name!r}", value=text, why="it cannot be read", remedy=_REMEDY
        )
    days: set[int] = set()
    for part in ["mon-sun"] if match[1] == "daily" else match[1].split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first not in DAYS or last not in DAYS:
            raise BadRequest(
                what=f"a span of window {name!r}",
                value=text,
                why=f"{part!r} is no day of the week",
                remedy=_REMEDY,
            )
        begin, end = DAYS.index(first), DAYS.index(last)
        days.update(day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))
    opens, closes = int(match[2]) * 60 + int(match[3]), int(match[4]) * 60 + int(match[5])
    if opens >= 24 * 60 or closes > 24 * 60 or int(match[3]) > 59 or int(match[5]) > 59:
        raise BadRequest(
            what=f"a span of window {name!r}", value=text, why="it has no such time of day", remedy=_REMEDY
        )
    return Span(frozenset(days), opens, closes if closes > opens else closes + 24 * 60)
