"""The event file of a rank: what a writer appends is read once and in order, whatever happens to the file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from spools import answers, python

from gpuspool.spool import eventlog
from gpuspool.spool.eventlog import EventWriter, Line, read

SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "events-0-0.jsonl")


def put(path: str, raw: bytes) -> None:
    """Append raw bytes."""
    with open(path, "ab") as file:
        file.write(raw)


def raw(number: int, kind: str = "heartbeat", **data: Any) -> bytes:
    """One line as a writer makes it."""
    return json.dumps({"v": 1, "n": number, "at": 1.5, "kind": kind, **data}).encode() + b"\n"


def numbers(lines: list[Line]) -> list[int]:
    """Their numbers."""
    return [line.number for line in lines]


def test_what_is_written_is_read(path: str) -> None:
    writer = EventWriter(path)
    assert writer.write("started", 1234.56789, supervisor="é\n", pid=7) == 1
    assert writer.write("heartbeat", 1235.0) == 2
    writer.close()
    batch = read(path, 0, 1)
    assert batch.lines == [
        Line(1, 1234.568, "started", {"supervisor": "é\n", "pid": 7}),
        Line(2, 1235.0, "heartbeat", {}),
    ]
    assert (batch.offset, batch.next_number, batch.trouble) == (os.path.getsize(path), 3, "")
    assert read(path, batch.offset, batch.next_number) == eventlog.Batch([], batch.offset, 3)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_reading_goes_on_where_it_ended(path: str) -> None:
    writer = EventWriter(path)
    seen, offset, number = [], 0, 1
    for n in range(5):
        writer.write("heartbeat", n)
        batch = read(path, offset, number)
        seen += numbers(batch.lines)
        offset, number = batch.offset, batch.next_number
    assert seen == [1, 2, 3, 4, 5]


def test_a_file_that_is_not_there_gives_nothing(tmp_path: Path) -> None:
    assert read(str(tmp_path / "no"), 0, 1) == eventlog.Batch([], 0, 1)
    (tmp_path / "file").touch()
    assert read(str(tmp_path / "file" / "no"), 7, 3) == eventlog.Batch([], 7, 3)
    with pytest.raises(IsADirectoryError):
        read(str(tmp_path), 0, 1)


def test_a_fifo_in_its_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Illegal seek"):
        read(str(tmp_path / "fifo"), 0, 1)


def test_a_torn_tail_is_waited_for(path: str) -> None:
    whole = raw(2, "checkpoint", path="/c/2")
    put(path, raw(1) + whole[:-5])
    first = read(path, 0, 1)
    assert numbers(first.lines) == [1]
    put(path, whole[-5:])
    assert numbers(read(path, first.offset, first.next_number).lines) == [2]


@pytest.mark.parametrize("kept", range(1, len(raw(2, "checkpoint"))))
def test_a_new_writer_closes_a_torn_line_wherever_it_was_torn(path: str, kept: int) -> None:
    """The torn event was not counted, so its number goes to the next one; even a line that lacks only its newline."""
    put(path, raw(1) + raw(2, "checkpoint")[:kept])
    writer = EventWriter(path)
    assert writer.write("recorder_replaced", 2.0) == 2
    assert writer.write("heartbeat", 3.0) == 3
    found = read(path, 0, 1)
    assert [(line.number, line.kind) for line in found.lines] == [
        (1, "heartbeat"),
        (2, "recorder_replaced"),
        (3, "heartbeat"),
    ]
    assert found.offset == os.path.getsize(path)


def test_a_gap_is_never_passed(path: str) -> None:
    put(path, raw(1) + raw(3))
    batch = read(path, 0, 1)
    assert numbers(batch.lines) == [1]
    assert batch.trouble == "event 2 is missing before 3"
    assert read(path, batch.offset, batch.next_number).lines == []


def test_repeats_are_passed_over(path: str) -> None:
    put(path, raw(1, "a") + raw(1, "b") + raw(2, "c") + raw(1, "d") + raw(3, "e") + raw(0) + raw(-1))
    batch = read(path, 0, 1)
    assert [line.kind for line in batch.lines] == ["a", "c", "e"]
    assert batch.offset == os.path.getsize(path)


def test_a_hole_is_waited_for_until_its_data_comes(path: str) -> None:
    """A block of the file that reached the disk, or another host's view of it, before its data."""
    second, third = raw(2, "checkpoint"), raw(3)
    put(path, raw(1) + bytes(len(second)) + third)
    batch = read(path, 0, 1)
    assert (numbers(batch.lines), batch.next_number) == ([1], 2)
    assert batch.trouble
    assert read(path, batch.offset, batch.next_number).lines == []
    with open(path, "r+b") as file:
        file.seek(len(raw(1)))
        file.write(second)
    assert [line.kind for line in read(path, batch.offset, batch.next_number).lines] == [
        "checkpoint",
        "heartbeat",
    ]


