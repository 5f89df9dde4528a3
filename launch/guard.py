"""Guarding a command: starting it, stopping it in the order of design.md, and leaving nothing of it behind.

`Guard` is a state machine without a loop of its own: the guardian drives it, and so does a recorder whose guardian
was killed. It touches no shared file system: what could hang (the working folder, the output) is opened in the
forked child that becomes the command. Times are CLOCK_BOOTTIME seconds, which no clock change moves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ..spool.model import Stop, stronger
from ..spool.values import dataclass, field
from . import cgroup
from .plan import AttemptPlan, StopRequest
from .processes import (
    Process,
    catches,
    caught_signals,
    children,
    descendants,
    environment_has,
    look,
    marked,
    send,
)

LOOK_EVERY_S = 1.0
#: After the command left, how long a clean second look is from the first one.
SETTLE_S = 0.02
#: What SIGKILL has not ended after this long is in uninterruptible sleep.
UNKILLABLE_S = 30.0


def boottime() -> float:
    """Seconds since boot, suspend included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Ended:
    """How the command ended: exit code or signal (both None: nobody saw it), the stop that was delivered, usage."""

    exit_code: int | None
    signal: int | None
    stop: str
    delivered: bool
    stop_requested: str
    leftovers: int
    cpu_seconds: float
    max_rss_mib: float
    unkillable: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Guard:
    """One command under guard. `events` collects what the recorder should write down: (kind, data)."""

    plan: AttemptPlan
    command: Process | None = None
    status: int | None = None  # of waitpid, when the command was reaped
    command_gone: bool = False
    without: frozenset[int] = frozenset()  # children of ours that are not the command's
    cgroup: str = ""
    started: float = 0.0
    wall_started: float = 0.0
    soft_at: float | None = None  # when the supervisor's own deadline begins to stop the command
    soft_kind: str = ""
    term_to_kill_s: float = -1.0  # as planned, or less where a short limit leaves less
    hard_at: float | None = None
    stop: str = ""
    stopped_at: float | None = None
    grace_ends: float | None = None
    term_at: float | None = None
    kill_at: float | None = None
    delivered_stop: str = ""
    signalled: set[tuple[int, int]] = field(default_factory=set)
    terminated: set[tuple[int, int]] = field(default_factory=set)
    asked_term: bool = False
    next_look: float = 0.0
    clean_since: float | None = None
    cleaning_since: float | None = None
    checkpoint_seen: bool = False
    leftovers: int = 0
    cpu_seconds: float = 0.0
    max_rss_mib: float = 0.0
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    tell_status: Callable[[int], None] | None = None  # whom to tell the command's status before it is reaped

    # -- start -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork the command. Raises OSError when not even fork works; everything later is the child's exit code."""
        plan = self.plan
        self.cgroup = cgroup.make(plan.cgroup, plan.token)
        now = boottime()
        pid = os.fork()
        if pid == 0:
            _become_command(plan, self.cgroup)
        self.command = look(pid) or Process(pid, 0, os.getpid(), 0)
        self.started, self.wall_started = now, time.time()
        self.set_deadlines(now, self.wall_started)

    def set_deadlines(self, now: float, wall: float) -> None:
        """When to begin stopping by ourselves, so that grace, SIGTERM and SIGKILL are over at the limit.

        Where the limit is too short for the whole grace, the command keeps at least three quarters of it.
        """
        plan = self.plan
        limits = []
        if plan.walltime_s:
            limits.append((self.started + plan.walltime_s, str(Stop.WALLTIME)))
        if plan.ends_by is not None:
            limits.append((now + plan.ends_by - wall, str(Stop.WINDOW)))
        if limits:
            self.hard_at, self.soft_kind = min(limits)
            whole = plan.grace_s + plan.term_to_kill_s
            lead = min(whole, max(0.0, self.hard_at - self.started) / 4)
            self.soft_at = self.hard_at - lead
            # A lead that had to be cut is divided between grace and kill as the whole one would have been.
            self.term_to_kill_s = plan.term_to_kill_s * lead / whole

    # -- children ----------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect ended children: the command's status, and the zombies of orphans that came to us."""
        if self.tell_status is not None and self.command is not None and not self.command_gone:
            # Told while the zombie still has it: whoever reaps and is killed takes the status along.
            status = _peek(self.command.pid)
            if status is not None:
                self.tell_status(status)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                if self.command and not self.command_gone and look(self.command.pid) is None:
                    self.command_gone = True  # somebody else reaped it: no status, none invented
                return
            if pid == 0:
                return
            self.cpu_seconds += usage.ru_utime + usage.ru_stime
            self.max_rss_mib = max(self.max_rss_mib, usage.ru_maxrss / 1024)
            if self.command is not None and pid == self.command.pid:
                self.status = status
                self.command_gone = True

    def tree(self) -> list[Process]:
        """Everything of the attempt that lives, parents first: our descendants and the cgroup's members."""
        found = descendants(os.getpid(), self.without)
        known = {process.pid for process in found}
        for process in cgroup.members(self.cgroup):
            if process.pid not in known and process.pid not in self.without and process.pid != os.getpid():
                found.append(process)
        return found

    # -- stopping ----------------------------------------------------------------------------------------

    def request(self, stop: StopRequest) -> None:
        """A stop was asked for (again): the strongest kind counts, and grace only ever gets shorter."""
        now = boottime()
        ends = now + min(stop.grace_s, 3600)
        if self.hard_at is not None:
            ends = min(ends, max(now, self.hard_at - self._kill_s()))
        self._begin_stop(stop.kind, now, ends)

    def _kill_s(self) -> float:
        return self.plan.term_to_kill_s if self.term_to_kill_s < 0 else self.term_to_kill_s

    def _begin_stop(self, kind: str, now: float, ends: float) -> None:
        self.stop = stronger(self.stop, kind)
        if self.delivered_stop:
            self.delivered_stop = self.stop
        if self.stopped_at is None:
            self.stopped_at = now
            self.grace_ends = ends
            self.events.append(("stopping", {"stop": self.stop, "grace_s": round(ends - now, 1)}))
        elif self.grace_ends is not None and ends < self.grace_ends:
            self.grace_ends = ends
        self.next_look = now

    def checkpoint_completed(self) -> None:
        """The recorder saw a new complete checkpoint; if it came after the stop request, it was waited for."""
        if self.stopped_at is not None:
            self.checkpoint_seen = True
            self.next_look = 0.0

    def step(self) -> Ended | None:
        """Do what is due; the end of the attempt when the command and all of its descendants are gone."""
        self.reap()
        now = boottime()
        if (
            self.soft_at is not None
            and now >= self.soft_at
            and self.stopped_at is None
            and not self.command_gone
        ):
            assert self.hard_at is not None
            self._begin_stop(self.soft_kind, now, max(now, self.hard_at - self._kill_s()))
        if self.command_gone:
            return self._clean_up(now)
        if self.stopped_at is not None and now >= self.next_look:
            self.next_look = now + LOOK_EVERY_S
            self._press(now)
        return None

    def wait_s(self) -> float:
        """Seconds until `step` has something to do again, at most 3600."""
        now = boottime()
        due = [now + 3600.0]
        if self.command_gone:
            due.append(now + SETTLE_S)
        elif self.stopped_at is not None:
            due.append(self.next_look)
            due += [at for at in (self.grace_ends, self.kill_at) if at is not None and at > now]
        elif self.soft_at is not None:
            due.append(self.soft_at)
        return max(0.0, min(due) - now)

    def _press(self, now: float) -> None:
        """One round of a stop: first the checkpoint signal, then SIGTERM, at the end of grace to everything."""
        assert self.grace_ends is not None
        if now >= self.grace_ends:
            self._terminate_all(now)
            if self.kill_at is not None and now >= self.kill_at + UNKILLABLE_S:
                self.command_gone = True  # in D state: `_clean_up` says so, and no exit code is invented
            return
        tree = self.tree()
        wanted = signal_number(self.plan.stop_signal)
        if not self._deliver(tree, wanted) and not self.signalled:
            if self._deliver(tree, signal.SIGTERM):
                self.asked_term = True
            elif self._nothing_to_wait_for():
                self._terminate_all(now)

    def _nothing_to_wait_for(self) -> bool:
        """Whether a command that catches no signal should get SIGTERM before its grace is over."""
        if self.checkpoint_seen:
            return True
        # A walltime is the user's own figure: who does not checkpoint has it to the end.
        return not self.plan.waits_for_checkpoint and self.stop not in (Stop.WALLTIME, Stop.WINDOW)

    def _deliver(self, tree: list[Process], number: int) -> bool:
        """Signal those that catch `number`, once each; whether any process does (now or before)."""
        if self.asked_term and number != signal.SIGTERM:
            return True
        targets = catchers(tree, number, self._agent())
        fresh = [process for process in targets if (process.pid, process.start) not in self.signalled]
        if fresh and self.command is not None and self.plan.launcher == "torchrun" and not self.signalled:
            # Tells our elastic agent that a stop begins (elastic.py): ranks that leave first, however, end no other.
            send(self.command, signal.SIGURG)
        for process in fresh:
            if send(process, number):
                self.signalled.add((process.pid, process.start))
                self._note_delivery(process, number)
        return bool(targets) or bool(self.signalled)

    def _note_delivery(self, process: Process, number: int) -> None:
        first = not self.delivered_stop
        # For whoever may have to take the guard over: who was signalled is not signalled again.
        self.events.append(("_signalled", {"pid": process.pid, "start": process.start}))
        self.delivered_stop = self.stop
        if first or number == signal.SIGKILL:
            name = signal.Signals(number).name
            self.events.append(("signalled", {"signal": name, "pid": process.pid, "stop": self.stop}))

    def _agent(self) -> int:
        return self.command.pid if self.command and self.plan.launcher == "torchrun" else 0

    def _terminate_all(self, now: float) -> None:
        """SIGTERM to all of ours, and SIGKILL when `term_to_kill_s` have gone by."""
        if self.kill_at is None:
            self.kill_at = now + self._kill_s()
            self.term_at = now
        number = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        for process in self.tree():
            name = (process.pid, process.start)
            if number == signal.SIGTERM:
                if name in self.terminated:
                    continue
                self.terminated.add(name)
            if send(process, number):
                # A stopped process acts on nothing but SIGKILL until it goes on.
                if number == signal.SIGTERM:
                    send(process, signal.SIGCONT)
                if self.stop:
                    self._note_delivery(process, number)
        self.grace_ends = min(self.grace_ends or now, now)

    def _clean_up(self, now: float) -> Ended | None:
        """The command has left: wait for signalled descendants within grace, then stop what is left over.

        When the kernel says that we have no children at all, nothing can be left (we are their subreaper) unless it
        left by the cgroup's door; two empty looks settle it.
        """
        tree = self.tree()
        if not tree:
            childless = all(pid in self.without for pid in children(os.getpid()))
            settled = self.clean_since is not None and now - self.clean_since >= SETTLE_S
            if settled or (childless and (not self.cgroup or self.clean_since is not None)):
                return self._finish([])
            if self.clean_since is None:
                self.clean_since = now
            return None
        self.clean_since = None
        saving = any((process.pid, process.start) in self.signalled for process in tree)
        if saving and self.grace_ends is not None and now < self.grace_ends:
            return None
        if self.cleaning_since is None:
            self.cleaning_since = now
            self.leftovers = len(tree)
            self.events.append(("leftovers", {"pids": [process.pid for process in tree][:100]}))
        if self.kill_at is not None and now >= self.kill_at + UNKILLABLE_S:
            # In D state: no signal reaches it. Reported, so that its GPU is not handed out.
            return self._finish([process.pid for process in tree])
        self._terminate_all(now)
        return None

    def _finish(self, unkillable: list[int]) -> Ended:
        for process in marked(self.plan.token) if self.leftovers or self.signalled else ():
            # Left our tree before we were its subreaper, or through a door that we do not know.
            if process.pid not in self.without and process.pid != os.getpid():
                send(process, signal.SIGKILL)
        if not unkillable:
            cgroup.remove(self.cgroup)
        code: int | None = None
        number: int | None = None
        if self.status is not None:
            if os.WIFSIGNALED(self.status):
                number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        return Ended(
            code,
            number,
            self.delivered_stop,
            bool(self.delivered_stop),
            self.stop,
            self.leftovers,
            round(self.cpu_seconds, 3),
            round(self.max_rss_mib, 1),
            unkillable,
        )


