"""Projects, nodes, GPUs, reservations and usage: what the policy needs beside the jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import BadRequest, NoSuchProject
from .model import GpuRow, Node, Project, Reservation
from .session import Session


class ClusterVerbs(Session):
    """The verbs of the cluster."""

    def projects(self) -> dict[str, Project]:
        """All projects by name."""
        rows = self.rows("SELECT name, quota, limit_gpus, weight, parent FROM projects ORDER BY name")
        return {row[0]: Project(*row) for row in rows}

    def project(self, name: str) -> Project:
        """One project. Raises NoSuchProject, which lists those that there are."""
        known = self.projects()
        if name not in known:
            raise NoSuchProject(project=name, known=", ".join(known))
        return known[name]

    def set_project(self, project: Project) -> None:
        """Make or change a project; lowering a quota stops nothing that runs.

        Raises NoSuchProject for a parent that there is not, BadRequest for a circle.
        """
        with self.write() as db:
            parents = dict(db.execute("SELECT name, parent FROM projects")) | {project.name: project.parent}
            seen, at = {project.name}, project.parent
            while at:
                if at not in parents:
                    raise NoSuchProject(project=at, known=", ".join(parents))
                if at in seen:
                    raise BadRequest(
                        what="the parent",
                        value=project.parent,
                        why="it would make a circle",
                        remedy="Choose another parent.",
                    )
                seen.add(at)
                at = parents[at]
            db.execute(
                "INSERT INTO projects VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET quota = excluded.quota,"
                " limit_gpus = excluded.limit_gpus, weight = excluded.weight, parent = excluded.parent",
                (project.name, project.quota, project.limit_gpus, project.weight, project.parent),
            )

    def nodes(self) -> list[Node]:
        """All nodes by name."""
        rows = self.rows(
            "SELECT name, host, boot_id, cpus, memory_mib, state, reason, seen_at FROM nodes ORDER BY name"
        )
        return [Node(*row) for row in rows]

    def gpus(self) -> list[GpuRow]:
        """All GPUs by node and index."""
        rows = self.rows(
            "SELECT uuid, node, idx, name, type, memory_mib, state, reason FROM gpus ORDER BY node, idx"
        )
        return [GpuRow(*row) for row in rows]

    def note_node(self, node: Node, gpus: Iterable[GpuRow] | None) -> None:
        """A node as it was found; its GPUs with it, or (None: they could not be read) as they were known.

        A drained node or GPU stays drained. GPUs that are gone are kept as `lost`, since attempts may name them.
        """
        with self.write() as db:
            db.execute(
                "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET host = excluded.host,"
                " boot_id = excluded.boot_id, cpus = excluded.cpus, memory_mib = excluded.memory_mib,"
                " seen_at = excluded.seen_at, state = CASE state WHEN 'drained' THEN state ELSE excluded.state END,"
                " reason = CASE state WHEN 'drained' THEN reason ELSE excluded.reason END",
                (
                    node.name,
                    node.host,
                    node.boot_id,
                    node.cpus,
                    node.memory_mib,
                    node.state,
                    node.reason,
                    node.seen_at,
                ),
            )
            if gpus is None:
                return
            db.execute(
                "UPDATE gpus SET state = 'lost', reason = 'not seen any more' WHERE node = ? AND state = 'up'",
                (node.name,),
            )
            for gpu in gpus:
                db.execute(
                    "INSERT INTO gpus VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uuid) DO UPDATE SET node = excluded.node,"
                    " idx = excluded.idx, name = excluded.name, type = excluded.type, memory_mib = excluded.memory_mib,"
                    " state = CASE state WHEN 'drained' THEN state ELSE excluded.state END,"
                    " reason = CASE state WHEN 'drained' THEN reason ELSE excluded.reason END",
                    (gpu.uuid, gpu.node, gpu.idx, gpu.name, gpu.type, gpu.memory_mib, gpu.state, gpu.reason),
                )

    def set_gpu_state(self, uuid: str, state: str, reason: str) -> None:
        """Drain a GPU, or take it back ('up')."""
        with self.write() as db:
            db.execute("UPDATE gpus SET state = ?, reason = ? WHERE uuid = ?", (state, reason, uuid))

    def reservations(self) -> list[Reservation]:
        """The room that is kept for beneficiaries of preemptions."""
        rows = self.rows(
            "SELECT job_id, node, gpu_uuids, cpus, memory_mib, created_at, until FROM reservations"
        )
        return [Reservation(*row) for row in rows]

    def usage(self) -> list[tuple[Any, ...]]:
        """Rows of (day, user, project, class, attempts, gpu_seconds, cpu_seconds)."""
        return self.rows(
            "SELECT day, user, project, job_class, attempts, gpu_seconds, cpu_seconds FROM usage ORDER BY day"
        )

    def note_tick(self, now: float) -> None:
        """A pass ended; written at most every 15 s, so that an idle daemon leaves the disk alone."""
        last = self.meta("last_tick")
        if last and 0 <= now - float(last) < 15:
            return
        with self.write() as db:
            db.execute(
                "INSERT INTO meta VALUES ('last_tick', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (str(now),),
            )

    def last_tick(self) -> float | None:
        """When a pass last ended (UTC seconds), to within 15 s; None: never."""
        value = self.meta("last_tick")
        return float(value) if value else None
