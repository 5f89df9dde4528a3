"""What users do with jobs: submit, list, show, and the wishes (cancel, stop, hold, …) that the tick carries out."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from .errors import BadRequest, NoSuchJob
from .model import FINAL, Attempt, Event, Job, JobSpec, State, Stop, Submission, stronger
from .session import ADD_EVENT, ATTEMPT_COLUMNS, EVENT_COLUMNS, JOB_COLUMNS, UNFINISHED_STATES, Session, move
from .values import dataclass

_INSERT_JOB = (
    f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES (?, ?, NULL, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0,"
    " 'queued', ?, ?, ?, '', ?, 0, ?, ?, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, '', '', NULL, NULL, NULL, NULL, '', '', 0, 1)"
)


@dataclass(frozen=True, slots=True)
class JobView:
    """All that the spool knows of one job."""

    job: Job
    spec: JobSpec
    attempts: list[Attempt]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a wish did to one job: `done` when it changed something, and the sentence for the user."""

    job: int
    done: bool
    text: str


class QueueVerbs(Session):
    """The verbs of the queue."""

    def submit(self, submissions: list[Submission], now: float) -> list[int]:
        """Put jobs into the queue, all or none; their numbers, in order. Specs that are one object are stored once."""
        with self.write() as db:
            seq = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
            first = (seq[0] if seq else 0) + 1
            known: dict[int, int] = {}
            rows, events = [], []
            for number, sub in enumerate(submissions, first):
                spec = known.get(id(sub.spec))
                if spec is None:
                    body = json.dumps(asdict(sub.spec), separators=(",", ":"))
                    spec = db.execute("INSERT INTO specs (body) VALUES (?)", (body,)).lastrowid or 0
                    known[id(sub.spec)] = spec
                reason = "Held" if sub.hold else "BeginTime" if sub.begin_at > now else "None"
                rows.append(
                    (
                        number,
                        spec,
                        sub.name,
                        sub.user,
                        sub.uid,
                        sub.project,
                        sub.job_class,
                        sub.priority,
                        int(sub.preemptible),
                        sub.nodes,
                        sub.gpus,
                        sub.cpus,
                        sub.memory_mib,
                        sub.gpu_type,
                        sub.walltime_s,
                        sub.grace_s,
                        sub.min_runtime_s,
                        reason,
                        "",
                        sub.hold,
                        sub.begin_at,
                        now,
                        now,
                    )
                )
                events.append((number, 0, 0, 0, None, now, sub.user, "submitted", "", "{}"))
            db.executemany(_INSERT_JOB, rows)
            db.executemany(ADD_EVENT, events)
        return list(range(first, first + len(submissions)))

    def job(self, job: int) -> Job:
        """One job. Raises NoSuchJob."""
        rows = self.rows(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (job,))
        if not rows:
            raise NoSuchJob(job=job)
        return Job(*rows[0])

    def last_job(self, user: str = "") -> int:
        """The number of the newest job (of `user`). Raises NoSuchJob when there is none."""
        where, values = ("WHERE user = ?", (user,)) if user else ("", ())
        rows = self.rows(f"SELECT max(id) FROM jobs {where}", values)
        if rows[0][0] is None:
            raise NoSuchJob(job="'last'")
        return int(rows[0][0])

    def spec(self, spec_id: int) -> JobSpec:
        """The spec that one or more jobs share."""
        rows = self.rows("SELECT body FROM specs WHERE id = ?", (spec_id,))
        return spec_of(rows[0][0])

    def list(
        self,
        *,
        finished: bool = False,
        user: str = "",
        project: str = "",
        states: tuple[str, ...] = (),
        name: str = "",
        jobs: tuple[int, ...] = (),
        limit: int = 0,
    ) -> list[Job]:
        """Jobs in the order of their numbers; without `finished`, `states` or `jobs` only those that are not final."""
        where: list[str] = []
        values: list[Any] = []
        if jobs:
            where.append(f"id IN ({','.join('?' * len(jobs))})")
            values += jobs
        elif states:
            where.append(f"state IN ({','.join('?' * len(states))})")
            values += states
        elif not finished:
            where.append(f"state IN {UNFINISHED_STATES}")
        for column, value in (("user", user), ("project", project), ("name", name)):
            if value:
                where.append(f"{column} = ?")
                values.append(value)
        clause = f"WHERE {' AND '.join(where)}" if where else ""
        tail = f"LIMIT {int(limit)}" if limit else ""
        order = "DESC" if limit else "ASC"
        rows = self.rows(f"SELECT {JOB_COLUMNS} FROM jobs {clause} ORDER BY id {order} {tail}", tuple(values))
        found = [Job(*row) for row in rows]
        return found[::-1] if limit else found

    def show(self, job: int) -> JobView:
        """Everything about one job. Raises NoSuchJob."""
        found = self.job(job)
        attempts = self.rows(
            f"SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE job_id = ? ORDER BY number", (job,)
        )
        events = self.rows(f"SELECT {EVENT_COLUMNS} FROM events WHERE job_id = ? ORDER BY at, id", (job,))
        return JobView(
            found,
            self.spec(found.spec_id),
            [Attempt(*row) for row in attempts],
            [Event(*row) for row in events],
        )

    def attempts_of(self, jobs: tuple[int, ...]) -> dict[int, tuple[str, str]]:
        """Node and GPU list (JSON) of the newest attempt of each of `jobs`."""
        marks = ",".join("?" * len(jobs))
        rows = self.rows(
            f"SELECT job_id, node, gpu_uuids FROM attempts JOIN jobs ON jobs.id = job_id AND jobs.attempt = number"
            f" WHERE job_id IN ({marks})",
            jobs,
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    # -- wishes ------------------------------------------------------------------------------------------

    def cancel(
        self, jobs: tuple[int, ...], now: float, actor: str, *, at_once: bool = False
    ) -> list[Outcome]:
        """Cancel jobs: those that wait at once, those that run after a checkpoint (`at_once`: without)."""
        return self._wish(jobs, Stop.CANCEL, now, actor, 0 if at_once else None)

    def stop(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Stop jobs until `resume`: checkpoint, then queued and held."""
        return self._wish(jobs, Stop.USER_STOP, now, actor, None)

    def preempt(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Preempt jobs that run: checkpoint, then queued again, never charged."""
        return self._wish(jobs, Stop.PREEMPT, now, actor, None)

    def _wish(
        self, jobs: tuple[int, ...], kind: Stop, now: float, actor: str, grace_s: int | None
    ) -> list[Outcome]:
        outcomes = []
        with self.write() as db:
            for number in jobs:
                outcomes.append(self._wish_one(db, _find(db, number), kind, now, actor, grace_s))
        return outcomes

    def _wish_one(
        self, db: sqlite3.Connection, job: Job, kind: Stop, now: float, actor: str, grace_s: int | None
    ) -> Outcome:
        if job.state in FINAL:
            return Outcome(job.id, False, f"is {job.state} already")
        if job.state == State.QUEUED:
            if kind is Stop.CANCEL:
                move(
                    db,
                    job.id,
                    State.CANCELLED,
                    now=now,
                    actor=actor,
                    kind="cancelled",
                    text="cancelled while it waited",
                    ended_at=now,
                    end_reason="cancelled",
                    end_text="cancelled while it waited",
                    reason="",
                    reason_text="",
                )
                db.execute("DELETE FROM reservations WHERE job_id = ?", (job.id,))
                return Outcome(job.id, True, "cancelled")
            if kind is Stop.USER_STOP:
                _hold(db, job, "stop", now, actor)
                return Outcome(job.id, True, "stopped; 'spool resume' lets it go on")
            return Outcome(job.id, False, "does not run")
        wish = str(kind) if kind in (Stop.CANCEL, Stop.USER_STOP) else ""
        if wish and not (job.wish == Stop.CANCEL and wish == Stop.USER_STOP):
            db.execute("UPDATE jobs SET wish = ?, version = version + 1 WHERE id = ?", (wish, job.id))
        if not ask_to_stop(db, job, kind, now, actor, grace_s):
            return Outcome(job.id, False, "is being stopped already")
        words = {
            Stop.CANCEL: "is being cancelled",
            Stop.USER_STOP: "is being stopped; 'spool resume' lets it go on",
        }
        return Outcome(job.id, True, words.get(kind, "is being preempted"))

    def hold(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Keep jobs that wait from starting until `release`."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state != State.QUEUED:
                    outcomes.append(
                        Outcome(number, False, f"is {job.state}; 'spool stop' stops a job that runs")
                    )
                elif job.hold:
                    outcomes.append(Outcome(number, False, "is held already"))
                else:
                    _hold(db, job, "user", now, actor)
                    outcomes.append(Outcome(number, True, "held; 'spool release' lets it go on"))
        return outcomes

    def release(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Let held jobs start again, whoever held them; what backs off may start at once."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state != State.QUEUED or not (job.hold or job.not_before > now):
                    outcomes.append(Outcome(number, False, f"is {job.state} and not held"))
                    continue
                self._let_go(db, job, now, actor, "released")
                outcomes.append(Outcome(number, True, "released"))
        return outcomes

    def resume(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Let stopped, thrashing or finished jobs go on from their checkpoints."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state == State.QUEUED and job.hold:
                    self._let_go(db, job, now, actor, "resumed")
                    outcomes.append(Outcome(number, True, "resumed"))
                elif job.state in (State.FAILED, State.CANCELLED):
                    _again(db, job, now, actor, "resumed")
                    outcomes.append(Outcome(number, True, "queued again; it goes on from its checkpoint"))
                elif job.state == State.SUCCEEDED:
                    outcomes.append(Outcome(number, False, "has succeeded; 'spool requeue' runs it again"))
                else:
                    outcomes.append(Outcome(number, False, f"is {job.state} and not stopped"))
        return outcomes

    def requeue(self, jobs: tuple[int, ...], now: float, actor: str) -> list[Outcome]:
        """Run jobs again: a finished one from the queue, a running one after a checkpoint."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state in FINAL:
                    _again(db, job, now, actor, "requeued")
                    outcomes.append(Outcome(number, True, "queued again"))
                elif job.state == State.QUEUED:
                    outcomes.append(Outcome(number, False, "is queued already"))
                else:
                    outcomes.append(self._wish_one(db, job, Stop.PREEMPT, now, actor, None))
        return outcomes

    def _let_go(self, db: sqlite3.Connection, job: Job, now: float, actor: str, kind: str) -> None:
        db.execute(
            "UPDATE jobs SET hold = '', reason = 'None', reason_text = '', not_before = 0, interruptions = 0,"
            " version = version + 1 WHERE id = ?",
            (job.id,),
        )
        db.execute(ADD_EVENT, (job.id, job.attempt, 0, 0, None, now, actor, kind, "", "{}"))


def ask_to_stop(
    db: sqlite3.Connection,
    job: Job,
    kind: Stop,
    now: float,
    actor: str,
    grace_s: int | None = None,
    text: str = "",
) -> bool:
    """Note on the live attempt of `job` that it is to stop; False when a stronger stop stands there already.

    The tick writes the request where the supervisor reads it. A running job becomes `stopping`; one that is
    `initializing` keeps its state, the tick revokes it.
    """
    row = db.execute(
        "SELECT stop_kind, stop_grace_s FROM attempts WHERE job_id = ? AND number = ?", (job.id, job.attempt)
    ).fetchone()
    before = str(row[0])
    winner = stronger(before, kind)
    shorter = grace_s is not None and (row[1] is None or grace_s < row[1])
    if winner == before and not shorter:
        return False
    db.execute(
        "UPDATE attempts SET stop_kind = ?, stop_at = coalesce(stop_at, ?), stop_grace_s = ?, stop_written = 0"
        " WHERE job_id = ? AND number = ?",
        (winner, now, grace_s if grace_s is not None else row[1], job.id, job.attempt),
    )
    if job.state == State.RUNNING:
        move(db, job.id, State.STOPPING, now=now, actor=actor, kind="stop_requested", text=text or str(kind))
    else:
        event = (job.id, job.attempt, 0, 0, None, now, actor, "stop_requested", text or str(kind), "{}")
        db.execute(ADD_EVENT, event)
        db.execute("UPDATE jobs SET version = version + 1 WHERE id = ?", (job.id,))
    return True


def spec_of(body: str) -> JobSpec:
    """A stored spec; fields that a newer program added are passed over."""
    value = json.loads(body)
    names = JobSpec.__dataclass_fields__
    return JobSpec(**{name: item for name, item in value.items() if name in names})


def _find(db: sqlite3.Connection, number: int) -> Job:
    row = db.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise NoSuchJob(job=number)
    return Job(*row)


def _hold(db: sqlite3.Connection, job: Job, hold: str, now: float, actor: str) -> None:
    db.execute(
        "UPDATE jobs SET hold = ?, reason = 'Held', reason_text = '', version = version + 1 WHERE id = ?",
        (hold, job.id),
    )
    db.execute("DELETE FROM reservations WHERE job_id = ?", (job.id,))
    db.execute(ADD_EVENT, (job.id, job.attempt, 0, 0, None, now, actor, "held", hold, "{}"))


def _again(db: sqlite3.Connection, job: Job, now: float, actor: str, kind: str) -> None:
    """A final job back into the queue, with fresh counts; its checkpoints and its story stay."""
    move(
        db,
        job.id,
        State.QUEUED,
        now=now,
        actor=actor,
        kind=kind,
        by_user=True,
        hold="",
        wish="",
        reason="None",
        reason_text="",
        not_before=0.0,
        ended_at=None,
        exit_code=None,
        signal=None,
        end_reason="",
        end_text="",
        counted=0,
        failures=0,
        delays=0,
        interruptions=0,
        launch_failures=0,
        own_min_runtime_s=0,
    )


def refuse_unknown_states(states: tuple[str, ...]) -> None:
    """Raise BadRequest for a state that there is not."""
    for state in states:
        if state not in list(State):
            raise BadRequest(
                what="the state",
                value=state,
                why="there is no such state",
                remedy=f"Choose from {', '.join(State)}.",
            )