def _peek(pid: int) -> int | None:
    """The status of our child `pid` as waitpid gives it, left there to be collected; None while it runs."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if seen is None:
        return None
    return seen.si_status << 8 if seen.si_code == os.CLD_EXITED else seen.si_status


def signal_number(name: str) -> int:
    """The number of a signal by its name, with or without SIG; SIGUSR2 for a name that does not exist."""
    try:
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
    except KeyError:
        return signal.SIGUSR2


def catchers(tree: list[Process], number: int, agent: int = 0) -> list[Process]:
    """Who should get `number`: the topmost processes of `tree` that have a handler for it.

    Forked data loaders inherit a handler, so nobody below a catcher is signalled. An elastic agent (ours, or the
    torchrun binary, which would end its workers 30 s later) is passed over in favour of its ranks.
    """
    below: set[int] = set()
    found = []
    for process in tree:  # parents come before their children
        if process.parent in below:
            below.add(process.pid)
            continue
        if process.pid == agent or not catches(caught_signals(process.pid), number):
            continue
        if _is_agent(process):
            continue
        below.add(process.pid)
        found.append(process)
    return found


def _is_agent(process: Process) -> bool:
    """Whether `process` is an elastic agent: its children are ranks and it is none itself."""
    if environment_has(process.pid, b"TORCHELASTIC_RUN_ID="):
        return False
    return any(environment_has(child, b"TORCHELASTIC_RUN_ID=") for child in children(process.pid))


def _become_command(plan: AttemptPlan, cgroup_path: str) -> None:
    """In the forked child: become the command, or leave with 127 (not found), 126 (cannot be run) or 125."""
    code, what = 125, "its set-up"
    try:
        from .processes import reset_signals

        reset_signals()
        os.setpgid(0, 0)
        if cgroup_path:
            cgroup.enter(cgroup_path)
        os.umask(plan.umask)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        what = f"output {plan.output!r}"
        output = _open_output(plan.output)
        os.dup2(output, 1)
        os.dup2(output if plan.error in ("", plan.output) else _open_output(plan.error), 2)
        os.closerange(3, 65536)
        what = f"working folder {plan.cwd!r}"
        code = 126
        os.chdir(plan.cwd)
        what = f"command {plan.argv[0]!r}"
        os.execvpe(plan.argv[0], plan.argv, plan.env)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and what.startswith("command"):
            code = 127
        os.write(2, f"gpuspool: cannot use {what}: {error.strerror}\n".encode(errors="replace"))
    except BaseException as error:
        os.write(2, f"gpuspool: cannot use {what}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _open_output(path: str) -> int:
    # Appending: an attempt that is started again under the same file never wipes what was said before.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)  # the user's umask is in force
