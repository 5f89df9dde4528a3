"""`spool tick`: one scheduling pass, for cron and for supervisors that end."""

from __future__ import annotations

import click

from ..scheduler.handover import waiting, wake
from .session import Session, session


@click.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing.")
@session
def tick(session: Session, quiet: bool) -> None:
    """Run one scheduling pass; where a daemon serves, wake it instead."""
    if wake(session.folders):
        if not quiet:
            click.echo("a daemon serves: it was woken")
        return
    now = session.now()
    queued, work = waiting(session.store, now)
    if not work:
        session.store.note_tick(now)
        if not quiet:
            click.echo(f"nothing to do; {queued} queued")
        return
    from ..scheduler.daemon import tick_once

    report = tick_once(session.folders, session.config)
    if quiet:
        return
    if report is None:
        click.echo("somebody else is in a pass")
        return
    click.echo(
        f"started {report.started}, ended {report.ended}, preempted {report.preempted};"
        f" {report.live} live, {report.queued} queued"
    )
    for trouble in report.troubles:
        click.echo(trouble, err=True)
