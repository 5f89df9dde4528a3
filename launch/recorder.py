"""The recorder: the process of ours that speaks with the shared folder for one attempt.

It claims, starts the guardian, reads control files, writes events and heartbeats, looks for checkpoints, samples
usage and makes the end durable. A file system that is dead may hang it; the guardian does not care.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from ..spool.durable import read_json, write_json
from ..spool.eventlog import EventWriter, read
from ..spool.processes import ProcessName, start_time
from . import cgroup, scratch
from .guard import Ended, Guard, boottime
from .guardian import hold, hold_guard_lock, run_guardian
from .inspection import Inspection
from .plan import AttemptPlan, StopRequest, read_control
from .processes import (
    Process,
    become_subreaper,
    children,
    descendants,
    ignore_signals,
    look,
    reset_signals,
    set_title,
)
from .sampling import Sampler
from .waking import wake
from .wire import ChildWatch, Wire, pair, wait

CONTROL_EVERY_S = 0.5
STOPPING_LOOK_EVERY_S = 1.0
RETRY_S = 2.0
END_LOOK_S = 10.0


class Recorder:
    """One rank of one incarnation of an attempt, from claim to end."""

    def __init__(self, folder: str, plan: AttemptPlan, incarnation: int, rank: int) -> None:
        self.folder, self.plan, self.incarnation, self.rank = folder, plan, incarnation, rank
        self.suffix = f"{incarnation}-{rank}"
        self.pending: list[tuple[str, float, dict[str, Any]]] = []
        self.writer: EventWriter | None = None
        self.trouble = ""
        self.lock = -1
        self.watch: ChildWatch | None = None
        self.wire: Wire | None = None
        self.guardian: Process | None = None
        self.guardian_is_child = True
        self.guard: Guard | None = None  # ours when the guardian was killed
        self.command: Process | None = None
        self.status: int | None = None  # the command's, as the guardian saw it before it reaped it
        self.wall_started = 0.0
        self.boot_started = 0.0
        self.signalled: set[tuple[int, int]] = set()
        self.control: StopRequest | None = None
        self.stop_sent: tuple[str, float] | None = None  # kind, boottime at which its grace ends
        self.stopping = False
        self.inspection: Inspection | None = None
        self.newest: dict[str, Any] | None = None
        self.resume: dict[str, Any] | None = None
        self.sampler = Sampler(plan.gpu_uuids)
        self.ended: Ended | None = None
        self.next_control = self.next_heartbeat = self.next_look = 0.0
        self.next_flush = 0.0

    # -- files -------------------------------------------------------------------------------------------

    def path(self, name: str, ext: str = "") -> str:
        """A file of this rank in the attempt's folder."""
        return os.path.join(self.folder, f"{name}-{self.suffix}{ext}")

    def note(self, kind: str, **data: Any) -> None:
        """Queue an event; `flush` writes it, and tries again when the disk is full."""
        self.pending.append((kind, time.time(), data))
        self.flush()

    def flush(self) -> None:
        """Write what is queued, in order, as far as it goes."""
        while self.pending:
            kind, at, data = self.pending[0]
            try:
                if self.writer is None:
                    self.writer = EventWriter(self.path("events", ".jsonl"))
                self.writer.write(kind, at, **data)
            except OSError as error:
                self.trouble = error.strerror or str(error)
                self.next_flush = boottime() + RETRY_S
                if len(self.pending) > 1000:  # heartbeats of hours: the newest say it all
                    self.pending = [entry for entry in self.pending if entry[0] != "heartbeat"][:1000]
                return
            self.pending.pop(0)

    # -- life --------------------------------------------------------------------------------------------

    def begin(self, argv: list[str], env: dict[str, str]) -> None:
        """Start the guardian, which starts the command."""
        self.plan.argv, self.plan.env = argv, env
        become_subreaper()
        lock_fd = hold_guard_lock(self.plan)
        mine, theirs = pair()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(mine)
                os.close(self.lock)
                if self.writer is not None:
                    self.writer.close()
                signal.set_wakeup_fd(-1)
                run_guardian(self.plan, theirs, lock_fd, self.succeed)
            finally:
                os._exit(1)  # whatever goes wrong in here must not go on as a second recorder
        os.close(theirs)
        os.close(lock_fd)
        self.wire = Wire(mine)
        self.guardian = look(pid) or Process(pid, 0, os.getpid(), 0)

    def succeed(self, fd: int, known: dict[str, Any]) -> None:
        """In a child of the guardian: take the place of a recorder that was killed."""
        successor = Recorder(self.folder, self.plan, self.incarnation, self.rank)
        reset_signals()
        ignore_signals()
        set_title("spool-recorder")
        successor.watch = ChildWatch()
        successor.wire = Wire(fd)
        successor.guardian = look(os.getppid())
        successor.guardian_is_child = False
        successor.lock = hold(os.path.join(self.folder, f"lock-{self.rank}"), 10.0)
        if read_end(self.folder, self.incarnation, self.rank) is not None:
            successor._leave()  # the one before was killed while it tidied up; the attempt may be settled by now
            return
        successor.learn_from_log()
        if command := known.get("command"):
            successor.command = Process(int(command[0]), int(command[1]), 0, 0)
            successor.wall_started, successor.boot_started = float(command[2]), float(command[3])
            if not successor.started_noted:
                successor.note_started()
        successor.note("recorder_replaced")
        if known.get("stop"):
            successor.stopping = True
        if known.get("ended"):
            successor.ended = Ended(**known["ended"])
        successor.run()

    started_noted = False

    def learn_from_log(self) -> None:
        """What an earlier recorder of this rank wrote: whether it noted the start, and the newest checkpoint."""
        offset, number = 0, 1
        while True:
            batch = read(self.path("events", ".jsonl"), offset, number)
            for line in batch.lines:
                if line.kind == "started":
                    self.started_noted = True
                    self.resume = line.data.get("baseline")
                    self.newest = self.newest or self.resume
                elif line.kind == "checkpoint":
                    self.newest = line.data
            if not batch.lines:
                return
            offset, number = batch.offset, batch.next_number

    def note_started(self) -> None:
        """`started`: who guards what, from when on."""
        assert self.command is not None
        self.note(
            "started",
            supervisor=ProcessName.of(os.getpid()).text(),
            guardian=self.guardian.pid if self.guardian else 0,
            command=[self.command.pid, self.command.start],
            resume_from=(self.resume or {}).get("path", ""),
            resume_step=(self.resume or {}).get("step"),
            baseline=self.resume,
        )

    def run(self) -> None:
        """Until the end is durable."""
        now = boottime()
        self.next_control = now
        self.next_heartbeat = self.next_look = now + self.plan.heartbeat_s
        while self.ended is None:
            self._sleep()
            self._listen()
            self._take_over_if_needed()
            if self.guard is not None and self.ended is None:
                self.ended = self.guard.step()
                self._events_of_guard()
            now = boottime()
            if self.ended is None:
                if now >= self.next_control:
                    self.next_control = now + CONTROL_EVERY_S
                    self._read_control()
                if now >= self.next_heartbeat:
                    self.next_heartbeat = now + self.plan.heartbeat_s
                    self._heartbeat()
                self._look_for_checkpoints(now)
            if self.pending and now >= self.next_flush:
                self.flush()
        self._finish()

    def _sleep(self) -> None:
        now = boottime()
        due = [self.next_control, self.next_heartbeat, self.next_look]
        if self.guard is not None:
            due.append(now + self.guard.wait_s())
        if self.inspection is not None:
            due.append(now + 0.1)
        fds = [self.watch.fd] if self.watch else []
        if self.wire is not None and not self.wire.closed:
            fds.append(self.wire.fd)
        wait(fds, max(0.0, min(due) - now))
        if self.watch:
            self.watch.clear()

    def _listen(self) -> None:
        if self.wire is None:
            return
        self.wire.flush()
        for message in self.wire.receive():
            kind = message["kind"]
            if kind == "command":
                self.command = Process(int(message["pid"]), int(message["start"]), 0, 0)
                self.wall_started, self.boot_started = float(message["wall"]), float(message["boot"])
                self.note_started()
                wake(self.plan, run=False)
            elif kind == "event":
                self._guard_event(str(message["name"]), dict(message["data"]))
            elif kind == "left":
                self.status = int(message["status"])
            elif kind == "ended":
                self.ended = Ended(**message["data"])
            elif kind == "not_started":
                self.note("not_started", text=str(message["text"]))

    def _guard_event(self, name: str, data: dict[str, Any]) -> None:
        if name == "_signalled":
            self.signalled.add((int(data["pid"]), int(data["start"])))
            return
        if name == "stopping":
            self.stopping = True
            self.next_look = 0.0
        self.note(name, **data)
        if name == "stopping":
            wake(self.plan, run=False)

    def _events_of_guard(self) -> None:
        assert self.guard is not None
        for name, data in self.guard.events:
            self._guard_event(name, dict(data))
        self.guard.events.clear()

    def _take_over_if_needed(self) -> None:
        """The guardian is gone without having told the end: the command is ours now (we are its subreaper)."""
        if self.ended is not None or self.guard is not None or self.guardian is None:
            return
        if self.guardian_is_child:
            pid, _ = _try_wait(self.guardian.pid)
            gone = pid != 0
        else:
            gone = start_time(self.guardian.pid) != self.guardian.start
        if not gone:
            return
        self._listen()  # its last words
        if self.has_ended():
            return
        if not self.guardian_is_child:
            # Our parent is gone and its orphans went past us: nobody can see the exit code any more. The tick finds
            # neither lock held once we leave, stops the command, and calls the attempt lost.
            self.note("guardian_lost", text="recorder and guardian were both killed")
            self.flush()
            os._exit(1)
        mine = self._scans()
        known = self.command
        if known is None:
            orphans = [pid for pid in children(os.getpid()) if pid not in mine]
            known = look(orphans[0]) if orphans else None
            known = known or (Process(orphans[0], 0, os.getpid(), 0) if orphans else None)
        guard = Guard(self.plan, command=known, without=mine)
        guard.cgroup = cgroup.find(self.plan.cgroup, self.plan.token)
        guard.started, guard.wall_started = self.boot_started or boottime(), self.wall_started or time.time()
        guard.set_deadlines(boottime(), time.time())
        guard.signalled = set(self.signalled)
        guard.command_gone = known is None
        if self.status is not None and known is not None and known.pid not in children(os.getpid()):
            guard.status, guard.command_gone = self.status, True
        self.guard = guard
        self.note("guardian_replaced")
        if self.command is None and known is not None:
            self.command = known
            self.boot_started, self.wall_started = guard.started, guard.wall_started
            self.note_started()
        if self.stop_sent is not None:
            kind, ends = self.stop_sent
            guard.request(StopRequest(kind, max(0, int(ends - boottime()))))
            if self.signalled:
                guard.delivered_stop = guard.stop
        self._events_of_guard()

    def has_ended(self) -> bool:
        """Whether the end is known; `_listen` may have learnt it."""
        return self.ended is not None

    def _scans(self) -> frozenset[int]:
        busy = self.inspection is not None and self.inspection.answer is None
        return frozenset({self.inspection.pid}) if busy and self.inspection else frozenset()

    def _read_control(self) -> None:
        request = read_control(self.folder)
        if request is None or request == self.control:
            return
        self.control = request
        self.stop_sent = (request.kind, boottime() + request.grace_s)
        self.stopping = True
        self.next_look = 0.0
        if self.guard is not None:
            self.guard.request(request)
        elif self.wire is not None:
            self.wire.send("stop", stop=request.kind, grace_s=request.grace_s)

    def _heartbeat(self) -> None:
        root = self.guardian.pid if self.guardian and self.guard is None else os.getpid()
        busy = self._scans() | {os.getpid()}
        tree = descendants(root, busy)
        self.note("heartbeat", **self.sampler.sample(tree))
        # Node-local, for the search after both of us were killed: what was seen as ours, by pid and start time.
        try:
            write_json(seen_file(self.plan), [[process.pid, process.start] for process in tree])
        except OSError:
            pass  # the search has other ways

    def _look_for_checkpoints(self, now: float) -> None:
        if self.inspection is not None:
            answer = self.inspection.poll()
            if answer is None:
                return
            self.inspection = None
            self._found(answer.get("newest"))
        if now < self.next_look:
            return
        self.next_look = now + (STOPPING_LOOK_EVERY_S if self.stopping else self.plan.heartbeat_s)
        if self.worth_looking():
            self.inspection = Inspection(self.plan.checkpoint_dir, self.plan.checkpoint_format)
            if self.guard is not None:
                self.guard.without = self._scans()

    def worth_looking(self) -> bool:
        """A default checkpoint folder that is empty needs no child to look into it; it is on our own file system."""
        if not self.plan.own_checkpoint_dir:
            return True
        try:
            with os.scandir(self.plan.checkpoint_dir) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def _found(self, newest: Any) -> None:
        if not isinstance(newest, dict) or _same(newest, self.newest):
            return
        self.newest = newest
        self.note("checkpoint", **newest)
        if self.guard is not None:
            self.guard.checkpoint_completed()
        elif self.wire is not None:
            self.wire.send("checkpoint")

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Make the end durable, however long that takes; then let the guardian go and wake the scheduler."""
        assert self.ended is not None
        cause = self._last_look()
        record = self._end_record(cause)
        path = self.path("ended", ".json")
        while True:
            self.flush()
            try:
                if self.trouble:
                    record["trouble"] = f"could not be written at first: {self.trouble}"
                write_json(path, record)
                break
            except OSError as error:
                self.trouble = error.strerror or str(error)
                # The guardian may still start us anew; its messages mean nothing any more.
                wait([], RETRY_S)
        self._leave()

    def _leave(self) -> None:
        """The end is durable: remove what is node-local, let the guardian go, wake the scheduler."""
        try:
            os.unlink(seen_file(self.plan))
        except OSError:
            pass
        if self.plan.scratch:
            scratch.remove(self.plan.scratch)
        if self.wire is not None:
            self.wire.send("recorded")
        if self.guardian is not None and self.guardian_is_child:
            if self.guard is None:
                _wait_for(self.guardian.pid, 5.0)
            if look(self.guardian.pid) is None:
                try:
                    os.unlink(self.plan.guard_lock)  # it does so itself, unless it was killed
                except OSError:
                    pass
        wake(self.plan, run=True)

    def _last_look(self) -> dict[str, Any]:
        """A last look at checkpoints and output, bounded in time: their file system may hang."""
        assert self.ended is not None
        if self.inspection is not None:
            self.inspection.abandon()
        failed = self.ended.exit_code not in (0, 75) and not self.ended.delivered
        if not failed and not self.worth_looking():
            return {}
        look_at = self.plan.checkpoint_dir if self.worth_looking() else ""
        inspection = Inspection(look_at, self.plan.checkpoint_format, self.plan.output if failed else "")
        give_up = boottime() + END_LOOK_S
        while (answer := inspection.poll()) is None and boottime() < give_up:
            wait([inspection.fd], 0.1)
        if answer is None:
            inspection.abandon()
            self.note(
                "look_failed", text="checkpoints and output could not be looked at: their file system hangs"
            )
            return {}
        self._found(answer.get("newest"))
        return answer

    def _end_record(self, look: dict[str, Any]) -> dict[str, Any]:
        ended = self.ended
        assert ended is not None
        progressed = self.newest is not None and not _same(self.newest, self.resume)
        return {
            "v": 1,
            "at": time.time(),
            "token": self.plan.token,
            "ran_s": round(boottime() - self.boot_started, 3) if self.boot_started else 0.0,
            "exit_code": ended.exit_code,
            "signal": ended.signal,
            "stop": ended.stop,
            "delivered": ended.delivered,
            "stop_requested": ended.stop_requested,
            "done": _is_file(self.plan.done_file),
            "cause": look.get("cause", ""),
            "cause_text": look.get("cause_text", ""),
            "broken": look.get("broken", []),
            "checkpoint": self.newest,
            "fresh_checkpoint": progressed,
            "leftovers": ended.leftovers,
            "unkillable": ended.unkillable,
            "cpu_seconds": ended.cpu_seconds,
            "max_rss_mib": max(ended.max_rss_mib, self.sampler.peak_rss_mib),
            "usage": self.sampler.totals(),
            "saw_end": ended.exit_code is not None or ended.signal is not None,
        }


def seen_file(plan: AttemptPlan) -> str:
    """Where the recorder notes, node-locally, which processes it has seen as the attempt's."""
    return os.path.join(plan.runtime, f"seen-{plan.token}")


def _same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    if not one or not other:
        return one is other or (not one and not other)
    return all(one.get(key) == other.get(key) for key in ("path", "step", "identity"))


def _try_wait(pid: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return pid, 0


def _wait_for(pid: int, seconds: float) -> None:
    give_up = boottime() + seconds
    while _try_wait(pid)[0] == 0 and boottime() < give_up:
        time.sleep(0.002)


def _is_file(path: str) -> bool:
    return bool(path) and os.path.isfile(path)


def read_end(folder: str, incarnation: int, rank: int) -> dict[str, Any] | None:
    """The end record of a rank, None while there is none."""
    value = read_json(os.path.join(folder, f"ended-{incarnation}-{rank}.json"))
    return value if isinstance(value, dict) else None
