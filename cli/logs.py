"""`spool logs`: a job's output, whole, the last lines, or as it comes."""

from __future__ import annotations

import os
import sys
import time
from typing import IO

import click

from ..spool.errors import BadRequest
from ..spool.model import FINAL, Attempt, State
from ..spool.queue import JobView
from .queue import waits_for
from .session import Session, session
from .show import error_file, output_file
from .text import safe

_CHUNK = 1 << 16
_LOOK_S = 0.1
_LOOK_FOR_DAEMON_S = 15.0


@click.command()
@click.argument("job", default="last")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on as output comes, over restarts, until the job ends."
)
@click.option("-n", "--lines", type=click.IntRange(0), default=None, help="Only the last so many lines.")
@click.option("--attempt", type=click.IntRange(1), default=None, help="Of this attempt (the newest).")
@click.option("-e", "--error", "stderr", is_flag=True, help="The file of submit's --error instead.")
@session
def logs(
    session: Session, job: str, follow: bool, lines: int | None, attempt: int | None, stderr: bool
) -> None:
    """Print the output of JOB (the last one): of its newest attempt.

    \b
    spool logs -f            follow the job that was submitted last
    spool logs 12 -n 50      its last 50 lines
    spool logs 12 --attempt 1
    """
    numbers = session.jobs((job,))
    if len(numbers) > 1:
        raise click.UsageError("name one job")
    reader = _Reader(session, numbers[0], attempt, stderr)
    view = session.store.show(numbers[0])
    now_at = reader.attempt_of(view)
    if now_at is None and not follow:
        _say(reader.not_yet(view))
        sys.exit(1)
    if now_at is not None:
        reader.open(view, now_at)
        if not reader.tail(lines) and not follow:
            _say(f"job {view.job.id} has no output file {safe(reader.path)}")
            sys.exit(1)
    if follow:
        reader.follow(view)


class _Reader:
    """Copies the output of a job's attempts to standard output, each from where it was left."""

    def __init__(self, session: Session, job: int, wanted: int | None, stderr: bool) -> None:
        self.session, self.job, self.wanted, self.stderr = session, job, wanted, stderr
        self.out: IO[bytes] = sys.stdout.buffer
        self.number = 0  # the attempt that is being read
        self.path = ""
        self.position = 0

    def attempt_of(self, view: JobView) -> Attempt | None:
        """The attempt to read; None when there is none yet. Raises BadRequest for one that never was."""
        if self.stderr and not view.spec.error:
            raise BadRequest(
                what="--error",
                value=f"job {self.job}",
                why="it was submitted without --error, so both go to one file",
                remedy="Leave -e out.",
            )
        if self.wanted is None:
            return view.attempts[-1] if view.attempts else None
        for attempt in view.attempts:
            if attempt.number == self.wanted:
                return attempt
        last = view.attempts[-1].number if view.attempts else 0
        raise BadRequest(
            what="the attempt",
            value=self.wanted,
            why=f"job {self.job} has had {last}",
            remedy=f"Choose one from 1 to {last}." if last else f"'spool why {self.job}' says why it waits.",
        )

    def open(self, view: JobView, attempt: Attempt) -> None:
        """Turn to the file of `attempt`; one file for all attempts goes on where it was."""
        path = error_file(view, attempt) if self.stderr else output_file(view, attempt)
        if path != self.path:
            self.path, self.position = path, 0
        self.number = attempt.number

    def tail(self, lines: int | None) -> bool:
        """Print what is there, or its last `lines` lines; False when there is no file."""
        try:
            with open(self.path, "rb") as file:
                if lines is not None:
                    file.seek(_start_of_last(file, lines))
                while chunk := file.read(_CHUNK):
                    self.out.write(chunk)
                self.position = file.tell()
        except FileNotFoundError:
            return False
        self.out.flush()
        return True

    def copy(self) -> None:
        """Print what has come since; a file that became shorter begins anew."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.position:
                    self.position = 0
                file.seek(self.position)
                while chunk := file.read(_CHUNK):
                    self.out.write(chunk)
                self.position = file.tell()
        except FileNotFoundError:
            pass  # not there yet
        self.out.flush()

    def follow(self, view: JobView) -> None:
        """Until the job (or the wanted attempt) has ended."""
        said = ""
        looked = float("-inf")
        while True:
            attempt = self.attempt_of(view)
            if attempt is not None:
                if attempt.number != self.number:
                    if self.number:
                        self.copy()  # the last words of the attempt before
                        _say(f"--- attempt {attempt.number} ---")
                    self.open(view, attempt)
                self.copy()
                if self.wanted is not None and attempt.ended_at is not None:
                    return
            if view.job.state in FINAL:
                if attempt is None:
                    _say(self.not_yet(view))
                return
            waits = self.not_yet(view) if view.job.state == State.QUEUED else ""
            if waits and waits != said and view.job.reason_text:
                said = waits
                _say(waits)
            if time.monotonic() - looked >= _LOOK_FOR_DAEMON_S:
                looked = time.monotonic()
                self.session.see_to_it_that_somebody_ticks()
            time.sleep(_LOOK_S)
            view = self.session.store.show(self.job)

    def not_yet(self, view: JobView) -> str:
        """Why there is no (more) output."""
        job = view.job
        if job.state in FINAL:
            return f"job {job.id} never started: {safe(job.end_text)}"
        if job.state == State.QUEUED:
            again = "again " if view.attempts else ""
            return f"job {job.id} has not started {again}yet: {safe(waits_for(job))}"
        return f"job {job.id} is {job.state}; there is no output yet"


def _start_of_last(file: IO[bytes], lines: int) -> int:
    """Where the last `lines` lines begin. Lines end with a line feed, as for tail: a progress bar is one line."""
    end = file.seek(0, os.SEEK_END)
    if not lines:
        return end
    at = end
    wanted = lines
    while at > 0:
        step = min(_CHUNK, at)
        at -= step
        file.seek(at)
        block = file.read(step)
        stop = len(block)
        if at + step == end and block.endswith(b"\n"):
            stop -= 1  # the one that closes the last line
        while (found := block.rfind(b"\n", 0, stop)) >= 0:
            wanted -= 1
            if not wanted:
                return at + found + 1
            stop = found
    return 0


def _say(text: str) -> None:
    click.echo(text, err=True)