def test_a_hole_within_a_line_is_waited_for(path: str) -> None:
    second = raw(2, "checkpoint", path="/a/b/c")
    put(path, raw(1) + second[:10] + bytes(10) + second[20:] + raw(3))
    batch = read(path, 0, 1)
    assert (numbers(batch.lines), batch.trouble) == ([1], "a hole in the file; waiting for its data")
    with open(path, "r+b") as file:
        file.seek(len(raw(1)))
        file.write(second)
    assert numbers(read(path, batch.offset, batch.next_number).lines) == [2, 3]


def test_padding_before_the_wanted_line_costs_nothing(path: str) -> None:
    put(path, bytes(4096) + raw(1) + bytes(100) + raw(2))
    assert numbers(read(path, 0, 1).lines) == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"\xff\xfe\xfd",
        b"[1]",
        b"5",
        b"null",
        b'{"n": 2}',
        b'{"n": "2", "at": 1, "kind": "x"}',
        b'{"n": true, "at": 1, "kind": "x"}',
        b'{"n": 2.0, "at": 1, "kind": "x"}',
        b'{"n": 2, "at": null, "kind": "x"}',
        b'{"n": 2, "at": true, "kind": "x"}',
        b'{"n": 2, "at": NaN, "kind": "x"}',
        b'{"n": 2, "at": Infinity, "kind": "x"}',
        b'{"n": 2, "at": 1' + b"0" * 400 + b', "kind": "x"}',
        b'{"n": 2, "at": 1' + b"0" * 5000 + b', "kind": "x"}',
        b'{"n": 2, "at": 1, "kind": 5}',
        b"[" * 100000,
        b'{"a":' * 50000,
    ],
    ids=range(19),
)
def test_a_foreign_line_costs_only_itself(path: str, line: bytes) -> None:
    put(path, raw(1) + line + b"\n" + raw(2))
    assert numbers(read(path, 0, 1).lines) == [1, 2]


def test_a_line_without_end_stops_the_reader(path: str) -> None:
    put(path, raw(1) + b"x" * (eventlog.MAX_LINE + 10))
    first = read(path, 0, 1)
    assert (numbers(first.lines), first.trouble) == ([1], "")
    stuck = read(path, first.offset, first.next_number)
    assert (stuck.lines, stuck.offset) == ([], first.offset)
    assert "longer than" in stuck.trouble


def test_a_large_file_is_read_in_pieces(path: str) -> None:
    put(path, b"".join(raw(n, text="x" * 1000) for n in range(1, 2501)))
    offset, number, rounds = 0, 1, 0
    while batch := read(path, offset, number):
        if not batch.lines:
            break
        assert numbers(batch.lines) == list(range(number, batch.next_number))
        offset, number, rounds = batch.offset, batch.next_number, rounds + 1
    assert (number, offset) == (2501, os.path.getsize(path))
    assert rounds > 1


def test_a_new_writer_counts_on_beyond_a_stretch_of_garbage(path: str) -> None:
    """More of it than is read at once."""
    put(path, raw(1) + (b"g" * 1000 + b"\n") * 2500 + raw(2))
    writer = EventWriter(path)
    assert writer.write("x", 1.0) == 3


