"""The tables of spool.db as SQLModel classes: for `db check`, and for whoever wants to query a spool with SQLModel.

`migrations.py` makes the tables; a test holds the two together. Nothing that must start quickly imports this: it
brings SQLAlchemy and pydantic along (0.3 to 0.5 s). Times are UTC seconds since the epoch, durations seconds, memory
MiB; '' and 0 mean "none" where a column cannot be null. Open a spool read-only and never write to it: the store
alone may, under the ownership of its host.

    engine = create_engine("sqlite:///file:/home/me/.local/state/gpuspool/spool.db?mode=ro&uri=true")
    with sqlmodel.Session(engine) as session:
        session.exec(select(JobRow).where(JobRow.state == "running")).all()
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, MetaData, Text, text
from sqlmodel import Field, SQLModel

#: The tables of this schema alone, apart from a user's own SQLModel classes.
METADATA = MetaData()


class Base(SQLModel):
    """What all tables share: a collection of their own."""

    metadata = METADATA


def _text(meaning: str, **column: Any) -> Any:
    return Field(sa_column=Column(Text, nullable=False, **column), description=meaning)


def _whole(meaning: str, **column: Any) -> Any:
    return Field(sa_column=Column(Integer, nullable=False, **column), description=meaning)


def _number(meaning: str) -> Any:
    return Field(sa_column=Column(Float, nullable=False), description=meaning)


def _maybe_whole(meaning: str) -> Any:
    return Field(default=None, sa_column=Column(Integer), description=meaning)


def _maybe_number(meaning: str) -> Any:
    return Field(default=None, sa_column=Column(Float), description=meaning)


class MetaRow(Base, table=True):
    """Single values: `epoch` (of the ownership, see ownership.py) and `last_tick` (UTC seconds)."""

    __tablename__ = "meta"

    key: str = _text("name of the value", primary_key=True)
    value: str = _text("the value as text")


class SpecRow(Base, table=True):
    """What a user submitted and what never changes; the elements of an array, and jobs of one call, share one."""

    __tablename__ = "specs"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: int = _whole("number, never used again", primary_key=True)
    body: str = _text("model.JobSpec as a JSON object: command, folder, environment, rules; may hold secrets")


class JobRow(Base, table=True):
    """A job: what the queue is ordered by, where it stands, and the counts of the end rules."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_state", "state"),
        Index("jobs_array", "array_id", "array_index", sqlite_where=text("array_id IS NOT NULL")),
        {"sqlite_autoincrement": True},
    )

    id: int = _whole("the job's number, never used again", primary_key=True)
    spec_id: int = Field(
        sa_column=Column(Integer, ForeignKey("specs.id"), nullable=False), description="its row in specs"
    )
    array_id: int | None = _maybe_whole("number of the array that it is an element of")
    array_index: int | None = _maybe_whole("its index in that array")
    name: str = _text("for people")
    user: str = _text("who submitted it, by name")
    uid: int = _whole("who submitted it, by number")
    project: str = _text("whose quota counts")
    job_class: str = _text("reserved, ondemand, spot, idle, offpeak, or one of the site's")
    priority: int = _whole("0 to 1000; 25 low, 50 normal, 75 high, 100 urgent")
    preemptible: int = _whole("1: may be preempted; the effective value")
    nodes: int = _whole("machines")
    gpus: int = _whole("GPUs over all nodes")
    cpus: int = _whole("CPU slots on each node")
    memory_mib: int = _whole("memory on each node; 0: no request")
    gpu_type: str = _text("types that will do, the best first, with commas between; '': any")
    walltime_s: int = _whole("longest run of one attempt; 0: no limit")
    grace_s: int = _whole("from the stop signal to SIGTERM for all, 0 to 300")
    min_runtime_s: int = _whole("not preempted before it ran this long")
    own_min_runtime_s: int = _whole(
        "the same, given by the end rules to a job that was preempted over and over"
    )
    state: str = _text("model.State: queued, initializing, running, stopping, succeeded, failed, cancelled")
    reason: str = _text("why it waits, as a word (Resources, Held, BackOff, …); '' unless queued")
    reason_text: str = _text("the same as a sentence")
    hold: str = _text("who keeps it from starting: user, stop, thrashing; '': nobody")
    wish: str = _text("what the user asked of a live job: cancel, stop; '': nothing")
    begin_at: float = _number("not started before (--begin); 0: at once")
    not_before: float = _number("not started before (a retry's delay); 0: at once")
    submitted_at: float = _number("when it was submitted")
    state_since: float = _number("when it came into this state")
    started_at: float | None = _maybe_number("when its first command started")
    ended_at: float | None = _maybe_number("when it became final; null unless it is")
    attempt: int = _whole("number of its newest attempt; 0: none yet")
    counted: int = _whole("attempts that count towards max_attempts")
    failures: int = _whole("ends that count against the backoff limit; a live attempt is counted already")
    interruptions: int = _whole("ends from outside in a row without progress")
    delays: int = _whole("failures since the last progress: the exponent of the next delay")
    gpu_seconds: float = _number("GPUs held × seconds, over all attempts that ended")
    progress_step: int | None = _maybe_whole("highest step that any ended attempt checkpointed")
    progress_identity: str = _text(
        "what tells its newest checkpoint's content from another's, for formats without step"
    )
    checkpoint: str = _text("path of its newest complete checkpoint; '': none known")
    checkpoint_step: int | None = _maybe_whole("the step of that checkpoint")
    checkpoint_at: float | None = _maybe_number("when it was seen")
    exit_code: int | None = _maybe_whole(
        "of the attempt that ended last; null: by a signal, or nobody saw it"
    )
    signal: int | None = _maybe_whole("the signal that ended it")
    end_reason: str = _text("how that attempt ended, as a word (endrules.py); '': none did yet")
    end_text: str = _text("the same as a sentence")
    launch_failures: int = _whole("times in a row that it could not be started")
    version: int = _whole("raised by each change that a scheduler must not overlook; claims compare it")


