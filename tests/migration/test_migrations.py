"""The schema's history: from blank, from every released schema with rows in it, many at once, killed anywhere."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from pathlib import Path

import pytest
from spools import answers, finish, folder_words, make_folders, python, quick_folder, start, submission

from gpuspool.spool import migrations
from gpuspool.spool.check import check_database
from gpuspool.spool.database import open_database
from gpuspool.spool.drift import describe, drift, wanted_schema
from gpuspool.spool.endrules import EndFacts
from gpuspool.spool.errors import NewerDatabase, StoreUnavailable
from gpuspool.spool.folders import Folders, wal_works
from gpuspool.spool.migrations import STEPS, VERSION, found_version
from gpuspool.spool.store import open_store

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"
DUMPS = sorted(HERE.glob("v*.sql"), key=lambda path: int(path.stem[1:]))


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


def load(dump: Path, database: str) -> None:
    """A database as a program of that schema left it."""
    connection = sqlite3.connect(database)
    connection.executescript(dump.read_text())
    connection.close()
    os.chmod(database, 0o600)


def raw(database: str, sql: str) -> list[tuple[object, ...]]:
    """A look past the store."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_every_schema_has_its_dump() -> None:
    assert [int(path.stem[1:]) for path in DUMPS] == list(range(1, VERSION + 1))


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_a_step_that_was_released_was_not_edited(dump: Path) -> None:
    """The steps up to a schema make what that schema's own dump has."""
    number = int(dump.stem[1:])
    made, kept = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    for step in STEPS[:number]:
        made.executescript(step)
    kept.executescript(dump.read_text())
    assert drift(describe(made), describe(kept)) == []
    assert found_version(kept) == number
    made.close()
    kept.close()


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_from_each_released_schema_with_its_rows(dump: Path, folders: Folders) -> None:
    load(dump, folders.database)
    before = raw(folders.database, "SELECT id, name, user, state, attempt, spec_id FROM jobs ORDER BY id")
    bodies = raw(folders.database, "SELECT id, body FROM specs ORDER BY id")
    store = open_store(folders)
    assert check_database(folders).faults == []
    assert (
        raw(folders.database, "SELECT id, name, user, state, attempt, spec_id FROM jobs ORDER BY id")
        == before
    )
    assert raw(folders.database, "SELECT id, body FROM specs ORDER BY id") == bodies
    # It can be worked with: each kind of job goes on.
    states = {job.state: job.id for job in store.list(finished=True)}
    assert len(states) == 7, "a dump has jobs in every state"
    for job in store.list(finished=True):
        view = store.show(job.id)
        assert view.spec.command
        assert len(view.attempts) == job.attempt
    assert len(store.live()) == 3
    store.cancel((states["running"],), 9000.0, "ann")
    finish(store, states["running"], EndFacts(exit_code=0, stop="cancel"), 9001.0)
    finish(store, states["stopping"], EndFacts(exit_code=75, stop="preempt"), 9002.0)
    finish(store, states["initializing"], EndFacts(revoked=True), 9003.0)
    store.requeue((states["succeeded"], states["failed"], states["cancelled"]), 9004.0, "ann")
    start(store, states["succeeded"], 9005.0, "GPU-0")
    [new] = store.submit([submission()], 9006.0)
    assert new == max(row[0] for row in before) + 1  # type: ignore[type-var]
    store.close()
    assert check_database(folders).faults == []


def test_from_blank(folders: Folders) -> None:
    open_database(folders.database).close()
    assert os.stat(folders.database).st_mode & 0o777 == 0o600
    found = sqlite3.connect(folders.database)
    assert describe(found) == wanted_schema()
    assert found_version(found) == VERSION
    assert found.execute("SELECT name FROM projects").fetchall() == [("default",)]
    found.close()


def test_an_empty_file_counts_as_blank(folders: Folders) -> None:
    """A process was killed between making the file and its first page."""
    Path(folders.database).touch(0o600)
    open_database(folders.database).close()
    assert check_database(folders).faults == []


# -- newer, foreign and damaged ones ---------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_newer_database_is_refused_and_untouched(folders: Folders, journal: str) -> None:
    load(DUMPS[-1], folders.database)
    connection = sqlite3.connect(folders.database)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.execute("ALTER TABLE jobs ADD COLUMN new_thing TEXT")
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.close()
    before = Path(folders.database).read_bytes()
    for _ in range(2):
        with pytest.raises(NewerDatabase) as caught:
            open_store(folders)
    assert str(caught.value) == (
        f"The database {folders.database} has schema {VERSION + 1}, this program knows up to {VERSION}: it was written by"
        " a newer gpuspool. Upgrade gpuspool here, or set GPUSPOOL_CFG_STATE_DIR to another folder."
    )
    assert Path(folders.database).read_bytes() == before
    assert not os.path.exists(folders.owner)


