"""`spool config`: what is set, where it comes from, and whether it is right."""

from __future__ import annotations

import os

import click

from ..spool.config import SETTINGS, SYSTEM_FILE, user_file
from .session import Session, print_json, session
from .text import count, safe, table


@click.group()
def config() -> None:
    """Show and check the configuration.

    A setting comes from the first of these that has it: an option of the command, a variable GPUSPOOL_CFG_..., the
    user's file, /etc/gpuspool/config.toml, the default.
    """


@config.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def show(session: Session, as_json: bool) -> None:
    """Show every setting, its value and where it comes from."""
    found = session.config
    if as_json:
        values = {s.name: {"value": found[s.name], "origin": found.origins[s.name]} for s in SETTINGS}
        print_json("config", values)
        return
    rows = [[s.name, safe(str(found[s.name])) or "-", safe(found.origins[s.name]), s.doc] for s in SETTINGS]
    click.echo(table(["SETTING", "VALUE", "FROM", "WHAT IT IS"], rows))
    for window in found.windows.values():
        click.echo(f"window {safe(window.name)} ({window.zone})")
    for item in found.classes.values():
        where = f", window {safe(item.window)}" if item.window else ""
        kind = "preemptible" if item.preemptible else "not preemptible"
        click.echo(f"class {safe(item.name)}: {kind}, rank {item.rank}{where}")


@config.command("path")
@session
def path(session: Session) -> None:
    """Print the files that are read and the folders that are used."""
    # The files first: whoever looks for a file with a fault in it must learn where it stands.
    for name, file in (("system file", SYSTEM_FILE), ("user file", user_file())):
        click.echo(f"{name:<15}{safe(file)}{'' if os.path.exists(file) else '  (not there)'}")
    for name, folder in (
        ("state folder", session.folders.state),
        ("run folder", session.folders.run),
        ("runtime folder", session.folders.runtime),
    ):
        click.echo(f"{name:<15}{safe(folder)}")


@config.command("check")
@session
def check(session: Session) -> None:
    """Check the configuration; exit 2 and every fault with its line when it is wrong."""
    found = session.config
    files = ", ".join(safe(file) for file in found.files) or "no file"
    click.echo(
        f"ok: {files}; {len(found.classes)} classes, {count(len(found.windows), 'window')},"
        f" {count(len(found.projects), 'project')}"
    )
