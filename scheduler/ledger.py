"""The room of a cluster during one pass: what is free, what is kept, what each project holds."""

from __future__ import annotations

from .state import Active, ClusterState, Gpu, Machine, Pending, Room


class NodeRoom:
    """One machine's free room; `soon` counts what stopping jobs will give back."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cpus = machine.cpus
        self.memory_mib = machine.memory_mib
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in machine.gpus if gpu.usable}
        self.soon_cpus = 0
        self.soon_memory_mib = 0
        self.kept_cpus = 0
        self.kept_memory_mib = 0
        self.kept_gpus: set[str] = set()

    def cpus_for(self, job: Pending) -> int:
        """CPUs the job takes here: as asked, else one, or with GPUs its share of the node."""
        if job.cpus:
            return job.cpus
        if job.gpus and self.machine.gpus:
            return max(1, self.machine.cpus * min(job.gpus, len(self.machine.gpus)) // len(self.machine.gpus))
        return 1

    @property
    def open_cpus(self) -> int:
        """CPUs that are free and kept for nobody; what is kept comes first out of what stopping jobs give back."""
        return min(self.cpus, self.cpus + self.soon_cpus - self.kept_cpus)

    @property
    def open_memory_mib(self) -> int:
        """As `open_cpus`, for memory."""
        return min(self.memory_mib, self.memory_mib + self.soon_memory_mib - self.kept_memory_mib)

    def open_gpus(self, gpu_type: str) -> list[Gpu]:
        """Free GPUs of that type ('' any) that are kept for nobody, by index."""
        return [
            gpu
            for gpu in self.gpus.values()
            if gpu.uuid not in self.kept_gpus and (not gpu_type or gpu.type == gpu_type)
        ]

    def take(self, gpu_uuids: tuple[str, ...], cpus: int, memory_mib: int) -> None:
        """Give room away."""
        self.cpus -= cpus
        self.memory_mib -= memory_mib
        for uuid in gpu_uuids:
            self.gpus.pop(uuid, None)

    def keep(self, room: Room) -> None:
        """Set room aside, what is free of it now and what is still to come."""
        self.kept_cpus += room.cpus
        self.kept_memory_mib += room.memory_mib
        self.kept_gpus.update(room.gpu_uuids)

    def let_go(self, room: Room) -> None:
        """The opposite of `keep`."""
        self.kept_cpus -= room.cpus
        self.kept_memory_mib -= room.memory_mib
        self.kept_gpus.difference_update(room.gpu_uuids)


class Ledger:
    """All machines, and by project what is allocated in GPUs; O(nodes + active) to build."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.nodes = {machine.name: NodeRoom(machine) for machine in state.machines if machine.usable}
        self.allocated: dict[str, float] = {}
        self.non_preemptible: dict[str, float] = {}
        self.cpus_held: dict[str, int] = {}
        self.gpu_capacity = sum(len(node.gpus) for node in self.nodes.values())
        self.cpu_capacity = sum(node.cpus for node in self.nodes.values())
        for job in state.active:
            self.account(job.project, len(job.gpu_uuids), job.cpus, job.preemptible)
            node = self.nodes.get(job.node)
            if node is None:
                continue
            node.take(job.gpu_uuids, job.cpus, job.memory_mib)
            if job.stopping:
                node.soon_cpus += job.cpus
                node.soon_memory_mib += job.memory_mib

    def account(self, project: str, gpus: int, cpus: int, preemptible: bool) -> None:
        """A job of `project` holds `gpus` and `cpus` more (negative: less)."""
        self.allocated[project] = self.allocated.get(project, 0) + gpus
        self.cpus_held[project] = self.cpus_held.get(project, 0) + cpus
        if not preemptible:
            self.non_preemptible[project] = self.non_preemptible.get(project, 0) + gpus

    def share(self, project: str) -> float:
        """How much of what it deserves a project holds; the lower, the sooner its next job.

        GPUs count where there are any, else CPUs. A project without quota deserves its weight's part.
        """
        known = self.state.projects
        entry = known.get(project)
        weight = entry.weight if entry else 1.0
        total = sum(other.weight for other in known.values()) or 1.0
        part = max(weight, 1e-9) / total
        if not self.gpu_capacity:
            return self.cpus_held.get(project, 0) / max(1e-9, self.cpu_capacity * part)
        deserved = entry.quota if entry and entry.quota is not None else self.gpu_capacity * part
        return self.allocated.get(project, 0) / max(1e-9, deserved)

    def over_quota(self, project: str) -> bool:
        """Whether a project holds more than it deserves by quota; one without quota deserves nothing for sure."""
        entry = self.state.projects.get(project)
        quota = entry.quota if entry and entry.quota is not None else 0.0
        return self.allocated.get(project, 0) > quota

    def taken_back(self, job: Active) -> None:
        """`job` will be stopped: its project holds less from now on; its room comes when it has ended."""
        self.account(job.project, -len(job.gpu_uuids), -job.cpus, job.preemptible)
        node = self.nodes[job.node]
        node.soon_cpus += job.cpus
        node.soon_memory_mib += job.memory_mib
