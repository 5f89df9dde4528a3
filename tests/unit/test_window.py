"""Weekly windows: spans, midnight, holidays, and the nights on which the clock is changed."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from gpuspool.spool.errors import BadRequest
from gpuspool.spool.window import Window, parse_window

HOUR = 3600.0


def window(*spans: str, zone: str = "UTC", holidays: tuple[str, ...] = ()) -> Window:
    """A window called w."""
    return parse_window("w", zone, list(spans), list(holidays))


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    """A wall time as UTC seconds; `fold` 1 is the second coming of one that comes twice."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def utc(text: str) -> float:
    """A UTC time as seconds."""
    return at(text)


# 2030-01-14 is a Monday.


@pytest.mark.parametrize(
    ("now", "opens", "closes"),
    [
        ("2030-01-14T19:59:59", "2030-01-14T20:00", None),
        ("2030-01-14T20:00:00", "2030-01-14T20:00", "2030-01-15T07:00"),  # the first instant is in
        ("2030-01-15T00:00:00", "2030-01-15T00:00", "2030-01-15T07:00"),  # over midnight
        ("2030-01-15T06:59:59", "2030-01-15T06:59:59", "2030-01-15T07:00"),
        ("2030-01-15T07:00:00", "2030-01-15T20:00", None),  # the last one is out
        ("2030-01-18T21:00:00", "2030-01-18T21:00", "2030-01-19T07:00"),  # Friday's reaches into Saturday
        ("2030-01-19T07:00:00", "2030-01-21T20:00", None),  # Saturday and Sunday have none
        ("2030-01-20T20:00:00", "2030-01-21T20:00", None),
    ],
)
def test_nights_of_weekdays(now: str, opens: str, closes: str | None) -> None:
    nights = window("mon-fri 20:00-07:00")
    assert nights.opens_after(utc(now)) == utc(opens)
    assert nights.closes_after(utc(now)) == (None if closes is None else utc(closes))


def test_spans_that_touch_or_overlap_are_one_window() -> None:
    """Friday evening to Monday morning without a gap."""
    weekend = window("mon-fri 20:00-07:00", "sat,sun 00:00-24:00")
    for now in ("2030-01-18T20:00", "2030-01-19T06:59", "2030-01-19T12:00", "2030-01-20T23:59"):
        assert weekend.closes_after(utc(now)) == utc("2030-01-21T00:00"), now
    overlap = window("mon 10:00-14:00", "mon 12:00-16:00", "mon 16:00-17:00", "mon 11:00-11:30")
    assert overlap.closes_after(utc("2030-01-14T10:00")) == utc("2030-01-14T17:00")


def test_a_span_inside_another_does_not_shorten_it() -> None:
    found = window("daily 08:00-20:00", "daily 09:00-10:00")
    assert found.closes_after(utc("2030-01-14T09:30")) == utc("2030-01-14T20:00")
    assert found.closes_after(utc("2030-01-14T15:00")) == utc("2030-01-14T20:00")


@pytest.mark.parametrize(
    ("span", "inside", "outside"),
    [
        ("fri-mon 10:00-11:00", "2030-01-20T10:30", "2030-01-22T10:30"),  # days wrap around the week
        ("SAT,Sun 10:00-11:00", "2030-01-19T10:30", "2030-01-18T10:30"),
        ("mon,wed-thu 9:00-11:00", "2030-01-17T10:30", "2030-01-15T10:30"),
        ("daily 10:00-10:00", "2030-01-14T09:59", None),  # round the clock
    ],
)
def test_days(span: str, inside: str, outside: str | None) -> None:
    found = window(span)
    assert found.closes_after(utc(inside)) is not None
    if outside is not None:
        assert found.closes_after(utc(outside)) is None


def test_a_window_that_never_closes_says_so_by_a_far_end() -> None:
    """No job that starts in it may be stopped at the end of the week that was looked at."""
    always = window("daily 00:00-24:00")
    now = utc("2030-01-14T12:00")
    assert always.closes_after(now) > now + 300 * 24 * HOUR  # type: ignore[operator]
    assert always.opens_after(now) == now


def test_a_run_of_holidays_is_followed_to_its_end() -> None:
    days = tuple((dt.date(2029, 12, 20) + dt.timedelta(days=n)).isoformat() for n in range(20))
    found = window("daily 20:00-22:00", holidays=days)
    assert found.closes_after(utc("2029-12-20T03:00")) == utc("2030-01-09T00:00")


def test_a_window_opens_again_after_a_week() -> None:
    found = window("mon 10:00-11:00")
    assert found.opens_after(utc("2030-01-14T11:00")) == utc("2030-01-21T10:00")


# -- holidays --------------------------------------------------------------------------------------------


def test_a_holiday_is_open_all_day_and_its_own_night_follows() -> None:
    nights = window("mon-fri 20:00-07:00", holidays=("2030-01-16",))  # a Wednesday
    assert nights.closes_after(utc("2030-01-16T12:00")) == utc("2030-01-17T07:00")
    # Tuesday's window began on Tuesday and flows into the holiday.
    assert nights.closes_after(utc("2030-01-15T20:00")) == utc("2030-01-17T07:00")


def test_a_holiday_at_the_weekend_belongs_to_the_day_on_which_the_window_begins() -> None:
    nights = window("mon-fri 20:00-07:00", holidays=("2030-01-19",))  # a Saturday
    assert nights.closes_after(utc("2030-01-19T23:00")) == utc("2030-01-20T00:00"), "no night begins on it"
    assert nights.closes_after(utc("2030-01-20T00:00")) is None


