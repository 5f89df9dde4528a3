"""The store's ground floor: the connection, ownership and write transactions; the verbs stand in its neighbours."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import states
from .database import open_database, translated
from .durable import write_json
from .errors import GpuspoolError, NoSuchJob, NotOwner, StaleClaim, StoreGone, StoreUnavailable
from .folders import Folders
from .model import FINAL, State
from .ownership import SILENT_S, Owner, read_owner, silent_for, this_process

JOB_COLUMNS = (
    "id, spec_id, array_id, array_index, name, user, uid, project, job_class, priority, preemptible, nodes, gpus, cpus,"
    " memory_mib, gpu_type, walltime_s, grace_s, min_runtime_s, own_min_runtime_s, state, reason, reason_text, hold,"
    " wish, begin_at, not_before, submitted_at, state_since, started_at, ended_at, attempt, counted, failures,"
    " interruptions, delays, gpu_seconds, progress_step, progress_identity, checkpoint, checkpoint_step, checkpoint_at,"
    " exit_code, signal, end_reason, end_text, launch_failures, version"
)
ATTEMPT_COLUMNS = (
    "job_id, number, incarnation, token, backend, node, gpu_uuids, gpus, cpus, memory_mib, created_at, launcher, handle,"
    " folder, started_at, walltime_s, grace_s, ends_by, stop_kind, stop_at, stop_grace_s, stop_written, stop_delivered,"
    " lost_at, ended_at, end_reason, exit_code, signal, cause, cause_text, checkpoint, checkpoint_step, resume_from,"
    " cpu_seconds, max_rss_mib"
)
EVENT_COLUMNS = "id, job_id, attempt, incarnation, rank, number, at, actor, kind, text, data"
ADD_EVENT = (
    "INSERT INTO events (job_id, attempt, incarnation, rank, number, at, actor, kind, text, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
LIVE_STATES = "('initializing', 'running', 'stopping')"
UNFINISHED_STATES = "('queued', 'initializing', 'running', 'stopping')"


class Session:
    """One process's connection to the spool, under the ownership of this host."""

    def __init__(self, folders: Folders, *, role: str = "command") -> None:
        self.folders = folders
        self.path = folders.database
        self.role = role
        self.pid = os.getpid()
        self._open()

    def _open(self) -> None:
        self.db = open_database(self.path, mend_journal=self.role == "daemon")
        self._epoch: int | None = None
        self._file = self._file_now()

    def close(self) -> None:
        """Close the connection, a daemon's after giving the spool back; a forked child must never call this."""
        if self.role == "daemon" and self._epoch is not None:
            try:
                self._write_record("command", 0)
            except (GpuspoolError, OSError):
                pass  # then another host waits until the record has been silent for long enough
        self.db.close()

    def _file_now(self) -> tuple[int, int] | None:
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            why = f"it cannot be looked at: {error.strerror}"
            raise StoreUnavailable(path=self.path, why=why, remedy="'spool db check' says more.") from None
        return info.st_dev, info.st_ino

    def _look(self) -> None:
        """Refuse to go on in a forked child, and on a file that is not the spool's database any more.

        An open file outlives its name: without this a daemon would serve a deleted database for ever. A replaced one
        (a backup that was put back) is opened for the next call; this one was decided on what is gone.
        """
        if os.getpid() != self.pid:
            raise GpuspoolError("a database connection crossed a fork")
        found = self._file_now()
        if found != self._file:
            if found is not None:
                self.db.close()
                self._open()
            raise StoreGone(path=self.path)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that begins by writing (BEGIN IMMEDIATE) and proves that this host still owns the spool.

        Everything inside commits together or not at all. No network, subprocess or file copy belongs inside.
        Raises NotOwner, DiskFull or StoreUnavailable.
        """
        self._look()
        self._refuse_nesting()
        if self._epoch is None:
            self._take_ownership()
        with translated(self.path):
            try:
                self.db.execute("BEGIN IMMEDIATE")
                if self._database_epoch() != self._epoch:
                    # Decided under an ownership that has passed on. Who wants to go on must own it anew.
                    self._epoch = None
                    raise self._not_owner(read_owner(self.folders.owner))
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def _refuse_nesting(self) -> None:
        if self.db.in_transaction:
            raise GpuspoolError("a write began inside another one")

    def _take_ownership(self) -> None:
        """Own the spool as this host, or find that it does already. Raises NotOwner while another host's daemon does.

        A record counts only while it bears the database's epoch. The new record is written inside the transaction
        that raises the epoch, so that processes of one host which meet here wait for each other and agree. A kill
        before the commit leaves the old epoch and a record that does not count; whoever comes next raises it anew.
        """
        owner = read_owner(self.folders.owner)
        with translated(self.path):
            epoch = self._database_epoch()
            if owner is not None and owner.here() and owner.epoch == epoch:
                self._epoch = epoch
                return
            self._refuse_living_owner(owner, epoch)
            try:
                self.db.execute("BEGIN IMMEDIATE")
                epoch = self._database_epoch()
                owner = read_owner(self.folders.owner)
                if owner is None or not owner.here() or owner.epoch != epoch:
                    self._refuse_living_owner(owner, epoch)
                    epoch += 1
                    self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
                    write_json(self.folders.owner, this_process(epoch, self.role).record())
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        self._epoch = epoch

    def _refuse_living_owner(self, owner: Owner | None, epoch: int) -> None:
        """Raise NotOwner while a daemon of another host owns the spool and is not known to be silent.

        A command owns it only while it works, and this host's own name under another boot id is a boot that ended.
        """
        if owner is None or owner.epoch != epoch or owner.role != "daemon" or owner.same_host():
            return
        if silent_for(owner, os.path.join(self.folders.runtime, "other-owner.json")) < SILENT_S:
            raise self._not_owner(owner)

    def _not_owner(self, owner: Owner | None) -> NotOwner:
        return NotOwner(path=self.path, owner=owner.describe() if owner else "another process")

    def _database_epoch(self) -> int:
        row = self.db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        try:
            return int(row[0])
        except (TypeError, ValueError):
            why = "its row 'epoch' in the table meta is missing or damaged"
            raise StoreUnavailable(path=self.path, why=why, remedy="'spool db check' says more.") from None

    def renew(self, beat: int) -> None:
        """Name this process (the daemon) in the ownership record and show life by a changed `beat`.

        Raises NotOwner when the spool has passed to another host, and OSError when the record cannot be written.
        """
        self._look()
        if self._epoch is None:
            self._take_ownership()
        self._write_record(self.role, beat)

    def _write_record(self, role: str, beat: int) -> None:
        with translated(self.path):
            epoch = self._database_epoch()
        if epoch != self._epoch:
            self._epoch = None
            raise self._not_owner(read_owner(self.folders.owner))
        write_json(self.folders.owner, this_process(epoch, role, beat).record())

    def owner(self) -> Owner | None:
        """Who owns the spool by its record."""
        return read_owner(self.folders.owner)

    def meta(self, key: str) -> str:
        """One value of `meta`; '' when unset."""
        self._look()
        with translated(self.path):
            row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """A read, as plain tuples."""
        self._look()
        with translated(self.path):
            return self.db.execute(sql, values).fetchall()


def move(
    db: sqlite3.Connection,
    job: int,
    target: str,
    *,
    now: float,
    actor: str,
    kind: str,
    text: str = "",
    version: int | None = None,
    by_user: bool = False,
    data: str = "{}",
    **changes: Any,
) -> None:
    """Bring a job into state `target` with its event, inside the caller's transaction.

    Raises IllegalTransition, NoSuchJob, or StaleClaim when `version` is given and the job has moved on.
    """
    attempt = shift(db, job, target, now=now, version=version, by_user=by_user, **changes)
    db.execute(ADD_EVENT, (job, attempt, 0, 0, None, now, actor, kind, storable(text), data))


def shift(
    db: sqlite3.Connection,
    job: int,
    target: str,
    *,
    now: float,
    version: int | None = None,
    by_user: bool = False,
    **changes: Any,
) -> int:
    """Change a job's state, the one way there is: by the table of `states`; the number of its newest attempt.

    For callers whose event stands there already (a supervisor's own), others take `move`. What only a job that waits
    or runs can have goes with that: its reservation, its hold, its reason. Raises as `move` does.
    """
    row = db.execute("SELECT state, version, attempt FROM jobs WHERE id = ?", (job,)).fetchone()
    if row is None:
        raise NoSuchJob(job=job)
    if version is not None and row[1] != version:
        raise StaleClaim(job=job, wanted=version)
    states.check(job, row[0], target, by_user=by_user)
    if target in FINAL:
        changes = {"hold": "", "wish": "", "reason": "", "reason_text": ""} | changes
    if row[0] == State.QUEUED:
        db.execute("DELETE FROM reservations WHERE job_id = ?", (job,))
    names = "".join(f", {name} = ?" for name in changes)
    db.execute(
        f"UPDATE jobs SET state = ?, state_since = ?, version = version + 1{names} WHERE id = ?",
        (target, now, *changes.values(), job),
    )
    return int(changes.get("attempt", row[2]))


def storable(text: str) -> str:
    """`text` as SQLite can hold it: UTF-8 whatever the locale; bytes of file names that are none are spelt out."""
    try:
        raw = text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raw = text.encode(errors="backslashreplace")
    return raw.decode(errors="backslashreplace")
