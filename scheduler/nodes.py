"""This machine as the scheduler knows it: read again every minute, and at once after a boot."""

from __future__ import annotations

from ..spool.config import Config
from ..spool.model import GpuRow, Node
from ..spool.processes import boot_id, host_name
from ..spool.store import Store

REFRESH_S = 60.0


class NodeWatch:
    """Keeps the node and GPU rows of this machine true."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store, self.config = store, config
        self.read_at: float | None = None
        self.has_gpus = False

    def refresh(self, now: float, *, force: bool = False) -> None:
        """Read the machine if that was not done within the last minute."""
        if not force and self.read_at is not None and 0 <= now - self.read_at < REFRESH_S:
            return
        host = host_name()
        known = next((node for node in self.store.nodes() if node.name == host), None)
        first_look = self.read_at is None
        self.read_at = now
        if (
            first_look
            and not force
            and known
            and known.boot_id == boot_id()
            and 0 <= now - known.seen_at < REFRESH_S
        ):
            self.has_gpus = any(gpu.node == host for gpu in self.store.gpus())
            return
        note_this_machine(self.store, self.config, now)
        self.has_gpus = any(gpu.node == host for gpu in self.store.gpus())


def note_this_machine(store: Store, config: Config, now: float) -> None:
    """Read this machine and write its rows. A driver that does not answer leaves its GPUs unusable, not free."""
    from ..launch.inventory import local_inventory

    found = local_inventory()
    gpus: list[GpuRow] | None = None
    if found.gpu_error is None:
        limit = config["local.gpus"]
        kept = found.gpus if limit < 0 else found.gpus[:limit]
        gpus = [
            GpuRow(gpu.uuid, found.host, gpu.index, gpu.name, gpu.type, gpu.memory_mib, "up", "")
            for gpu in kept
        ]
    else:
        # Known ones are marked as not to be read; nothing is handed out blindly.
        gpus = [
            GpuRow(gpu.uuid, gpu.node, gpu.idx, gpu.name, gpu.type, gpu.memory_mib, "lost", found.gpu_error)
            for gpu in store.gpus()
            if gpu.node == found.host
        ]
    node = Node(
        found.host,
        found.host,
        found.boot_id,
        config["local.cpus"] or found.cpus,
        config["local.memory"] or found.memory_mib,
        "up",
        found.gpu_error or "",
        now,
    )
    store.note_node(node, gpus)
