"""Races: not a crash, but somebody else who acts between any two system calls of a process that then goes on."""

from __future__ import annotations

import os
import sys
import time

from crash_processes import RecorderLife, SubmitFirst
from crash_scenario import Scenario, Want
from crash_ticks import CancelInitializing, GiveUpLate, Preempt, Settle, StartCold
from crash_world import NearForkServer
from tracer import Run

from gpuspool.launch.local import LocalBackend
from gpuspool.scheduler.controller import Controller
from gpuspool.scheduler.daemon import Daemon
from gpuspool.spool.store import Store, open_store


class Race(Scenario):
    """What is common to races."""

    kind = "i race"
    race = True
    every = 13

    def cancel(self, *jobs: int, patience_s: float = 0.05) -> None:
        """The user cancels jobs, in a process of its own; `patience_s` as in `World.beside`."""

        def action() -> None:
            with self.store() as store:
                store.cancel(jobs, time.time(), "test")

        self.world.beside(action, patience_s)

    def come_up(self, job: int) -> None:
        """The supervisor of the first attempt of `job` comes up, and has a moment to claim it."""
        self.world.start(self.world.attempt_folder(job))
        claim = os.path.join(self.world.attempt_folder(job), "claim-0-0")
        give_up = time.monotonic() + 0.05
        while not os.path.exists(claim) and time.monotonic() < give_up:
            time.sleep(0.001)


class RaceStartCancel(Race, StartCold):
    """A job is cancelled while a pass starts it."""

    kind = "i race"
    about = "a pass starts a job, which is cancelled meanwhile"
    held = ("a",)

    def before(self) -> None:
        self.server = NearForkServer()

    def act(self) -> None:
        backend = LocalBackend(self.world.folders, self.world.config)
        backend.warm, backend.fork_server = True, self.server
        store = open_store(self.world.folders)
        Controller(store, self.world.folders, self.world.config, backend, time.time).tick()

    def meanwhile(self) -> None:
        self.cancel(1)

    def after(self, run: Run) -> None:
        if not run.reached:
            self.cancel(1, patience_s=20.0)

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0, 1), ends=("cancelled",))}


class RaceSettleCancel(Race, Settle):
    """A job is cancelled while a pass takes in its failure."""

    kind = "i race"
    about = "a pass settles a success and a failure, which are cancelled meanwhile"

    def meanwhile(self) -> None:
        self.cancel(1, 2)

    def after(self, run: Run) -> None:
        if not run.reached:
            self.cancel(1, 2, patience_s=20.0)

    def wants(self) -> dict[str, Want]:
        return {
            "good": Want("succeeded"),
            "bad": Want("cancelled", failures=(1,), ends=("failed",)),
            "next": Want("succeeded"),
        }


class RaceHeirCancel(Race, Preempt):
    """The beneficiary is cancelled while a pass preempts for it."""

    kind = "i race"
    about = "a pass preempts for a job, which is cancelled meanwhile"

    def meanwhile(self) -> None:
        self.cancel(2)

    def after(self, run: Run) -> None:
        if not run.reached:
            self.cancel(2, patience_s=20.0)

    def step(self, store: Store) -> None:
        # Whoever was not preempted leaves by itself; who was preempted runs again and leaves.
        state = store.job(1)
        if state.attempt > 1 or not store.rows("SELECT 1 FROM attempts WHERE job_id = 1 AND stop_kind != ''"):
            self.world.let_go("victim")

    def wants(self) -> dict[str, Want]:
        victim = Want("succeeded", runs=(1, 2), ends=("preempted", "succeeded"))
        return {"victim": victim, "heir": Want("cancelled", runs=(0,), ends=()), "other": Want("succeeded")}

    def judge(self, run: Run) -> list[str]:
        return Scenario.judge(self, run)


class RaceCancelStart(Race, CancelInitializing):
    """The supervisor comes up while a pass revokes its attempt."""

    kind = "i race"
    about = "a pass revokes a cancelled attempt, whose supervisor comes up meanwhile"
    held = ("a",)

    def meanwhile(self) -> None:
        self.come_up(1)

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0, 1), ends=("revoked", "cancelled"))}


class RaceRevokeStart(Race, GiveUpLate):
    """The supervisor comes up while a pass gives its attempt up and starts the next one."""

    kind = "i race"
    about = "a pass gives an attempt up and starts the next; the first one's supervisor comes up meanwhile"

    def meanwhile(self) -> None:
        self.come_up(1)

    def after(self, run: Run) -> None:
        pass

    def step(self, store: Store) -> None:
        pass


class RaceSubmits(Race, SubmitFirst):
    """Two first commands of an account at the same moment."""

    kind = "i race"
    about = "spool submit where there is no spool yet, twice at once"

    def meanwhile(self) -> None:
        def action() -> None:
            with self.store() as store:
                self.world.submit(store, "b")

        self.world.beside(action)

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")} | ({"b": Want("succeeded")} if self.reached else {})


class RaceRecorderCancel(Race, RecorderLife):
    """A job is cancelled while its supervisor comes up."""

    kind = "i race"
    about = "the recorder comes up, and its job is cancelled meanwhile"
    held = ("a",)
    limit = 230  # then it runs, and waits to be told

    def act(self) -> None:
        super().act()

    def meanwhile(self) -> None:
        def action() -> None:
            with self.store() as store:
                store.cancel((1,), time.time(), "test")
                self.tick(store, self.unborn())

        self.world.beside(action, 0.2)

    def arm(self) -> None:
        if not self.n:
            with self.store() as store:
                store.cancel((1,), time.time(), "test")
                self.tick(store, self.unborn())

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0, 1), ends=("cancelled",))}


class RaceLeave(Race):
    """A job is submitted while the daemon leaves: nobody types anything after that, and it must run."""

    about = "an on-demand daemon leaves, and a job is submitted meanwhile"
    serves = False
    settings = {"DAEMON_IDLE": "1"}  # noqa: RUF012
    every = 40
    stride = 4  # a point starts a daemon as a new process

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "first", hold=True)
            self.tick(store, self.unborn())
            store.cancel((1,), time.time(), "test")

    def act(self) -> None:
        self.world.config.values["daemon.idle"] = 0
        Daemon(self.world.folders, self.world.config, lasting=False, log=lambda _: None).run()

    def meanwhile(self) -> None:
        def action() -> None:
            from gpuspool.cli.main import main

            sys.argv = ["spool", "submit", "--parsable", "-J", "a", "-D", str(self.world.work), "--"]
            sys.argv += self.world.command("a")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            main()

        self.world.beside(action, 0.2)

    def wants(self) -> dict[str, Want]:
        there = {"a": Want("succeeded")} if self.reached else {}
        return {"first": Want("cancelled", runs=(0,), ends=())} | there