@pytest.mark.parametrize(
    "content", [b"hello " * 5000, b"SQLite format 3\0" + b"\xff" * 8000], ids=["text", "torn"]
)
def test_what_is_no_database_is_refused_and_untouched(folders: Folders, content: bytes) -> None:
    Path(folders.database).write_bytes(content)
    with pytest.raises(StoreUnavailable, match=r"(the database is damaged|not a database).*db check"):
        open_store(folders)
    assert Path(folders.database).read_bytes() == content


def test_a_step_that_fails_leaves_the_database_as_it_was(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(DUMPS[-1], folders.database)
    broken = "CREATE TABLE half (a INTEGER);\nINSERT INTO jobs (id) VALUES (1);\n"
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, broken))
    monkeypatch.setattr(migrations, "VERSION", VERSION + 1)
    connection = sqlite3.connect(folders.database, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError):
        migrations.migrate(connection, folders.database)
    assert not connection.in_transaction
    assert found_version(connection) == VERSION
    assert drift(describe(connection), wanted_schema()) == []
    connection.close()


# -- several at once, and kills --------------------------------------------------------------------------

#: The release after this one, as far as these tests are concerned: two steps more.
NEXT = """
from gpuspool.spool import database, migrations
migrations.STEPS += (
    "ALTER TABLE jobs ADD COLUMN next_thing TEXT NOT NULL DEFAULT 'x';\\nCREATE TABLE next_one (a INTEGER);\\n",
    "CREATE INDEX next_jobs ON jobs (next_thing);\\nINSERT INTO next_one SELECT count(*) FROM jobs;\\n",
)
migrations.VERSION = database.VERSION = len(migrations.STEPS)
"""

AT_ONCE = """
import json, sys, time
from gpuspool.spool.folders import Folders
from gpuspool.spool.store import open_store
{next}
begin = float(sys.argv[4])
while time.time() < begin:
    pass
store = open_store(Folders(*sys.argv[1:4]))
print(json.dumps([store.rows("PRAGMA user_version")[0][0], store.rows("PRAGMA journal_mode")[0][0]]))
"""


@pytest.mark.parametrize("begun", ["blank", "released"])
def test_many_processes_that_migrate_at_once(tmp_path: Path, begun: str) -> None:
    """All of them go on, none of them with less than the newest schema; each step is made once."""
    for number in range(2):
        folders = make_folders(tmp_path / str(number))
        if begun == "released":
            load(DUMPS[0], folders.database)
        begin = time.time() + 1.0
        script = AT_ONCE.format(next=NEXT)
        found = answers(*(python(script, *folder_words(folders), begin) for _ in range(6)))
        assert {version for version, _ in found} == {VERSION + 2}
        assert len({journal for _, journal in found}) == 1
        assert raw(folders.database, "SELECT * FROM next_one") == [(0 if begun == "blank" else 11,)]


def test_another_one_that_is_busy_with_the_blank_database_is_waited_for() -> None:
    """The switch to a write-ahead log needs the file for itself, and SQLite does not wait for that."""
    with quick_folder() as root:
        folders = make_folders(root)
        busy = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("1", flush=True)
time.sleep(0.5)
"""
        other = python(busy, folders.database)
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        store = open_store(folders)
        assert store.rows("PRAGMA journal_mode") == [("wal" if wal_works(folders.database) else "delete",)]
        store.close()
        assert other.wait(30) == 0
        other.stdout.close()


KILLED = """
import json, os, shutil, sqlite3, sys
sys.path.insert(0, {support!r})
{next}
from killing import each_line
root, base = sys.argv[1], sys.argv[2]
counter = 0


def begin():
    global counter, path
    counter += 1
    folder = os.path.join(root, str(counter))
    os.mkdir(folder, 0o700)
    path = os.path.join(folder, "spool.db")
    if sys.argv[3] == "released":
        shutil.copy(base, path)


begin()
seen = []
for number in each_line(lambda: database.open_database(path), database.__file__, migrations.__file__):
    look = sqlite3.connect("file:" + path + "?mode=ro", uri=True) if os.path.exists(path) else sqlite3.connect(":memory:")
    version = look.execute("PRAGMA user_version").fetchone()[0]
    tables = {{row[0] for row in look.execute("SELECT name FROM sqlite_master")}}
    # Each step is whole or not there.
    assert ("jobs" in tables) == (version >= 1), version
    assert ("next_one" in tables) == (version >= {version} + 1), version
    assert ("next_jobs" in tables) == (version >= {version} + 2), version
    look.close()
    seen.append(version)
    after = database.open_database(path)
    assert after.execute("PRAGMA user_version").fetchone()[0] == migrations.VERSION
    assert after.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert after.execute("SELECT count(*) FROM next_one").fetchone()[0] == 1
    after.close()
    begin()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("begun", ["blank", "released"])