class AttemptRow(Base, table=True):
    """One run of a job: where, under which token, how it was asked to stop, how it ended. Live until ended_at."""

    __tablename__ = "attempts"
    __table_args__ = (Index("attempts_live", "job_id", sqlite_where=text("ended_at IS NULL")),)

    job_id: int = Field(
        sa_column=Column(
            Integer, ForeignKey("jobs.id"), primary_key=True, nullable=False, autoincrement=False
        ),
        description="its job",
    )
    number: int = _whole("1, 2, … within its job", primary_key=True, autoincrement=False)
    incarnation: int = _whole("Slurm's restart count, 0 on bare metal")
    token: str = _text(
        "name that no other attempt has, in files and in the environment of its processes", unique=True
    )
    backend: str = _text("what started it: local, ssh, slurm")
    node: str = _text("the machine that it runs on")
    gpu_uuids: str = _text("JSON list of the UUIDs of its GPUs")
    gpus: int = _whole("how many those are")
    cpus: int = _whole("CPU slots that it holds")
    memory_mib: int = _whole("memory that it holds")
    created_at: float = _number("when it was claimed")
    launcher: str = _text("JSON process name (processes.py) of the scheduler that claimed it")
    handle: str = _text("JSON process name of its supervisor; '': not known yet")
    folder: str = _text("its folder: plan, claims, events, end record, output")
    started_at: float | None = _maybe_number("when its command started, by the supervisor's clock")
    walltime_s: int = _whole("longest run, as it was when it started; 0: no limit")
    grace_s: int = _whole("grace, as it was when it started")
    ends_by: float | None = _maybe_number("when its window closes")
    stop_kind: str = _text("model.Stop: the strongest stop that was asked for; '': none")
    stop_at: float | None = _maybe_number("when the first stop was asked for")
    stop_grace_s: int | None = _maybe_whole("grace of that stop; null: grace_s")
    stop_written: int = _whole("1: the request stands where the supervisor reads it")
    stop_delivered: int = _whole("1: at least one process was sent a signal")
    lost_at: float | None = _maybe_number("when its supervisor was found gone")
    ended_at: float | None = _maybe_number("when it ended; null while it is live")
    end_reason: str = _text("how it ended, as a word (endrules.py)")
    exit_code: int | None = _maybe_whole("the command's exit code; null: by a signal, or nobody saw it")
    signal: int | None = _maybe_whole("the signal that ended the command")
    cause: str = _text("what the supervisor made of the end: out_of_memory, not_found, …; '': nothing")
    cause_text: str = _text("the same as a sentence")
    checkpoint: str = _text("its newest complete checkpoint; '': none")
    checkpoint_step: int | None = _maybe_whole("the step of that checkpoint")
    resume_from: str = _text("the checkpoint that it went on from; '': a fresh start")
    cpu_seconds: float = _number("CPU time of its processes")
    max_rss_mib: float = _number("largest resident memory that was seen")


