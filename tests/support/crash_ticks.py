"""Crash scenarios of the scheduler's passes: starting, settling, preempting, wishes, and lost supervisors."""

from __future__ import annotations

import functools
import os
import signal
import time

from crash_scenario import Scenario, Want
from crash_world import NearForkServer
from tracer import Run

from gpuspool.launch.local import LocalBackend
from gpuspool.launch.processes import look
from gpuspool.scheduler.controller import Controller
from gpuspool.scheduler.daemon import TickLock
from gpuspool.spool.durable import read_json
from gpuspool.spool.processes import ProcessName
from gpuspool.spool.store import Store, open_store

# -- a: a tick that starts ----------------------------------------------------------------------------------


class StartCold(Scenario):
    """A cold tick claims a job and starts its supervisor as a new process."""

    kind = "a start"
    about = "spool tick claims a job and starts it, as a new process"

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick_of_nobody(store)

    def tick_of_nobody(self, store: Store) -> None:
        """So that machine and ownership are known: a pass over held jobs."""
        store.hold((1,), time.time(), "test")
        self.tick(store, self.unborn())
        store.release((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")}


class StartWarm(Scenario):
    """A daemon's pass starts two jobs by the fork server, which outlives it."""

    kind = "a start"
    about = "a daemon's pass claims two jobs and has them forked"

    def prepare(self) -> None:
        with self.store() as store:
            jobs = (self.world.submit(store, "a"), self.world.submit(store, "b"))
            store.hold(jobs, time.time(), "test")
            self.tick(store, self.unborn())
            store.release(jobs, time.time(), "test")

    def before(self) -> None:
        self.backend = LocalBackend(self.world.folders, self.world.config)
        self.backend.warm = True
        self.backend.fork_server = NearForkServer()

    def act(self) -> None:
        ticks = TickLock(self.world.folders)
        store = open_store(self.world.folders, role="daemon")
        controller = Controller(store, self.world.folders, self.world.config, self.backend, time.time)
        store.renew(0)
        ticks.take(wait=True)
        controller.tick()
        ticks.release()

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded"), "b": Want("succeeded")}


class StartForkServer(StartWarm):
    """As StartWarm, but the pass starts the fork server, too."""

    about = "a daemon's pass starts its fork server and two jobs"
    every = 13

    def before(self) -> None:
        self.backend = LocalBackend(self.world.folders, self.world.config)
        self.backend.warm = True


class StartContained(StartCold):
    """With a cgroup where one can be had, and on a machine that is new to the spool."""

    about = "spool tick in a spool that no pass has seen yet, with cgroups"
    settings = {"LOCAL_CGROUP": "auto"}  # noqa: RUF012
    every = 13

    def tick_of_nobody(self, store: Store) -> None:
        pass


# -- b: a tick that settles ---------------------------------------------------------------------------------


class Settle(Scenario):
    """Two attempts have ended: one with 0, one with 3; a third job waits for their room."""

    kind = "b settle"
    about = "a pass takes in a success and a failure, and gives their room away"
    settings = {"LOCAL_CPUS": "2"}  # noqa: RUF012

    def prepare(self) -> None:
        with self.store() as store:
            for name, codes in (("good", "0"), ("bad", "3,0")):
                self.world.submit(store, name, codes)
            self.tick(store, self.unborn())
            self.world.start(self.world.attempt_folder(1), self.world.attempt_folder(2))
            for job in (1, 2):
                path = os.path.join(self.world.attempt_folder(job), "ended-0-0.json")
                self.world.until(functools.partial(os.path.exists, path), why=path)
            self.world.submit(store, "next")

    def act(self) -> None:
        backend = LocalBackend(self.world.folders, self.world.config)
        backend.warm, backend.fork_server = True, self.server
        ticks = TickLock(self.world.folders)
        ticks.take(wait=True)
        store = open_store(self.world.folders)
        Controller(store, self.world.folders, self.world.config, backend, time.time).tick()
        store.close()
        ticks.release()

    def before(self) -> None:
        self.server = NearForkServer()

    def wants(self) -> dict[str, Want]:
        return {
            "good": Want("succeeded"),
            "bad": Want("succeeded", runs=(2,), failures=(1,), ends=("failed", "succeeded")),
            "next": Want("succeeded"),
        }


class SettleWish(Settle):
    """The user cancels the failed job right after the crash, whether its end was taken in or not."""

    about = "as settle, and the user cancels what has failed"
    every = 13

    def after(self, run: Run) -> None:
        with self.store() as store:
            store.cancel((1, 2), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {
            "good": Want("succeeded"),  # it has ended with 0: a cancel that comes later changes nothing
            "bad": Want("cancelled", failures=(1,), ends=("failed",)),
            "next": Want("succeeded"),
        }


# -- c: a tick that preempts, and the one that starts the beneficiary ---------------------------------------


class Preempt(Scenario):
    """A spot job runs on the only CPU; somebody more entitled waits."""

    kind = "c preempt"
    about = "a pass preempts a running job and keeps its room"
    held = ("victim",)
    settings = {"LOCAL_CPUS": "1"}  # noqa: RUF012
    one = True

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "victim", job_class="spot")
            self.tick(store, self.unborn())
            self.world.submit(store, "heir")
            # Somebody of a lower class waits, too: the kept room is not for it.
            self.world.submit(store, "other", job_class="idle")

    def arm(self) -> None:
        self.run_first_attempt(1, "victim")

    def step(self, store: Store) -> None:
        if self.world.runs("heir"):
            self.world.let_go("victim")

    def wants(self) -> dict[str, Want]:
        ends = ("preempted", "succeeded")
        return {
            "victim": Want("succeeded", runs=(2,), ends=ends),
            "heir": Want("succeeded"),
            "other": Want("succeeded"),
        }

    def judge(self, run: Run) -> list[str]:
        faults = super().judge(run)
        order = [note[1] for note in self.world.log() if note[0] == "start"]
        if order[:2] != ["victim", "heir"]:
            faults.append(f"the room went to somebody else: {order}")
        return faults


class StartBeneficiary(Preempt):
    """The victim has left; the room is kept."""

    about = "a pass settles the victim and starts the beneficiary in its room"

    def prepare(self) -> None:
        super().prepare()
        self.arm_victim()

    def arm_victim(self) -> None:
        """Preempt, until the victim's end is written."""
        self.run_first_attempt(1, "victim")
        with self.store() as store:
            self.tick(store)
        path = os.path.join(self.world.attempt_folder(1), "ended-0-0.json")
        self.world.until(lambda: os.path.exists(path), why="the victim leaves")

    def arm(self) -> None:
        pass


# -- d: a tick that carries out a wish ----------------------------------------------------------------------


class CancelRunning(Scenario):
    """The user has cancelled a job that runs."""

    kind = "d wish"
    about = "a pass tells a running job that it was cancelled"
    held = ("a",)

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def arm(self) -> None:
        self.run_first_attempt(1, "a")
        with self.store() as store:
            self.tick(store)
            store.cancel((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", ends=("cancelled",))}


class StopUnseen(CancelRunning):
    """The user's stop comes before any pass has seen the job run; it is resumed later."""

    about = "a pass takes in a start and tells the job that the user stopped it"
    every = 13

    def arm(self) -> None:
        self.run_first_attempt(1, "a")
        with self.store() as store:
            store.stop((1,), time.time(), "test")

    def step(self, store: Store) -> None:
        job = store.job(1)
        if job.state == "queued" and job.hold == "stop":
            self.world.let_go("a")
            store.resume((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded", runs=(2,), ends=("stopped", "succeeded"))}


class CancelInitializing(Scenario):
    """The user has cancelled a job whose supervisor has not come up."""

    kind = "d wish"
    about = "a pass revokes an attempt that nobody has claimed"

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())
            store.cancel((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0,), ends=("revoked",))}


class CancelLate(CancelInitializing):
    """The supervisor comes up right after the crash, whatever the dead scheduler left."""

    about = "as cancel-initializing, and the supervisor comes late"
    every = 13
    held = ("a",)

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())
            store.cancel((1,), time.time(), "test")

    def after(self, run: Run) -> None:
        self.world.start(self.world.attempt_folder(1))

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0, 1), ends=("revoked", "cancelled"))}


