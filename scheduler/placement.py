"""Placing a job: best fit, so that large holes stay large. O(nodes) a job.

The whole policy (gangs over nodes, NVLink and NUMA domains, type alternatives) has its place here.
"""

from __future__ import annotations

from ..spool.quantities import show_duration
from .ledger import Ledger, NodeRoom
from .state import Never, Pending, Wait


def place(ledger: Ledger, job: Pending) -> tuple[NodeRoom, tuple[str, ...], int] | None:
    """Where `job` fits now: the node with the least left over, its GPUs by index, its CPUs; None when nowhere."""
    best: tuple[tuple[int, int], NodeRoom, tuple[str, ...], int] | None = None
    if job.nodes != 1:
        return None
    for node in ledger.nodes.values():
        cpus = node.cpus_for(job)
        if cpus > node.open_cpus or job.memory_mib > node.open_memory_mib:
            continue
        gpus = node.open_gpus(job.gpu_type) if job.gpus else []
        if len(gpus) < job.gpus:
            continue
        left = (len(gpus) - job.gpus, node.open_cpus - cpus)
        if best is None or left < best[0]:
            chosen = tuple(gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.index)[: job.gpus])
            best = (left, node, chosen, cpus)
    return best[1:] if best else None


def never_fits(ledger: Ledger, job: Pending) -> Never | None:
    """Why `job` fits on no machine even when it is empty; None when it would fit on one."""
    machines = [machine for machine in ledger.state.machines if machine.usable]
    if not machines:
        return None  # nothing is known yet, or all is drained: that can change
    if job.nodes > len(machines):
        return Never("Nodes", f"asks for {job.nodes} nodes, there are {len(machines)}")
    gpus = max(
        sum(gpu.usable and job.gpu_type in ("", gpu.type) for gpu in machine.gpus) for machine in machines
    )
    if job.gpus > gpus * job.nodes:
        kind = f" of type {job.gpu_type}" if job.gpu_type else ""
        return Never("GPUs", f"asks for {job.gpus} GPUs{kind} on one node, the largest has {gpus}")
    cpus = max(machine.cpus for machine in machines)
    if job.cpus > cpus:
        return Never("CPUs", f"asks for {job.cpus} CPUs, the largest node has {cpus}")
    memory = max(machine.memory_mib for machine in machines)
    if job.memory_mib > memory:
        return Never("Memory", f"asks for {job.memory_mib} MiB of memory, the largest node has {memory}")
    if not any(_fits_empty(machine.gpus, machine.cpus, machine.memory_mib, job) for machine in machines):
        return Never("Resources", "no single node has the GPUs, CPUs and memory that it asks for together")
    return None


def _fits_empty(gpus: object, cpus: int, memory_mib: int, job: Pending) -> bool:
    assert isinstance(gpus, tuple)
    fitting = sum(gpu.usable and job.gpu_type in ("", gpu.type) for gpu in gpus)
    return fitting >= job.gpus and cpus >= job.cpus and memory_mib >= job.memory_mib


def no_room(ledger: Ledger, job: Pending, now: float) -> Wait:
    """The sentence for a job that fits an empty machine but not now: what is missing on the best node."""
    missing: tuple[int, str] | None = None
    for node in ledger.nodes.values():
        parts = []
        gpus, cpus = len(node.open_gpus(job.gpu_type)), node.cpus_for(job)
        if gpus < job.gpus:
            parts.append(f"{job.gpus - gpus} more GPU{'s' if job.gpus - gpus > 1 else ''} ({gpus} free)")
        if node.open_cpus < cpus:
            parts.append(f"{cpus - node.open_cpus} more CPU{'s' if cpus - node.open_cpus > 1 else ''}")
        if node.open_memory_mib < job.memory_mib:
            parts.append(f"{job.memory_mib - node.open_memory_mib} MiB more memory")
        if parts and (missing is None or len(parts) < missing[0]):
            missing = (len(parts), " and ".join(parts))
    ends = min((active.ends_at for active in ledger.state.active), default=float("inf"))
    soon = (
        f"; the first of what runs ends within {show_duration(ends - now)}" if now < ends < now + 3e7 else ""
    )
    return Wait("Resources", f"needs {missing[1] if missing else 'a usable node'}{soon}")
