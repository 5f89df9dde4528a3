"""What most commands share: the spool they work on, how jobs are named, and what follows a change."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import cached_property
from typing import Any

import click

from ..spool import config as configuration
from ..spool.errors import BadRequest
from ..spool.folders import Folders, resolve
from ..spool.queue import Outcome
from ..spool.store import Store, open_store

QUIET_S = 180.0
_RANGE = re.compile(r"s?(\d+)(?:-s?(\d+))?")


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
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return str(os.getuid())

    def now(self) -> float:
        """The clock at the edge."""
        return time.time()

    def after_change(self) -> str:
        """Answer first, then let somebody tick: wake the daemon or leave one behind."""
        sys.stdout.flush()
        from ..scheduler import handover

        return handover.leave_behind(self.folders, self.config)

    def jobs(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Job numbers from 12, s12, 1-5,9 and last. Raises BadRequest."""
        found: list[int] = []
        for word in ",".join(words).split(","):
            word = word.strip()
            if word == "last":
                found.append(self.store.last_job())
                continue
            match = _RANGE.fullmatch(word)
            if not match:
                raise BadRequest(
                    what="the job",
                    value=word,
                    why="it is no job number",
                    remedy="Write 12, s12, 1-5,9 or last.",
                )
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last - first > 1_000_000:
                raise BadRequest(
                    what="the job range", value=word, why="it is no range", remedy="Write 1-5, say."
                )
            found += self.store_range(first, last) if match[2] else [first]
        return tuple(dict.fromkeys(found))

    def store_range(self, first: int, last: int) -> list[int]:
        """The jobs that there are from `first` to `last`."""
        return [
            row[0]
            for row in self.store.rows(
                "SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
            )
        ]

    def tell(self, outcomes: list[Outcome], *, as_json: bool) -> None:
        """Print what a wish did, wake the scheduler if it did anything, leave with 1 if it did nothing for some."""
        if as_json:
            print_json("outcomes", [{"job": o.job, "done": o.done, "text": o.text} for o in outcomes])
        else:
            for outcome in outcomes:
                click.echo(f"job {outcome.job} {outcome.text}", err=not outcome.done)
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


def confirm_many(count: int, verb: str, yes: bool) -> None:
    """Ask before `verb` touches many jobs; without a terminal refuse unless --yes."""
    if yes or count <= 10:
        return
    if not sys.stdin.isatty():
        raise BadRequest(
            what=verb,
            value=f"{count} jobs",
            why="that are many and nobody can be asked",
            remedy="Repeat it with --yes.",
        )
    click.confirm(f"{verb} {count} jobs?", abort=True, err=True)
