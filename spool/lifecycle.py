"""What the tick does to jobs: claim, note handles, record what supervisors wrote, settle ends, ask for stops."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from .endrules import EndFacts, Next
from .errors import IllegalTransition
from .eventlog import Line
from .model import FINAL, LIVE, Attempt, Job, State, Stop
from .queue import ask_to_stop
from .session import ADD_EVENT, ATTEMPT_COLUMNS, JOB_COLUMNS, Session, move, shift, storable
from .values import dataclass, field

_JOB_FIELDS = len(JOB_COLUMNS.split(","))
_LIVE = (
    f"SELECT {', '.join(f'j.{name.strip()}' for name in JOB_COLUMNS.split(','))},"
    f" {', '.join(f'a.{name.strip()}' for name in ATTEMPT_COLUMNS.split(','))}"
    " FROM attempts a CROSS JOIN jobs j ON j.id = a.job_id AND j.attempt = a.number"
    " WHERE a.ended_at IS NULL ORDER BY a.job_id"
)
#: CROSS JOIN is how SQLite is told to begin with the few live attempts, not with all that ever ended.
_LIVE_STREAMS = (
    "SELECT s.job_id, s.attempt, s.incarnation, s.rank, s.offset, s.next_number FROM attempts a"
    " CROSS JOIN streams s ON s.job_id = a.job_id AND s.attempt = a.number WHERE a.ended_at IS NULL"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A decision to start a job: on which node and GPUs, under which token, if it is still what was looked at."""

    job: int
    version: int
    token: str
    backend: str
    node: str
    gpu_uuids: tuple[str, ...]
    cpus: int
    memory_mib: int
    walltime_s: int
    grace_s: int
    ends_by: float | None  # a window's end, UTC seconds


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """What was read of one rank's event file, and where to go on."""

    job: int
    attempt: int
    incarnation: int
    rank: int
    lines: list[Line]
    offset: int
    next_number: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt as decided: facts, and what follows."""

    job: Job
    attempt: Attempt
    facts: EndFacts
    next: Next
    cause_text: str = ""
    checkpoint: str = ""
    checkpoint_step: int | None = None
    checkpoint_identity: str = ""
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    max_rss_mib: float = 0.0
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """Who the room is for that a preemption makes, which room, until when."""

    job: int
    node: str
    gpu_uuids: tuple[str, ...]
    cpus: int
    memory_mib: int
    until: float


@dataclass(slots=True)
class LiveAttempt:
    """An attempt that has not ended, with its job."""

    job: Job
    attempt: Attempt
    streams: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


class LifecycleVerbs(Session):
    """The verbs of the tick."""

    def live(self) -> list[LiveAttempt]:
        """All attempts that have not ended, with how far their event files were read."""
        found: dict[tuple[int, int], LiveAttempt] = {}
        for row in self.rows(_LIVE):  # one statement: a job and its attempt as they were at one moment
            job, attempt = Job(*row[:_JOB_FIELDS]), Attempt(*row[_JOB_FIELDS:])
            if job.state in LIVE:
                found[job.id, attempt.number] = LiveAttempt(job, attempt)
        if not found:
            return []
        streams = self.rows(_LIVE_STREAMS)
        for number, attempt_number, incarnation, rank, offset, next_number in streams:
            if live := found.get((number, attempt_number)):
                live.streams[incarnation, rank] = (offset, next_number)
        return list(found.values())

    def claim(self, claims: Iterable[Claim], now: float, launcher: str, folder_of: Any) -> list[LiveAttempt]:
        """Record attempts as `initializing`, compare-and-set on state and version; those that were still as seen.

        A GPU that an attempt holds is given to no other, whoever planned it. The claim adds one to the failures: an end that gives it back does so when it is settled, an end that nobody
        saw keeps it, so a hard crash never grinds for ever. `folder_of(job, number)` names an attempt's folder.
        """
        won: list[tuple[int, int]] = []
        with self.write() as db:
            held = _held_gpus(db)
            for claim in claims:
                row = db.execute(
                    "SELECT attempt, counted, failures FROM jobs"
                    " WHERE id = ? AND state = 'queued' AND version = ? AND hold = ''",
                    (claim.job, claim.version),
                ).fetchone()
                if row is None or not held.isdisjoint(claim.gpu_uuids):
                    continue
                held.update(claim.gpu_uuids)
                number = row[0] + 1
                place = {"node": claim.node, "gpus": claim.gpu_uuids, "cpus": claim.cpus}
                move(
                    db,
                    claim.job,
                    State.INITIALIZING,
                    now=now,
                    actor="scheduler",
                    kind="claimed",
                    text=claim.node,
                    data=json.dumps(place),
                    attempt=number,
                    counted=row[1] + 1,
                    failures=row[2] + 1,
                    reason="",
                    reason_text="",
                    wish="",
                )
                db.execute(
                    f"INSERT INTO attempts ({ATTEMPT_COLUMNS}) VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, NULL, ?, ?, ?,"
                    " '', NULL, NULL, 0, 0, NULL, NULL, '', NULL, NULL, '', '', '', NULL, '', 0, 0)",
                    (
                        claim.job,
                        number,
                        claim.token,
                        claim.backend,
                        claim.node,
                        json.dumps(claim.gpu_uuids),
                        len(claim.gpu_uuids),
                        claim.cpus,
                        claim.memory_mib,
                        now,
                        launcher,
                        folder_of(claim.job, number),
                        claim.walltime_s,
                        claim.grace_s,
                        claim.ends_by,
                    ),
                )
                won.append((claim.job, number))
        wanted = set(won)
        return (
            [live for live in self.live() if (live.job.id, live.attempt.number) in wanted] if wanted else []
        )

    def note_handles(self, handles: Iterable[tuple[int, int, str]]) -> None:
        """Record the supervisors' process names: (job, attempt, name)."""
        with self.write() as db:
            db.executemany(
                "UPDATE attempts SET handle = ? WHERE job_id = ? AND number = ? AND handle = ''",
                [(handle, job, number) for job, number, handle in handles],
            )

    def record(self, updates: Iterable[StreamUpdate]) -> None:
        """Take in what supervisors wrote: events, their effects and the read position, in one transaction.

        Unique by (attempt, incarnation, rank, number): a line that was taken in already changes nothing, and one
        beyond a gap is left for a later read.
        """
        with self.write() as db:
            for update in updates:
                key = (update.job, update.attempt, update.incarnation, update.rank)
                row = db.execute(
                    "SELECT next_number FROM streams WHERE job_id = ? AND attempt = ? AND incarnation = ? AND rank = ?",
                    key,
                ).fetchone()
                wanted = row[0] if row else 1
                lines = [line for line in update.lines if line.number >= wanted]
                if update.next_number < wanted or (lines and lines[0].number > wanted):
                    continue
                for line in lines:
                    if line.kind != "heartbeat":
                        text, data = storable(str(line.data.get("text", ""))), json.dumps(line.data)
                        event = (*key, line.number, line.at, "supervisor", storable(line.kind), text, data)
                        db.execute(ADD_EVENT, event)
                    self._effect(update, line)
                db.execute(
                    "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (job_id, attempt, incarnation, rank)"
                    " DO UPDATE SET offset = excluded.offset, next_number = excluded.next_number",
                    (*key, update.offset, update.next_number),
                )

    def _effect(self, update: StreamUpdate, line: Line) -> None:
        db, key, data = self.db, (update.job, update.attempt), line.data
        if line.kind == "started":
            supervisor, resume = _text(data.get("supervisor")), _text(data.get("resume_from"))
            db.execute(
                "UPDATE attempts SET started_at = coalesce(started_at, ?), handle = ?, resume_from = ?"
                " WHERE job_id = ? AND number = ?",
                (line.at, supervisor, resume, *key),
            )
            row = db.execute(
                "SELECT j.state, j.started_at, a.stop_kind FROM jobs j JOIN attempts a"
                " ON a.job_id = j.id AND a.number = j.attempt WHERE j.id = ? AND a.number = ? AND a.ended_at IS NULL",
                key,
            ).fetchone()
            if row is not None and row[0] == State.INITIALIZING:
                first = line.at if row[1] is None else row[1]
                shift(db, update.job, State.RUNNING, now=line.at, started_at=first)
                if row[2]:  # asked to stop while nobody could hear it yet
                    shift(db, update.job, State.STOPPING, now=line.at)
        elif line.kind == "checkpoint":
            path, step = _text(data.get("path")), _integer(data.get("step"))
            db.execute(
                "UPDATE attempts SET checkpoint = ?, checkpoint_step = ? WHERE job_id = ? AND number = ?",
                (path, step, *key),
            )
            db.execute(
                "UPDATE jobs SET checkpoint = ?, checkpoint_step = ?, checkpoint_at = ? WHERE id = ? AND attempt = ?",
                (path, step, line.at, *key),
            )
        elif line.kind == "signalled":
            db.execute("UPDATE attempts SET stop_delivered = 1 WHERE job_id = ? AND number = ?", key)
        elif line.kind == "stopping":
            # The supervisor's own deadline (walltime, window end): the job is stopping without our asking.
            stop = str(data.get("stop", ""))
            db.execute(
                "UPDATE attempts SET stop_kind = ?, stop_at = coalesce(stop_at, ?), stop_written = 1"
                " WHERE job_id = ? AND number = ? AND stop_kind = ''",
                (stop if stop in list(Stop) else str(Stop.PREEMPT), line.at, *key),
            )
            row = db.execute("SELECT state, attempt FROM jobs WHERE id = ?", (update.job,)).fetchone()
            if row == (State.RUNNING, update.attempt):
                shift(db, update.job, State.STOPPING, now=line.at)

    def settle(self, endings: Iterable[Ending], now: float) -> None:
        """Apply the ends of attempts: the attempt's row, the job's next state, usage, all in one transaction.

        Passed over is what was settled already, and a job of which the user has just asked something else: that was
        decided without knowing it, and the next pass decides anew.
        """
        with self.write() as db:
            for ending in endings:
                job, attempt, after = ending.job, ending.attempt, ending.next
                fresh = db.execute("SELECT state, attempt, wish FROM jobs WHERE id = ?", (job.id,)).fetchone()
                if fresh is None or fresh[0] not in LIVE or fresh[1:] != (attempt.number, job.wish):
                    continue
                at = ending.ended_at if math.isfinite(ending.ended_at) else now
                at = max(at, attempt.created_at)  # the supervisor's clock may be another one
                checkpoint, step = storable(ending.checkpoint), _integer(ending.checkpoint_step)
                code, number = _integer(ending.facts.exit_code), _integer(ending.facts.signal)
                changed = db.execute(
                    "UPDATE attempts SET ended_at = ?, end_reason = ?, exit_code = ?, signal = ?, cause = ?,"
                    " cause_text = ?, checkpoint = ?, checkpoint_step = ?, cpu_seconds = ?, max_rss_mib = ?"
                    " WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                    (
                        at,
                        after.end_reason,
                        code,
                        number,
                        storable(ending.facts.cause),
                        storable(ending.cause_text),
                        checkpoint,
                        step,
                        ending.cpu_seconds,
                        ending.max_rss_mib,
                        job.id,
                        attempt.number,
                    ),
                )
                if not changed.rowcount:
                    continue
                if fresh[0] == State.INITIALIZING and after.state is State.SUCCEEDED:
                    # So short that nothing was read of it while it ran: running and final in one transaction.
                    first = attempt.created_at if job.started_at is None else job.started_at
                    shift(db, job.id, State.RUNNING, now=attempt.created_at, started_at=first)
                final = after.state in FINAL
                steps = [s for s in (job.progress_step, step) if s is not None]
                changes: dict[str, Any] = {
                    "failures": after.failures,
                    "delays": after.delays,
                    "interruptions": after.interruptions,
                    "launch_failures": after.launch_failures,
                    "counted": after.counted,
                    "own_min_runtime_s": after.own_min_runtime_s,
                    "hold": after.hold,
                    "wish": "",
                    "not_before": after.not_before,
                    "reason": _reason(after, now),
                    "reason_text": "",
                    "exit_code": code,
                    "signal": number,
                    "end_reason": after.end_reason,
                    "end_text": storable(after.text),
                    "ended_at": at if final else None,
                    "gpu_seconds": job.gpu_seconds + ending.gpu_seconds,
                    "progress_step": max(steps, default=None),
                    "progress_identity": storable(ending.checkpoint_identity) or job.progress_identity,
                }
                if checkpoint:
                    changes |= {"checkpoint": checkpoint, "checkpoint_step": step}
                data = {
                    "exit_code": code,
                    "signal": number,
                    "charged": after.charged,
                    "progress": ending.facts.progress,
                    "checkpoint": checkpoint,
                    "checkpoint_step": step,
                }
                move(
                    db,
                    job.id,
                    after.state,
                    now=at,
                    actor="scheduler",
                    kind="ended",
                    text=after.text,
                    data=json.dumps(data),
                    **changes,
                )
                db.execute(
                    "INSERT INTO usage VALUES (date(?, 'unixepoch'), ?, ?, ?, 1, ?, ?)"
                    " ON CONFLICT (day, user, project, job_class) DO UPDATE SET attempts = attempts + 1,"
                    " gpu_seconds = gpu_seconds + excluded.gpu_seconds, cpu_seconds = cpu_seconds + excluded.cpu_seconds",
                    (
                        at,
                        job.user,
                        job.project,
                        job.job_class,
                        ending.gpu_seconds,
                        ending.cpu_seconds,
                    ),
                )

    def request_stops(
        self,
        victims: Iterable[tuple[Job, Stop, str]],
        rooms: Iterable[Room],
        now: float,
        actor: str = "scheduler",
    ) -> None:
        """Mark victims `stopping` and keep their room for its beneficiary, in one transaction.

        A victim that changed since it was looked at is passed over. Room is kept only for a job that still waits for
        it; when there was some to make and nobody waits any more, nothing is preempted.
        """
        rooms = list(rooms)
        with self.write() as db:
            waiting = [room for room in rooms if _waits(db, room.job)]
            for job, kind, text in victims:
                if kind is Stop.PREEMPT and rooms and not waiting:
                    continue
                row = db.execute("SELECT version FROM jobs WHERE id = ?", (job.id,)).fetchone()
                if row and row[0] == job.version:
                    ask_to_stop(db, job, kind, now, actor, None, text)
            for room in waiting:
                db.execute(
                    "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        room.job,
                        room.node,
                        json.dumps(room.gpu_uuids),
                        room.cpus,
                        room.memory_mib,
                        now,
                        room.until,
                    ),
                )

    def note_stops_written(self, attempts: Iterable[tuple[int, int, str]]) -> None:
        """The control files of (job, attempt) with that stop kind are written."""
        with self.write() as db:
            db.executemany(
                "UPDATE attempts SET stop_written = 1 WHERE job_id = ? AND number = ? AND stop_kind = ?",
                list(attempts),
            )

    def note_lost(self, job: int, number: int, now: float, text: str) -> None:
        """The supervisor of an attempt is gone; what it left is being stopped."""
        with self.write() as db:
            changed = db.execute(
                "UPDATE attempts SET lost_at = ? WHERE job_id = ? AND number = ? AND lost_at IS NULL",
                (now, job, number),
            )
            if changed.rowcount:
                db.execute(
                    ADD_EVENT, (job, number, 0, 0, None, now, "scheduler", "supervisor_lost", text, "{}")
                )

    def note_reasons(self, reasons: dict[int, tuple[str, str]]) -> None:
        """Why jobs wait: job → (code, sentence); only what changed should be handed in."""
        with self.write() as db:
            db.executemany(
                "UPDATE jobs SET reason = ?, reason_text = ? WHERE id = ? AND state = 'queued'",
                [(code, storable(text), job) for job, (code, text) in reasons.items()],
            )

    def drop_reservations(self, jobs: Iterable[int]) -> None:
        """Release the room kept for these jobs."""
        with self.write() as db:
            db.executemany("DELETE FROM reservations WHERE job_id = ?", [(job,) for job in jobs])

    def fail(self, job: int, version: int, now: float, reason: str, text: str) -> bool:
        """End a queued job that can never run; False when it has changed meanwhile."""
        try:
            with self.write() as db:
                row = db.execute("SELECT version, state FROM jobs WHERE id = ?", (job,)).fetchone()
                if row != (version, State.QUEUED):
                    return False
                changes: dict[str, Any] = {
                    "ended_at": now,
                    "end_reason": reason,
                    "end_text": storable(text),
                }
                move(
                    db,
                    job,
                    State.FAILED,
                    now=now,
                    actor="scheduler",
                    kind="ended",
                    text=text,
                    version=version,
                    **changes,
                )
        except IllegalTransition:
            return False
        return True


def _held_gpus(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT gpu_uuids FROM attempts WHERE ended_at IS NULL AND gpus > 0")
    return {uuid for (uuids,) in rows for uuid in json.loads(uuids)}


def _waits(db: sqlite3.Connection, job: int) -> bool:
    row = db.execute("SELECT state, hold FROM jobs WHERE id = ?", (job,)).fetchone()
    return bool(row == (State.QUEUED, ""))


def _reason(after: Next, now: float) -> str:
    if after.state in FINAL:
        return ""
    return "Held" if after.hold else "BackOff" if after.not_before > now else "None"


def _text(value: Any) -> str:
    """A text from a supervisor's record; '' for what is none."""
    return storable(value) if isinstance(value, str) else ""


def _integer(value: Any) -> int | None:
    """A whole number from a supervisor's record; None for what is none, or too large for a row."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None
