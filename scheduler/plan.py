"""One pass of the policy: `plan(state, now) -> Plan`, pure, in numbered steps.

Cost: O(active + nodes) to begin with, then O(log projects) a job plus O(nodes) for each request shape that has not
failed in this pass yet (room only shrinks within one).
"""

from __future__ import annotations

import heapq

from .eligibility import ends_by, not_now
from .ledger import Ledger
from .placement import never_fits, no_room, place
from .preemption import preempt
from .quota import admit
from .state import ClusterState, Never, Pending, Plan, Room, Start, Wait

#: Preemption is tried for at most so many blocked jobs a pass.
PREEMPTION_TRIES = 32


def plan(state: ClusterState, now: float) -> Plan:
    """What to start, what to preempt, and why everything else waits. Equal input gives an equal plan."""
    result = Plan()
    ledger = Ledger(state)

    # 1. Who may start at this moment at all.
    eligible = []
    for job in state.pending:
        wait = not_now(state, job, now)
        if wait is None:
            eligible.append(job)
        else:
            result.reasons[job.id] = wait
            _wake(result, wait.until, now)

    # 2. Room that is kept for beneficiaries of earlier preemptions, as long as they want it.
    rooms = _keep_rooms(state, ledger, {job.id for job in eligible}, result, now)

    # 3. Job by job: the next project by how far it is below what it deserves, in it class, priority, age.
    failed: dict[tuple[object, ...], Wait | Never] = {}
    victims: set[int] = set()
    tries = 0
    for job in _in_order(state, ledger, eligible):
        # 4. Its kept room, once that is free.
        room = rooms.get(job.id)
        if room is not None and _start_in_room(state, ledger, job, room, result, now):
            continue
        # 5. Quota and limit.
        blocked: Wait | Never | None = admit(ledger, job)
        if blocked is not None:
            result.reasons[job.id] = blocked
            continue
        # 6. Free room.
        known = failed.get(job.shape)
        found = place(ledger, job) if known is None else None
        if found is not None:
            node, gpus, cpus = found
            if room is not None:
                node_of_room = ledger.nodes[room.node]
                node_of_room.let_go(room)
            _start(state, ledger, job, node.machine.name, gpus, cpus, result, now)
            continue
        if room is not None:
            text = f"its room on {room.node} is being made; whoever holds it has until its grace is over"
            result.reasons[job.id] = Wait("Preempting", text, room.until)
            continue
        # 7. Never, or by preemption, or not now.
        if known is None:
            known = never_fits(ledger, job) or no_room(ledger, job, now)
            failed[job.shape] = known
        if isinstance(known, Never):
            result.reasons[job.id] = known
            continue
        if tries < PREEMPTION_TRIES and _can_preempt(state, job):
            preemption = preempt(ledger, job, victims, now)
            if preemption is not None:
                _carry_out(ledger, preemption, victims, result)
                continue
            tries += 1
        result.reasons[job.id] = known
        # 8. A head that has waited long enough lets its node run dry, so that small jobs do not starve it.
        if now - job.waiting_since >= state.drain_after_s:
            _accumulate(ledger, job)
    return result


def _wake(result: Plan, at: float | None, now: float) -> None:
    if at is not None and at > now and (result.wake_at is None or at < result.wake_at):
        result.wake_at = at


def _keep_rooms(
    state: ClusterState, ledger: Ledger, eligible: set[int], result: Plan, now: float
) -> dict[int, Room]:
    rooms = {}
    for room in state.rooms:
        node = ledger.nodes.get(room.node)
        if room.job in eligible and room.until > now and node is not None:
            node.keep(room)
            rooms[room.job] = room
            _wake(result, room.until, now)
        else:
            result.released.append(room.job)
    return rooms


def _in_order(state: ClusterState, ledger: Ledger, eligible: list[Pending]):  # type: ignore[no-untyped-def]
    """Jobs in scheduling order; a project's share is looked at again after each of its jobs."""
    by_project: dict[str, list[tuple[tuple[object, ...], Pending]]] = {}
    for job in eligible:
        key = (-state.classes[job.job_class].rank, -job.priority, job.submitted_at, job.id)
        by_project.setdefault(job.project, []).append((key, job))
    for queue in by_project.values():
        queue.sort(key=lambda entry: entry[0], reverse=True)  # type: ignore[arg-type,return-value]
    heap = [(ledger.share(project), project) for project in by_project]
    heapq.heapify(heap)
    while heap:
        _, project = heapq.heappop(heap)
        queue = by_project[project]
        yield queue.pop()[1]
        if queue:
            heapq.heappush(heap, (ledger.share(project), project))


def _start_in_room(
    state: ClusterState, ledger: Ledger, job: Pending, room: Room, result: Plan, now: float
) -> bool:
    node = ledger.nodes[room.node]
    free = all(uuid in node.gpus for uuid in room.gpu_uuids)
    if (
        not free
        or node.cpus < room.cpus
        or node.memory_mib < room.memory_mib
        or admit(ledger, job) is not None
    ):
        return False
    node.let_go(room)
    _start(state, ledger, job, room.node, room.gpu_uuids, room.cpus, result, now)
    return True


def _start(
    state: ClusterState,
    ledger: Ledger,
    job: Pending,
    node: str,
    gpus: tuple[str, ...],
    cpus: int,
    result: Plan,
    now: float,
) -> None:
    ledger.nodes[node].take(gpus, cpus, job.memory_mib)
    ledger.account(job.project, len(gpus), cpus, job.preemptible)
    result.starts.append(Start(job, node, gpus, cpus, job.memory_mib, ends_by(state, job, now)))


def _can_preempt(state: ClusterState, job: Pending) -> bool:
    lowest = min((job_class.rank for job_class in state.classes.values()), default=0)
    return bool(state.active) and (state.classes[job.job_class].rank > lowest or job.priority > 0)


def _carry_out(ledger: Ledger, preemption, victims: set[int], result: Plan) -> None:  # type: ignore[no-untyped-def]
    for victim in preemption.victims:
        victims.add(victim.id)
        ledger.taken_back(victim)
    ledger.nodes[preemption.room.node].keep(preemption.room)
    result.preemptions.append(preemption)
    names = ", ".join(str(victim.id) for victim in preemption.victims)
    text = f"preempting job{'s' if len(preemption.victims) > 1 else ''} {names} on {preemption.room.node}"
    result.reasons[preemption.beneficiary.id] = Wait("Preempting", text, preemption.room.until)


def _accumulate(ledger: Ledger, job: Pending) -> None:
    """Keep what is free on the node that is nearest to having room for `job`."""
    best = None
    for node in ledger.nodes.values():
        machine = node.machine
        gpus = [gpu for gpu in machine.gpus if gpu.usable and job.gpu_type in ("", gpu.type)]
        if (
            len(gpus) >= job.gpus
            and machine.cpus >= node.cpus_for(job)
            and machine.memory_mib >= job.memory_mib
        ):
            key = (len(node.open_gpus(job.gpu_type)), node.open_cpus)
            if best is None or key > best[0]:
                best = (key, node)
    if best is not None:
        node = best[1]
        free = tuple(gpu.uuid for gpu in node.open_gpus(job.gpu_type)[: job.gpus])
        cpus = min(node.open_cpus, node.cpus_for(job))
        node.keep(Room(job.id, node.machine.name, free, cpus, min(job.memory_mib, node.open_memory_mib), 0.0))
