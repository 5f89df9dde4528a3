"""A spool for crash points: put into the same state again and again, crashed into, recovered, and judged.

A `World` lives in one folder (in memory where there is /dev/shm) of one worker process. The worker is a subreaper, so
whatever a killed scheduler or supervisor leaves behind becomes its descendant and can be waited for; it holds the wake
FIFO open as a daemon does, so that supervisors wake it instead of starting a tick of their own; and it forks its own
fork server, so that a supervisor costs a fork and no start of Python.

What ran is judged by the notes of the jobs' own command (`programs/crash_job.c`), never by the store alone.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crash_judge

from gpuspool.launch import forkserver, recorder
from gpuspool.launch.local import LocalBackend
from gpuspool.launch.processes import become_subreaper, look
from gpuspool.launch.wire import Wire, pair
from gpuspool.scheduler.controller import Controller
from gpuspool.scheduler.daemon import TickLock, tick_once
from gpuspool.scheduler.intake import Request, put
from gpuspool.spool import config as configuration
from gpuspool.spool.folders import Folders, resolve
from gpuspool.spool.lifecycle import LiveAttempt
from gpuspool.spool.model import FINAL
from gpuspool.spool.store import Store, open_store

#: Recovery must reach its goal within so much real time.
PATIENCE_S = 30.0
#: With nothing to see for so long, only time can bring the spool on: the scheduler's clock is put forward.
STILL_S = 0.1
#: A template is made anew when it is older: machines are looked at again after a minute, kept rooms lapse.
FRESH_S = 20.0
#: How often the harness's supervisors look for a stop request (0.2 s in real life): waiting costs a point its time.
CONTROL_EVERY_S = 0.02


class NearForkServer(forkserver.ForkServer):
    """The real fork server, forked from this process instead of started as a new Python."""

    def __init__(self) -> None:
        mine, theirs = pair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(mine)
                recorder.CONTROL_EVERY_S = CONTROL_EVERY_S
                signal.set_wakeup_fd(-1)
                kept = forkserver.supervisor_environment()
                os.environ.clear()
                os.environ.update(kept)
                sys.argv = ["forkserver", str(theirs)]
                forkserver.main()
            finally:
                os._exit(0)
        os.close(theirs)
        self.wire = Wire(mine)


class Checker:
    """`spool db check` in a process of its own: what it imports would make every fork of the worker dearer."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                mine.close()
                from gpuspool.spool.check import check_database
                from gpuspool.spool.folders import Folders

                with theirs.makefile("rw") as line:
                    while asked := line.readline():
                        found = check_database(Folders(*json.loads(asked)))
                        line.write(json.dumps(found.faults) + "\n")
                        line.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
        self.line = mine.makefile("rw")
        mine.close()

    def faults(self, folders: Folders) -> list[str]:
        """What is wrong with the spool in `folders`."""
        self.line.write(json.dumps([folders.state, folders.run, folders.runtime]) + "\n")
        self.line.flush()
        return [f"spool db check: {fault}" for fault in json.loads(self.line.readline())]

    def close(self) -> None:
        """Let it go and reap it."""
        self.line.close()
        os.waitpid(self.pid, 0)


_checkers: list[Checker] = []


def checker() -> Checker:
    """The one of this worker: what it imports takes half a second."""
    if not _checkers:
        _checkers.append(Checker())
    return _checkers[0]


class Unborn(LocalBackend):
    """Stops short of starting anything: what a scheduler leaves that is killed after it made the plans."""

    def start(self, attempts: list[LiveAttempt]) -> dict[str, str]:
        """Nothing; '' means "only its claim tells"."""
        return {live.attempt.folder: "" for live in attempts}


