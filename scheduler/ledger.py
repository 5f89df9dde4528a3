"""The room of a cluster during one pass: what is free, what is kept, what each project holds."""

from __future__ import annotations

from .state import NEVER, Active, ClusterState, Gpu, Machine, Pending, Room

#: A stopping job that is so late (seconds after its grace and its kill) is hung: its room is not counted on.
HUNG_AFTER_S = 60.0


class NodeRoom:
    """One machine's room: free, leaving (held by jobs that stop), and kept for somebody.

    GPUs are kept one by one; CPUs and memory by amount, and what is kept of those comes first out of what is leaving,
    so that the free rest can be used meanwhile.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cpus = machine.cpus
        self.memory_mib = machine.memory_mib
        gpus = sorted(machine.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
        self.all_gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in gpus if gpu.usable}
        self._counts = {"": len(self.all_gpus)}
        for gpu in self.all_gpus.values():
            if gpu.type:
                self._counts[gpu.type] = self._counts.get(gpu.type, 0) + 1
        self.gpus = dict(self.all_gpus)
        self.leaving: dict[str, int] = {}  # usable GPU → the job that gives it back soon
        self.leaving_jobs: list[int] = []
        self.soon_cpus = 0
        self.soon_memory_mib = 0
        self.kept_cpus = 0
        self.kept_memory_mib = 0
        self.kept_gpus: dict[str, int] = {}  # GPU → the job that it is kept for
        #: The first known end of what runs here, and whose it is.
        self.next_end: tuple[float, int] = (NEVER, 0)
        self._open: dict[str, list[Gpu]] = {}

    def cpus_for(self, job: Pending) -> int:
        """CPUs the job would have here: as asked, else one, or with GPUs its share of the node."""
        if job.cpus:
            return job.cpus
        if job.gpus and self.all_gpus:
            # Of the GPUs in order: one that was replaced is kept as lost, and would halve everybody's share for ever.
            return max(1, self.machine.cpus * min(job.gpus, len(self.all_gpus)) // len(self.all_gpus))
        return 1

    def least_cpus(self, job: Pending) -> int:
        """CPUs without which it does not start: as asked; a share may shrink to one a GPU where others took theirs.

        Otherwise a single job of one CPU would leave the last GPU of a node idle.
        """
        return job.cpus or min(self.cpus_for(job), max(1, job.gpus))

    @property
    def open_cpus(self) -> int:
        """CPUs that are free and kept for nobody."""
        return min(self.cpus, self.cpus + self.soon_cpus - self.kept_cpus)

    @property
    def open_memory_mib(self) -> int:
        """As `open_cpus`, for memory."""
        return min(self.memory_mib, self.memory_mib + self.soon_memory_mib - self.kept_memory_mib)

    def open_gpus(self, gpu_type: str) -> list[Gpu]:
        """Free GPUs of that type ('' any) that are kept for nobody, by index. Not to be changed."""
        found = self._open.get(gpu_type)
        if found is None:
            found = [
                gpu
                for gpu in self.gpus.values()
                if gpu.uuid not in self.kept_gpus and gpu_type in ("", gpu.type)
            ]
            self._open[gpu_type] = found
        return found

    def leaving_gpus(self, gpu_type: str) -> list[str]:
        """GPUs of that type that stopping jobs give back soon and that are kept for nobody, by index."""
        if not self.leaving:
            return []
        return [
            uuid
            for uuid, gpu in self.all_gpus.items()
            if uuid in self.leaving and uuid not in self.kept_gpus and gpu_type in ("", gpu.type)
        ]

    def could_hold(self, job: Pending) -> bool:
        """Whether the job would fit if nothing else were here."""
        return (
            self.machine.cpus >= self.least_cpus(job)
            and self.machine.memory_mib >= job.memory_mib
            and self._counts.get(job.gpu_type, 0) >= job.gpus
        )

    def take(self, gpu_uuids: tuple[str, ...], cpus: int, memory_mib: int) -> None:
        """Give room away."""
        self.cpus -= cpus
        self.memory_mib -= memory_mib
        for uuid in gpu_uuids:
            self.gpus.pop(uuid, None)
        self._open.clear()

    def leave(self, job: Active) -> None:
        """`job`, which holds room here, gives it back soon."""
        self.soon_cpus += job.cpus
        self.soon_memory_mib += job.memory_mib
        self.leaving_jobs.append(job.id)
        for uuid in job.gpu_uuids:
            if uuid in self.all_gpus:
                self.leaving[uuid] = job.id

    def keep(self, room: Room) -> None:
        """Set room aside, what is free of it now and what is still to come."""
        self.kept_cpus += room.cpus
        self.kept_memory_mib += room.memory_mib
        for uuid in room.gpu_uuids:
            self.kept_gpus[uuid] = room.job
        self._open.clear()

    def let_go(self, room: Room) -> None:
        """The opposite of `keep`."""
        self.kept_cpus -= room.cpus
        self.kept_memory_mib -= room.memory_mib
        for uuid in room.gpu_uuids:
            self.kept_gpus.pop(uuid, None)
        self._open.clear()

    def is_free(self, room: Room) -> bool:
        """Whether all of `room` is free by now."""
        return (
            self.cpus >= room.cpus
            and self.memory_mib >= room.memory_mib
            and all(uuid in self.gpus for uuid in room.gpu_uuids)
        )

    def is_coming(self, room: Room) -> bool:
        """Whether all of `room` is free or is being given back, and nobody else has been promised it."""
        return (
            self.cpus + self.soon_cpus - self.kept_cpus >= room.cpus
            and self.memory_mib + self.soon_memory_mib - self.kept_memory_mib >= room.memory_mib
            and all(
                (uuid in self.gpus or uuid in self.leaving) and uuid not in self.kept_gpus
                for uuid in room.gpu_uuids
            )
        )

    def waited_for(self, room: Room) -> list[int]:
        """The stopping jobs that `room` waits for, by number."""
        if room.gpu_uuids:
            jobs = {self.leaving[uuid] for uuid in room.gpu_uuids if uuid in self.leaving}
            if jobs:
                return sorted(jobs)
        return [] if self.is_free(room) else sorted(self.leaving_jobs)


class Ledger:
    """All machines, and by project what it holds in GPUs and CPUs; O(nodes + active + projects) to build."""

    def __init__(self, state: ClusterState, now: float = 0.0) -> None:
        self.state = state
        self.nodes = {machine.name: NodeRoom(machine) for machine in state.machines if machine.usable}
        self.held: dict[str, int] = {}  # GPUs by project, what stops included
        self.leaving: dict[str, int] = {}  # of those, what stopping jobs hold
        self.promised: dict[str, int] = {}  # GPUs of room that is kept for a project's jobs
        self.firm: dict[str, int] = {}  # non-preemptible GPUs, held and promised
        self.cpus_held: dict[str, int] = {}
        self.capacity = sum(len(node.all_gpus) for node in self.nodes.values())
        self.all_gpus = sum(len(machine.gpus) for machine in state.machines)
        #: Victims that a preemption may still choose, by node.
        self.victims: dict[str, dict[int, Active]] = {}
        self._quotas = {name: project.quota or 0.0 for name, project in state.projects.items()}
        self.quotas = sum(self._quotas.values())
        #: What all projects hold firmly or may still claim by quota: the sum of max(firm, quota).
        self.committed = self.quotas
        idle = state.classes.get("idle")
        self._idle_rank = idle.rank if idle else -1
        unsaved = sorted(now - job.saved_at for job in state.active if job.saved_at > job.started_at)
        self._median_unsaved_s = max(0.0, unsaved[len(unsaved) // 2]) if unsaved else NEVER
        for job in state.active:
            self._enter(job, now)

    def _enter(self, job: Active, now: float) -> None:
        node = self.nodes.get(job.node)
        gpus = len(job.gpu_uuids)
        self.account(job.project, gpus, job.cpus, job.preemptible)
        if job.stopping:
            self.leaving[job.project] = self.leaving.get(job.project, 0) + gpus
        if not job.preemptible:
            # GPUs that are drained or lost are no capacity; what is firm on them takes none either.
            self.capacity += gpus - (sum(uuid in node.all_gpus for uuid in job.gpu_uuids) if node else 0)
        if node is None:
            return
        node.take(job.gpu_uuids, job.cpus, job.memory_mib)
        if not job.stopping:
            if now < job.ends_at < NEVER:
                node.next_end = min(node.next_end, (job.ends_at, job.id))
            if job.preemptible:
                self.victims.setdefault(job.node, {})[job.id] = job
        elif now < job.ends_at + HUNG_AFTER_S:
            node.leave(job)

    def account(self, project: str, gpus: int, cpus: int, preemptible: bool) -> None:
        """A job of `project` holds `gpus` and `cpus` more."""
        self.held[project] = self.held.get(project, 0) + gpus
        self.cpus_held[project] = self.cpus_held.get(project, 0) + cpus
        if not preemptible:
            self._firm_changes(project, gpus)

    def _firm_changes(self, project: str, gpus: int) -> None:
        before, quota = self.firm.get(project, 0), self._quotas.get(project, 0.0)
        self.firm[project] = before + gpus
        self.committed += max(before + gpus, quota) - max(before, quota)

    def to_hold(self, project: str) -> int:
        """GPUs that `project` holds once all that stops has ended and all that is promised has started."""
        return self.held.get(project, 0) - self.leaving.get(project, 0) + self.promised.get(project, 0)

    def is_idle(self, job_class: str) -> bool:
        """Whether jobs of this class come after everybody else's."""
        found = self.state.classes.get(job_class)
        return found is not None and found.rank <= self._idle_rank

    def excess(self, project: str) -> float:
        """GPUs that `project` holds beyond its quota; one without quota deserves nothing for sure."""
        return self.to_hold(project) - self._quotas.get(project, 0.0)

    def promise(self, job: Pending, room: Room) -> None:
        """Keep `room` for `job`, and its project's part of quota and limit with it."""
        self.nodes[room.node].keep(room)
        self._promised_changes(job, job.gpus)

    def withdraw(self, job: Pending, room: Room) -> None:
        """The opposite of `promise`."""
        self.nodes[room.node].let_go(room)
        self._promised_changes(job, -job.gpus)

    def _promised_changes(self, job: Pending, gpus: int) -> None:
        self.promised[job.project] = self.promised.get(job.project, 0) + gpus
        if not job.preemptible:
            self._firm_changes(job.project, gpus)

    def take_back(self, victim: Active) -> None:
        """`victim` is to be stopped: it is no victim for anybody else, and gives its room back soon."""
        del self.victims[victim.node][victim.id]
        self.leaving[victim.project] = self.leaving.get(victim.project, 0) + len(victim.gpu_uuids)
        self.nodes[victim.node].leave(victim)

    def lost_by(self, victim: Active, now: float) -> float:
        """GPU seconds (CPU seconds where it has no GPU) of `victim` since its work was last safe.

        One that never checkpointed counts from its start, capped at the median of those that do: hiding gains nothing.
        """
        unsaved_s = max(0.0, now - victim.saved_at)
        if victim.saved_at <= victim.started_at:
            unsaved_s = min(unsaved_s, self._median_unsaved_s)
        return unsaved_s * (len(victim.gpu_uuids) or victim.cpus)
