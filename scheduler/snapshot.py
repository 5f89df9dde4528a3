"""From the store's rows to the policy's `ClusterState`: two reads for the jobs, one each for the rest."""

from __future__ import annotations

import json

from ..spool.config import Config
from ..spool.lifecycle import LiveAttempt
from ..spool.model import Project, State
from ..spool.store import Store
from .state import NEVER, Active, ClusterState, Gpu, Machine, Pending, Room

_PENDING = (
    "SELECT id, version, project, job_class, priority, preemptible, nodes, gpus, cpus, memory_mib, gpu_type,"
    " walltime_s, grace_s, hold, begin_at, not_before, submitted_at, max(state_since, begin_at, not_before), end_reason,"
    " reason, reason_text FROM jobs WHERE state = 'queued' ORDER BY id"
)


def take(store: Store, config: Config, live: list[LiveAttempt]) -> ClusterState:
    """The state of the spool now; `live` is what `store.live()` gave in the same pass."""
    pending = [
        Pending(row[0], row[1], row[2], row[3], row[4], bool(row[5]), *row[6:])
        for row in store.rows(_PENDING)
    ]
    by_node: dict[str, list[Gpu]] = {}
    for gpu in store.gpus():
        by_node.setdefault(gpu.node, []).append(
            Gpu(gpu.uuid, gpu.idx, gpu.type, gpu.memory_mib, gpu.state == "up")
        )
    machines = [
        Machine(
            node.name,
            node.cpus,
            node.memory_mib,
            tuple(by_node.get(node.name, ())),
            node.state == "up",
            node.reason,
        )
        for node in store.nodes()
    ]
    rooms = [
        Room(row.job_id, row.node, tuple(json.loads(row.gpu_uuids)), row.cpus, row.memory_mib, row.until)
        for row in store.reservations()
    ]
    return ClusterState(
        pending=pending,
        active=[_active(entry, config) for entry in live],
        machines=machines,
        projects=known_projects(store, config),
        classes=config.classes,
        windows=config.windows,
        rooms=rooms,
        min_slice_s=config["policy.min_slice"],
        drain_after_s=config["policy.drain_after"],
        term_to_kill_s=config["supervisor.term_to_kill"],
    )


def known_projects(store: Store, config: Config) -> dict[str, Project]:
    """All projects by name: those of `spool project set` and those of the configuration, which wins."""
    return store.projects() | config.projects


def _active(entry: LiveAttempt, config: Config) -> Active:
    job, attempt = entry.job, entry.attempt
    started = attempt.started_at or attempt.created_at
    ends = [started + attempt.walltime_s] if attempt.walltime_s else []
    if attempt.ends_by is not None:
        ends.append(attempt.ends_by)
    if job.state == State.STOPPING and attempt.stop_at is not None:
        grace = attempt.grace_s if attempt.stop_grace_s is None else attempt.stop_grace_s
        ends.append(attempt.stop_at + grace + config["supervisor.term_to_kill"])
    saved = started
    if job.checkpoint_at is not None and job.checkpoint_at > started and attempt.checkpoint:
        saved = job.checkpoint_at
    return Active(
        job.id,
        job.version,
        job.project,
        job.job_class,
        job.priority,
        bool(job.preemptible),
        attempt.node,
        tuple(json.loads(attempt.gpu_uuids)),
        attempt.cpus,
        attempt.memory_mib,
        job.state,
        job.grace_s,
        started,
        saved,
        started + max(job.min_runtime_s, job.own_min_runtime_s),
        min(ends, default=NEVER),
        stopping=bool(attempt.stop_kind) or job.state == State.STOPPING or attempt.lost_at is not None,
    )
