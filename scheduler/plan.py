"""One pass of the policy: `plan(state, now) -> Plan`, pure, in numbered steps.

Cost: O(active + nodes) to begin with, then O(log projects) a job plus O(nodes) for each request shape that has not
failed in this pass yet (room only shrinks within one). The rules are explained in docs/policy.md; fair share beyond
quota, backfill and topology have their place in `quota`, here and in `placement`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from .eligibility import Moment
from .ledger import Ledger, NodeRoom
from .placement import accumulate, never_fits, no_room, place
from .preemption import preempt, protected_until, room_soon
from .quota import admit, entitled, over_limit
from .state import ClusterState, Never, Pending, Plan, Preemption, Room, Start, Wait

#: Preemption that finds no victims is tried for at most so many different requests a pass.
PREEMPTION_TRIES = 64
#: At most so many blocked jobs let nodes run dry at the same time.
ACCUMULATING = 4


def plan(state: ClusterState, now: float) -> Plan:
    """What to start, what to preempt, and why everything else waits. Equal input gives an equal plan."""
    this = _Pass(state, now)
    # 1. Who may start at this moment at all.
    eligible = this.sift()
    # 2. Room that is kept for beneficiaries of earlier preemptions, as long as they want it and it is coming.
    rooms = this.keep_rooms(eligible)
    # 3. Job by job: the next project by what it deserves, in it class, priority, age.
    for job in this.in_order(eligible):
        # 4. Its kept room once that is free, or any other that is.
        if job.id in rooms:
            this.use_room(job, rooms[job.id])
            continue
        # 5. Never; or not by quota and limit. Only a limit can be helped: by stopping the project's own jobs.
        blocked = this.never(job) or admit(this.ledger, job)
        if isinstance(blocked, Never) or (blocked is not None and blocked.code != "Limit"):
            this.result.reasons[job.id] = blocked
            continue
        # 6. Free room.
        if blocked is None and this.start_anywhere(job):
            continue
        # 7. When what stops already has ended; or by preemption; or not now.
        if blocked is None and this.await_stopping(job):
            continue
        if this.preempt_for(job):
            continue
        this.result.reasons[job.id] = blocked or this.failed[job.shape]
        # 8. One that has waited long enough lets its node run dry, so that small jobs do not starve it.
        if blocked is None:
            this.accumulate_for(job)
    return this.finish()


class _Pass:
    """One pass: the state, the room that is left in it, what was decided so far, and what failed already."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self.state, self.now = state, now
        self.moment = Moment(state, now)
        self.ledger = Ledger(state, now)
        self.result = Plan()
        self.nevers: dict[tuple[object, ...], Never | None] = {}
        self.failed: dict[tuple[object, ...], Wait] = {}
        self.not_soon: set[tuple[object, ...]] = set()
        self.no_victims: set[tuple[object, ...]] = set()
        self.weakest: dict[str, tuple[int, int]] | None = None
        self.last: tuple[tuple[object, ...], NodeRoom] | None = None
        self.accumulating = 0

    # -- 1, 2, 3 -----------------------------------------------------------------------------------------

    def sift(self) -> list[Pending]:
        """The jobs that may start at this moment; the others get their reason."""
        eligible = []
        for job in self.state.pending:
            wait = self.moment.wait_of(job)
            if wait is None:
                eligible.append(job)
            else:
                self.result.reasons[job.id] = wait
                self.wake(wait.until)
        return eligible

    def keep_rooms(self, eligible: list[Pending]) -> dict[int, Room]:
        """Set room aside for those that it is kept for; what nobody wants or what will not come is released."""
        if not self.state.rooms:
            return {}
        jobs = {job.id: job for job in eligible}
        rooms: dict[int, Room] = {}
        for room in self.state.rooms:
            job, node = jobs.get(room.job), self.ledger.nodes.get(room.node)
            wanted = job is not None and room.until > self.now and not self._barred(job)
            if job is None or node is None or not wanted or not node.is_coming(room):
                self.result.released.append(room.job)
                continue
            self.ledger.promise(job, room)
            rooms[room.job] = room
            self.wake(room.until)
        return rooms

    def in_order(self, eligible: list[Pending]) -> Iterator[Pending]:
        """Jobs in scheduling order; a project's place is looked at again after each of its jobs."""
        by_project: dict[str, list[tuple[int, int, float, int, Pending]]] = {}
        for job in eligible:
            rank = self.state.classes[job.job_class].rank
            by_project.setdefault(job.project, []).append(
                (-rank, -job.priority, job.submitted_at, job.id, job)
            )
        for queue in by_project.values():
            queue.sort(key=lambda entry: entry[:4], reverse=True)
        heap = [(self._turn(project, queue[-1][4]), project) for project, queue in by_project.items()]
        heapq.heapify(heap)
        while heap:
            _, project = heapq.heappop(heap)
            queue = by_project[project]
            yield queue.pop()[4]
            if queue:
                heapq.heappush(heap, (self._turn(project, queue[-1][4]), project))

    def _turn(self, project: str, job: Pending) -> tuple[int, float, float]:
        """When it is the turn of a project whose next job is `job`; the lower, the sooner.

        What is within quota goes first, by the share of it that is used: whatever else started before it would be
        reclaimed at once. Then what is beyond, by weight; then what is idle.
        """
        entry = self.state.projects.get(project)
        weight = max(entry.weight if entry else 1.0, 1e-9)
        cpus = self.ledger.cpus_held.get(project, 0) / weight
        if entitled(self.ledger, job):
            held = self.ledger.to_hold(project)
            return (0, held / (entry.quota if entry and entry.quota else max(1, self.ledger.capacity)), cpus)
        beyond = max(0.0, self.ledger.excess(project)) / weight
        return (2 if self.ledger.is_idle(job.job_class) else 1, beyond, cpus)

    # -- 4, 6 --------------------------------------------------------------------------------------------

    def _barred(self, job: Pending) -> bool:
        """Whether quota or limit, lowered meanwhile, keep `job` out even when all that is stopping has ended."""
        blocked = admit(self.ledger, job)
        return blocked is not None and not (blocked.code == "Limit" and not over_limit(self.ledger, job))

    def use_room(self, job: Pending, room: Room) -> None:
        """Start `job` in the room kept for it or in any other; else it waits for its own."""
        node = self.ledger.nodes[room.node]
        self.ledger.withdraw(job, room)
        self.last = None
        if admit(self.ledger, job) is None:
            if node.is_free(room):
                self._start(job, node, room.gpu_uuids, room.cpus)
                return
            found = place(self.ledger, job)
            if found is not None:
                # What was kept of its room is free for the next pass: whom it would have helped has been passed by.
                self._start(job, *found)
                return
        self.ledger.promise(job, room)
        self._wait_for_room(job, room)

    def start_anywhere(self, job: Pending) -> bool:
        """Start `job` where it fits best; False when it fits nowhere now."""
        shape = job.shape
        if shape in self.failed:
            return False
        hint = self.last[1] if self.last and self.last[0] == shape else None
        found = place(self.ledger, job, hint)
        if found is None:
            self.failed[shape] = no_room(self.ledger, job)
            return False
        self._start(job, *found)
        self.last = (shape, found[0])
        return True

    def _start(self, job: Pending, node: NodeRoom, gpus: tuple[str, ...], cpus: int) -> None:
        node.take(gpus, cpus, job.memory_mib)
        self.ledger.account(job.project, len(gpus), cpus, job.preemptible)
        start = Start(job, node.machine.name, gpus, cpus, job.memory_mib, self.moment.closes(job))
        self.result.starts.append(start)

    # -- 7, 8 --------------------------------------------------------------------------------------------

    def never(self, job: Pending) -> Never | None:
        """Why `job` fits on no machine at all; the same for all requests of its shape."""
        shape = job.shape
        if shape not in self.nevers:
            self.nevers[shape] = never_fits(self.ledger, job)
        return self.nevers[shape]

    def await_stopping(self, job: Pending) -> bool:
        """Whether `job` fits as soon as what is stopping already has ended; that room is then kept in this pass."""
        shape = job.shape
        if shape in self.not_soon:
            return False
        room = room_soon(self.ledger, job)
        if room is None:
            self.not_soon.add(shape)
            return False
        self._keep(room)
        jobs = self.ledger.nodes[room.node].waited_for(room)
        text = f"room is coming on {room.node}: {_are_stopping(jobs)}"
        self.result.reasons[job.id] = Wait("Resources", text)
        return True

    def preempt_for(self, job: Pending) -> bool:
        """Preempt for `job` if that makes room for it, and keep the room."""
        within = entitled(self.ledger, job)
        rank = self.state.classes[job.job_class].rank
        if not self._anybody_weaker(job, rank, within):
            return False
        latest = self.moment.latest_start(job)
        limit = over_limit(self.ledger, job)
        key = (job.project, rank, job.priority, job.preemptible, job.shape, within, latest, limit)
        if key in self.no_victims or len(self.no_victims) >= PREEMPTION_TRIES:
            return False
        preemption = preempt(self.ledger, job, self.now, latest)
        if preemption is None:
            self.no_victims.add(key)
            self.wake(protected_until(self.ledger, job, self.now))
            return False
        self._carry_out(preemption)
        return True

    def _anybody_weaker(self, job: Pending, rank: int, within: bool) -> bool:
        """Whether it is worth looking for victims at all: by far most jobs that wait have none."""
        if self.weakest is None:
            self.weakest = {}
            for victims in self.ledger.victims.values():
                for victim in victims.values():
                    theirs = self.state.classes.get(victim.job_class)
                    standing = (theirs.rank if theirs else 0, victim.priority)
                    known = self.weakest.get(victim.project, standing)
                    self.weakest[victim.project] = min(known, standing)
        if job.project in self.weakest and self.weakest[job.project] < (rank, job.priority):
            return True
        return within and any(self.ledger.excess(name) > 0 for name in self.weakest if name != job.project)

    def accumulate_for(self, job: Pending) -> None:
        """Keep what is free on the node that is nearest to having room for `job`, if it has waited long enough."""
        if self.accumulating >= ACCUMULATING or self.now - job.waiting_since < self.state.drain_after_s:
            return
        found = accumulate(self.ledger, job)
        if found is not None:
            node, gpus, cpus, memory_mib = found
            self._keep(Room(job.id, node.machine.name, gpus, cpus, memory_mib, 0.0))
            self.accumulating += 1

    def _carry_out(self, preemption: Preemption) -> None:
        for victim in preemption.victims:
            self.ledger.take_back(victim)
        job, room = preemption.beneficiary, preemption.room
        self.ledger.promise(job, room)
        self.last = None
        self.wake(room.until)
        self.result.preemptions.append(preemption)
        self._wait_for_room(job, room)

    def _wait_for_room(self, job: Pending, room: Room) -> None:
        jobs = self.ledger.nodes[room.node].waited_for(room)
        text = f"room is being made on {room.node}: {_are_stopping(jobs)}"
        self.result.reasons[job.id] = Wait("Preempting", text)

    def _keep(self, room: Room) -> None:
        self.ledger.nodes[room.node].keep(room)
        self.last = None

    def wake(self, at: float | None) -> None:
        """Time alone changes something at `at` (UTC seconds)."""
        if at is not None and at > self.now and (self.result.wake_at is None or at < self.result.wake_at):
            self.result.wake_at = at

    def finish(self) -> Plan:
        """The plan."""
        # Who lost one room and is promised another keeps that.
        anew = {preemption.room.job for preemption in self.result.preemptions}
        self.result.released = [job for job in self.result.released if job not in anew]
        return self.result


def _are_stopping(jobs: list[int]) -> str:
    if not jobs:
        return "it is kept for this job"
    names = ", ".join(map(str, jobs[:5])) + (f" and {len(jobs) - 5} more" if len(jobs) > 5 else "")
    return f"job {names} is stopping" if len(jobs) == 1 else f"jobs {names} are stopping"