# -- nights on which the clock is changed ----------------------------------------------------------------

#: zone, evening before, length of a 20:00–07:00 night in hours (11 otherwise). Both directions, both hemispheres,
#: and Lord Howe Island, whose summer time is half an hour.
NIGHTS = [
    ("Europe/Berlin", "2030-03-30", 10.0),
    ("Europe/Berlin", "2030-10-26", 12.0),
    ("America/New_York", "2030-03-09", 10.0),
    ("America/New_York", "2030-11-02", 12.0),
    ("Australia/Lord_Howe", "2030-04-06", 11.5),
    ("Australia/Lord_Howe", "2030-10-05", 10.5),
    ("Europe/Berlin", "2030-06-01", 11.0),
    ("Asia/Kolkata", "2030-03-30", 11.0),
]


@pytest.mark.parametrize(("zone", "day", "hours"), NIGHTS)
def test_a_night_is_as_long_as_it_is(zone: str, day: str, hours: float) -> None:
    nights = window("daily 20:00-07:00", zone=zone)
    begin = at(f"{day}T20:00", zone)
    assert nights.opens_after(begin - 1) == begin
    end = nights.closes_after(begin)
    assert end == begin + hours * HOUR
    # Continuous: every instant of it is inside, the two comings of an hour included.
    for step in range(int(hours * 12)):
        assert nights.closes_after(begin + step * 300) == end
    assert nights.closes_after(end) is None


@pytest.mark.parametrize(
    ("zone", "day", "gap_begins", "gap_ends"),
    [
        ("Europe/Berlin", "2030-03-31", "02:00", "03:00"),
        ("America/New_York", "2030-03-10", "02:00", "03:00"),
        ("Australia/Lord_Howe", "2030-10-06", "02:00", "02:30"),
    ],
)
def test_a_time_that_the_clock_skips_is_the_moment_of_the_jump(
    zone: str, day: str, gap_begins: str, gap_ends: str
) -> None:
    skipped = gap_begins[:3] + "15"
    jump = at(f"{day}T{gap_ends}", zone)
    closes = window(f"daily 00:00-{skipped}", zone=zone)
    assert closes.closes_after(at(f"{day}T01:59:59", zone)) == jump, "closes there, not an hour late"
    opens = window(f"daily {skipped}-05:00", zone=zone)
    assert opens.opens_after(at(f"{day}T01:00", zone)) == jump
    assert opens.closes_after(jump) == at(f"{day}T05:00", zone)
    late = window(f"daily {skipped}-{gap_ends[:3]}45", zone=zone)
    assert late.opens_after(at(f"{day}T00:00", zone)) == jump
    assert late.closes_after(jump) == at(f"{day}T{gap_ends[:3]}45", zone)


def test_a_window_within_the_skipped_hour_does_not_open_that_night() -> None:
    found = window("daily 02:10-02:50", zone="Europe/Berlin")
    assert found.opens_after(at("2030-03-31T00:00", "Europe/Berlin")) == at(
        "2030-04-01T02:10", "Europe/Berlin"
    )


@pytest.mark.parametrize(
    ("zone", "day"), [("Europe/Berlin", "2030-10-27"), ("America/New_York", "2030-11-03")]
)
def test_a_time_that_comes_twice_is_its_first_coming(zone: str, day: str) -> None:
    hour = "02" if zone == "Europe/Berlin" else "01"
    found = window(f"daily 00:00-{hour}:30", zone=zone)
    first, second = at(f"{day}T{hour}:30", zone), at(f"{day}T{hour}:30", zone, fold=1)
    assert second == first + HOUR
    assert found.closes_after(at(f"{day}T00:30", zone)) == first
    assert found.closes_after(second - 60) is None, "it does not open a second time"
    opens = window(f"daily {hour}:30-07:00", zone=zone)
    assert opens.opens_after(at(f"{day}T00:30", zone)) == first


def test_the_zone_decides_not_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    found = window("daily 20:00-07:00", zone="Europe/Berlin")
    assert found.opens_after(utc("2030-01-14T12:00")) == utc("2030-01-14T19:00")


# -- what cannot be read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "span",
    [
        "",
        "mon",
        "20:00-07:00",
        "mon 20-07",
        "mon 20:00",
        "moon 20:00-07:00",
        "mon-xyz 20:00-07:00",
        "mon 24:00-25:00",
        "mon 20:60-21:00",
        "mon 20:00-24:30",
        "mon 25:00-26:00",
        "mon  tue 1:00-2:00",
        "mon 1:00-2:00 x",
        "every day",
    ],
)
def test_spans_that_cannot_be_read_name_themselves(span: str) -> None:
    with pytest.raises(BadRequest) as caught:
        window("daily 01:00-02:00", span)
    assert repr(span) in str(caught.value)
    assert "window 'w'" in str(caught.value)


def test_zones_holidays_and_windows_that_make_no_sense() -> None:
    for zone in ("Mars/Olympus", "", "../etc/passwd", "\0"):
        with pytest.raises(BadRequest, match="not in the time zone database"):
            window("daily 01:00-02:00", zone=zone)
    with pytest.raises(BadRequest, match="never opens"):
        window()
    for day in ("2030-02-30", "25.12.2030", "christmas"):
        with pytest.raises(BadRequest, match="it is no date"):
            window("daily 01:00-02:00", holidays=(day,))
