"""The words of the design as values: jobs, attempts, projects, nodes, GPUs, reservations, events.

Plain dataclasses, so that `spool submit` and `spool queue` start without SQLModel; `schema.py` defines the same
tables for everybody else and a test holds the two together. Times are UTC seconds since the epoch, durations
seconds, memory MiB.
"""

from __future__ import annotations

from enum import StrEnum

from .values import dataclass, field


class State(StrEnum):
    """Where a job stands; `states.py` has the one table of what may follow what."""

    QUEUED = "queued"
    INITIALIZING = "initializing"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
LIVE = (State.INITIALIZING, State.RUNNING, State.STOPPING)

#: Slurm's two-letter codes, for people whose fingers and scripts know them.
SLURM_CODE = {
    State.QUEUED: "PD",
    State.INITIALIZING: "CF",
    State.RUNNING: "R",
    State.STOPPING: "CG",
    State.SUCCEEDED: "CD",
    State.FAILED: "F",
    State.CANCELLED: "CA",
}


class Stop(StrEnum):
    """Why an attempt is asked to stop, or was ended from outside."""

    CANCEL = "cancel"
    USER_STOP = "stop"
    WALLTIME = "walltime"
    PREEMPT = "preempt"
    WINDOW = "window"
    DRAIN = "drain"
    NODE_LOST = "node_lost"
    SLURM = "slurm"


#: Of several stops the strongest counts (design.md, "The life of a job").
STOP_STRENGTH = {Stop.CANCEL: 3, Stop.USER_STOP: 2, Stop.WALLTIME: 1}


def stronger(one: str, other: str) -> str:
    """The stop that counts when both were asked for; '' is none. The earlier one wins a tie."""
    if not one or not other:
        return one or other
    return other if STOP_STRENGTH.get(Stop(other), 0) > STOP_STRENGTH.get(Stop(one), 0) else one


@dataclass(slots=True)
class JobSpec:
    """What a user submitted and what never changes afterwards; the elements of an array share one."""

    command: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    umask: int = 0o077
    launcher: str = "plain"  # or "torchrun"
    nproc: int = 0  # workers a node under torchrun; 0: one a GPU
    python: str = ""
    module: bool = False
    gpus_per_node: int = 0
    output: str = ""
    error: str = ""
    stop_signal: str = "USR2"
    resume_arg: str = "--resume_from_checkpoint"
    checkpoint_dir: str = ""
    checkpoint_format: str = ""
    backoff_limit: int = 3
    backoff_reset: str = "never"  # or "progress"
    max_attempts: int = 100
    max_gpu_hours: float = 0.0
    on_timeout: str = ""  # "requeue", "fail"; "": by the resume rule
    stopped_exit_0: str = "requeue"  # or "done"
    kind: str = "submit"  # or "sbatch"
    comment: str = ""

    @property
    def has_resume_rule(self) -> bool:
        """Whether this job finds its checkpoint again (design.md, "Words")."""
        return bool(
            "{resume}" in self.command
            or self.checkpoint_dir
            or self.checkpoint_format
            or "gpuspool.trainer" in self.command
        )


@dataclass(slots=True)
class Job:
    """One row of `jobs`."""

    id: int
    spec_id: int
    array_id: int | None
    array_index: int | None
    name: str
    user: str
    uid: int
    project: str
    job_class: str
    priority: int
    preemptible: int
    nodes: int
    gpus: int
    cpus: int
    memory_mib: int
    gpu_type: str
    walltime_s: int
    grace_s: int
    min_runtime_s: int
    own_min_runtime_s: int
    state: str
    reason: str
    reason_text: str
    hold: str
    wish: str
    begin_at: float
    not_before: float
    submitted_at: float
    state_since: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    counted: int
    failures: int
    interruptions: int
    delays: int
    gpu_seconds: float
    progress_step: int | None
    progress_identity: str
    checkpoint: str
    checkpoint_step: int | None
    checkpoint_at: float | None
    exit_code: int | None
    signal: int | None
    end_reason: str
    end_text: str
    launch_failures: int
    version: int


@dataclass(slots=True)
class Attempt:
    """One row of `attempts`: one run of a job."""

    job_id: int
    number: int
    incarnation: int
    token: str
    backend: str
    node: str
    gpu_uuids: str  # JSON list
    gpus: int
    cpus: int
    memory_mib: int
    created_at: float
    launcher: str  # JSON process name of the scheduler that started it
    handle: str  # JSON process name of the supervisor; "" until known
    folder: str
    started_at: float | None
    walltime_s: int
    grace_s: int
    ends_by: float | None
    stop_kind: str
    stop_at: float | None
    stop_grace_s: int | None
    stop_written: int
    stop_delivered: int
    lost_at: float | None
    ended_at: float | None
    end_reason: str
    exit_code: int | None
    signal: int | None
    cause: str
    cause_text: str
    checkpoint: str
    checkpoint_step: int | None
    resume_from: str
    cpu_seconds: float
    max_rss_mib: float


@dataclass(slots=True)
class Event:
    """One row of `events`: something that happened to a job, with time, actor and cause."""

    id: int
    job_id: int
    attempt: int
    incarnation: int
    rank: int
    number: int | None
    at: float
    actor: str
    kind: str
    text: str
    data: str


@dataclass(slots=True)
class Project:
    """An owner of quota. None: no quota (unlimited for admission), no limit."""

    name: str
    quota: float | None
    limit_gpus: float | None
    weight: float
    parent: str


@dataclass(slots=True)
class Node:
    """A machine that can run attempts."""

    name: str
    host: str
    boot_id: str
    cpus: int
    memory_mib: int
    state: str  # "up", "drained", "down"
    reason: str
    seen_at: float


@dataclass(slots=True)
class GpuRow:
    """One row of `gpus`."""

    uuid: str
    node: str
    idx: int
    name: str
    type: str
    memory_mib: int
    state: str  # "up", "drained", "lost"
    reason: str


@dataclass(slots=True)
class Reservation:
    """Room kept for the beneficiary of a preemption, until `until`."""

    job_id: int
    node: str
    gpu_uuids: str
    cpus: int
    memory_mib: int
    created_at: float
    until: float


@dataclass(slots=True)
class Submission:
    """A job on its way into the spool: the shared spec and the fields that the queue is ordered by."""

    spec: JobSpec
    name: str
    user: str
    uid: int
    project: str = "default"
    job_class: str = "ondemand"
    priority: int = 50
    preemptible: bool = False
    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    memory_mib: int = 0
    gpu_type: str = ""
    walltime_s: int = 0
    grace_s: int = 60
    min_runtime_s: int = 0
    hold: str = ""
    begin_at: float = 0.0