def test_a_kill_at_any_line_leaves_whole_steps(tmp_path: Path, begun: str) -> None:
    base = tmp_path / "base.db"
    load(DUMPS[-1], str(base))
    script = KILLED.format(support=str(SUPPORT), next=NEXT, version=VERSION)
    with quick_folder() as root:
        [seen] = answers(python(script, root, base, begun))
    assert seen == sorted(seen)
    first = 0 if begun == "blank" else VERSION
    assert set(seen) == set(range(first, VERSION + 3)), "killed before, between and after the steps"


def test_a_migration_waits_for_a_writer(folders: Folders) -> None:
    load(DUMPS[0], folders.database)
    writer = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE jobs SET name = 'written'")
print("1", flush=True)
time.sleep(0.7)
db.execute("COMMIT")
"""
    other = python(writer, folders.database)
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    script = f"{NEXT}\nimport sys, json\nc = database.open_database(sys.argv[1])\nprint(json.dumps(c.execute('SELECT DISTINCT name, next_thing FROM jobs').fetchall()))"
    assert answers(python(script, folders.database)) == [[["written", "x"]]]
    assert other.wait(30) == 0
    other.stdout.close()


def test_a_newer_program_that_was_quicker_is_not_undone(folders: Folders) -> None:
    """It migrates while this one already waits for its turn, having seen a blank database."""
    newer = f"""
{NEXT}
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("1", flush=True)
time.sleep(0.7)
for step in migrations.STEPS:
    for statement in step.split(";\\n"):
        db.execute(statement)
db.execute(f"PRAGMA user_version = {{migrations.VERSION}}")
db.execute("COMMIT")
"""
    other = python(newer, folders.database)
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    connection = sqlite3.connect(folders.database, isolation_level=None, timeout=30)
    with pytest.raises(NewerDatabase):
        migrations.migrate(connection, folders.database)
    assert other.wait(30) == 0
    other.stdout.close()
    assert found_version(connection) == VERSION + 2
    connection.close()


def test_statements_are_split_where_they_end() -> None:
    """Steps are cut at a semicolon before a newline; what is left over would be one statement with two in it."""
    for step in STEPS:
        for statement in step.split(";\n"):
            assert ";" not in re.sub(r"'[^']*'", "", statement), statement


# -- the journal -----------------------------------------------------------------------------------------

ON_RAMFS = """
set -e
mount -t ramfs ramfs "$1"
exec "$2" -c "$3" "$1"
"""

MEND = """
import json, os, shutil, sqlite3, sys
from gpuspool.spool.check import check_database
from gpuspool.spool.folders import Folders, file_system, wal_works
from gpuspool.spool.model import JobSpec, Submission
from gpuspool.spool.store import open_store
root = sys.argv[1]
folders = Folders(root, root, root)
os.chmod(root, 0o700)
job = Submission(JobSpec(["true"], "/"), "n", "u", 0)
found = {"kind": file_system(root), "works": wal_works(folders.database)}
store = open_store(folders)
store.submit([job], 1.0)
found["fresh"] = store.rows("PRAGMA journal_mode")[0][0]
store.close()
# As if it had been moved here from a local disk.
db = sqlite3.connect(folders.database)
db.execute("PRAGMA journal_mode = WAL")
db.close()
found["faults"] = check_database(folders).faults
command = open_store(folders)
found["command"] = command.rows("PRAGMA journal_mode")[0][0]
held = open_store(folders, role="daemon")
found["held"] = held.rows("PRAGMA journal_mode")[0][0]
held.close()
command.close()
daemon = open_store(folders, role="daemon")
found["daemon"] = daemon.rows("PRAGMA journal_mode")[0][0]
found["jobs"] = daemon.submit([job], 2.0)
daemon.close()
found["after"] = check_database(folders).faults
print(json.dumps(found))
"""


@pytest.mark.root
def test_a_write_ahead_log_only_where_it_works(tmp_path: Path) -> None:
    """On a file system that is not known to bear one (ramfs stands for NFS): never made, told, and given up by the daemon."""
    if os.geteuid() != 0:
        pytest.fail("needs root to mount; run the tests as root or deselect with -m 'not root'")
    import json
    import subprocess
    import sys

    words = ["unshare", "--mount", "sh", "-c", ON_RAMFS, "sh", str(tmp_path), sys.executable, MEND]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["works"], found["fresh"]) == ("ramfs", False, "delete")
    [fault] = found["faults"]
    assert "It has a write-ahead log on ramfs, where that damages it." in fault
    assert (found["command"], found["held"]) == ("wal", "wal"), "somebody else has it open"
    assert found["daemon"] == "delete"
    assert found["jobs"] == [2]
    assert found["after"] == []
