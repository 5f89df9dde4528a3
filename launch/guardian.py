"""The guardian: the tiny process that owns the command and enforces stop, grace and walltime.

It touches no shared file system, so nothing that hangs there delays it. What it learns goes to the recorder by wire;
when the recorder is killed it starts a new one, and it leaves only when a recorder has made the end durable.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .guard import Ended, Guard
from .plan import AttemptPlan, StopRequest
from .processes import become_subreaper, ignore_signals, reset_signals, set_title
from .wire import ChildWatch, Wire, pair, wait

#: A new recorder is started at most this often, so that one that dies at once does not spin.
RESTART_EVERY_S = 1.0


def run_guardian(
    plan: AttemptPlan, wire_fd: int, lock_fd: int, new_recorder: Callable[[int, dict[str, Any]], None]
) -> None:
    """Guard the command of `plan` to its end; never returns. `lock_fd` is the held guard lock.

    `new_recorder(fd, known)` is run in a forked child when the recorder is gone.
    """
    reset_signals()
    ignore_signals()
    set_title("spool-guardian")
    become_subreaper()
    watch = ChildWatch()
    guard = Guard(plan)
    wire = Wire(wire_fd)

    def tell_status(status: int) -> None:
        wire.send("left", status=status)

    guard.tell_status = tell_status
    recorder_pid = 0
    started_at = 0.0
    ended: Ended | None = None
    try:
        guard.start()
    except OSError as error:
        wire.send("not_started", text=error.strerror or str(error))
        ended = Ended(None, None, "", False, "", 0, 0.0, 0.0)
        _announce_end(wire, ended)
    if guard.command is not None:
        wire.send(
            "command",
            pid=guard.command.pid,
            start=guard.command.start,
            wall=guard.wall_started,
            boot=guard.started,
        )
    while True:
        timeout = guard.wait_s() if ended is None else 5.0
        wait(
            [watch.fd] if wire.closed else [watch.fd, wire.fd], min(timeout, 1.0 if wire.closed else timeout)
        )
        watch.clear()
        wire.flush()
        for message in wire.receive():
            if message["kind"] == "stop":
                guard.request(StopRequest(str(message["stop"]), int(message["grace_s"])))
            elif message["kind"] == "checkpoint":
                guard.checkpoint_completed()
            elif message["kind"] == "recorded":
                _leave(plan, lock_fd)
        if ended is None:
            ended = guard.step()
            for kind, data in guard.events:
                wire.send("event", name=kind, data=data)
            guard.events.clear()
            if ended is not None:
                _announce_end(wire, ended)
        else:
            guard.reap()
        if wire.closed and time.monotonic() - started_at >= RESTART_EVERY_S:
            # The recorder is gone, or going: another one takes its place and learns what it must know.
            started_at = time.monotonic()
            known = {
                "command": [guard.command.pid, guard.command.start, guard.wall_started, guard.started]
                if guard.command
                else None,
                "stop": guard.stop,
                "ended": asdict(ended) if ended else None,
            }
            wire.close()
            mine, theirs = pair()
            try:
                recorder_pid = os.fork()
            except OSError:
                os.close(mine)
                os.close(theirs)
                continue
            if recorder_pid == 0:
                try:
                    os.close(mine)
                    os.close(lock_fd)
                    signal.set_wakeup_fd(-1)
                    new_recorder(theirs, known)
                finally:
                    os._exit(0)  # never on as a second guardian
            os.close(theirs)
            wire = Wire(mine)
            guard.without = frozenset({recorder_pid})


def _announce_end(wire: Wire, ended: Ended) -> None:
    wire.send("ended", data=asdict(ended))


def _leave(plan: AttemptPlan, lock_fd: int) -> None:
    # Removed while it is held: whoever looks afterwards finds no lock, which means the same as a free one.
    try:
        os.unlink(plan.guard_lock)
    except OSError:
        pass
    os.close(lock_fd)
    os._exit(0)


def hold_guard_lock(plan: AttemptPlan) -> int:
    """Take the guard lock; its descriptor. Raises OSError when somebody holds it."""
    return hold(plan.guard_lock)


def hold(path: str, patience_s: float = 1.0) -> int:
    """Take the lock file at `path`; its descriptor. Raises OSError when somebody goes on holding it.

    A short patience, because whoever asks whether it is held holds it for that moment.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            if time.monotonic() >= give_up:
                os.close(fd)
                raise
            time.sleep(0.005)


def is_held(path: str) -> bool:
    """Whether some process holds the lock at `path`; it may not exist."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks on this file system: the process's name must tell
    finally:
        os.close(fd)
    return False
