"""What users do with jobs: submit, list, show, and the wishes (cancel, stop, hold, …) that the tick carries out."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import asdict
from typing import Any

from .errors import BadRequest, NoSuchJob
from .model import FINAL, SLURM_CODE, Attempt, Event, Job, JobSpec, State, Stop, Submission, stronger
from .session import (
    ADD_EVENT,
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    JOB_COLUMNS,
    UNFINISHED_STATES,
    Session,
    move,
    storable,
)
from .values import dataclass

_INSERT_JOB = (
    f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES (?, ?, NULL, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0,"
    " 'queued', ?, ?, ?, '', ?, 0, ?, ?, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, '', '', NULL, NULL, NULL, NULL, '', '', 0, 1)"
)
#: The highest number that a job ever had.
_LAST_NUMBER = "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"

#: Who holds a job (`Job.hold`) → the sentence for the user.
HOLD_TEXTS = {
    "user": "held; 'spool release' lets it go",
    "stop": "stopped by the user; 'spool resume' lets it go on",
    "thrashing": "preempted ten times in a row without progress; 'spool resume' lets it try again",
}


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


#: Spelt outside of the classes below, in which `list` is a verb.
Outcomes = list[Outcome]


class QueueVerbs(Session):
    """The verbs of the queue."""

    def submit(self, submissions: list[Submission], now: float) -> list[int]:
        """Put jobs into the queue, all or none; their numbers, in order. Specs that are one object are stored once."""
        floor = self._above_old_folders(len(submissions))
        with self.write() as db:
            first = max(_last_number(db), floor) + 1
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
                        storable(sub.name),
                        storable(sub.user),
                        sub.uid,
                        storable(sub.project),
                        sub.job_class,
                        sub.priority,
                        int(sub.preemptible),
                        sub.nodes,
                        sub.gpus,
                        sub.cpus,
                        sub.memory_mib,
                        storable(sub.gpu_type),
                        sub.walltime_s,
                        sub.grace_s,
                        sub.min_runtime_s,
                        reason,
                        HOLD_TEXTS.get(sub.hold, ""),
                        sub.hold,
                        sub.begin_at,
                        now,
                        now,
                    )
                )
                events.append((number, 0, 0, 0, None, now, storable(sub.user), "submitted", "", "{}"))
            db.executemany(_INSERT_JOB, rows)
            db.executemany(ADD_EVENT, events)
        return list(range(first, first + len(submissions)))

    def _above_old_folders(self, count: int) -> int:
        """The highest job that has a folder although the database has yet to give out its number; 0 as a rule.

        A number is never used twice, not even when the database was removed or an old copy of it put back: the new
        job would find the old one's claims and checkpoints. Looked at before the transaction, since the run folder
        may hang; a few numbers more, for those who submit at the same moment.
        """
        folder = os.path.join(self.folders.run, "jobs")
        rows = self.rows(_LAST_NUMBER)
        last = int(rows[0][0]) if rows else 0
        if count <= 1000:
            numbers = range(last + 1, last + count + 17)
            if not any(os.path.lexists(f"{folder}/{number}") for number in numbers):
                return 0
        try:
            names = os.listdir(folder)
        except OSError:
            return 0
        found = [int(name) for name in (name.partition("_")[0] for name in names) if _is_number(name)]
        return max(found, default=0)

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
            where.append("id IN (SELECT value FROM json_each(?))")  # no limit on their number
            values.append(json.dumps(jobs))
        if states:
            where.append(f"state IN ({','.join('?' * len(states))})")
            values += states
        elif not finished and not jobs:
            where.append(f"state IN {UNFINISHED_STATES}")
        for column, value in (("user", user), ("project", project), ("name", name)):
            if value:
                where.append(f"{column} = ?")
                values.append(storable(value))
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
        rows = self.rows(
            "SELECT job_id, node, gpu_uuids FROM attempts JOIN jobs ON jobs.id = job_id AND jobs.attempt = number"
            " WHERE job_id IN (SELECT value FROM json_each(?))",
            (json.dumps(jobs),),
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    # -- wishes ------------------------------------------------------------------------------------------

    def cancel(self, jobs: tuple[int, ...], now: float, actor: str, *, at_once: bool = False) -> Outcomes:
        """Cancel jobs: those that wait at once, those that run after a checkpoint (`at_once`: without)."""
        return self._wish(jobs, Stop.CANCEL, now, actor, 0 if at_once else None)

    def stop(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Stop jobs until `resume`: checkpoint, then queued and held."""
        return self._wish(jobs, Stop.USER_STOP, now, actor, None)

    def preempt(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Preempt jobs that run: checkpoint, then queued again, never charged."""
        return self._wish(jobs, Stop.PREEMPT, now, actor, None)

    def _wish(
        self, jobs: tuple[int, ...], kind: Stop, now: float, actor: str, grace_s: int | None
    ) -> Outcomes:
        outcomes = []
        with self.write() as db:
            for number in jobs:
                outcomes.append(self._wish_one(db, _find(db, number), kind, now, actor, grace_s))
        return outcomes

    def _wish_one(
        self, db: sqlite3.Connection, job: Job, kind: Stop, now: float, actor: str, grace_s: int | None
    ) -> Outcome:
        if job.state in FINAL:
            return Outcome(job.id, False, f"{_has(job.state)} already")
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
                )
                return Outcome(job.id, True, "cancelled")
            if kind is Stop.USER_STOP:
                if job.hold == "stop":
                    return Outcome(job.id, False, "is stopped already")
                _hold(db, job, "stop", now, actor)
                return Outcome(job.id, True, "stopped; 'spool resume' lets it go on")
            return Outcome(job.id, False, "is queued and does not run")
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

    def hold(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Keep jobs that wait from starting until `release`."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state in FINAL:
                    outcomes.append(Outcome(number, False, f"{_has(job.state)} already"))
                elif job.state != State.QUEUED:
                    outcomes.append(
                        Outcome(number, False, f"is {job.state}; 'spool stop' stops a job that runs")
                    )
                elif job.hold:
                    outcomes.append(Outcome(number, False, "is held already"))
                else:
                    _hold(db, job, "user", now, actor)
                    outcomes.append(Outcome(number, True, "held; 'spool release' lets it go on"))
        return outcomes

    def release(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Let held jobs start again, whoever held them; what backs off may start at once."""
        outcomes = []
        with self.write() as db:
            for number in jobs:
                job = _find(db, number)
                if job.state != State.QUEUED or not (job.hold or job.not_before > now):
                    how = (
                        f"{_has(job.state)} already" if job.state in FINAL else f"is {job.state} and not held"
                    )
                    outcomes.append(Outcome(number, False, how))
                    continue
                self._let_go(db, job, now, actor, "released")
                outcomes.append(Outcome(number, True, "released"))
        return outcomes

    def resume(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
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
                elif job.wish == Stop.USER_STOP:
                    text = "is still being stopped; resume it when 'spool queue' shows it as stopped"
                    outcomes.append(Outcome(number, False, text))
                else:
                    outcomes.append(Outcome(number, False, f"is {job.state} and not stopped"))
        return outcomes

    def requeue(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
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
                    outcome = self._wish_one(db, job, Stop.PREEMPT, now, actor, None)
                    if outcome.done:
                        outcome = Outcome(number, True, "is being stopped, then it is queued again")
                    outcomes.append(outcome)
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


def _last_number(db: sqlite3.Connection) -> int:
    row = db.execute(_LAST_NUMBER).fetchone()
    return int(row[0]) if row else 0


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 16


def _find(db: sqlite3.Connection, number: int) -> Job:
    row = db.execute(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise NoSuchJob(job=number)
    return Job(*row)


def _has(state: str) -> str:
    """A final state as the verb of a sentence."""
    return "is cancelled" if state == State.CANCELLED else f"has {state}"


def _hold(db: sqlite3.Connection, job: Job, hold: str, now: float, actor: str) -> None:
    db.execute(
        "UPDATE jobs SET hold = ?, reason = 'Held', reason_text = ?, version = version + 1 WHERE id = ?",
        (hold, HOLD_TEXTS[hold], job.id),
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


#: Slurm's words for states, beside its two letters in `SLURM_CODE`.
_SLURM_STATES = {
    "pending": State.QUEUED,
    "configuring": State.INITIALIZING,
    "completing": State.STOPPING,
    "completed": State.SUCCEEDED,
}


def states_from(text: str) -> tuple[str, ...]:
    """States from a list such as `running,queued`, `PD,R` or `all`; () for ''. Raises BadRequest."""
    known: dict[str, tuple[State, ...]] = {"all": tuple(State)}
    known |= {str(state): (state,) for state in State}
    known |= {code.lower(): (state,) for state, code in SLURM_CODE.items()}
    known |= {word: (state,) for word, state in _SLURM_STATES.items()}
    found: list[str] = []
    for word in text.split(","):
        if not word.strip():
            continue
        states = known.get(word.strip().lower())
        if states is None:
            raise BadRequest(
                what="the state",
                value=word.strip(),
                why="there is no such state",
                remedy=f"Choose from {', '.join(State)}; or all, or Slurm's PD, R, CG, …",
            )
        found += states
    return tuple(dict.fromkeys(found))
