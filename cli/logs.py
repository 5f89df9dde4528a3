"""`spool logs`: a job's output, whole, the last lines, or as it comes."""

from __future__ import annotations

import os
import sys
import time

import click

from ..spool.errors import BadRequest
from ..spool.model import FINAL
from ..spool.queue import JobView
from .session import Session, session
from .show import output_of

_CHUNK = 1 << 16


@click.command()
@click.argument("job", default="last")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on as output comes, over restarts, until the job ends."
)
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=None, help="The last so many lines, as in tail."
)
@click.option("--attempt", type=click.IntRange(1), default=None, help="Of this attempt (the newest).")
@session
def logs(session: Session, job: str, follow: bool, lines: int | None, attempt: int | None) -> None:
    """Print a job's output (of its newest attempt)."""
    number = session.jobs((job,))[0]
    view = session.store.show(number)
    chosen = _attempt(view, attempt)
    if chosen is None and not follow:
        raise BadRequest(
            what="job",
            value=number,
            why="it has not started, so there is no output",
            remedy=f"'spool why {number}' says why.",
        )
    out = sys.stdout.buffer
    position = 0
    if chosen is not None:
        path = output_of(view, view.attempts[chosen])
        position = _print_tail(path, lines, out)
    if not follow:
        return
    if chosen is None:
        click.echo(f"job {number} has not started yet; waiting", err=True)
    while True:
        out.flush()
        view = session.store.show(number)
        newest = _attempt(view, attempt)
        if newest is not None:
            path = output_of(view, view.attempts[newest])
            if newest != chosen:
                if chosen is not None:
                    click.echo(f"--- attempt {view.attempts[newest].number} ---", err=True)
                    # One file for all attempts goes on where it was.
                    position = position if path == output_of(view, view.attempts[chosen]) else 0
                chosen = newest
            position = _copy(path, position, out)
        if view.job.state in FINAL:
            out.flush()
            return
        time.sleep(0.1)


def _attempt(view: JobView, number: int | None) -> int | None:
    """The index of the wanted attempt; None when there is none yet. Raises BadRequest for one that never was."""
    if number is None:
        return len(view.attempts) - 1 if view.attempts else None
    for index, attempt in enumerate(view.attempts):
        if attempt.number == number:
            return index
    raise BadRequest(
        what="the attempt",
        value=number,
        why=f"job {view.job.id} has {len(view.attempts)}",
        remedy="Choose one of them.",
    )


def _print_tail(path: str, lines: int | None, out: object) -> int:
    """Print the file, or its last `lines` lines; where it ended."""
    if lines is None:
        return _copy(path, 0, out)
    try:
        size = os.path.getsize(path)
    except OSError:
        return 0
    start, found = size, 0
    with open(path, "rb") as file:
        while start > 0 and found <= lines:
            step = min(_CHUNK, start)
            start -= step
            file.seek(start)
            block = file.read(step)
            found += block.count(b"\n")
        file.seek(start)
        data = file.read(size - start)
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    out.write(b"".join(kept))  # type: ignore[attr-defined]
    return size


def _copy(path: str, position: int, out: object) -> int:
    """Copy what stands in the file from `position` on; the new position."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            while chunk := file.read(_CHUNK):
                out.write(chunk)  # type: ignore[attr-defined]
                position += len(chunk)
    except OSError:
        pass  # not there yet, or just replaced
    return position
