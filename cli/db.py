"""`spool db`: check and copy the database."""

from __future__ import annotations

import os
import sys

import click

from .session import Session, print_json, session
from .text import safe


@click.group()
def db() -> None:
    """Check or copy the spool's database."""


@db.command("check")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@session
def check(session: Session, as_json: bool) -> None:
    """Check the database: SQLite's own integrity, the schema, and what must hold between its rows.

    Exit 1 when something is wrong.
    """
    from ..spool.check import check_database

    found = check_database(session.folders)
    if as_json:
        print_json("check", {"faults": found.faults, "facts": found.facts})
    else:
        for fact in found.facts:
            click.echo(safe(fact))
        for fault in found.faults:
            click.echo(f"FAULT: {safe(fault)}", err=True)
        click.echo("clean" if not found.faults else f"{len(found.faults)} faults")
    sys.exit(1 if found.faults else 0)


@db.command("backup")
@click.argument("target", type=click.Path(dir_okay=False))
@session
def backup(session: Session, target: str) -> None:
    """Write a consistent copy of the database to TARGET (which must not exist)."""
    session.store.backup(target)
    click.echo(f"copied to {safe(os.path.abspath(target))}")
