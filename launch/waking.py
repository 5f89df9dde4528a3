"""Telling the scheduler that something happened: through the daemon's FIFO, or by a tick where no daemon serves."""

from __future__ import annotations

import os

from .guardian import is_held
from .plan import AttemptPlan


def wake(plan: AttemptPlan, *, run: bool) -> None:
    """Wake the daemon through its FIFO; where none reads it and `run`, start the command that ticks."""
    try:
        fd = os.open(os.path.join(plan.runtime, "wake"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if run and plan.wake:
            # Whoever is in a pass takes another one for us; only when nobody is, a tick is worth its start.
            leave_word(plan.runtime)
            if not is_held(os.path.join(plan.runtime, "tick.lock")):
                _run_detached(plan.wake)
        return
    try:
        # "s": something started or is stopping, which frees no room; the daemon may take its time.
        os.write(fd, b"e" if run else b"s")
    except OSError:
        pass  # full: it is awake
    finally:
        os.close(fd)


def tick_again(runtime: str) -> str:
    """The file by which somebody asks whoever is in a pass to take another one."""
    return os.path.join(runtime, "tick.again")


def leave_word(runtime: str) -> None:
    """Ask whoever is in a pass to take another one."""
    try:
        os.close(os.open(tick_again(runtime), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError:
        pass  # without room for an empty file nothing can be scheduled either; the next tick sees all


def _run_detached(argv: list[str]) -> None:
    """Start `argv` in a session of its own, never waited for; its own environment is ours, which is clean."""
    pid = os.fork()
    if pid:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, 65536)
        os.execv(argv[0], argv)
    except OSError:
        pass
    finally:
        os._exit(127)
