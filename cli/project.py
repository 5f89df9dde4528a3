"""`spool project`: owners of quota."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from ..scheduler.snapshot import known_projects
from ..spool.config import project_number
from ..spool.errors import BadRequest
from ..spool.model import Project
from .session import Session, print_json, session
from .text import safe, table


@click.group()
def project() -> None:
    """Show and set projects and their quota."""


@project.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@session
def list_(session: Session, as_json: bool) -> None:
    """Show all projects, with what they hold now."""
    store = session.store
    held: dict[str, list[int]] = {}
    for entry in store.live():
        counts = held.setdefault(entry.job.project, [0, 0])
        counts[0] += entry.attempt.gpus
        counts[1] += 0 if entry.job.preemptible else entry.attempt.gpus
    projects = list(known_projects(store, session.config).values())
    if as_json:
        values = [
            asdict(item)
            | {"gpus_held": held.get(item.name, [0, 0])[0], "gpus_firm": held.get(item.name, [0, 0])[1]}
            for item in projects
        ]
        print_json("projects", values)
        return
    rows = [
        [
            safe(item.name),
            "none" if item.quota is None else f"{item.quota:g}",
            "" if item.limit_gpus is None else f"{item.limit_gpus:g}",
            f"{item.weight:g}",
            safe(item.parent),
            str(held.get(item.name, [0, 0])[0]),
        ]
        for item in projects
    ]
    click.echo(table(["PROJECT", "QUOTA", "LIMIT", "WEIGHT", "PARENT", "GPUS HELD"], rows))


@project.command("set")
@click.argument("name")
@click.option("--quota", default=None, help="GPUs deserved; 'none' for no quota.")
@click.option("--limit", default=None, help="GPUs at most; 'none' for no limit.")
@click.option("--weight", default=None, help="For sharing what is left over (1).")
@click.option("--parent", default=None, help="Its department.")
@session
def set_(
    session: Session, name: str, quota: str | None, limit: str | None, weight: str | None, parent: str | None
) -> None:
    """Make a project, or change one; lowering a quota stops nothing that runs.

    \b
    spool project set vision --quota 8 --limit 16
    """
    if not name or not name.isprintable() or len(name) > 64:
        raise BadRequest(
            what="the project's name",
            value=name[:64],
            why="it is empty, too long or holds control characters",
            remedy="Write up to 64 letters.",
        )
    if name in session.config.projects:
        raise BadRequest(
            what="the project",
            value=name,
            why="it stands in the configuration",
            remedy=f"Change [projects.{name}] in {' or '.join(session.config.files)}.",
        )
    known = session.store.projects().get(name) or Project(name, None, None, 1.0, "")
    if quota is not None:
        known = replace(known, quota=_number("quota", quota))
    if limit is not None:
        known = replace(known, limit_gpus=_number("limit", limit))
    if weight is not None:
        known = replace(known, weight=project_number("weight", weight))
    if parent is not None:
        known = replace(known, parent=parent)
    session.store.set_project(known)
    quota_text = "no quota" if known.quota is None else f"quota {known.quota:g}"
    limit_text = "no limit" if known.limit_gpus is None else f"limit {known.limit_gpus:g}"
    try:
        click.echo(f"project {safe(name)}: {quota_text}, {limit_text}, weight {known.weight:g}")
    finally:
        session.after_change()


def _number(key: str, text: str) -> float | None:
    return None if text.lower() in ("none", "unlimited") else project_number(key, text)
