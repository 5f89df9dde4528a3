"""How a command that changed something sees to it that somebody ticks; light to import, unlike the daemon itself."""

from __future__ import annotations

import os
import sys

from ..sbatch.environment import RUNTIME_VARIABLES
from ..spool.config import Config
from ..spool.folders import Folders
from ..spool.session import UNFINISHED_STATES
from ..spool.store import Store

#: Through the wake FIFO: serve until you are stopped.
LAST = b"l"


def wake(folders: Folders, word: bytes = b"c") -> bool:
    """Wake the daemon of this host; False when none serves. The word `LAST` makes an on-demand one a lasting one."""
    try:
        fd = os.open(folders.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, word)
    except BlockingIOError:
        pass  # full of wake-ups already
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def leave_behind(folders: Folders, config: Config) -> str:
    """Wake the daemon, or start one, detached; "woken", "started" or "nobody"."""
    if wake(folders):
        return "woken"
    # From within a job nothing is left behind: it would die with the job. Its supervisor's end runs a tick.
    if not config["daemon.auto"] or "GPUSPOOL_JOB_ID" in os.environ:
        return "nobody"
    spawn(folders, "gpuspool.scheduler.daemon")
    return "started"


def waiting(store: Store, now: float) -> tuple[int, bool]:
    """How many jobs are queued, and whether a pass could do anything at all at `now` (UTC seconds).

    It could not where nothing runs or is reserved and all that is queued is held or not due, with the reason noted.
    One read: an idle `spool tick` from cron imports neither the policy nor the launcher.
    """
    queued, work = store.rows(
        "SELECT count(*), coalesce(sum(state != 'queued' OR reason_text = ''"
        " OR (hold = '' AND begin_at <= ? AND not_before <= ?)), 0)"
        f" FROM jobs WHERE state IN {UNFINISHED_STATES}",
        (now, now),
    )[0]
    return queued, bool(work or store.rows("SELECT 1 FROM reservations LIMIT 1"))


def spawn(folders: Folders, module: str, *arguments: str) -> int:
    """Start `module`, detached from terminal and session, its talk in daemon.log; its pid. Raises OSError."""
    argv = [sys.executable, "-E", "-P", "-m", module, *arguments]
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.write(tell, str(os.getpid()).encode())
                os.chdir("/")
                null = os.open("/dev/null", os.O_RDWR)
                log = os.open(
                    folders.daemon_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600
                )
                os.dup2(null, 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.closerange(3, 65536)
                clean = {name: value for name, value in os.environ.items() if name not in RUNTIME_VARIABLES}
                os.execve(sys.executable, argv, clean)
        finally:
            os._exit(0)
    os.close(tell)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # SIGCHLD is ignored, as our parent left it: the child reaps itself
    said = os.read(told, 32)
    os.close(told)
    return int(said or 0)