FULL = """
import json, os, resource, signal, sys
from gpuspool.spool.eventlog import EventWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = EventWriter(sys.argv[1])
told, limit = [], 30
for step in [1, 5, 30, 50, 61, 62, 20, 70, 10, 130] * 8:
    limit += step
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        told.append(writer.write("event", 1.0, limit=limit))
    except OSError:
        pass
writer.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer = EventWriter(sys.argv[1])
told.append(writer.write("last", 2.0))
print(json.dumps(told))
"""


def test_writes_that_were_cut_short_cost_only_themselves(path: str) -> None:
    """A disk that fills up byte by byte: each event that was told to be written is read, once, and no other."""
    [told] = answers(python(FULL, path))
    found, offset, number = [], 0, 1
    while (batch := read(path, offset, number)).lines:
        found += batch.lines
        offset, number = batch.offset, batch.next_number
    assert numbers(found) == told == list(range(1, len(told) + 1))
    assert 10 < len(told) < 70, "some went through, some did not"
    assert len({line.data.get("limit") for line in found}) == len(found), "each another event"


FSYNC_FAILS = """
import errno, json, os, sys
from gpuspool.spool import eventlog
writer = eventlog.EventWriter(sys.argv[1])
writer.write("a", 1.0)
good = writer._fd
# An fsync that fails after the write went through: on a pipe it always does (EINVAL).
copy, mine = os.pipe()
os.dup2(good, 100)
def broken(*event, **data):
    os.dup2(mine, good)
    try:
        writer.write(*event, **data)
    except OSError as error:
        assert error.errno == errno.EINVAL
    else:
        raise AssertionError("it did not fail")
    os.dup2(100, good)
    os.write(100, os.read(copy, 65536))
broken("b", 2.0)
again = writer.write("b", 2.0)          # the same one again: it stands there already
broken("c", 3.0)
other = writer.write("d", 4.0)          # another one: c keeps its number
broken("e", 5.0)
broken("e", 5.0) if sys.argv[2] == "twice" else None
writer.close()
writer = eventlog.EventWriter(sys.argv[1])
print(json.dumps([again, other, writer.write("f", 6.0)]))
"""


def test_an_event_whose_fsync_failed_is_neither_lost_nor_doubled(path: str) -> None:
    [told] = answers(python(FSYNC_FAILS, path, "once"))
    assert told == [2, 4, 6]
    found = read(path, 0, 1)
    assert [(line.number, line.kind) for line in found.lines] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (4, "d"),
        (5, "e"),
        (6, "f"),
    ]


KILLED = """
import json, os, sys
sys.path.insert(0, {support!r})
from gpuspool.spool import eventlog
from killing import each_line
path = ""


def work():
    writer = eventlog.EventWriter(path)
    for kind in ("a", "b"):
        writer.write(kind, 1.0, pid=os.getpid())
    writer.close()


def begin():
    global path
    path = sys.argv[1] + str(len(ends))
    with open(path, "wb") as file:
        file.write({begun!r})


ends = []
begin()
for number in each_line(work, eventlog.__file__):
    writer = eventlog.EventWriter(path)
    mine = writer.write("next", 2.0)
    batch = eventlog.read(path, 0, 1)
    assert batch.offset == os.path.getsize(path)
    assert [line.number for line in batch.lines] == list(range(1, mine + 1))
    assert batch.lines[-1].kind == "next"
    ends.append(mine)
    begin()
print(json.dumps(ends))
"""


def test_a_writer_that_is_killed_at_any_line_leaves_a_file_to_go_on_with(path: str) -> None:
    begun = raw(1) + raw(2)[:-1]
    [ends] = answers(python(KILLED.format(support=str(SUPPORT), begun=begun), path))
    assert ends == sorted(ends)
    assert set(ends) == {2, 3, 4}, "killed before the first event, between the two, after both"
