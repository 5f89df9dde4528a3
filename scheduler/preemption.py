"""Making room by stopping what is less entitled (design.md, "Reclaim", "Preemption"). O(victims log victims) a node.

Within a project a higher class, or the same class with a higher priority, preempts. Across projects only quota
counts: up to its quota a project reclaims from preemptible jobs of projects that hold more than theirs. Victims are
chosen so that the job really fits: over-quota before in-quota, lower class and priority first, then least GPU time
lost since the last checkpoint; none below its minimum runtime, none that gives nothing which is missing. Then as many
as possible are put back. No set, no preemption. The greedy choice and the putting back are as in kueue.
"""

from __future__ import annotations

from .ledger import Ledger, NodeRoom
from .quota import entitled, over_limit
from .state import NEVER, Active, Pending, Preemption, Room

#: How long (seconds) room is kept beyond the victims' grace and kill.
ROOM_MARGIN_S = 60.0

#: What a job lacks on a node, or a victim gives there: GPUs, CPUs, MiB, and GPUs under its project's limit.
Amounts = tuple[float, float, float, float]


def preempt(ledger: Ledger, job: Pending, now: float, latest: float = NEVER) -> Preemption | None:
    """The least regrettable set of victims on one node after which `job` fits there; None when there is none.

    `latest`: the job cannot start later than that (UTC seconds), so room that comes later is not made.
    """
    within = entitled(ledger, job)
    best: tuple[tuple[tuple[int, int, int], float, int], Preemption] | None = None
    for name, node in ledger.nodes.items():
        candidates = [
            victim
            for victim in ledger.victims.get(name, {}).values()
            if victim.protected_until <= now and more_entitled(ledger, job, victim, within=within)
        ]
        if not candidates or not node.could_hold(job):
            continue
        chosen = _choose(ledger, node, job, candidates, now)
        if not chosen:
            continue
        ready = now + max(victim.grace_s for victim in chosen) + ledger.state.term_to_kill_s
        if ready > latest:
            continue
        worst = max(_regret(ledger, job, victim) for victim in chosen)
        cost = (worst, sum(ledger.lost_by(victim, now) for victim in chosen), len(chosen))
        if best is None or cost < best[0]:
            best = (cost, Preemption(job, tuple(chosen), _room(node, job, chosen, ready + ROOM_MARGIN_S)))
    return best[1] if best else None


def more_entitled(ledger: Ledger, job: Pending, victim: Active, *, within: bool) -> bool:
    """Whether `job` may have the room of `victim`; the matrix stands in docs/policy.md.

    `within`: whether `job` is entitled to reclaim, which is the same for all victims.
    """
    if not victim.preemptible:
        return False
    if victim.project == job.project:
        classes = ledger.state.classes
        theirs = classes.get(victim.job_class)
        return (classes[job.job_class].rank, job.priority) > (theirs.rank if theirs else 0, victim.priority)
    # Quotas are of GPUs: nothing is reclaimed for or from a job without any.
    return within and bool(victim.gpu_uuids) and ledger.excess(victim.project) > 0


def protected_until(ledger: Ledger, job: Pending, now: float) -> float | None:
    """When the first minimum runtime ends that keeps `job` from preempting somebody (UTC seconds); None: none does."""
    within = entitled(ledger, job)
    times = [
        victim.protected_until
        for victims in ledger.victims.values()
        for victim in victims.values()
        if victim.protected_until > now and more_entitled(ledger, job, victim, within=within)
    ]
    return min(times, default=None)


def room_soon(ledger: Ledger, job: Pending) -> Room | None:
    """Where `job` fits as soon as the jobs that are stopping already have ended: no more need be stopped for it."""
    for node in ledger.nodes.values():
        if node.leaving_jobs and node.could_hold(job) and not _any(lacks(ledger, node, job)):
            return _room(node, job, [], 0.0)
    return None


def lacks(ledger: Ledger, node: NodeRoom, job: Pending) -> Amounts:
    """What `job` lacks on `node` even when all that is stopping has ended; what is not above zero is there."""
    gpus = 0
    if job.gpus:
        gpus = job.gpus - len(node.open_gpus(job.gpu_type)) - len(node.leaving_gpus(job.gpu_type))
    return (
        gpus,
        node.least_cpus(job) - (node.cpus + node.soon_cpus - node.kept_cpus),
        job.memory_mib - (node.memory_mib + node.soon_memory_mib - node.kept_memory_mib),
        over_limit(ledger, job),
    )


