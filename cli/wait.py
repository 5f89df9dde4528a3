"""`spool wait`: until jobs are final; the exit code is the job's own."""

from __future__ import annotations

import sys
import time

import click

from ..spool.model import FINAL, Job, State
from ..spool.quantities import duration
from ..spool.waiting import TIMED_OUT, exit_code, wait_for
from .queue import job_json, waits_for
from .session import Session, print_json, session
from .show import ended_how
from .text import safe

#: A waiter looks so often whether somebody schedules at all.
LOOK_FOR_DAEMON_S = 15.0


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--timeout", default="", help="Give up after this long: 90s, 10m (exit 124).")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about jobs that are held or did not succeed.")
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON in the end.")
@session
def wait(session: Session, jobs: tuple[str, ...], timeout: str, quiet: bool, as_json: bool) -> None:
    """Wait until jobs are finished; give the job's exit code.

    128+signal when it was killed, of several jobs the highest, 124 when the time is over.

    \b
    spool wait last && echo good
    spool wait 12-20 --timeout 2h
    """
    if not jobs:
        raise click.UsageError("name the jobs to wait for: 12, 1-5,9 or last")
    limit = duration(timeout, what="the timeout", bare="s", zero=True) if timeout else None
    sys.exit(wait_and_tell(session, session.jobs(jobs), limit, quiet=quiet, as_json=as_json))


def wait_and_tell(
    session: Session,
    jobs: tuple[int, ...],
    limit_s: float | None = None,
    *,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Wait; the exit code. Says on standard error which jobs are held and which did not succeed."""
    told: set[int] = set()
    looked = float("-inf")

    def look(found: list[Job]) -> None:
        for job in found:
            if job.id in told or quiet:
                continue
            if job.state == State.QUEUED and job.hold:
                told.add(job.id)
                click.echo(f"job {job.id} is waited for, but {safe(waits_for(job))}", err=True)

    def idle() -> None:
        nonlocal looked
        if time.monotonic() - looked >= LOOK_FOR_DAEMON_S:
            looked = time.monotonic()
            session.see_to_it_that_somebody_ticks()

    found, finished = wait_for(session.store, jobs, limit_s, look=look, idle=idle)
    if as_json:
        print_json("jobs", [job_json(job) for job in found])
    if not finished:
        left = ", ".join(str(job.id) for job in found if job.state not in FINAL)
        click.echo(f"not finished in time: {left}", err=True)
        return TIMED_OUT
    for job in found:
        if job.state != State.SUCCEEDED and not quiet:
            click.echo(f"job {job.id} {ended_how(job.state, job.end_text)}", err=True)
    return max(exit_code(job) for job in found)
