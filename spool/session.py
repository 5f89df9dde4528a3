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
from .errors import GpuspoolError, NoSuchJob, NotOwner, StaleClaim
from .folders import Folders
from .ownership import Owner, read_owner, this_process

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
        self.db = open_database(self.path)
        self.pid = os.getpid()
        self._epoch: int | None = None

    def close(self) -> None:
        """Close the connection; a forked child must never call this (or anything else here)."""
        self.db.close()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that begins by writing (BEGIN IMMEDIATE) and proves that this host still owns the spool.

        Everything inside commits together or not at all. No network, subprocess or file copy belongs inside.
        Raises NotOwner, DiskFull or StoreUnavailable.
        """
        if os.getpid() != self.pid:
            raise GpuspoolError("a database connection crossed a fork")
        if self._epoch is None:
            self._take_ownership()
        with translated(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                row = self.db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
                if int(row[0]) != self._epoch:
                    owner = read_owner(self.folders.owner)
                    raise NotOwner(path=self.path, owner=owner.describe() if owner else "another process")
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def _take_ownership(self) -> None:
        """Own the spool as this host, or find that it does already.

        The database decides: the epoch is raised in a transaction first and the record follows, so a kill in between
        leaves a raised epoch without a record, which the next process of any host simply raises again.
        """
        owner = read_owner(self.folders.owner)
        with translated(self.path):
            epoch = int(self.db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])
            if owner is not None and owner.here() and owner.epoch == epoch:
                self._epoch = epoch
                return
            self.db.execute("BEGIN IMMEDIATE")
            try:
                epoch = int(self.db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0])
                owner = read_owner(self.folders.owner)
                if owner is None or not owner.here() or owner.epoch != epoch:
                    epoch += 1
                    self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
                    write_json(self.folders.owner, this_process(epoch, self.role).record())
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        self._epoch = epoch

    def renew(self, beat: int) -> None:
        """Name this process (the daemon) in the ownership record and show life by a changed `beat`."""
        if self._epoch is None:
            self._take_ownership()
        assert self._epoch is not None
        write_json(self.folders.owner, this_process(self._epoch, self.role, beat).record())

    def owner(self) -> Owner | None:
        """Who owns the spool by its record."""
        return read_owner(self.folders.owner)

    def meta(self, key: str) -> str:
        """One value of `meta`; '' when unset."""
        with translated(self.path):
            row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """A read, as plain tuples."""
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

    The one way in which a state changes. Raises IllegalTransition, NoSuchJob, or StaleClaim when `version` is given
    and the job has moved on.
    """
    row = db.execute("SELECT state, version, attempt FROM jobs WHERE id = ?", (job,)).fetchone()
    if row is None:
        raise NoSuchJob(job=job)
    if version is not None and row[1] != version:
        raise StaleClaim(job=job, wanted=version)
    states.check(job, row[0], target, by_user=by_user)
    names = "".join(f", {name} = ?" for name in changes)
    db.execute(
        f"UPDATE jobs SET state = ?, state_since = ?, version = version + 1{names} WHERE id = ?",
        (target, now, *changes.values(), job),
    )
    attempt = changes.get("attempt", row[2])
    db.execute(ADD_EVENT, (job, attempt, 0, 0, None, now, actor, kind, text, data))
