"""Whatever happens to an event file, a reader never fails, never skips a number and never sees one twice."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spools import quick_folder

from gpuspool.spool import eventlog
from gpuspool.spool.eventlog import Batch, EventWriter, Line, read

KINDS = st.sampled_from(["started", "heartbeat", "checkpoint", "signalled", "é\n"])
DATA = st.dictionaries(
    st.sampled_from(["path", "text", "step", "ü"]),
    st.none() | st.integers() | st.text(max_size=20) | st.booleans(),
    max_size=3,
)
EVENTS = st.lists(st.tuples(KINDS, st.floats(0, 4e9), DATA), max_size=8)
GARBAGE = st.binary(max_size=40) | st.sampled_from(
    [
        b"\0" * 100,
        b"\n\n\n",
        b'{"n": 1, "at": 1, "kind": "x"}\n',
        b'{"n": 99, "at": 1, "kind": "x"}\n',
        b"{",
        b"\xff\xfe",
        b'{"v":1,"n":',
    ]
)


@pytest.fixture(scope="module")
def path() -> Iterator[str]:
    with quick_folder() as folder:
        yield str(folder / "events")


def written(path: str, events: list[tuple[str, float, dict[str, object]]]) -> bytes:
    """The file that a writer makes of `events`."""
    put(path, b"")
    writer = EventWriter(path)
    for kind, at, data in events:
        writer.write(kind, at, **data)
    writer.close()
    return get(path)


def put(path: str, data: bytes) -> None:
    """The whole content of the file."""
    with open(path, "wb") as file:
        file.write(data)


def get(path: str) -> bytes:
    """The same back."""
    with open(path, "rb") as file:
        return file.read()


class Reader:
    """Reads on and on, and holds what a reader must hold."""

    def __init__(self, path: str) -> None:
        self.path, self.offset, self.number = path, 0, 1
        self.seen: list[Line] = []

    def read(self) -> Batch:
        """One read."""
        batch = read(self.path, self.offset, self.number)
        assert [line.number for line in batch.lines] == list(range(self.number, batch.next_number))
        assert self.offset <= batch.offset <= max(self.offset, os.path.getsize(self.path))
        if not batch.lines:
            assert batch.next_number == self.number
        self.seen += batch.lines
        self.offset, self.number = batch.offset, batch.next_number
        return batch


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.lists(st.tuples(st.integers(0, 2000), GARBAGE), max_size=5), st.data())
def test_damage_anywhere(
    path: str,
    events: list[tuple[str, float, dict[str, object]]],
    damage: list[tuple[int, bytes]],
    data: st.DataObject,
) -> None:
    """Garbage written over, put into, or in place of the end of a file: no exception, no number skipped or repeated."""
    raw = written(path, events)
    for position, garbage in damage:
        position = min(position, len(raw))
        how = data.draw(st.sampled_from(["over", "into", "end"]))
        rest = raw[position + len(garbage) :] if how == "over" else raw[position:] if how == "into" else b""
        raw = raw[:position] + garbage + rest
    put(path, raw)
    reader = Reader(path)
    for _ in range(3):
        reader.read()
    # A writer goes on behind the damage; what it tells to be written is either read or behind a gap, never out of turn.
    writer = EventWriter(path)
    number = writer.write("next", 1.0)
    writer.close()
    assert number >= reader.number
    reader.read()
    assert [line.number for line in reader.seen] == list(range(1, reader.number))


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.lists(st.integers(0, 3000), max_size=8))
def test_a_file_that_grows_byte_by_byte(
    path: str, events: list[tuple[str, float, dict[str, object]]], cuts: list[int]
) -> None:
    """Torn tails of any length: at the end all has been read, each event once and as it was written."""
    raw = written(path, events)
    reader = Reader(path)
    for cut in [*sorted(cuts), len(raw)]:
        put(path, raw[:cut])
        reader.read()
    assert [(line.kind, line.at, line.data) for line in reader.seen] == [
        (kind, round(at, 3), data) for kind, at, data in events
    ]


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 600)), max_size=4))
def test_holes_that_are_filled_later(
    path: str, events: list[tuple[str, float, dict[str, object]]], holes: list[tuple[int, int]]
) -> None:
    """Runs of NUL where the data has yet to arrive: nothing is lost once it has."""
    raw = written(path, events)
    reader = Reader(path)
    for count in range(len(holes), -1, -1):
        view = bytearray(raw)
        for begin, length in holes[:count]:
            view[begin : begin + length] = bytes(len(view[begin : begin + length]))
        put(path, bytes(view))
        reader.read()
    assert [line.kind for line in reader.seen] == [kind for kind, _, _ in events]


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.lists(st.integers(0, 7), max_size=10), st.randoms(use_true_random=False))
def test_lines_that_come_twice_or_out_of_order(
    path: str, events: list[tuple[str, float, dict[str, object]]], again: list[int], random: object
) -> None:
    """A number counts once, at its first coming in turn."""
    lines = written(path, events).splitlines(keepends=True)
    for index in again:
        if lines:
            lines.insert(min(len(lines), index * 2), lines[index % len(lines)])
    put(path, b"".join(lines))
    reader = Reader(path)
    reader.read()
    reader.read()
    for line in reader.seen:
        assert (line.kind, line.data) == (events[line.number - 1][0], events[line.number - 1][2])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 60)), max_size=5))
def test_writers_that_were_killed_in_the_middle_of_a_line(
    path: str, lives: list[tuple[list[tuple[str, float, dict[str, object]]], int]]
) -> None:
    """Each of several writers loses the end of its last line, or more; what was told to be written before that is kept."""
    put(path, b"")
    reader, told = Reader(path), 0
    for events, lost in lives:
        before = os.path.getsize(path)
        writer = EventWriter(path)
        assert writer.next_number == told + 1
        ends = []
        for kind, at, data in events:
            writer.write(kind, at, **data)
            ends.append(os.path.getsize(path))
        writer.close()
        keep = max(before, os.path.getsize(path) - lost)
        put(path, get(path)[:keep])
        told += sum(end <= keep for end in ends)
        reader.read()
        assert reader.number == told + 1


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(1, 5))
def test_any_bytes_at_all(path: str, raw: bytes, offset: int, number: int) -> None:
    put(path, raw)
    batch = eventlog.read(path, offset, number)
    assert [line.number for line in batch.lines] == list(range(number, batch.next_number))