def _gives(node: NodeRoom, job: Pending, victim: Active) -> Amounts:
    mine = len(victim.gpu_uuids) if victim.project == job.project else 0
    return (len(_useful(node, job, victim)), victim.cpus, victim.memory_mib, mine)


def _useful(node: NodeRoom, job: Pending, victim: Active) -> list[str]:
    """The victim's GPUs that `job` could use."""
    return [
        uuid
        for uuid in victim.gpu_uuids
        if uuid in node.all_gpus
        and uuid not in node.kept_gpus
        and job.gpu_type in ("", node.all_gpus[uuid].type)
    ]


def _any(missing: Amounts) -> bool:
    return any(amount > 0 for amount in missing)


def _minus(missing: Amounts, given: Amounts, sign: int = 1) -> Amounts:
    gpus, cpus, memory, own = (lack - sign * gift for lack, gift in zip(missing, given, strict=True))
    return gpus, cpus, memory, own


def _regret(ledger: Ledger, job: Pending, victim: Active) -> tuple[int, int, int]:
    """By what a victim is chosen before all else; the lower, the sooner.

    Where the job's own project would be over its quota with it, that project gives first; then come others that are
    over theirs, then what its own project holds within quota.
    """
    if victim.project != job.project:
        group = 1
    else:
        group = 0 if ledger.excess(job.project) + job.gpus > 0 else 2
    job_class = ledger.state.classes.get(victim.job_class)
    return (group, job_class.rank if job_class else 0, victim.priority)


def _choose(
    ledger: Ledger, node: NodeRoom, job: Pending, candidates: list[Active], now: float
) -> list[Active]:
    """Victims on `node` after which nothing is missing there; empty when there is no such set."""
    missing = lacks(ledger, node, job)
    if not _any(missing):
        return []  # what stops already is enough
    given = {victim.id: _gives(node, job, victim) for victim in candidates}
    candidates.sort(
        key=lambda victim: (
            *_regret(ledger, job, victim),
            ledger.lost_by(victim, now),
            -victim.started_at,
            victim.id,
        )
    )
    chosen = _greedy(ledger, job, missing, candidates, given)
    if not chosen:
        # A small victim may have brought its project down to quota and so protected the large one that is needed.
        candidates.sort(key=lambda victim: given[victim.id][0], reverse=True)
        chosen = _greedy(ledger, job, missing, candidates, given)
    return chosen


def _greedy(
    ledger: Ledger, job: Pending, missing: Amounts, order: list[Active], given: dict[int, Amounts]
) -> list[Active]:
    chosen: list[Active] = []
    reclaimed: dict[str, int] = {}
    for victim in order:
        if not _any(missing):
            break
        gift = given[victim.id]
        if not any(lack > 0 and amount > 0 for lack, amount in zip(missing, gift, strict=True)):
            continue
        if victim.project != job.project:
            # Reclaiming stops where the victims' project is down to its quota.
            if ledger.excess(victim.project) - reclaimed.get(victim.project, 0) <= 0:
                continue
            reclaimed[victim.project] = reclaimed.get(victim.project, 0) + len(victim.gpu_uuids)
        chosen.append(victim)
        missing = _minus(missing, gift)
    if _any(missing):
        return []
    for victim in reversed(list(chosen)):
        without = _minus(missing, given[victim.id], -1)
        if not _any(without):
            chosen.remove(victim)
            missing = without
    return chosen


def _room(node: NodeRoom, job: Pending, victims: list[Active], until: float) -> Room:
    """The room of `job` on `node`: what is free first, then what is leaving, then what the victims give."""
    gpus: list[str] = []
    if job.gpus:
        gpus = [gpu.uuid for gpu in node.open_gpus(job.gpu_type)] + node.leaving_gpus(job.gpu_type)
        gpus += [uuid for victim in victims for uuid in _useful(node, job, victim)]
    cpus = node.cpus + node.soon_cpus - node.kept_cpus + sum(victim.cpus for victim in victims)
    return Room(
        job.id,
        node.machine.name,
        tuple(gpus[: job.gpus]),
        min(node.cpus_for(job), cpus),
        job.memory_mib,
        until,
    )
