"""`db check`: what it finds, that it changes nothing, and that no database makes it fail."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from spools import finish, make_folders, start, submission, tell

from gpuspool.spool.check import MOST_TOLD, Findings, check_database
from gpuspool.spool.endrules import EndFacts
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import Room
from gpuspool.spool.migrations import VERSION
from gpuspool.spool.store import open_store


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


@pytest.fixture
def spool(folders: Folders) -> Folders:
    """Jobs: 1 succeeded, 2 runs on GPU-a, 3 is stopping on GPU-b, 4 is initializing, 5 waits with room kept, 6 is held."""
    store = open_store(folders)
    store.submit([submission(gpus=1) for _ in range(6)], 1.0)
    start(store, 1, 2.0)
    finish(store, 1, EndFacts(exit_code=0), 9.0)
    tell(store, start(store, 2, 10.0, "GPU-a"), "checkpoint", 12.0, path="/c", step=1)
    start(store, 3, 10.0, "GPU-b")
    start(store, 4, 10.0, running=False)
    store.preempt((3,), 20.0, "ann")
    store.request_stops([], [Room(5, "node1", ("GPU-b",), 1, 0, 99.0)], 20.0)
    store.hold((6,), 21.0, "ann")
    store.close()
    return folders


def change(folders: Folders, *statements: str) -> None:
    """Statements past the store."""
    connection = sqlite3.connect(folders.database)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_sound_spool_has_facts_and_no_faults(spool: Folders) -> None:
    found = check_database(spool)
    assert found.faults == []
    text = "\n".join(found.facts)
    assert f"The database {spool.database} has schema {VERSION} and " in text
    assert "SQLite's integrity check: ok." in text
    assert "Its journal is " in text
    assert "Jobs: 1 succeeded, 1 running, 1 stopping, 1 initializing, 2 queued; 6 in all." in text
    assert "Attempts: 4, 3 of them live. Events: " in text
    assert f"Its owner is process {os.getpid()} on " in text


def test_where_there_is_no_database(folders: Folders) -> None:
    found = check_database(folders)
    assert found == Findings(
        [], [f"There is no database at {folders.database}: nothing was ever submitted, or it was removed."]
    )
    assert os.listdir(folders.state) == [], "and none is made"


def test_it_changes_nothing(spool: Folders) -> None:
    before = Path(spool.database).read_bytes()
    for _ in range(2):
        check_database(spool)
        assert Path(spool.database).read_bytes() == before


def test_it_looks_at_a_spool_that_is_being_written(spool: Folders) -> None:
    """Through SQLite: the locks of a store in the same process are kept, and an open transaction is not seen."""
    store = open_store(spool)
    with store.write() as db:
        db.execute("UPDATE jobs SET state = 'nonsense'")
        assert check_database(spool).faults == []
        db.execute("UPDATE jobs SET state = 'queued', ended_at = NULL")
        db.execute("ROLLBACK")
        db.execute("BEGIN")
    store.close()


# -- rows ------------------------------------------------------------------------------------------------

UNLESS = "PRAGMA foreign_keys = OFF"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE jobs SET state = 'lost' WHERE id = 5", "Job 5 is in a state that there is not: 'lost'."),
        (
            "UPDATE attempts SET ended_at = 30.0 WHERE job_id = 2",
            "Job 2 is running, and 0 of its attempts have not ended; it should be one.",
        ),
        (
            "UPDATE attempts SET ended_at = NULL WHERE job_id = 1",
            "Attempt 1 of job 1 has not ended, though the job is succeeded.",
        ),
        (
            "UPDATE jobs SET state = 'queued' WHERE id = 4",
            "Attempt 1 of job 4 has not ended, though the job is queued.",
        ),
        (
            "UPDATE jobs SET attempt = 2 WHERE id = 2",
            "Attempt 1 of job 2 has not ended, though the newest is 2.",
        ),
        (
            "UPDATE jobs SET attempt = 0 WHERE id = 1",
            "Job 1 counts 0 attempts; there are 1, the highest number is 1.",
        ),
        (
            "DELETE FROM attempts WHERE job_id = 1",
            "Job 1 counts 1 attempts; there are 0, the highest number is 0.",
        ),
        (
            "UPDATE attempts SET number = 3 WHERE job_id = 1",
            "Job 1 counts 1 attempts; there are 1, the highest number is 3.",
        ),
        (
            "UPDATE attempts SET started_at = NULL WHERE job_id = 2",
            "Job 2 is running, but its attempt 1 has not started.",
        ),
        (
            "UPDATE attempts SET stop_kind = '' WHERE job_id = 3",
            "Job 3 is stopping, but nobody asked its attempt 1 to.",
        ),
        ("UPDATE attempts SET ended_at = 1.0 WHERE job_id = 1", "Attempt 1 of job 1 ended before it began."),
        (
            "UPDATE jobs SET ended_at = NULL WHERE id = 1",
            "Job 1 is succeeded, which does not go with its time of end.",
        ),
        (
            "UPDATE jobs SET ended_at = 5.0 WHERE id = 2",
            "Job 2 is running, which does not go with its time of end.",
        ),
        ("UPDATE jobs SET wish = 'cancel' WHERE id = 5", "Job 5 is queued and has the wish 'cancel'."),
        ("UPDATE jobs SET wish = 'money' WHERE id = 2", "Job 2 is running and has the wish 'money'."),
        ("UPDATE jobs SET hold = 'user' WHERE id = 2", "Job 2 is running and held ('user')."),
        (
            "UPDATE jobs SET reason = 'Resources' WHERE id = 2",
            "Job 2 is running and has a reason to wait ('Resources').",
        ),
        ("UPDATE jobs SET failures = -1 WHERE id = 5", "Job 5 has a negative count or size."),
        ("UPDATE jobs SET version = 0 WHERE id = 5", "Job 5 has a negative count or size."),
        ("UPDATE jobs SET array_id = 1 WHERE id = 5", "Job 5 is half an array's element."),
        (
            "UPDATE reservations SET job_id = 2",
            "Room is kept for job 2, which does not wait for it (running).",
        ),
        (
            "UPDATE reservations SET job_id = 6",
            "Room is kept for job 6, which does not wait for it (queued).",
        ),
        (
            "UPDATE reservations SET job_id = 77",
            "Room is kept for job 77, which does not wait for it (not there).",
        ),
        (
            "UPDATE streams SET attempt = 9 WHERE job_id = 2",
            "An event file was read for attempt 9 of job 2, which there is not",
        ),
        (
            "UPDATE streams SET next_number = 1 WHERE job_id = 2",
            "(number 2 of attempt 1 of job 2) was taken in, but the file counts as read only up to before it.",
        ),
        (
            "UPDATE events SET job_id = 99 WHERE id = 1",
            "Event 1 belongs to an attempt of job 99 that there is not.",
        ),
        (
            "UPDATE events SET attempt = 2 WHERE id = 1",
            "Event 1 belongs to an attempt of job 1 that there is not.",
        ),
        ("UPDATE events SET data = '{' WHERE id = 1", "The row of table events with id 1 cannot be read: "),
        (
            "UPDATE events SET data = '[]' WHERE id = 1",
            "The row of table events with id 1 cannot be read: data: it is no JSON object.",
        ),
        (
            "UPDATE specs SET body = '{\"cwd\": 5}' WHERE id = 1",
            "The row of table specs with id 1 cannot be read: ",
        ),
        ("UPDATE specs SET body = '[1]' WHERE id = 1", "The row of table specs with id 1 cannot be read: "),
        ("DELETE FROM specs WHERE id = 6", "Row 6 of table jobs names a row of specs that there is not."),
        ("DELETE FROM jobs WHERE id = 1", "names a row of jobs that there is not."),
        (
            "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'jobs'",
            "The next number of table jobs would be 4, though 6 is taken: a number would be used twice.",
        ),
        (
            "DELETE FROM sqlite_sequence WHERE name = 'events'",
            "The next number of table events would be 1, though ",
        ),
        (
            "UPDATE attempts SET gpu_uuids = '[\"GPU-a\"]' WHERE job_id = 3",
            "GPU GPU-a is held twice: by job 2 and by job 3.",
        ),
        (
            'UPDATE attempts SET gpu_uuids = \'["GPU-a", "GPU-a"]\', gpus = 2 WHERE job_id = 2',
            "GPU GPU-a is held twice: by job 2 and by job 2.",
        ),
        ("UPDATE attempts SET gpus = 3 WHERE job_id = 2", "gpus: 3, but gpu_uuids names 1."),
        (
            "UPDATE attempts SET gpu_uuids = 'x' WHERE job_id = 2",
            "The row of table attempts with job_id 2, number 1 cannot be read: ",
        ),
        ("UPDATE reservations SET gpu_uuids = '[5]'", "gpu_uuids: it is no list of texts."),
        (
            "UPDATE jobs SET gpus = 'many' WHERE id = 5",
            "The row of table jobs with id 5 cannot be read: gpus: Input should be a valid integer.",
        ),
        (
            "UPDATE jobs SET name = x'00ff' WHERE id = 5",
            "The row of table jobs with id 5 cannot be read: name: Input should be a valid string.",
        ),
        (
            "UPDATE jobs SET name = CAST(x'ff' AS TEXT) WHERE id = 5",
            "The row of table jobs with id 5 cannot be read: name: ",
        ),
        (
            "UPDATE jobs SET priority = 1.5 WHERE id = 5",
            "The row of table jobs with id 5 cannot be read: priority: ",
        ),
        (
            "UPDATE meta SET value = 'x' WHERE key = 'epoch'",
            "The row of table meta with key 'epoch' cannot be read: ",
        ),
        ("DELETE FROM meta", "The table meta has no epoch: nothing can be written."),
        ("UPDATE projects SET parent = 'gone'", "Project 'default' has a parent that there is not: 'gone'."),
        ("UPDATE projects SET parent = 'default'", "Project 'default' is its own ancestor."),
        ("INSERT INTO gpus VALUES ('GPU-x', 'n', 0, '', '', 0, 'ill', '')", "GPU GPU-x is 'ill'."),
        ("INSERT INTO nodes VALUES ('n', 'h', 'b', 1, 1, 'gone', '', 0)", "Node 'n' is 'gone'."),
        ("UPDATE usage SET gpu_seconds = -1", "The usage of 'ann' on 1970-01-01 is negative."),
    ],
)
def test_what_is_wrong_with_rows_is_told(spool: Folders, statement: str, said: str) -> None:
    change(spool, UNLESS, statement)
    faults = check_database(spool).faults
    assert any(said in fault for fault in faults), "\n".join(faults)


def test_many_faults_of_one_kind_are_counted(folders: Folders) -> None:
    store = open_store(folders)
    store.submit([submission() for _ in range(50)], 1.0)
    store.close()
    change(folders, "UPDATE jobs SET state = 'lost'")
    faults = check_database(folders).faults
    assert len([fault for fault in faults if "a state that there is not" in fault]) == MOST_TOLD
    assert "… and 30 more of that kind." in faults


# -- the schema ------------------------------------------------------------------------------------------


def test_another_schema_is_told_and_its_rows_are_left_alone(spool: Folders) -> None:
    change(spool, "ALTER TABLE jobs DROP COLUMN signal", "DROP INDEX jobs_state")
    faults = check_database(spool).faults
    assert "The column signal of table jobs is missing." in faults
    assert any(fault.startswith("The indexes of table jobs differ") for fault in faults)
    assert faults[-1] == "Its rows were not looked at, since its schema is another one."


def test_a_newer_database_is_told_and_untouched(spool: Folders) -> None:
    change(spool, f"PRAGMA user_version = {VERSION + 1}", "ALTER TABLE jobs DROP COLUMN signal")
    before = Path(spool.database).read_bytes()
    found = check_database(spool)
    [fault] = found.faults
    assert fault.startswith(
        f"Schema {VERSION + 1} was made by a newer gpuspool, this program knows up to {VERSION}"
    )
    assert "SQLite's integrity check: ok." in found.facts
    assert Path(spool.database).read_bytes() == before


def test_an_older_or_blank_database_is_a_fact(folders: Folders) -> None:
    Path(folders.database).touch(0o600)
    found = check_database(folders)
    assert found.faults == []
    assert (
        f"The next command that opens it brings it to schema {VERSION}; its rows were not looked at."
        in found.facts
    )
    assert os.path.getsize(folders.database) == 0


# -- files -----------------------------------------------------------------------------------------------


def test_modes(spool: Folders) -> None:
    for path, mode, right in (
        (spool.state, 0o755, "700"),
        (spool.database, 0o640, "600"),
        (spool.owner, 0o644, "600"),
        (spool.runtime, 0o711, "700"),
    ):
        kept = os.stat(path).st_mode & 0o777
        os.chmod(path, mode)
        assert check_database(spool).faults == [
            f"{path} has mode {mode:04o}: not for you alone. Type: chmod {right} {path}"
        ]
        os.chmod(path, kept)
        for suffix in ("-wal", "-shm"):  # SQLite gives them the mode of the database
            Path(spool.database + suffix).unlink(missing_ok=True)
    assert check_database(spool).faults == []


@pytest.mark.root
def test_files_of_somebody_else(spool: Folders) -> None:
    if os.geteuid() != 0:
        pytest.fail("needs root to give a file away; run the tests as root or deselect with -m 'not root'")
    os.chown(spool.owner, 12345, -1)
    assert f"{spool.owner} belongs to user 12345, not to you (0)." in check_database(spool).faults


def test_names_that_need_care(tmp_path: Path) -> None:
    folders = make_folders(tmp_path / "a b'c\"d\né$x;?mode=rw&#%41")
    store = open_store(folders)
    store.submit([submission()], 1.0)
    store.close()
    found = check_database(folders)
    assert found.faults == []
    assert "Jobs: 1 queued." in found.facts


def test_an_owner_that_does_not_count(spool: Folders) -> None:
    change(spool, "UPDATE meta SET value = '9' WHERE key = 'epoch'")
    found = check_database(spool)
    assert found.faults == []
    assert any("does not count: its epoch is 9." in fact for fact in found.facts)
    os.unlink(spool.owner)
    assert "Nobody owns it by a record; its epoch is 9." in check_database(spool).facts


# -- damage ----------------------------------------------------------------------------------------------


@pytest.fixture
def large(folders: Folders) -> Iterator[Folders]:
    """A spool of many pages, all of them in the one file."""
    store = open_store(folders)
    store.submit([submission(name=f"job {n}") for n in range(300)], 1.0)
    store.close()
    yield folders


@pytest.mark.parametrize(
    "content",
    [b"hello " * 1000, b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 8176, b"x"],
    ids=["text", "zeros", "torn", "short"],
)
def test_what_is_no_database_is_told(folders: Folders, content: bytes) -> None:
    Path(folders.database).write_bytes(content)
    os.chmod(folders.database, 0o600)
    found = check_database(folders)
    assert found.faults or f"brings it to schema {VERSION}" in " ".join(found.facts)
    if b"hello" in content:
        assert found.faults == [
            "The database cannot be read: file is not a database. It is damaged: put back a copy made with 'spool db backup'."
        ]


@pytest.mark.parametrize("seed", range(12))
def test_damage_anywhere_is_told_and_never_raised(large: Folders, seed: int) -> None:
    """Pages overwritten, zeroed or cut off: sentences, never a traceback."""
    dice = random.Random(seed)
    raw = bytearray(Path(large.database).read_bytes())
    assert len(raw) > 20 * 4096
    if seed % 3 == 0:
        del raw[dice.randrange(4096, len(raw)) :]
    for _ in range(dice.randrange(1, 6)):
        at, length = dice.randrange(200, len(raw)), dice.choice([1, 40, 4096])
        raw[at : at + length] = bytes(length) if seed % 2 else dice.randbytes(length)
    Path(large.database).write_bytes(raw)
    found = check_database(large)
    assert all(isinstance(sentence, str) and sentence for sentence in found.faults + found.facts)


def test_a_lost_page_is_told(large: Folders) -> None:
    raw = bytearray(Path(large.database).read_bytes())
    page = raw.rfind(b"job 299") // 4096
    raw[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    Path(large.database).write_bytes(raw)
    faults = check_database(large).faults
    assert any(fault.startswith("SQLite's integrity check") for fault in faults)
    assert any("put back a copy made with 'spool db backup'" in fault for fault in faults)


def test_a_database_that_is_a_folder(folders: Folders) -> None:
    os.mkdir(folders.database)
    assert any(
        "cannot be opened" in fault or "cannot be read" in fault for fault in check_database(folders).faults
    )
