"""Durations, sizes and points in time as people write them."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import pytest

from gpuspool.spool.errors import BadRequest
from gpuspool.spool.quantities import duration, memory, moment, show_duration


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is Berlin's."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 3600),  # Slurm: a bare number is minutes
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("0:30", 30),
        ("90s", 90),
        ("10m", 600),
        ("10min", 600),
        ("30sec", 30),
        ("2h", 7200),
        ("1d12h", 129600),
        ("1d 12h", 129600),
        ("1w", 604800),
        ("1.5h", 5400),
        ("2H", 7200),
        (" 5m ", 300),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert duration(text, what="the walltime") == seconds


def test_a_bare_number_has_the_unit_that_was_asked_for() -> None:
    assert duration("90", what="the grace", bare="s") == 90
    assert duration("2", what="x", bare="h") == 7200


def test_nothing_is_a_duration_only_where_that_is_allowed() -> None:
    assert duration("0", what="x", zero=True) == 0
    assert duration("0s", what="x", zero=True) == 0
    for text in ("0", "0:00", "0s", "0.4s"):
        with pytest.raises(BadRequest, match="no time at all"):
            duration(text, what="x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "1x",
        "-5",
        "1-",
        "-1:00",
        "1:2:3:4",
        "1d-2",
        "h",
        "5 apples",
        "1e3",
        "inf",
        "nan",
        "٥x",
        "1" * 5000,
        "9" * 70 + "s",
    ],
)
def test_what_is_no_duration_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(BadRequest, match="it is no duration.*90s, 10m, 2h, 1d12h"):
        duration(text, what="the walltime")


def test_a_duration_has_an_upper_bound() -> None:
    assert duration("3650d", what="x") == 3650 * 86400
    for text in ("11000d", "9" * 60, "99999999-1"):
        with pytest.raises(BadRequest, match="more than ten years"):
            duration(text, what="x")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (90061, "1d1h"),
        (86400, "1d"),
        (86460, "1d1m"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("500", 500),  # Slurm: a bare number is MiB
        ("500M", 500),
        ("500MB", 500),
        ("500MiB", 500),
        ("20G", 20480),
        ("20g", 20480),
        ("20 GiB", 20480),
        ("1.5T", 1572864),
        ("1P", 1073741824),
        ("1K", 1),
        ("1025K", 2),  # rounded up: less would not do
        ("0.5M", 1),
    ],
)
def test_memory(text: str, mib: int) -> None:
    assert memory(text, what="the memory") == mib


@pytest.mark.parametrize(
    "text", ["", "0", "0G", "-5", "G", "5X", "500B", "1e3", "inf", "9" * 400, "5 5G", "9" * 18 + "P"]
)
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="no amount of memory"):
        memory(text, what="the memory")


def at(text: str) -> float:
    """Local time as UTC seconds."""
    return dt.datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("now", "2030-01-15T15:00:00"),
        ("today", "2030-01-15T15:00:00"),
        ("now+90", "2030-01-15T15:01:30"),
        ("now+2h", "2030-01-15T17:00:00"),
        ("now+2hours", "2030-01-15T17:00:00"),
        ("now+1day", "2030-01-16T15:00:00"),
        ("NOW+0", "2030-01-15T15:00:00"),
        ("16:00", "2030-01-15T16:00:00"),
        ("16:00:30", "2030-01-15T16:00:30"),
        ("14:59", "2030-01-16T14:59:00"),  # passed today: tomorrow, as in Slurm
        ("teatime", "2030-01-15T16:00:00"),
        ("noon", "2030-01-16T12:00:00"),
        ("midnight", "2030-01-16T00:00:00"),
        ("tomorrow", "2030-01-16T15:00:00"),
        ("2030-02-01", "2030-02-01T00:00:00"),
        ("2030-02-01T08:00", "2030-02-01T08:00:00"),
        ("2030-02-01 08:00", "2030-02-01T08:00:00"),
        ("2030-02-01T08:00+00:00", "2030-02-01T09:00:00"),
        ("2029-01-01", "2029-01-01T00:00:00"),  # in the past: at once
    ],
)
@pytest.mark.usefixtures("berlin")
def test_moments(text: str, then: str) -> None:
    assert moment(text, what="the begin", now=at("2030-01-15T15:00:00")) == at(then)


@pytest.mark.usefixtures("berlin")
def test_now_is_now_whatever_the_fraction_of_a_second() -> None:
    for now in (1894716000.1234567, 1894716000.9999999, 1894716000.0000001):
        assert moment("today", what="x", now=now) == now
        assert moment("now", what="x", now=now) == now


@pytest.mark.usefixtures("berlin")
def test_tomorrow_is_the_same_time_of_day_over_a_night_of_23_hours() -> None:
    now = at("2030-03-30T15:00:00")
    assert moment("tomorrow", what="x", now=now) - now == 23 * 3600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "25:00",
        "12:60",
        "now+",
        "now+x",
        "now-1h",
        "2030-13-01",
        "2030-02-30",
        "0001-01-01",
        "now+" + "9" * 50,
        "9" * 5000,
    ],
)
@pytest.mark.usefixtures("berlin")
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        moment(text, what="the begin", now=at("2030-01-15T15:00:00"))
