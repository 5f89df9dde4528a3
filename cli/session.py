"""What most commands share: the spool they work on, how jobs are named, and what follows a change."""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property
from typing import Any

import click

from ..spool import config as configuration
from ..spool.errors import BadRequest
from ..spool.folders import Folders, resolve
from ..spool.jobids import job_numbers
from ..spool.model import Job
from ..spool.processes import user_name
from ..spool.queue import Outcome
from ..spool.store import Store, open_store

QUIET_S = 180.0
#: So many jobs are touched without asking.
FEW = 10
NOBODY = "nobody schedules: type 'spool daemon start' or 'spool tick'"


class Session:
    """One command's view of the spool; everything is opened on first use."""

    @cached_property
    def config(self) -> configuration.Config:
        """The configuration in force."""
        return configuration.load()

    @cached_property
    def folders(self) -> Folders:
        """The spool's folders."""
        return resolve(self.config)

    @cached_property
    def store(self) -> Store:
        """The store."""
        return open_store(self.folders)

    @cached_property
    def user(self) -> str:
        """Who types, for the record."""
        return user_name()

    def now(self) -> float:
        """The clock at the edge."""
        return time.time()

    def jobs(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Job numbers from 12, s12, 1-5,9 and last. Raises BadRequest or NoSuchJob."""
        return job_numbers(self.store, words, user=self.user)

    def after_change(self) -> None:
        """Let somebody tick, now that the answer is out: wake the daemon or leave one behind."""
        from ..scheduler import handover

        if handover.leave_behind(self.folders, self.config) != "nobody":
            return
        if "GPUSPOOL_JOB_ID" not in os.environ:  # within a job its supervisor schedules when it ends
            click.echo(NOBODY, err=True)

    def see_to_it_that_somebody_ticks(self) -> None:
        """For those who wait: without a daemon (it was killed, say) they would wait for ever."""
        from ..scheduler import handover

        handover.leave_behind(self.folders, self.config)

    def tell(self, outcomes: list[Outcome], *, as_json: bool) -> None:
        """Print what a wish did, wake the scheduler if it did anything, leave with 1 if it did nothing for some."""
        try:
            if as_json:
                print_json("outcomes", [{"job": o.job, "done": o.done, "text": o.text} for o in outcomes])
            else:
                for outcome in outcomes:
                    click.echo(f"job {outcome.job} {outcome.text}", err=not outcome.done)
        finally:
            # Also when nobody reads the answer any more: the wish stands in the store.
            if any(outcome.done for outcome in outcomes):
                self.after_change()
        if not all(outcome.done for outcome in outcomes):
            sys.exit(1)

    def warn_if_quiet(self) -> None:
        """Say so when nobody has scheduled for 3 minutes though there is something to schedule."""
        last = self.store.last_tick()
        if last is not None and self.now() - last < QUIET_S:
            return
        waiting = self.store.rows(
            "SELECT count(*) FROM jobs WHERE state IN ('queued', 'initializing', 'running', 'stopping') AND hold = ''"
            " AND submitted_at < ?",
            (self.now() - QUIET_S,),
        )
        if waiting[0][0]:
            click.echo(
                "nobody has scheduled for 3 minutes: type 'spool daemon start' or 'spool tick'", err=True
            )


session = click.make_pass_decorator(Session, ensure=True)


def print_json(kind: str, value: Any) -> None:
    """Exactly one JSON value on stdout, with its schema number."""
    import json

    click.echo(json.dumps({"schema": 1, kind: value}, indent=2, ensure_ascii=True))


def confirm_many(jobs: list[Job], verb: str, user: str, *, yes: bool) -> None:
    """Ask before `verb` touches many jobs or other users'; without a terminal refuse unless --yes."""
    others = sorted({job.user for job in jobs} - {user})
    if yes or (len(jobs) <= FEW and not others):
        return
    what = f"{len(jobs)} jobs" if len(jobs) != 1 else f"job {jobs[0].id}"
    whose = f" of {', '.join(ascii(name)[1:-1] for name in others)}" if others else ""
    if not sys.stdin.isatty():
        raise BadRequest(
            what=verb,
            value=what + whose,
            why="they are many or not yours, and nobody can be asked",
            remedy="Repeat it with --yes.",
        )
    if not click.confirm(f"{verb} {what}{whose}?", err=True):
        click.echo("nothing was done", err=True)
        sys.exit(1)
