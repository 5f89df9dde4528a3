"""What the tick does to jobs: claim, note handles, record what supervisors wrote, settle ends, ask for stops."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .endrules import EndFacts, Next
from .errors import IllegalTransition
from .eventlog import Line
from .model import FINAL, Attempt, Job, State, Stop
from .queue import ask_to_stop
from .session import ADD_EVENT, ATTEMPT_COLUMNS, JOB_COLUMNS, LIVE_STATES, Session, move
from .values import dataclass, field


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
        jobs = {
            row[0]: Job(*row)
            for row in self.rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE state IN {LIVE_STATES}")
        }
        if not jobs:
            return []
        found: dict[tuple[int, int], LiveAttempt] = {}
        for row in self.rows(
            f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE ended_at IS NULL ORDER BY job_id"
        ):
            attempt = Attempt(*row)
            job = jobs.get(attempt.job_id)
            if job is not None and job.attempt == attempt.number:
                found[job.id, attempt.number] = LiveAttempt(job, attempt)
        streams = self.rows(
            "SELECT s.job_id, s.attempt, s.incarnation, s.rank, s.offset, s.next_number FROM streams s"
            " JOIN attempts a ON a.job_id = s.job_id AND a.number = s.attempt WHERE a.ended_at IS NULL"
        )
        for number, attempt_number, incarnation, rank, offset, next_number in streams:
            if live := found.get((number, attempt_number)):
                live.streams[incarnation, rank] = (offset, next_number)
        return list(found.values())

    def claim(self, claims: Iterable[Claim], now: float, launcher: str, folder_of: Any) -> list[LiveAttempt]:
        """Record attempts as `initializing`, compare-and-set on state and version; those that were still as seen.

        The claim adds one to the failures: an end that gives it back does so when it is settled, an end that nobody
        saw keeps it, so a hard crash never grinds for ever. `folder_of(job, number)` names an attempt's folder.
        """
        won: list[tuple[int, int]] = []
        with self.write() as db:
            for claim in claims:
                changed = db.execute(
                    "UPDATE jobs SET state = 'initializing', state_since = ?, attempt = attempt + 1,"
                    " counted = counted + 1, failures = failures + 1, reason = '', reason_text = '',"
                    " version = version + 1, wish = '' WHERE id = ? AND state = 'queued' AND version = ? AND hold = ''"
                    " RETURNING attempt",
                    (now, claim.job, claim.version),
                ).fetchone()
                if changed is None:
                    continue
                number = changed[0]
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
                db.execute("DELETE FROM reservations WHERE job_id = ?", (claim.job,))
                place = {"node": claim.node, "gpus": claim.gpu_uuids, "cpus": claim.cpus}
                db.execute(
                    ADD_EVENT,
                    (
                        claim.job,
                        number,
                        0,
                        0,
                        None,
                        now,
                        "scheduler",
                        "claimed",
                        claim.node,
                        json.dumps(place),
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

        Unique by (attempt, incarnation, rank, number): reading a line twice changes nothing.
        """
        with self.write() as db:
            for update in updates:
                key = (update.job, update.attempt, update.incarnation, update.rank)
                for line in update.lines:
                    text = str(line.data.get("text", ""))
                    row = (*key, line.number, line.at, "supervisor", line.kind, text, json.dumps(line.data))
                    if line.kind != "heartbeat":
                        db.execute(ADD_EVENT, row)
                    self._effect(update, line)
                db.execute(
                    "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (job_id, attempt, incarnation, rank)"
                    " DO UPDATE SET offset = excluded.offset, next_number = excluded.next_number",
                    (*key, update.offset, update.next_number),
                )

    def _effect(self, update: StreamUpdate, line: Line) -> None:
        db, key, data = self.db, (update.job, update.attempt), line.data
        if line.kind == "started":
            db.execute(
                "UPDATE attempts SET started_at = coalesce(started_at, ?), handle = ?, resume_from = ?"
                " WHERE job_id = ? AND number = ?",
                (line.at, str(data.get("supervisor", "")), str(data.get("resume_from", "")), *key),
            )
            state = db.execute("SELECT state, attempt FROM jobs WHERE id = ?", (update.job,)).fetchone()
            if state == (State.INITIALIZING, update.attempt):
                db.execute(
                    "UPDATE jobs SET state = 'running', state_since = ?, started_at = coalesce(started_at, ?),"
                    " version = version + 1 WHERE id = ?",
                    (line.at, line.at, update.job),
                )
        elif line.kind == "checkpoint":
            step = data.get("step")
            db.execute(
                "UPDATE attempts SET checkpoint = ?, checkpoint_step = ? WHERE job_id = ? AND number = ?",
                (str(data.get("path", "")), step, *key),
            )
            db.execute(
                "UPDATE jobs SET checkpoint = ?, checkpoint_step = ?, checkpoint_at = ? WHERE id = ? AND attempt = ?",
                (str(data.get("path", "")), step, line.at, *key),
            )
        elif line.kind == "signalled":
            db.execute("UPDATE attempts SET stop_delivered = 1 WHERE job_id = ? AND number = ?", key)
        elif line.kind == "stopping":
            # The supervisor's own deadline (walltime, window end): the job is stopping without our asking.
            db.execute(
                "UPDATE attempts SET stop_kind = ?, stop_at = coalesce(stop_at, ?), stop_written = 1"
                " WHERE job_id = ? AND number = ? AND stop_kind = ''",
                (str(data.get("stop", "")), line.at, *key),
            )
            db.execute(
                "UPDATE jobs SET state = 'stopping', state_since = ?, version = version + 1"
                " WHERE id = ? AND attempt = ? AND state = 'running'",
                (line.at, *key),
            )

    def settle(self, endings: Iterable[Ending], now: float) -> None:
        """Apply the ends of attempts: the attempt's row, the job's next state, usage, all in one transaction."""
        with self.write() as db:
            for ending in endings:
                job, attempt, after = ending.job, ending.attempt, ending.next
                fresh = db.execute(
                    "SELECT state, attempt, progress_step, wish FROM jobs WHERE id = ?", (job.id,)
                ).fetchone()
                if fresh is None or fresh[0] in FINAL or fresh[1] != attempt.number or fresh[3] != job.wish:
                    continue  # settled already, or the user has just asked for something: look again next pass
                changed = db.execute(
                    "UPDATE attempts SET ended_at = ?, end_reason = ?, exit_code = ?, signal = ?, cause = ?,"
                    " cause_text = ?, checkpoint = ?, checkpoint_step = ?, cpu_seconds = ?, max_rss_mib = ?"
                    " WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                    (
                        ending.ended_at,
                        after.end_reason,
                        ending.facts.exit_code,
                        ending.facts.signal,
                        ending.facts.cause,
                        ending.cause_text,
                        ending.checkpoint,
                        ending.checkpoint_step,
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
                    db.execute("UPDATE jobs SET state = 'running' WHERE id = ?", (job.id,))
                final = after.state in FINAL
                step = max(
                    (s for s in (job.progress_step, ending.checkpoint_step) if s is not None), default=None
                )
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
                    "reason": ""
                    if final
                    else "Held"
                    if after.hold
                    else "BackOff"
                    if after.not_before > now
                    else "None",
                    "reason_text": "",
                    "exit_code": ending.facts.exit_code,
                    "signal": ending.facts.signal,
                    "end_reason": after.end_reason,
                    "end_text": after.text,
                    "ended_at": ending.ended_at if final else None,
                    "gpu_seconds": job.gpu_seconds + ending.gpu_seconds,
                    "progress_step": step,
                    "progress_identity": ending.checkpoint_identity or job.progress_identity,
                }
                if ending.checkpoint:
                    changes |= {"checkpoint": ending.checkpoint, "checkpoint_step": ending.checkpoint_step}
                data = {
                    "exit_code": ending.facts.exit_code,
                    "signal": ending.facts.signal,
                    "charged": after.charged,
                    "progress": ending.facts.progress,
                    "checkpoint": ending.checkpoint,
                    "checkpoint_step": ending.checkpoint_step,
                }
                move(
                    db,
                    job.id,
                    after.state,
                    now=ending.ended_at,
                    actor="scheduler",
                    kind="ended",
                    text=after.text,
                    data=json.dumps(data),
                    **changes,
                )
                if final:
                    db.execute("DELETE FROM reservations WHERE job_id = ?", (job.id,))
                db.execute(
                    "INSERT INTO usage VALUES (date(?, 'unixepoch'), ?, ?, ?, 1, ?, ?)"
                    " ON CONFLICT (day, user, project, job_class) DO UPDATE SET attempts = attempts + 1,"
                    " gpu_seconds = gpu_seconds + excluded.gpu_seconds, cpu_seconds = cpu_seconds + excluded.cpu_seconds",
                    (
                        ending.ended_at,
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

        A victim that changed since it was looked at is passed over.
        """
        with self.write() as db:
            for job, kind, text in victims:
                row = db.execute("SELECT version FROM jobs WHERE id = ?", (job.id,)).fetchone()
                if row and row[0] == job.version:
                    ask_to_stop(db, job, kind, now, actor, None, text)
            for room in rooms:
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
                [(code, text, job) for job, (code, text) in reasons.items()],
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
                changes = {
                    "ended_at": now,
                    "end_reason": reason,
                    "end_text": text,
                    "reason": "",
                    "reason_text": "",
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
