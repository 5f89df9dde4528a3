"""Placing a job: best fit, so that large holes stay large. O(nodes) for a request that is not the one before it.

The whole policy (gangs over nodes, NVLink and NUMA domains, type alternatives) has its place here.
"""

from __future__ import annotations

from collections.abc import Iterable

from .eligibility import clock
from .ledger import Ledger, NodeRoom
from .state import NEVER, Gpu, Machine, Never, Pending, Wait

Place = tuple[NodeRoom, tuple[str, ...], int]


def place(ledger: Ledger, job: Pending, hint: NodeRoom | None = None) -> Place | None:
    """Where `job` fits now: the node with the least left over, its GPUs by index, its CPUs; None when nowhere.

    `hint`: the best node of the same request, since which only that request has taken room: while it fits there, no
    other node is a better fit.
    """
    if job.nodes != 1:
        return None
    if hint is not None and _left(hint, job) is not None:
        return _on(hint, job)
    best: tuple[tuple[int, int], NodeRoom] | None = None
    for node in ledger.nodes.values():
        left = _left(node, job)
        if left is not None and (best is None or left < best[0]):
            best = (left, node)
    return _on(best[1], job) if best else None


def _left(node: NodeRoom, job: Pending) -> tuple[int, int] | None:
    """GPUs (of a job without any: those that it would keep company) and CPUs left over; None where it does not fit."""
    cpus = node.open_cpus
    if cpus < node.least_cpus(job) or node.open_memory_mib < job.memory_mib:
        return None
    if not job.gpus:
        return (len(node.gpus), cpus)
    gpus = len(node.open_gpus(job.gpu_type))
    return None if gpus < job.gpus else (gpus - job.gpus, cpus)


def _on(node: NodeRoom, job: Pending) -> Place:
    gpus = tuple(gpu.uuid for gpu in node.open_gpus(job.gpu_type)[: job.gpus]) if job.gpus else ()
    return node, gpus, min(node.cpus_for(job), node.open_cpus)


def never_fits(ledger: Ledger, job: Pending) -> Never | None:
    """Why `job` fits on no machine even when all are empty and in order; None when it would fit on one."""
    machines = ledger.state.machines
    if not machines:
        return None  # nothing is known yet
    if job.nodes > 1:
        return Never("Nodes", f"asks for {job.nodes} nodes, a job of this spool runs on one")
    if any(_fits_empty(machine, job) for machine in machines):
        return None
    gpus = max(_gpus_of(machine.gpus, job.gpu_type) for machine in machines)
    if job.gpus > gpus:
        kind, known = "", ""
        if job.gpu_type:
            kind = f" of type {job.gpu_type!r}"
            types = sorted({gpu.type for machine in machines for gpu in machine.gpus})
            known = f" (types: {', '.join(types)})" if types else ""
        count = f"{job.gpus} GPU{'s' if job.gpus > 1 else ''}"
        return Never("GPUs", f"asks for {count}{kind} on one machine, the most that one has is {gpus}{known}")
    cpus = max(machine.cpus for machine in machines)
    if job.cpus > cpus:
        return Never("CPUs", f"asks for {job.cpus} CPUs on one machine, the most that one has is {cpus}")
    memory = max(machine.memory_mib for machine in machines)
    if job.memory_mib > memory:
        return Never(
            "Memory", f"asks for {job.memory_mib} MiB on one machine, the most that one has is {memory}"
        )
    return Never("Resources", "asks for GPUs, CPUs and memory that no single machine has together")


def _gpus_of(gpus: Iterable[Gpu], gpu_type: str) -> int:
    return sum(gpu_type in ("", gpu.type) for gpu in gpus)


def _fits_empty(machine: Machine, job: Pending) -> bool:
    fitting = _gpus_of(machine.gpus, job.gpu_type)
    return fitting >= job.gpus and machine.cpus >= job.cpus and machine.memory_mib >= job.memory_mib


def no_room(ledger: Ledger, job: Pending) -> Wait:
    """The sentence for a job that fits an empty machine but not now: what is missing where least is."""
    best: tuple[tuple[int, ...], NodeRoom] | None = None
    for node in ledger.nodes.values():
        if not node.could_hold(job):
            continue
        gpus = max(0, job.gpus - len(node.open_gpus(job.gpu_type))) if job.gpus else 0
        cpus = max(0, node.least_cpus(job) - node.open_cpus)
        memory = max(0, job.memory_mib - node.open_memory_mib)
        missing = ((gpus > 0) + (cpus > 0) + (memory > 0), gpus, cpus, memory)
        if best is None or missing < best[0]:
            best = (missing, node)
    if best is None:
        return Wait("Drained", "all that could hold it is drained, lost or down now")
    (_, gpus, cpus, memory), node = best
    parts = []
    if gpus:
        parts.append(f"{gpus} more GPU{'s' if gpus > 1 else ''} ({_free_gpus(node, job)})")
    if cpus:
        parts.append(f"{cpus} more CPU{'s' if cpus > 1 else ''} ({max(0, node.open_cpus)} free)")
    if memory:
        parts.append(f"{memory} MiB more memory ({max(0, node.open_memory_mib)} free)")
    where = f" on {node.machine.name}" if len(ledger.nodes) > 1 else ""
    at, whose = node.next_end
    ends = f"; job {whose} ends by {clock(at)}" if at < NEVER else ""
    return Wait("Resources", f"needs {' and '.join(parts)}{where}{ends}")


def _free_gpus(node: NodeRoom, job: Pending) -> str:
    """How many GPUs are free, and how many of them are kept, for whom: an idle GPU wants an explanation."""
    text = f"{len(node.open_gpus(job.gpu_type))} free"
    kept = [
        node.kept_gpus[gpu.uuid]
        for gpu in node.gpus.values()
        if gpu.uuid in node.kept_gpus and job.gpu_type in ("", gpu.type)
    ]
    if kept:
        jobs = sorted(set(kept))
        text += f", {len(kept)} kept for job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs[:3]))}"
    return text


def accumulate(ledger: Ledger, job: Pending) -> tuple[NodeRoom, tuple[str, ...], int, int] | None:
    """What to keep of the node that is nearest to having room for `job`: free GPUs, CPUs, MiB; None without any."""
    best: tuple[tuple[int, int], NodeRoom] | None = None
    for node in ledger.nodes.values():
        if node.could_hold(job):
            key = (len(node.open_gpus(job.gpu_type)) if job.gpus else 0, node.open_cpus)
            if best is None or key > best[0]:
                best = (key, node)
    if best is None:
        return None
    node = best[1]
    gpus = tuple(gpu.uuid for gpu in node.open_gpus(job.gpu_type)[: job.gpus]) if job.gpus else ()
    cpus = max(0, min(node.open_cpus, node.least_cpus(job)))
    return node, gpus, cpus, max(0, min(job.memory_mib, node.open_memory_mib))