class World:
    """One spool in `base`, for one scenario; `program` is the compiled crash_job.

    `one`: this spool has room for a single job at a time, and the commands watch it. `held`: names of jobs that wait
    until they are let go. `serves`: this worker reads the wake FIFO as a daemon does. `settings` are configuration by the names of their variables: LOCAL_CPUS="1".
    """

    def __init__(
        self,
        base: Path,
        program: Path,
        *,
        one: bool = False,
        held: tuple[str, ...] = (),
        serves: bool = True,
        **settings: str,
    ) -> None:
        self.base, self.program = base, program
        self.box, self.template = base / "box", base / "template"
        self.work = base / "work"
        for folder in (self.box / "state", self.box / "tmp", self.template, self.work, base / "run"):
            folder.mkdir(parents=True, mode=0o700)
        if one:
            (self.work / "one").touch()
        self._environment(settings)
        self.config = configuration.load()
        self.folders = resolve(self.config)
        wake = self.folders.wake if serves else str(base / "nobody")
        os.mkfifo(wake, 0o600)
        self.wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.others: list[int] = []
        self.gates: dict[str, int] = {}
        for name in held:
            path = self.work / f"go-{name}"
            os.mkfifo(path, 0o600)
            self.gates[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.skew = 0.0
        self.made_at = 0.0
        self.notes: dict[str, Any] = {}
        become_subreaper()
        self.checker = checker()
        self.server: NearForkServer | None = NearForkServer()

    def _environment(self, settings: dict[str, str]) -> None:
        for name in list(os.environ):
            if name.startswith(("GPUSPOOL_", "SLURM_", "SBATCH_", "CUDA_", "XDG_")) or name in (
                "SCRATCH",
                "WORK",
            ):
                del os.environ[name]
        mine = {
            "STATE_DIR": str(self.box / "state"),
            "FILE": str(self.base / "config.toml"),
            "FREE_SPACE_MIB": "1",
            "LOCAL_CPUS": "2",
            "LOCAL_GPUS": "0",
            "LOCAL_CGROUP": "off",
            "SUPERVISOR_TERM_TO_KILL": "2",
        }
        os.environ |= {f"GPUSPOOL_CFG_{name}": value for name, value in (mine | settings).items()}
        os.environ |= {
            "HOME": str(self.base),
            "XDG_RUNTIME_DIR": str(self.base / "run"),
            "TMPDIR": str(self.box / "tmp"),
        }

    # -- jobs --------------------------------------------------------------------------------------------

    def command(self, name: str, codes: str = "0") -> list[str]:
        """The command line of job `name`."""
        return [str(self.program), str(self.work), name, str(int(name in self.gates)), codes]

    def submit(self, store: Store, name: str, codes: str = "0", **options: Any) -> int:
        """Submit a job as the real command does; its number."""
        request = Request(command=self.command(name, codes), name=name, cwd=str(self.work), env={}, **options)
        return put(store, self.config, request, self.now())[0]

    def let_go(self, *names: str) -> None:
        """Let the held jobs `names` leave, now and when they run again."""
        for name in names:
            os.write(self.gates[name], b"x")

    def log(self) -> list[list[str]]:
        """What the commands noted: [word, name, attempt, pid, number]."""
        try:
            return [line.split() for line in (self.work / "log").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def runs(self, name: str) -> int:
        """How often the command of job `name` has run."""
        return sum(1 for note in self.log() if note[:2] == ["start", name])

    # -- the same state again ----------------------------------------------------------------------------

    def make_template(self, prepare: Callable[[], None]) -> None:
        """Run `prepare` on an empty spool, in a child of its own (so that its launcher is gone), and keep the result."""
        self._empty()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                prepare()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError(f"the template could not be made: status {status:#x}")
        self._wait_until_empty()
        shutil.rmtree(self.template)
        shutil.copytree(self.box, self.template, symlinks=True)
        self.made_at = time.monotonic()
        kept = self.work / "log"
        self.notes["log"] = kept.read_bytes() if kept.exists() else b""

    @property
    def stale(self) -> bool:
        """Whether the template should be made anew."""
        return not self.made_at or time.monotonic() - self.made_at > FRESH_S

    def reset(self) -> None:
        """The state of the template again."""
        self._empty()
        shutil.copytree(self.template, self.box, symlinks=True, dirs_exist_ok=True)
        if self.notes.get("log"):
            (self.work / "log").write_bytes(self.notes["log"])
        self.skew = 0.0

    def _empty(self) -> None:
        for folder in (self.box / "state", self.box / "tmp"):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in os.listdir(self.folders.runtime):
            if name != "wake":
                os.unlink(os.path.join(self.folders.runtime, name))
        for path in self.work.iterdir():
            if not path.name.startswith(("go-", "one")):
                path.unlink()
        for fd in (self.wake, *self.gates.values()):
            try:
                os.read(fd, 65536)
            except BlockingIOError:
                pass

    # -- the scheduler -----------------------------------------------------------------------------------

    def now(self) -> float:
        """The harness's clock: the real one, put forward while there is nothing but time to wait for."""
        return time.time() + self.skew

    def near_backend(self) -> LocalBackend:
        """A backend that starts supervisors by this worker's fork server."""
        backend = LocalBackend(self.folders, self.config)
        backend.warm = True
        if self.server is None or self.server.wire.closed:
            self.server = NearForkServer()
        backend.fork_server = self.server
        return backend

    def controller(self, store: Store, backend: LocalBackend | None = None) -> Controller:
        """A fresh controller on `store`."""
        return Controller(store, self.folders, self.config, backend or self.near_backend(), self.now)

    def start(self, *folders: str) -> None:
        """Start supervisors for attempt folders that are prepared."""
        backend = self.near_backend()
        assert backend.fork_server is not None
        found = backend.fork_server.start(list(folders))
        assert len(found) == len(folders)

    def attempt_folder(self, job: int, number: int = 1) -> str:
        """An attempt's folder."""
        return self.folders.attempt(job, number)

    def until(self, what: Callable[[], Any], seconds: float = 20.0, why: str = "") -> Any:
        """The first true value of `what()`; looks at each wake-up and every 2 ms."""
        give_up = time.monotonic() + seconds
        while not (value := what()):
            if time.monotonic() > give_up:
                raise RuntimeError(f"did not come true within {seconds} s: {why}")
            self._nap(0.002)
        return value

    def recover(
        self, goal: Callable[[Store], bool], step: Callable[[Store], None] | None = None
    ) -> list[str]:
        """Start a fresh controller and let it tick until `goal`; faults."""
        give_up = time.monotonic() + PATIENCE_S
        store = open_store(self.folders)
        ticks = TickLock(self.folders)
        try:
            controller = self.controller(store)
            idle = 0
            while True:
                self._drain()
                ticks.take(wait=True)
                try:
                    report = controller.tick()
                finally:
                    ticks.release()
                if step is not None:
                    step(store)
                if goal(store):
                    controller.tick()  # what is settled stays so
                    return [] if goal(store) else ["a further tick changed what was settled"]
                if time.monotonic() > give_up:
                    return [f"did not settle within {PATIENCE_S} s"]
                waits_for_something = self._wait_for_news(report.wake_at) or report.wake_at is not None
                did_something = report.started or report.ended or report.preempted
                # What a pass started may have ended before it was looked for.
                idle = 0 if waits_for_something or did_something or self.descendants() else idle + 1
                if idle == 3:
                    return ["nothing moves, and the scheduler waits for nothing"]
        finally:
            os.close(ticks.fd)
            store.close()

    def _wait_for_news(self, due: float | None) -> bool:
        """Wait for a wake-up, a process that goes, or `due`; False when there is nothing but time to wait for,
        and the scheduler's clock was put forward to `due`."""
        before = self.descendants()
        still = time.monotonic() + (STILL_S if before else 0.0)
        while time.monotonic() < still:
            if self._nap(0.004) or not set(before) <= set(self.descendants()):
                return True
            if due is not None and self.now() >= due:
                return True
        if due is not None:
            self.skew += max(0.0, due - self.now()) + 0.001
        return False

    def _nap(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        news = bool(poller.poll(int(seconds * 1000)))
        self.reap()
        return news

    def _drain(self) -> None:
        try:
            os.read(self.wake, 65536)
        except BlockingIOError:
            pass

    def recover_by_cron(self, goal: Callable[[Store], bool], step: Callable[[Store], None]) -> list[str]:
        """One cold tick a minute until `goal`, with no daemon in between; faults."""
        give_up = time.monotonic() + PATIENCE_S
        for _ in range(20):
            assert tick_once(self.folders, self.config, self.now) is not None
            store = open_store(self.folders)
            try:
                step(store)
                if goal(store):
                    return []
            finally:
                store.close()
            still = time.monotonic() + STILL_S
            while self.descendants() and time.monotonic() < still:
                if self._nap(0.004):
                    self._drain()
                    still = time.monotonic() + STILL_S
            if time.monotonic() > give_up:
                break
            self.skew += 60
        return [f"did not settle within {self.skew / 60:.0f} ticks of cron"]

    def watch(self, goal: Callable[[Store], bool]) -> list[str]:
        """Only look on until `goal`: the spool must come to it by itself; faults. What serves it then is ended."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            store = open_store(self.folders)
            try:
                if goal(store):
                    break
            finally:
                store.close()
            if time.monotonic() > give_up:
                self.kill_everything()
                return [f"did not settle by itself within {PATIENCE_S} s"]
            self._nap(0.02)
        self.kill_everything()
        return []

    # -- at the same time --------------------------------------------------------------------------------

    def beside(self, action: Callable[[], None], patience_s: float = 0.05) -> None:
        """Run `action` in a process of its own; returns when it has ended, or goes on after `patience_s` (it may wait
        for a lock that a stopped process holds). Nothing else is reaped: it may be called while something is traced."""
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                action()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                if status:
                    raise RuntimeError(f"what was done beside failed: status {status:#x}")
                return
            time.sleep(0.001)
        self.others.append(pid)

    def join(self) -> list[str]:
        """Wait for what still runs `beside`; faults."""
        faults = []
        for pid in self.others:
            give_up = time.monotonic() + PATIENCE_S
            while (found := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < give_up:
                time.sleep(0.001)
            if found[0] == 0:
                faults.append("what was done beside never came to its end")
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            elif found[1]:
                faults.append(f"what was done beside failed: status {found[1]:#x}")
        self.others.clear()
        return faults

    # -- processes ---------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect orphans that ended."""
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if self.server is not None and pid == self.server.pid:
                    self.server = None
        except ChildProcessError:
            self.server = None

    def descendants(self) -> list[int]:
        """All living processes that hang from this worker, its fork server left out."""
        found = []
        queue = _children(os.getpid())
        ours = (self.server.pid if self.server is not None else 0, self.checker.pid)
        while queue:
            pid = queue.pop()
            queue += _children(pid)
            if pid not in ours and look(pid) is not None:
                found.append(pid)
        return found

    def _wait_until_empty(self) -> None:
        self.until(lambda: not self.descendants(), 20.0, "processes of the template end")

    def kill_everything(self) -> None:
        """End what hangs from this worker, its fork server left out."""
        while left := self.descendants():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._nap(0.002)
        self.reap()

    def close(self) -> None:
        """End everything and remove the folder."""
        if self.server is not None:
            self.server.close()
            self.server = None
        self.kill_everything()
        shutil.rmtree(self.base, ignore_errors=True)

    # -- judging -----------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """What is wrong with the spool after it has settled: rows, files, processes, and what really ran."""
        faults = []
        give_up = time.monotonic() + 20.0
        while left := self.descendants():
            if time.monotonic() > give_up:
                lines = [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left]
                faults.append(f"processes are left: {left} {lines}")
                self.kill_everything()
                break
            self._drain()
            self._nap(0.004)
        store = open_store(self.folders)
        try:
            # Whatever the crash left of the ownership record: who writes now owns the spool.
            store.hold((), self.now(), "test")
        finally:
            store.close()
        faults += crash_judge.judge(self.folders, self.log())
        faults += self.checker.faults(self.folders)
        return faults


def all_final(store: Store) -> bool:
    """Whether every job is final."""
    states = ",".join(f"'{state}'" for state in FINAL)
    return not store.rows(f"SELECT 1 FROM jobs WHERE state NOT IN ({states}) LIMIT 1")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except (OSError, ValueError):
        pass
    return found
