"""`spool node`: the machines and GPUs as the scheduler knows them."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from .session import Session, print_json, session
from .text import iso, local, safe, table


@click.group()
def node() -> None:
    """Show the machines and GPUs."""


@node.command("list")
@click.option("--refresh", is_flag=True, help="Read this machine again first.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@session
def list_(session: Session, refresh: bool, as_json: bool) -> None:
    """Show each machine and GPU, with what runs there."""
    store = session.store
    if refresh or not store.nodes():
        from ..scheduler.nodes import note_this_machine

        note_this_machine(store, session.config, session.now())
    live = store.live()
    holders = {uuid: entry.job.id for entry in live for uuid in json.loads(entry.attempt.gpu_uuids)}
    nodes, gpus = store.nodes(), store.gpus()
    if as_json:
        values = []
        for found in nodes:
            rows_of = [asdict(gpu) | {"job": holders.get(gpu.uuid)} for gpu in gpus if gpu.node == found.name]
            values.append(asdict(found) | {"seen_at": iso(found.seen_at), "gpus": rows_of})
        print_json("nodes", values)
        return
    rows = []
    for found in nodes:
        used = sum(entry.attempt.cpus for entry in live if entry.attempt.node == found.name)
        mine = [gpu for gpu in gpus if gpu.node == found.name]
        busy = sum(gpu.uuid in holders for gpu in mine)
        rows.append(
            [
                safe(found.name),
                found.state,
                f"{used}/{found.cpus}",
                f"{found.memory_mib // 1024}G",
                f"{busy}/{len(mine)}" if mine else "",
                local(found.seen_at),
                safe(found.reason),
            ]
        )
    click.echo(table(["NODE", "STATE", "CPUS", "MEMORY", "GPUS", "SEEN", "REASON"], rows))
    if gpus:
        click.echo()
        cells = [
            [
                str(gpu.idx),
                safe(gpu.type or gpu.name),
                f"{gpu.memory_mib // 1024}G",
                gpu.state,
                str(holders.get(gpu.uuid, "")),
                safe(gpu.uuid),
                safe(gpu.reason),
            ]
            for gpu in gpus
        ]
        click.echo(table(["GPU", "TYPE", "MEMORY", "STATE", "JOB", "UUID", "REASON"], cells))
