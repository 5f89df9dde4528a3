"""Small clusters for tests of the policy: a line a machine, a job that waits, a job that runs, a project."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from gpuspool.scheduler.plan import plan
from gpuspool.scheduler.state import (
    NEVER,
    Active,
    ClusterState,
    Gpu,
    Machine,
    Never,
    Pending,
    Plan,
    Room,
    Wait,
)
from gpuspool.spool.config import BUILT_IN_CLASSES
from gpuspool.spool.model import Project
from gpuspool.spool.window import parse_window

#: Monday, 2026-06-01 12:00:00 UTC.
NOW = 1780315200.0
NIGHTS = parse_window("nights", "UTC", ["daily 20:00-07:00"])
CLASSES = {
    **BUILT_IN_CLASSES,
    "offpeak": dataclasses.replace(BUILT_IN_CLASSES["offpeak"], window="nights"),
}


def machine(
    name: str = "n1",
    gpus: int = 0,
    *,
    types: Iterable[str] = (),
    cpus: int = 64,
    memory_mib: int = 65536,
    broken: Iterable[int] = (),
    usable: bool = True,
) -> Machine:
    """A machine with GPUs `n1-0`, `n1-1`, …, all of type a100 unless `types` says each one's."""
    kinds = list(types) or ["a100"] * gpus
    bad = set(broken)
    row = tuple(Gpu(f"{name}-{i}", i, kind, 81920, i not in bad) for i, kind in enumerate(kinds))
    return Machine(name, cpus, memory_mib, row, usable)


def job(number: int, gpus: int = 0, job_class: str = "spot", project: str = "p", **more: Any) -> Pending:
    """A job that waits since an hour before `NOW` (the lower its number the longer) and may start."""
    known = CLASSES.get(job_class)
    values: dict[str, Any] = {
        "id": number,
        "version": 1,
        "project": project,
        "job_class": job_class,
        "priority": 50,
        "preemptible": known.preemptible if known else True,
        "nodes": 1,
        "gpus": gpus,
        "cpus": 0 if gpus else 1,
        "memory_mib": 0,
        "gpu_type": "",
        "walltime_s": 0,
        "grace_s": 60,
        "hold": "",
        "begin_at": 0.0,
        "not_before": 0.0,
        "submitted_at": NOW - 1800 + number,
        "waiting_since": NOW - 1800 + number,
    }
    return Pending(**values | more)


def running(
    number: int,
    gpus: Iterable[int] = (),
    job_class: str = "spot",
    project: str = "p",
    *,
    on: str = "n1",
    ago: float = 600.0,
    saved: float | None = None,
    **more: Any,
) -> Active:
    """A job that runs on `on` with its GPUs of these numbers since `ago` seconds; `saved`: checkpointed so long ago."""
    uuids = tuple(f"{on}-{index}" for index in gpus)
    values: dict[str, Any] = {
        "id": number,
        "version": 1,
        "project": project,
        "job_class": job_class,
        "priority": 50,
        "preemptible": CLASSES[job_class].preemptible if job_class in CLASSES else True,
        "node": on,
        "gpu_uuids": uuids,
        "cpus": len(uuids) or 1,
        "memory_mib": 0,
        "state": "running",
        "grace_s": 60,
        "started_at": NOW - ago,
        "saved_at": NOW - (ago if saved is None else saved),
        "protected_until": 0.0,
        "ends_at": NEVER,
        "stopping": False,
    }
    return Active(**values | more)


def stopping(number: int, gpus: Iterable[int] = (), *rest: Any, **more: Any) -> Active:
    """As `running`, asked to stop just now."""
    return running(number, gpus, *rest, **{"state": "stopping", "stopping": True, "ends_at": NOW + 70} | more)


def project(
    name: str = "p", quota: float | None = None, limit: float | None = None, weight: float = 1.0
) -> Project:
    """A project."""
    return Project(name, quota, limit, weight, "")


def cluster(
    machines: Iterable[Machine] | Machine,
    pending: Iterable[Pending] = (),
    active: Iterable[Active] = (),
    projects: Iterable[Project] = (),
    **more: Any,
) -> ClusterState:
    """A state; projects that jobs name and that are not given have neither quota nor limit."""
    pending, active = list(pending), list(active)
    known = {entry.name: entry for entry in projects}
    for entry in [*pending, *active]:
        known.setdefault(entry.project, project(entry.project))
    more = {"classes": CLASSES, "windows": {"nights": NIGHTS}} | more
    return ClusterState(
        pending,
        active,
        [machines] if isinstance(machines, Machine) else list(machines),
        dict(sorted(known.items())),
        **more,
    )


