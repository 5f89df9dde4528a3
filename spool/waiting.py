"""Waiting for jobs to finish, and a finished job as an exit code."""

from __future__ import annotations

import time
from collections.abc import Callable

from .model import FINAL, Job, State
from .queue import QueueVerbs

#: The exit code of a wait that ran out of time, as timeout(1) has it.
TIMED_OUT = 124
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25


def wait_for(
    store: QueueVerbs,
    jobs: tuple[int, ...],
    limit_s: float | None = None,
    *,
    look: Callable[[list[Job]], None] | None = None,
    idle: Callable[[], None] | None = None,
) -> tuple[list[Job], bool]:
    """Wait until all of `jobs` are final; them as they are then, and whether they are.

    `limit_s` (None: for ever) bounds the wait. `look` is called with the jobs after each change of the database,
    `idle` before each pause. A change is seen by SQLite's data_version, which costs next to nothing.
    """
    give_up = None if limit_s is None else time.monotonic() + limit_s
    pause, version = _FIRST_PAUSE_S, -1
    found: list[Job] = []
    while True:
        seen = store.rows("PRAGMA data_version")[0][0]
        if seen != version:
            version, began = seen, time.monotonic()
            found = store.list(jobs=jobs)
            # Many jobs in a busy spool: never spend more than a twentieth of a core on looking.
            pause = max(_FIRST_PAUSE_S, 20 * (time.monotonic() - began))
            if look is not None:
                look(found)
            if all(job.state in FINAL for job in found):
                return found, True
        left = None if give_up is None else give_up - time.monotonic()
        if left is not None and left <= 0:
            return found, False
        if idle is not None:
            idle()
        time.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, max(pause, _LONGEST_PAUSE_S))


def exit_code(job: Job) -> int:
    """A final job as an exit code: its own, 128+signal when killed, 130 for one cancelled before it ran, else 1."""
    if job.state == State.SUCCEEDED:
        return 0
    if job.signal is not None:
        return 128 + job.signal
    if job.exit_code:
        return job.exit_code
    return 130 if job.state == State.CANCELLED else 1
