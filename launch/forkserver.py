"""A warm process that forks supervisors: the daemon's child, with everything imported that a supervisor needs.

It holds no database connection and no threads. It ends when the daemon does; the supervisors it forked go on.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from ..spool.eventlog import Batch, Line
from ..spool.processes import ProcessName, start_time
from ..spool.values import make_ready
from .guard import Ended, Guard
from .plan import AttemptPlan, StopRequest
from .processes import Process, reset_signals, set_title
from .supervisor import detach, supervise
from .wire import ChildWatch, Wire, pair, wait


class ForkServer:
    """The scheduler's side: a daemon spawns one, clean and lasting; a cold tick forks one off before it opens the store."""

    def __init__(self, *, fork: bool = False) -> None:
        mine, theirs = pair()
        if fork:
            self.pid = os.fork()
            if self.pid == 0:
                _become_server(theirs)
        else:
            os.set_inheritable(theirs, True)
            argv = [sys.executable, "-E", "-P", "-m", "gpuspool.launch.forkserver", str(theirs)]
            self.pid = os.posix_spawn(sys.executable, argv, supervisor_environment())
        os.close(theirs)
        self.wire = Wire(mine)

    def start(self, folders: list[str]) -> dict[str, tuple[int, int]]:
        """Fork a supervisor for each attempt folder; by folder its pid and start time.

        A folder that is missing in the answer could not be forked for, or the fork server fell silent: whether a
        supervisor was started is then for its claim to say.
        """
        for folder in folders:
            self.wire.send("start", folder=folder)
        found: dict[str, tuple[int, int]] = {}
        silent = 0
        answers = 0
        while answers < len(folders) and silent < 100 and not self.wire.closed:
            wait([self.wire.fd], 0.1)
            self.wire.flush()
            messages = self.wire.receive()
            silent = 0 if messages else silent + 1
            for message in messages:
                answers += 1
                if message["kind"] == "forked":
                    found[str(message["folder"])] = (int(message["pid"]), int(message["start"]))
        return found

    def close(self) -> None:
        """Let it go and reap it."""
        self.wire.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def supervisor_environment() -> dict[str, str]:
    """What a process of ours keeps of the environment: where things are, nothing of a job and no PYTHON*."""
    keep = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH")
    kept_prefixes = ("LC_", "XDG_", "GPUSPOOL_CFG_", "NVIDIA_", "FAKE_NVML")
    return {
        name: value
        for name, value in os.environ.items()
        if name in keep or name.startswith(kept_prefixes) or name in ("SCRATCH", "WORK")
    }


def spawn_cold(folder: str) -> None:
    """Start a supervisor without a fork server: a detached process of its own. Raises OSError."""
    argv = [sys.executable, "-E", "-P", "-m", "gpuspool.launch.supervisor", folder]
    pid = os.fork()
    if pid == 0:
        try:
            reset_signals()
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, argv, supervisor_environment())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    """Serve the daemon at the other end of descriptor argv[1] until it is gone."""
    serve(int(sys.argv[1]), lasting=True)


def _become_server(fd: int) -> None:
    """In a forked child of a cold tick: keep nothing of it but `fd` (its locks are not ours), and serve."""
    try:
        os.dup2(fd, 3)
        os.closerange(4, 65536)
        serve(3, lasting=False)
    finally:
        os._exit(0)


def serve(fd: int, *, lasting: bool) -> None:
    """Fork supervisors as asked through `fd` until the other end is gone."""
    reset_signals()
    set_title("spool-forksrv")
    # What every supervisor needs is made here, once; and nothing here is ever garbage to the children.
    make_ready(AttemptPlan, StopRequest, Guard, Ended, Process, ProcessName, Line, Batch)
    gc.freeze()
    wire = Wire(fd)
    os.set_inheritable(wire.fd, False)
    watch = ChildWatch()
    os.setsid()
    os.chdir("/")
    # The libraries that a long job samples with: imported once, shared by all forks, and not before first use.
    warm = not lasting
    while not wire.closed:
        wait([wire.fd, watch.fd], 3600.0 if warm else 0.5)
        watch.clear()
        _reap()
        messages = wire.receive()
        for message in messages:
            _fork(wire, message)
        if not messages and not warm:
            warm = True
            _warm_up()
        wire.flush()


def _warm_up() -> None:
    import psutil  # noqa: F401

    gc.collect()
    gc.freeze()


def _fork(wire: Wire, message: dict[str, Any]) -> None:
    folder = str(message.get("folder", ""))
    try:
        pid = os.fork()
    except OSError as error:
        wire.send("failed", folder=folder, text=f"cannot fork: {error.strerror}")
        return
    if pid == 0:
        code = 1
        try:
            import signal

            signal.set_wakeup_fd(-1)
            detach()
            code = supervise(folder)
        finally:
            os._exit(code)
    wire.send("forked", folder=folder, pid=pid, start=start_time(pid))


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
