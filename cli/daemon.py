"""`spool daemon`: the process that schedules, lasting or on demand."""

from __future__ import annotations

import os
import signal
import sys
import time

import click

from ..scheduler.handover import LAST, spawn, wake
from .session import Session, print_json, session
from .text import safe

START_PATIENCE_S = 10.0
STOP_PATIENCE_S = 30.0


@click.group()
def daemon() -> None:
    """Start, look at or stop the scheduler daemon."""


@daemon.command("start")
@click.option("--foreground", is_flag=True, help="Stay in the foreground (for systemd).")
@session
def start(session: Session, foreground: bool) -> None:
    """Start a daemon that lasts until it is stopped (commands start one on demand by themselves)."""
    from ..scheduler import daemon as service

    if foreground:

        def log(text: str) -> None:
            click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", err=True)

        other = service.serve(session.folders, session.config, lasting=True, log=log)
        if other is not None:
            _served(other.pid, other.host)
        return
    other = service.serving(session.folders)
    if other is not None and wake(session.folders, LAST):
        click.echo(
            f"daemon serves: process {other.pid} on {other.host}; it was there already, and lasts from now on"
        )
        return
    pid = spawn(session.folders, "gpuspool.cli.main", "daemon", "start", "--foreground")
    give_up = time.monotonic() + START_PATIENCE_S
    while time.monotonic() < give_up:
        other = service.serving(session.folders)
        if other is not None and wake(session.folders, LAST):
            was = "daemon started" if other.pid == pid else "daemon serves"  # somebody else was quicker
            click.echo(f"{was}: process {other.pid} on {other.host}")
            return
        if not os.path.exists(f"/proc/{pid}") and other is None:
            break
        time.sleep(0.01)
    click.echo(f"the daemon did not start: {_last_line(session.folders.daemon_log)}", err=True)
    sys.exit(4)


def _last_line(path: str) -> str:
    """What a daemon said last."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read()[-4096:].splitlines()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return safe(lines[-1]) if lines else f"{path} is empty"


def _served(pid: int, host: str) -> None:
    click.echo(f"a daemon serves already: process {pid} on {host}", err=True)
    sys.exit(1)


@daemon.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def status(session: Session, as_json: bool) -> None:
    """Say whether a daemon serves; exit 1 when none does."""
    from ..scheduler.daemon import serving

    found = serving(session.folders)
    last = session.store.last_tick()
    if as_json:
        value = {
            "serving": found is not None,
            "pid": found.pid if found else None,
            "host": found.host if found else None,
        }
        print_json("daemon", value)
    elif found is None:
        click.echo("no daemon serves; the next command that changes something starts one")
    else:
        seen = f", last pass noted {max(0, int(session.now() - last))} s ago" if last else ""
        click.echo(f"process {found.pid} on {found.host} serves {session.folders.state}{seen}")
    sys.exit(0 if found else 1)


@daemon.command("stop")
@session
def stop(session: Session) -> None:
    """End the daemon; jobs that run go on, and the next command or tick takes them up."""
    from ..launch.processes import Process, send
    from ..scheduler.daemon import serving

    found = serving(session.folders)
    if found is None:
        click.echo("no daemon serves")
        return
    if not found.alive() or not send(Process(found.pid, found.start, 0, 0), signal.SIGTERM):
        click.echo(f"process {found.pid} on {found.host} cannot be reached from here", err=True)
        sys.exit(4)
    give_up = time.monotonic() + STOP_PATIENCE_S
    while found.alive() and time.monotonic() < give_up:
        time.sleep(0.01)
    if found.alive():
        click.echo(f"process {found.pid} has not ended within {STOP_PATIENCE_S:.0f} s", err=True)
        sys.exit(1)
    click.echo(f"daemon stopped (process {found.pid}); jobs go on")