class GiveUpLate(Scenario):
    """An attempt whose launcher was killed is given up, and started again; its supervisor comes after the crash."""

    kind = "d wish"
    about = "a pass gives an orphaned attempt up and starts the next; the first one's supervisor comes late"

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def before(self) -> None:
        self.server = NearForkServer()

    def act(self) -> None:
        backend = LocalBackend(self.world.folders, self.world.config)
        backend.warm, backend.fork_server = True, self.server
        store = open_store(self.world.folders)
        # A minute later, so that waiting for it has an end.
        controller = Controller(
            store, self.world.folders, self.world.config, backend, lambda: time.time() + 60
        )
        controller.tick()

    def after(self, run: Run) -> None:
        self.late = True
        if self.n % 2:
            self.step_late()

    def step(self, store: Store) -> None:
        self.step_late()  # at even points only after the first pass

    def step_late(self) -> None:
        """The supervisor of the first attempt comes up, once."""
        if self.late:
            self.late = False
            self.world.start(self.world.attempt_folder(1))

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")}


# -- e: a tick that looks after a lost supervisor -----------------------------------------------------------


class Lost(Scenario):
    """Recorder and guardian were killed and the command lives: it is stopped before it is started again."""

    kind = "e lost"
    about = "a pass stops what a lost supervisor left running"
    scans = True
    held = ("a",)
    every = 13

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def arm(self) -> None:
        self.run_first_attempt(1, "a")
        with self.store() as store:
            self.tick(store)
        folder = self.world.attempt_folder(1)
        recorder = ProcessName.parse(str(read_json(os.path.join(folder, "claim-0-0"))["process"]))
        assert recorder is not None
        guardian = _only_child(recorder.pid)
        self.command = _only_child(guardian)
        os.kill(recorder.pid, signal.SIGSTOP)  # or it would take the guard over
        os.kill(guardian, signal.SIGKILL)
        os.kill(recorder.pid, signal.SIGKILL)
        self.world.until(lambda: look(recorder.pid) is None and look(guardian) is None, why="both are gone")

    def step(self, store: Store) -> None:
        if self.world.runs("a") > 1:
            self.world.let_go("a")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded", runs=(2,), failures=(1,), ends=("supervisor_lost", "succeeded"))}


class LostGone(Lost):
    """As Lost, and the command is gone, too: nothing is left, and nobody knows how it ended."""

    about = "a pass finds nothing left of a lost supervisor, ends its attempt and has the job tried again"
    every = 1

    def arm(self) -> None:
        super().arm()
        os.kill(self.command, signal.SIGKILL)
        self.world.until(lambda: look(self.command) is None, why="the command is gone")


class LostCron(Lost):
    """As Lost, where nobody but cron ticks afterwards: what one pass saw the next one does not remember."""

    about = "as lost, and only cron ticks"
    cron = True
    every = 25


def _only_child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])