class StreamRow(Base, table=True):
    """How far the event file of one rank was taken in; moved in the same transaction as what it told."""

    __tablename__ = "streams"

    job_id: int = _whole("the job", primary_key=True, autoincrement=False)
    attempt: int = _whole("the attempt's number", primary_key=True, autoincrement=False)
    incarnation: int = _whole("the incarnation", primary_key=True, autoincrement=False)
    rank: int = _whole("the node's rank in the attempt", primary_key=True, autoincrement=False)
    offset: int = _whole("bytes of the file that were taken in")
    next_number: int = _whole("number of the event that comes next")


class EventRow(Base, table=True):
    """Something that happened to a job: `spool show` prints them as the timeline."""

    __tablename__ = "events"
    __table_args__ = (
        Index("events_job", "job_id", "id"),
        Index(
            "events_once",
            "job_id",
            "attempt",
            "incarnation",
            "rank",
            "number",
            unique=True,
            sqlite_where=text("number IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: int = _whole("in the order in which they were taken in", primary_key=True)
    job_id: int = _whole("the job")
    attempt: int = _whole("its newest attempt then; 0: none yet")
    incarnation: int = _whole("the incarnation that told it")
    rank: int = _whole("the rank that told it")
    number: int | None = _maybe_whole(
        "its number in that rank's event file; null: from the scheduler or a user"
    )
    at: float = _number("when it happened, by the clock of the actor")
    actor: str = _text("scheduler, supervisor, or a user's name")
    kind: str = _text("what: submitted, claimed, started, checkpoint, stop_requested, ended, …")
    text: str = _text("for people; may be ''")
    data: str = _text("JSON object with the rest")


class ProjectRow(Base, table=True):
    """An owner of quota, as `spool project set` made it."""

    __tablename__ = "projects"

    name: str = _text("its name", primary_key=True)
    quota: float | None = _maybe_number("GPUs deserved; null: unlimited for admission")
    limit_gpus: float | None = _maybe_number("GPUs at most; null: no limit")
    weight: float = _number("its share of what is left over")
    parent: str = _text("its department; '': none")


class NodeRow(Base, table=True):
    """A machine that can run attempts, as it was last seen."""

    __tablename__ = "nodes"

    name: str = _text("its name", primary_key=True)
    host: str = _text("where it is reached")
    boot_id: str = _text("the kernel's id of the boot that was seen")
    cpus: int = _whole("CPU slots")
    memory_mib: int = _whole("memory")
    state: str = _text("up, drained, down")
    reason: str = _text("why it is not up")
    seen_at: float = _number("when it was last looked at")


class GpuRow(Base, table=True):
    """A GPU, or a MIG instance, by its UUID: indices shift, UUIDs do not. Kept when it is gone: attempts name it."""

    __tablename__ = "gpus"

    uuid: str = _text("its UUID", primary_key=True)
    node: str = _text("the machine that it was last seen in")
    idx: int = _whole("its index there, as nvidia-smi counts")
    name: str = _text("the product's name")
    type: str = _text("the short type that --gpu-type takes: a100, h100, …")
    memory_mib: int = _whole("its memory")
    state: str = _text("up, drained, lost")
    reason: str = _text("why it is not up")


class ReservationRow(Base, table=True):
    """Room that a preemption makes, for the job that waits for it; gone when that job starts or waits no more."""

    __tablename__ = "reservations"

    job_id: int = _whole("whom the room is for", primary_key=True, autoincrement=False)
    node: str = _text("the machine")
    gpu_uuids: str = _text("JSON list of the UUIDs of the GPUs")
    cpus: int = _whole("CPU slots")
    memory_mib: int = _whole("memory")
    created_at: float = _number("when the victims were asked to stop")
    until: float = _number("when it lapses")


class UsageRow(Base, table=True):
    """What was used on a day, by the day on which the attempts ended."""

    __tablename__ = "usage"

    day: str = _text("UTC, as 2030-01-31", primary_key=True)
    user: str = _text("whose jobs", primary_key=True)
    project: str = _text("whose quota", primary_key=True)
    job_class: str = _text("in which class", primary_key=True)
    attempts: int = _whole("attempts that ended")
    gpu_seconds: float = _number("GPUs held × seconds")
    cpu_seconds: float = _number("CPU time")


TABLES: tuple[type[SQLModel], ...] = (
    MetaRow,
    SpecRow,
    JobRow,
    AttemptRow,
    StreamRow,
    EventRow,
    ProjectRow,
    NodeRow,
    GpuRow,
    ReservationRow,
    UsageRow,
)
