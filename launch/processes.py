"""Finding and signalling the processes of an attempt, and never anybody else's.

A process is ours when it descends from a supervisor of the attempt, is in its cgroup, is in the supervisor's
session, carries the attempt's marker in its environment, or was seen (pid and start time) as one of those. A signal
goes through a pidfd that is opened first and checked by start time afterwards, so a recycled pid is never hit.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import os
import signal

from ..spool.processes import start_time
from ..spool.values import dataclass

MARKER = "GPUSPOOL_TOKEN"
#: By number, for the C module itself: `signal` turns each into an enumeration first, three times a job.
_RESETTABLE = tuple(
    int(number) for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)
)
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was found: pid and start time name it, `parent` and `session` say where it stands."""

    pid: int
    start: int
    parent: int
    session: int


def become_subreaper() -> bool:
    """Make this process the new parent of orphaned descendants; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def look(pid: int) -> Process | None:
    """Process `pid` as it is now; None when it is gone or only a zombie is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]))


def children(pid: int) -> list[int]:
    """Children of all threads of `pid`, zombies included; much cheaper than reading all of /proc."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
        except OSError:
            continue
    return found


def descendants(pid: int, without: frozenset[int] = frozenset()) -> list[Process]:
    """All living descendants of `pid`, parents before children; the subtrees of `without` are left out."""
    found: list[Process] = []
    queue = [pid]
    seen = {pid}
    while queue:
        for child in children(queue.pop(0)):
            if child in seen or child in without:
                continue
            seen.add(child)
            queue.append(child)
            process = look(child)
            if process is not None:
                found.append(process)
    return found


def ancestors(pid: int) -> set[int]:
    """`pid` and all its ancestors: whoever stops a tree must not stop what it hangs from."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        process = look(pid)
        if process is None:
            break
        pid = process.parent
    return found


def caught_signals(pid: int) -> int:
    """The mask of signals that `pid` has handlers for (SigCgt); 0 when it cannot be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def catches(mask: int, number: int) -> bool:
    """Whether `mask` (of `caught_signals`) has signal `number`."""
    return bool(mask >> (number - 1) & 1)


def environment_has(pid: int, entry: bytes) -> bool:
    """Whether the environment `pid` started with has `entry` (b"NAME=value", or b"NAME=" for any value)."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read()
    except OSError:
        return False
    if entry.endswith(b"="):
        return data.startswith(entry) or b"\0" + entry in data
    return (b"\0" + data).find(b"\0" + entry + b"\0") >= 0 or data == entry


def marked(token: str) -> list[Process]:
    """Our user's processes that carry the attempt's marker, wherever they hang; reads all of /proc."""
    entry = f"{MARKER}={token}".encode()
    uid = os.getuid()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != uid:
                continue
        except OSError:
            continue
        if environment_has(int(name), entry) and (process := look(int(name))):
            found.append(process)
    return found


def in_session(session: int, not_before: int) -> list[Process]:
    """Our user's processes in `session`; only those that started at or after `not_before` (clock ticks since boot),
    since the number of a session that has ended may be another's by now."""
    uid = os.getuid()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := look(int(name))):
            try:
                mine = os.stat(f"/proc/{name}").st_uid == uid
            except OSError:
                continue
            if mine and process.session == session and process.start >= not_before:
                found.append(process)
    return found


def send(process: Process, number: int) -> bool:
    """Send signal `number` to exactly `process`; False when it is gone (or was replaced, or may not be signalled)."""
    if process.pid <= 1 or process.pid == os.getpid() or process.start == 0:
        return False
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if start_time(process.pid) != process.start:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def reset_signals() -> None:
    """Default actions and an empty mask, first thing in a process of ours: an ignored SIGCHLD that was inherited
    loses every exit code."""
    for number in _RESETTABLE:
        try:
            _signal.signal(number, _signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_signals() -> None:
    """What would end a process of ours by accident (a terminal that closes, a signal to a whole group) is ignored."""
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGPIPE,
    ):
        signal.signal(number, signal.SIG_IGN)


def set_title(name: str) -> None:
    """The short name that ps and top show (15 characters)."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
