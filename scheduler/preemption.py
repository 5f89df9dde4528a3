"""Making room by stopping what is less entitled (design.md, "Reclaim", "Preemption"). O(active log active) an attempt.

Within a project a higher class, or the same class with a higher priority, preempts. Across projects only quota
counts: up to its quota a project reclaims from preemptible jobs of projects that hold more than theirs. Victims are
chosen so that the job really fits: over-quota before in-quota, lower class and priority first, then least GPU time
lost since the last checkpoint; none below its minimum runtime. Then as many as possible are put back. No set, no
preemption.
"""

from __future__ import annotations

from .ledger import Ledger, NodeRoom
from .state import Active, Pending, Preemption, Room

#: How long room is kept beyond the victims' grace and kill.
ROOM_MARGIN_S = 60.0


def preempt(ledger: Ledger, job: Pending, chosen: set[int], now: float) -> Preemption | None:
    """The cheapest set of victims on one node after which `job` fits there; None when there is none.

    `chosen` are jobs that are victims already in this pass.
    """
    best: tuple[tuple[float, ...], Preemption] | None = None
    for node in ledger.nodes.values():
        candidates = [
            active
            for active in ledger.state.active
            if active.node == node.machine.name
            and active.id not in chosen
            and not active.stopping
            and may_preempt(ledger, job, active, now)
        ]
        found = _on_node(ledger, job, node, candidates, now)
        if found is None:
            continue
        cost = (float(len(found.victims)), sum(_lost(victim, now) for victim in found.victims))
        if best is None or cost < best[0]:
            best = (cost, found)
    return best[1] if best else None


def may_preempt(ledger: Ledger, job: Pending, victim: Active, now: float) -> bool:
    """Whether `job` is more entitled to the room of `victim`; the matrix stands in docs/architecture.md."""
    if not victim.preemptible or victim.protected_until > now:
        return False
    classes = ledger.state.classes
    mine, theirs = classes[job.job_class], classes.get(victim.job_class)
    if victim.project == job.project:
        return (mine.rank, job.priority) > (theirs.rank if theirs else 0, victim.priority)
    if not job.gpus or not victim.gpu_uuids:
        return False  # quotas are of GPUs: a job without any reclaims nothing from others
    return _within_quota(ledger, job) and ledger.over_quota(victim.project)


def _within_quota(ledger: Ledger, job: Pending) -> bool:
    project = ledger.state.projects.get(job.project)
    if project is None:
        return False
    if project.quota is None:
        # Unset is unlimited for what is bound to quota, and claims nothing for everything else.
        return ledger.state.classes[job.job_class].quota_bound
    held = ledger.allocated if job.preemptible else ledger.non_preemptible
    return held.get(job.project, 0) + job.gpus <= project.quota


def _lost(victim: Active, now: float) -> float:
    """GPU seconds (CPU seconds where it has no GPU) since its work was last safe."""
    return max(0.0, now - victim.saved_at) * (len(victim.gpu_uuids) or victim.cpus)


def _on_node(
    ledger: Ledger, job: Pending, node: NodeRoom, candidates: list[Active], now: float
) -> Preemption | None:
    classes = ledger.state.classes
    order = sorted(
        candidates,
        key=lambda victim: (
            not ledger.over_quota(victim.project),
            classes[victim.job_class].rank if victim.job_class in classes else 0,
            victim.priority,
            _lost(victim, now),
            -victim.started_at,
            victim.id,
        ),
    )
    victims: list[Active] = []
    reclaimed: dict[str, float] = {}
    for victim in order:
        if _fits(node, job, victims, ledger):
            break
        if victim.project != job.project:
            # Reclaiming stops where the victims' project is down to its quota.
            entry = ledger.state.projects.get(victim.project)
            quota = entry.quota if entry and entry.quota is not None else 0.0
            left = ledger.allocated.get(victim.project, 0) - reclaimed.get(victim.project, 0)
            if left <= quota:
                continue
            reclaimed[victim.project] = reclaimed.get(victim.project, 0) + len(victim.gpu_uuids)
        victims.append(victim)
    if not victims or not _fits(node, job, victims, ledger):
        return None
    for victim in reversed(list(victims)):
        rest = [other for other in victims if other is not victim]
        if _fits(node, job, rest, ledger):
            victims = rest
    if not victims:
        return None  # what stops already is enough: no more need be stopped
    cpus = node.cpus_for(job)
    gpus = [gpu.uuid for gpu in sorted(node.open_gpus(job.gpu_type), key=lambda gpu: gpu.index)]
    types = {gpu.uuid: gpu.type for gpu in node.machine.gpus if gpu.usable}
    gpus += _stopping_gpus(node, job, ledger)
    gpus += [
        uuid
        for victim in victims
        for uuid in victim.gpu_uuids
        if types.get(uuid) in ((job.gpu_type,) if job.gpu_type else types.values())
    ]
    grace = max(victim.grace_s for victim in victims) + ledger.state.term_to_kill_s
    room = Room(
        job.id, node.machine.name, tuple(gpus[: job.gpus]), cpus, job.memory_mib, now + grace + ROOM_MARGIN_S
    )
    return Preemption(job, tuple(victims), room)


def _stopping_gpus(node: NodeRoom, job: Pending, ledger: Ledger) -> list[str]:
    """GPUs of jobs that are stopping already and that are kept for nobody."""
    types = {gpu.uuid: gpu.type for gpu in node.machine.gpus if gpu.usable}
    return [
        uuid
        for active in ledger.state.active
        if active.stopping and active.node == node.machine.name
        for uuid in active.gpu_uuids
        if uuid in types and uuid not in node.kept_gpus and job.gpu_type in ("", types[uuid])
    ]


def _fits(node: NodeRoom, job: Pending, victims: list[Active], ledger: Ledger) -> bool:
    """Whether `job` fits on `node` once `victims` and what stops already have ended."""
    types = {gpu.uuid: gpu.type for gpu in node.machine.gpus if gpu.usable}
    gpus = len(node.open_gpus(job.gpu_type)) + len(_stopping_gpus(node, job, ledger))
    gpus += sum(
        uuid in types and job.gpu_type in ("", types[uuid]) for victim in victims for uuid in victim.gpu_uuids
    )
    cpus = node.cpus + node.soon_cpus - node.kept_cpus + sum(victim.cpus for victim in victims)
    memory = (
        node.memory_mib + node.soon_memory_mib - node.kept_memory_mib + sum(v.memory_mib for v in victims)
    )
    return gpus >= job.gpus and cpus >= node.cpus_for(job) and memory >= job.memory_mib
