"""What the policy looks at: the queue, what runs, the machines, the projects, as plain values without any I/O."""

from __future__ import annotations

from ..spool.config import JobClass
from ..spool.model import Project
from ..spool.values import dataclass, field
from ..spool.window import Window

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Pending:
    """A job that waits. `cpus` 0: one, or with GPUs its share of the node. Times are UTC seconds."""

    id: int
    version: int
    project: str
    job_class: str
    priority: int
    preemptible: bool
    nodes: int
    gpus: int
    cpus: int
    memory_mib: int
    gpu_type: str
    walltime_s: int
    grace_s: int
    hold: str
    begin_at: float
    not_before: float
    submitted_at: float
    waiting_since: float
    end_reason: str = ""
    reason: str = ""
    reason_text: str = ""

    @property
    def shape(self) -> tuple[int, int, int, int, str]:
        """What decides whether it fits somewhere."""
        return (self.nodes, self.gpus, self.cpus, self.memory_mib, self.gpu_type)


@dataclass(frozen=True, slots=True)
class Active:
    """A job that holds room. `saved_at`: when its work was last safe; `protected_until`: end of its minimum runtime."""

    id: int
    version: int
    project: str
    job_class: str
    priority: int
    preemptible: bool
    node: str
    gpu_uuids: tuple[str, ...]
    cpus: int
    memory_mib: int
    state: str
    grace_s: int
    started_at: float
    saved_at: float
    protected_until: float
    ends_at: float  # NEVER: unknown
    stopping: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a node; `usable` is False when drained, lost or not to be read."""

    uuid: str
    index: int
    type: str
    memory_mib: int
    usable: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with all its room."""

    name: str
    cpus: int
    memory_mib: int
    gpus: tuple[Gpu, ...] = ()
    usable: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Room:
    """Room that is kept for the beneficiary of a preemption."""

    job: int
    node: str
    gpu_uuids: tuple[str, ...]
    cpus: int
    memory_mib: int
    until: float


@dataclass(slots=True)
class ClusterState:
    """All of it, at one moment."""

    pending: list[Pending]
    active: list[Active]
    machines: list[Machine]
    projects: dict[str, Project]
    classes: dict[str, JobClass]
    windows: dict[str, Window] = field(default_factory=dict)
    rooms: list[Room] = field(default_factory=list)
    min_slice_s: int = 900
    drain_after_s: int = 3600
    term_to_kill_s: int = 10


@dataclass(frozen=True, slots=True)
class Start:
    """Start this job there, now."""

    job: Pending
    node: str
    gpu_uuids: tuple[str, ...]
    cpus: int
    memory_mib: int
    ends_by: float | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Stop these so that that one fits; the room stays its own until then."""

    beneficiary: Pending
    victims: tuple[Active, ...]
    room: Room


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job does not start now: a stable code, a sentence with the missing amount, and the earliest change."""

    code: str
    text: str
    until: float | None = None  # None: unknown


@dataclass(frozen=True, slots=True)
class Never:
    """Why a job cannot start on this cluster as it is, whatever else ends."""

    code: str
    text: str


@dataclass(slots=True)
class Plan:
    """What to do now, and for everybody left in the queue why not."""

    starts: list[Start] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    reasons: dict[int, Wait | Never] = field(default_factory=dict)
    released: list[int] = field(default_factory=list)  # beneficiaries whose room is no longer kept
    wake_at: float | None = None  # when time alone changes something
