"""Looking a spool's database over without changing it: files, SQLite's own checks, the schema, what must hold of rows.

Nothing here migrates, mends or writes; a database that is damaged, or that a newer program wrote, is looked at as
far as that goes and the rest is said. `schema.py` (and with it SQLAlchemy) is imported only when it is called.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from urllib.parse import quote

from .database import journal_mode
from .drift import describe, drift, wanted_schema
from .folders import WAL_FILE_SYSTEMS, Folders, file_system
from .migrations import VERSION, found_version
from .model import FINAL, LIVE, State
from .ownership import read_owner
from .queue import spec_of
from .values import dataclass, field

#: So many faults of one kind are told one by one; more are counted.
MOST_TOLD = 20


@dataclass(slots=True)
class Findings:
    """What was found: `faults` must not be, `facts` are for information; each a sentence."""

    faults: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def check_database(folders: Folders) -> Findings:
    """Look at the spool in `folders`; raises nothing for what is wrong with it, that is what it returns."""
    found = Findings()
    path = folders.database
    _files(folders, found)
    if not os.path.exists(path):
        found.facts.append(f"There is no database at {path}: nothing was ever submitted, or it was removed.")
        return found
    try:
        # Through SQLite alone: to open and close the file itself would drop the locks of a store in this process.
        uri = f"file:{quote(os.path.abspath(path))}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
    except sqlite3.Error as error:
        found.faults.append(f"The database cannot be opened: {error}.")
        return found
    try:
        # What is no UTF-8 is a finding about one row, not the end of the look.
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        connection.execute("PRAGMA query_only = ON")
        _Look(connection, folders, found).run()
    except sqlite3.Error as error:
        found.faults.append(_broken("The database cannot be read", error))
    finally:
        connection.close()
    return found


@cache
def _readers() -> list[tuple[str, list[str], Any]]:
    """Table, primary key and a pydantic model that reads a row, for each table.

    The SQLModel classes' own types without the ORM around them, which takes ten times as long for each row.
    """
    from pydantic import create_model

    from .schema import TABLES

    found = []
    for model in TABLES:
        types: Any = {name: (info.annotation, ...) for name, info in model.model_fields.items()}
        keys = [column.name for column in model.__table__.primary_key]  # type: ignore[attr-defined]
        found.append((str(model.__tablename__), keys, create_model(model.__name__, **types)))
    return found


def _files(folders: Folders, found: Findings) -> None:
    """Folders 0700 and files 0600, all of them ours: specs and environments may hold secrets."""
    names = [f"{folders.database}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    for path in (folders.state, folders.runtime, *names, folders.owner):
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.faults.append(f"{path} cannot be looked at: {error.strerror}.")
            continue
        mode = stat.S_IMODE(info.st_mode)
        right = "700" if stat.S_ISDIR(info.st_mode) else "600"
        if mode & 0o077:
            found.faults.append(f"{path} has mode {mode:04o}: not for you alone. Type: chmod {right} {path}")
        if info.st_uid != os.geteuid():
            found.faults.append(f"{path} belongs to user {info.st_uid}, not to you ({os.geteuid()}).")


def _broken(what: str, error: Exception) -> str:
    remedy = ""
    if getattr(error, "sqlite_errorname", "") in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
        remedy = " It is damaged: put back a copy made with 'spool db backup'."
    return f"{what}: {error}.{remedy}"


_LIVE = f"({', '.join(repr(str(state)) for state in LIVE)})"
_FINAL = f"({', '.join(repr(str(state)) for state in FINAL)})"
_STATES = f"({', '.join(repr(str(state)) for state in State)})"
_JOIN = "FROM attempts a JOIN jobs j ON j.id = a.job_id"

#: What must hold between rows: a statement that finds those that break it, and the sentence about each.
INVARIANTS: tuple[tuple[str, str], ...] = (
    (
        f"SELECT id, state FROM jobs WHERE state NOT IN {_STATES}",
        "Job {0} is in a state that there is not: {1!r}.",
    ),
    (
        (
            "SELECT j.id, j.state, count(a.job_id) FROM jobs j"
            " LEFT JOIN attempts a ON a.job_id = j.id AND a.ended_at IS NULL"
            f" WHERE j.state IN {_LIVE} GROUP BY j.id HAVING count(a.job_id) <> 1"
        ),
        "Job {0} is {1}, and {2} of its attempts have not ended; it should be one.",
    ),
    (
        f"SELECT a.job_id, a.number, j.attempt {_JOIN} WHERE a.ended_at IS NULL AND a.number <> j.attempt",
        "Attempt {1} of job {0} has not ended, though the newest is {2}.",
    ),
    (
        f"SELECT a.job_id, a.number, j.state {_JOIN} WHERE a.ended_at IS NULL AND j.state NOT IN {_LIVE}",
        "Attempt {1} of job {0} has not ended, though the job is {2}.",
    ),
    (
        (
            "SELECT j.id, j.attempt, count(a.number), coalesce(max(a.number), 0) FROM jobs j"
            " LEFT JOIN attempts a ON a.job_id = j.id GROUP BY j.id HAVING count(a.number) <> j.attempt"
            " OR coalesce(max(a.number), 0) <> j.attempt OR min(a.number) <> 1"
        ),
        "Job {0} counts {1} attempts; there are {2}, the highest number is {3}.",
    ),
    (
        (
            f"SELECT a.job_id, a.number, j.state {_JOIN} AND a.number = j.attempt"
            " WHERE j.state IN ('running', 'stopping') AND a.started_at IS NULL"
        ),
        "Job {0} is {2}, but its attempt {1} has not started.",
    ),
    (
        f"SELECT a.job_id, a.number {_JOIN} AND a.number = j.attempt WHERE j.state = 'stopping' AND a.stop_kind = ''",
        "Job {0} is stopping, but nobody asked its attempt {1} to.",
    ),
    (
        "SELECT job_id, number, gpu_uuids FROM attempts WHERE ended_at < created_at",
        "Attempt {1} of job {0} ended before it began.",
    ),
    (
        f"SELECT id, state FROM jobs WHERE (state IN {_FINAL}) <> (ended_at IS NOT NULL)",
        "Job {0} is {1}, which does not go with its time of end.",
    ),
    (
        f"SELECT id, state, wish FROM jobs WHERE wish <> '' AND (state NOT IN {_LIVE} OR wish NOT IN ('cancel', 'stop'))",
        "Job {0} is {1} and has the wish {2!r}.",
    ),
    (
        "SELECT id, state, hold FROM jobs WHERE hold <> '' AND state <> 'queued'",
        "Job {0} is {1} and held ({2!r}).",
    ),
    (
        "SELECT id, state, reason FROM jobs WHERE state <> 'queued' AND (reason <> '' OR reason_text <> '')",
        "Job {0} is {1} and has a reason to wait ({2!r}).",
    ),
    (
        (
            "SELECT id FROM jobs WHERE min(attempt, counted, failures, interruptions, delays, launch_failures, gpu_seconds,"
            " own_min_runtime_s, nodes, gpus, cpus, memory_mib, walltime_s, grace_s, min_runtime_s) < 0 OR version < 1"
        ),
        "Job {0} has a negative count or size.",
    ),
    (
        "SELECT id FROM jobs WHERE (array_id IS NULL) <> (array_index IS NULL)",
        "Job {0} is half an array's element.",
    ),
    (
        (
            "SELECT r.job_id, coalesce(j.state, 'not there') FROM reservations r LEFT JOIN jobs j ON j.id = r.job_id"
            " WHERE j.id IS NULL OR j.state <> 'queued' OR j.hold <> ''"
        ),
        "Room is kept for job {0}, which does not wait for it ({1}).",
    ),
    (
        (
            "SELECT s.job_id, s.attempt FROM streams s LEFT JOIN attempts a ON a.job_id = s.job_id AND a.number = s.attempt"
            " WHERE a.job_id IS NULL OR s.offset < 0 OR s.next_number < 1"
        ),
        "An event file was read for attempt {1} of job {0}, which there is not, or from a place that there is not.",
    ),
    (
        (
            "SELECT e.id, e.job_id FROM events e LEFT JOIN jobs j ON j.id = e.job_id WHERE j.id IS NULL OR e.attempt < 0"
            " OR e.attempt > j.attempt"
        ),
        "Event {0} belongs to an attempt of job {1} that there is not.",
    ),
    (
        (
            "SELECT e.id, e.job_id, e.attempt, e.number FROM events e LEFT JOIN streams s ON s.job_id = e.job_id"
            " AND s.attempt = e.attempt AND s.incarnation = e.incarnation AND s.rank = e.rank"
            " WHERE e.number IS NOT NULL AND (s.job_id IS NULL OR e.number >= s.next_number)"
        ),
        "Event {0} (number {3} of attempt {2} of job {1}) was taken in, but the file counts as read only up to before it.",
    ),
    (
        "SELECT name, parent FROM projects WHERE parent <> '' AND parent NOT IN (SELECT name FROM projects)",
        "Project {0!r} has a parent that there is not: {1!r}.",
    ),
    ("SELECT uuid, state FROM gpus WHERE state NOT IN ('up', 'drained', 'lost')", "GPU {0} is {1!r}."),
    ("SELECT name, state FROM nodes WHERE state NOT IN ('up', 'drained', 'down')", "Node {0!r} is {1!r}."),
    (
        "SELECT day, user FROM usage WHERE attempts < 1 OR gpu_seconds < 0 OR cpu_seconds < 0",
        "The usage of {1!r} on {0} is negative.",
    ),
)


class _Look:
    """One look at an open database; each step goes on where the one before found damage."""

    def __init__(self, connection: sqlite3.Connection, folders: Folders, found: Findings) -> None:
        self.db, self.folders, self.found = connection, folders, found

    def run(self) -> None:
        """All steps, in one read transaction where that can be had."""
        # 1. Whose schema is it?
        version = found_version(self.db)
        self.db.execute("BEGIN")
        pages, page = (self.db.execute(f"PRAGMA page_{what}").fetchone()[0] for what in ("count", "size"))
        size = pages * page // 1024
        self.found.facts.append(f"The database {self.folders.database} has schema {version} and {size} KiB.")
        # 2. What SQLite itself finds.
        self.step("SQLite's integrity check", self.integrity)
        # 3. Where it lies, and how it is written.
        self.step("The journal mode", self.journal)
        if version > VERSION:
            self.found.faults.append(
                f"Schema {version} was made by a newer gpuspool, this program knows up to {VERSION}: its rows were not"
                " looked at. Upgrade gpuspool here."
            )
            return
        if version < VERSION:
            self.found.facts.append(
                f"The next command that opens it brings it to schema {VERSION}; its rows were not looked at."
            )
            return
        # 4. Is it the schema that this program means?
        if self.schema_differs():
            self.found.faults.append("Its rows were not looked at, since its schema is another one.")
            return
        # 5. Can each row be read?
        self.step("Reading the rows", self.rows)
        # 6. Do the rows go together?
        for sql, sentence in INVARIANTS:
            self.step("A look at the rows", self.invariant, sql, sentence)
        self.step("A look at the numbering", self.sequences)
        self.step("A look at the GPUs", self.gpus)
        self.step("A look at the projects", self.circles)
        # 7. What there is.
        self.step("Counting", self.count)
        self.step("The ownership", self.ownership)

    def step(self, what: str, look: Callable[..., None], *arguments: str) -> None:
        """One look; what SQLite cannot read of it is a fault, and the next look follows."""
        try:
            look(*arguments)
        except sqlite3.Error as error:
            said = _broken(f"{what} failed", error)
            if said not in self.found.faults:
                self.found.faults.append(said)

    def tell(self, sentences: Iterable[str]) -> None:
        """Faults of one kind: the first ones, and how many more."""
        said = list(sentences)
        self.found.faults += said[:MOST_TOLD]
        if len(said) > MOST_TOLD:
            self.found.faults.append(f"… and {len(said) - MOST_TOLD} more of that kind.")

    def integrity(self) -> None:
        told = [str(row[0]) for row in self.db.execute("PRAGMA integrity_check(100)")]
        if told == ["ok"]:
            self.found.facts.append("SQLite's integrity check: ok.")
        else:
            self.tell(f"SQLite's integrity check: {line}." for line in told)
        self.tell(
            f"Row {row[1]} of table {row[0]} names a row of {row[2]} that there is not."
            for row in self.db.execute("PRAGMA foreign_key_check")
        )

    def journal(self) -> None:
        mode, kind = journal_mode(self.db), file_system(self.folders.database)
        self.found.facts.append(f"Its journal is {mode}, its file system {kind or 'unknown'}.")
        if mode == "wal" and kind not in WAL_FILE_SYSTEMS:
            self.found.faults.append(
                f"It has a write-ahead log on {kind or 'an unknown file system'}, where that damages it. Stop what uses"
                " it and start the daemon, which changes that."
            )

    def schema_differs(self) -> bool:
        try:
            said = drift(describe(self.db), wanted_schema())
        except sqlite3.Error as error:
            said = [_broken("Its schema cannot be read", error)]
        self.tell(said)
        return bool(said)

    def rows(self) -> None:
        from pydantic import ValidationError

        for table, keys, reader in _readers():
            columns, said = list(reader.model_fields), []
            for row in self.db.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                values = dict(zip(columns, row, strict=True))
                try:
                    reader.model_validate(values, strict=True)
                    wrong = self.unreadable(table, values)
                except ValidationError as error:
                    first = error.errors()[0]
                    wrong = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
                if wrong:
                    name = ", ".join(f"{key} {values[key]!r}" for key in keys)
                    said.append(f"The row of table {table} with {name} cannot be read: {wrong}.")
            self.tell(said)

    def unreadable(self, table: str, row: dict[str, Any]) -> str:
        """What is wrong with the texts in a row that its types do not tell; '' when nothing is."""
        try:
            for name, value in row.items():
                if isinstance(value, str) and not value.isascii():
                    try:
                        value.encode()
                    except UnicodeEncodeError:
                        return f"{name}: it is no UTF-8"
            if table == "specs":
                spec_of(row["body"])
            elif table == "events":
                if row["data"] != "{}" and not isinstance(json.loads(row["data"]), dict):
                    return "data: it is no JSON object"
            elif table == "meta" and row["key"] == "epoch":
                int(row["value"])
            elif table in ("attempts", "reservations"):
                uuids = json.loads(row["gpu_uuids"])
                if not isinstance(uuids, list) or not all(isinstance(uuid, str) for uuid in uuids):
                    return "gpu_uuids: it is no list of texts"
                if table == "attempts" and len(uuids) != row["gpus"]:
                    return f"gpus: {row['gpus']}, but gpu_uuids names {len(uuids)}"
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            return str(error)
        return ""

    def invariant(self, sql: str, sentence: str) -> None:
        self.tell(sentence.format(*row) for row in self.db.execute(sql))

    def sequences(self) -> None:
        for table in ("jobs", "specs", "events"):
            highest = self.db.execute(f"SELECT max(id) FROM {table}").fetchone()[0]
            row = self.db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
            if highest is not None and (row is None or row[0] < highest):
                self.found.faults.append(
                    f"The next number of table {table} would be {row[0] + 1 if row else 1}, though {highest} is taken:"
                    " a number would be used twice."
                )

    def gpus(self) -> None:
        holders: dict[str, tuple[int, int]] = {}
        said = []
        for job, number, uuids in self.db.execute(
            "SELECT job_id, number, gpu_uuids FROM attempts WHERE ended_at IS NULL AND gpus > 0 ORDER BY job_id"
        ):
            try:
                held = [str(uuid) for uuid in json.loads(uuids)]
            except (ValueError, TypeError, RecursionError):
                continue  # told already
            for uuid in held:
                other = holders.setdefault(uuid, (job, number))
                if other != (job, number) or held.count(uuid) > 1:
                    said.append(f"GPU {uuid} is held twice: by job {other[0]} and by job {job}.")
        self.tell(said)

    def circles(self) -> None:
        parents = dict(self.db.execute("SELECT name, parent FROM projects"))
        for name in parents:
            seen, at = {name}, parents[name]
            while at in parents and at not in seen:
                seen.add(at)
                at = parents[at]
            if at == name:
                self.found.faults.append(f"Project {name!r} is its own ancestor.")

    def count(self) -> None:
        rows = self.db.execute("SELECT state, count(*) FROM jobs GROUP BY state ORDER BY min(id)").fetchall()
        states = ", ".join(f"{count} {state}" for state, count in rows) or "none"
        total = sum(count for _, count in rows)
        self.found.facts.append(f"Jobs: {states}{f'; {total} in all' if len(rows) > 1 else ''}.")
        attempts, live = self.db.execute(
            "SELECT count(*), coalesce(sum(ended_at IS NULL), 0) FROM attempts"
        ).fetchone()
        events = self.db.execute("SELECT count(*) FROM events").fetchone()[0]
        self.found.facts.append(f"Attempts: {attempts}, {live} of them live. Events: {events}.")

    def ownership(self) -> None:
        row = self.db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        if row is None:
            self.found.faults.append("The table meta has no epoch: nothing can be written.")
            return
        owner = read_owner(self.folders.owner)
        if owner is None:
            self.found.facts.append(f"Nobody owns it by a record; its epoch is {row[0]}.")
        elif str(owner.epoch) != row[0]:
            self.found.facts.append(
                f"The record of its owner ({owner.describe()}) does not count: its epoch is {row[0]}."
            )
        else:
            alive = " on this host" if owner.here() else ""
            self.found.facts.append(f"Its owner is {owner.describe()}{alive}.")