def started(decided: Plan) -> list[int]:
    """The numbers of the jobs that start, in order."""
    return [start.job.id for start in decided.starts]


def preempted(decided: Plan) -> dict[int, list[int]]:
    """Beneficiary → victims, by number."""
    return {
        entry.beneficiary.id: sorted(victim.id for victim in entry.victims) for entry in decided.preemptions
    }


def code(decided: Plan, number: int) -> str:
    """Why a job waits: its reason's code, `Never` before it where it can never start."""
    reason: Wait | Never = decided.reasons[number]
    return ("Never" if isinstance(reason, Never) else "") + reason.code


def carried_out(state: ClusterState, decided: Plan, now: float = NOW, *, ended: bool = False) -> ClusterState:
    """The state after `decided` was carried out; `ended`: and all that was stopping has ended and is queued again."""
    starts = {start.job.id: start for start in decided.starts}
    victims = {victim.id for entry in decided.preemptions for victim in entry.victims}
    active = [
        dataclasses.replace(entry, stopping=True, state="stopping", ends_at=now + 70)
        if entry.id in victims
        else entry
        for entry in state.active
    ]
    pending = [entry for entry in state.pending if entry.id not in starts]
    for start in decided.starts:
        entry = start.job
        values = {
            "node": start.node,
            "cpus": start.cpus,
            "memory_mib": start.memory_mib,
            "grace_s": entry.grace_s,
        }
        new = running(entry.id, (), entry.job_class, entry.project, priority=entry.priority, ago=0, **values)
        active.append(dataclasses.replace(new, gpu_uuids=start.gpu_uuids, preemptible=entry.preemptible))
    if ended:
        for entry in [entry for entry in active if entry.stopping]:
            back = {"priority": entry.priority, "preemptible": entry.preemptible, "cpus": entry.cpus}
            pending.append(job(entry.id, len(entry.gpu_uuids), entry.job_class, entry.project, **back))
        active = [entry for entry in active if not entry.stopping]
    gone = set(starts) | set(decided.released)
    rooms = [room for room in state.rooms if room.job not in gone]
    rooms += [entry.room for entry in decided.preemptions]
    return dataclasses.replace(state, pending=pending, active=active, rooms=rooms)


def room_for(number: int, gpus: Iterable[int] = (), cpus: int = 1, on: str = "n1", **more: Any) -> Room:
    """Room on `on` that is kept for a job."""
    uuids = tuple(f"{on}-{index}" for index in gpus)
    return Room(
        **{"job": number, "node": on, "gpu_uuids": uuids, "cpus": cpus, "memory_mib": 0, "until": NOW + 130}
        | more
    )


def look(state: ClusterState, now: float = NOW) -> Plan:
    """One pass, and what holds of every plan: see `check`."""
    decided = plan(state, now)
    check(state, decided)
    return decided


def check(state: ClusterState, decided: Plan) -> None:
    """Everybody either starts or has exactly one reason, and no room is given twice."""
    numbers = [start.job.id for start in decided.starts]
    assert len(numbers) == len(set(numbers))
    assert not set(numbers) & set(decided.reasons)
    assert set(numbers) | set(decided.reasons) == {entry.id for entry in state.pending}
    machines = {entry.name: entry for entry in state.machines}
    for name, entry in machines.items():
        here = [other for other in state.active if other.node == name]
        new = [start for start in decided.starts if start.node == name]
        if not new:
            continue
        assert entry.usable
        given = [uuid for other in here for uuid in other.gpu_uuids] + [
            uuid for start in new for uuid in start.gpu_uuids
        ]
        assert len(given) == len(set(given)), "a GPU was given twice"
        usable = {gpu.uuid: gpu.type for gpu in entry.gpus if gpu.usable}
        for start in new:
            assert len(start.gpu_uuids) == start.job.gpus and set(start.gpu_uuids) <= set(usable)
            assert {usable[uuid] for uuid in start.gpu_uuids} <= {
                start.job.gpu_type
            } or not start.job.gpu_type
            assert start.cpus >= max(1, start.job.cpus) and start.memory_mib == start.job.memory_mib
        assert sum(other.cpus for other in here) + sum(start.cpus for start in new) <= entry.cpus
        assert (
            sum(other.memory_mib for other in here) + sum(start.memory_mib for start in new)
            <= entry.memory_mib
        )
