"""`spool wait`: until jobs are final; the exit code is the job's own."""

from __future__ import annotations

import sys
import time

import click

from ..spool.model import FINAL, Job, State
from ..spool.quantities import duration
from .session import Session, session

TIMED_OUT = 124


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--timeout", default="", help="Give up after this long (exit 124).")
@session
def wait(session: Session, jobs: tuple[str, ...], timeout: str) -> None:
    """Wait until jobs are finished; gives the job's exit code, 128+signal when killed, of several the highest."""
    limit = duration(timeout, what="the timeout", bare="s", zero=True) if timeout else None
    sys.exit(wait_for(session, session.jobs(jobs), limit))


def wait_for(session: Session, jobs: tuple[int, ...], limit_s: float | None) -> int:
    """Wait; the exit code. A change in the database is seen by SQLite's data_version, which costs nothing."""
    give_up = None if limit_s is None else time.monotonic() + limit_s
    pause, version, told = 0.005, -1, set()
    while True:
        seen = session.store.rows("PRAGMA data_version")[0][0]
        if seen != version:
            version = seen
            found = [session.store.job(number) for number in jobs]
            for job in found:
                if job.hold and job.state == State.QUEUED and job.id not in told:
                    told.add(job.id)
                    click.echo(f"job {job.id} is held: {job.reason_text or job.hold}", err=True)
            if all(job.state in FINAL for job in found):
                return max(code_of(job) for job in found)
        if give_up is not None and time.monotonic() >= give_up:
            left = ", ".join(str(job.id) for job in found if job.state not in FINAL)
            click.echo(f"not finished in time: {left}", err=True)
            return TIMED_OUT
        time.sleep(pause if give_up is None else min(pause, max(0.0, give_up - time.monotonic())))
        pause = min(pause * 1.5, 0.25)


def code_of(job: Job) -> int:
    """A final job as an exit code: its own, 128+signal, 130 for a cancelled one, 1 for other failures."""
    if job.state == State.SUCCEEDED:
        return 0
    if job.state == State.CANCELLED:
        return 130
    if job.signal is not None:
        return 128 + job.signal
    return job.exit_code or 1
