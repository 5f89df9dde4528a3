"""Crash scenarios of commands, supervisors and the daemon."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time

from crash_scenario import Scenario, Want
from crash_world import CONTROL_EVERY_S, World, all_final
from tracer import Run

from gpuspool.launch import recorder
from gpuspool.launch.supervisor import detach, supervise
from gpuspool.scheduler.daemon import Daemon
from gpuspool.scheduler.intake import Request, build
from gpuspool.spool.durable import read_json, write_json

# -- f: commands --------------------------------------------------------------------------------------------


class Command(Scenario):
    """`spool WORDS` itself, in this process; its standard output is kept."""

    kind = "f command"
    words: tuple[str, ...] = ()

    def __init__(self, world: World) -> None:
        super().__init__(world)
        for module in ("main", "submit", "steer"):  # warm: what is imported is no point of interest
            importlib.import_module(f"gpuspool.cli.{module}")

    def before(self) -> None:
        answer = os.open(self.world.work / "answer", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(answer, 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        os.environ["GPUSPOOL_CFG_DAEMON_AUTO"] = "false"

    def act(self) -> None:
        from gpuspool.cli.main import main

        sys.argv = ["spool", *self.words]
        main()

    def answer(self) -> str:
        """What the command printed."""
        try:
            return (self.world.work / "answer").read_text()
        except FileNotFoundError:
            return ""


class Submit(Command):
    """A killed submit leaves a whole job or none; an answer that was given holds."""

    about = "spool submit on a spool in use"

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "first")

            def ticked() -> bool:
                self.tick(store)
                return all_final(store)

            self.world.until(ticked, why="first ends")

    def act(self) -> None:
        options = ("--parsable", "-J", "a", "-D", str(self.world.work))
        self.words = ("submit", *options, "--", *self.world.command("a"))
        super().act()

    def wants(self) -> dict[str, Want]:
        with self.store() as store:
            there = any(job.name == "a" for job in store.list(finished=True))
        return self.others() | ({"a": Want("succeeded")} if there or self.answer() else {})

    def others(self) -> dict[str, Want]:
        """Jobs that were there before."""
        return {"first": Want("succeeded")}


class SubmitFirst(Submit):
    """The very first command of an account: the database is made by it."""

    about = "spool submit where there is no spool yet"

    def prepare(self) -> None:
        pass

    def others(self) -> dict[str, Want]:
        return {}


class SubmitMany(Submit):
    """Three jobs by one call: all or none."""

    about = "three jobs submitted at once, on a spool that another boot owned"
    every = 13

    def act(self) -> None:
        request = Request(command=self.world.command("a"), cwd=str(self.world.work), env={})
        submissions = [build(request, self.world.config, time.time()) for _ in range(3)]
        for name, submission in zip(("a", "b", "c"), submissions, strict=True):
            submission.name = name
            submission.spec.command[2] = name
        with self.store() as store:
            store.submit(submissions, time.time())

    def arm(self) -> None:
        owner = read_json(self.world.folders.owner)
        write_json(self.world.folders.owner, owner | {"boot_id": "another", "role": "daemon"})

    def wants(self) -> dict[str, Want]:
        with self.store() as store:
            there = any(job.name == "a" for job in store.list(finished=True))
        return self.others() | ({name: Want("succeeded") for name in "abc"} if there else {})

    def judge(self, run: Run) -> list[str]:
        faults = super().judge(run)
        with self.store() as store:
            count = len(store.list(finished=True))
        return faults if count in (1, 4) else [*faults, f"{count - 1} of 3 jobs are there"]


class Cancel(Command):
    """A killed cancel was carried out, or it was not; an answer that was given holds."""

    about = "spool cancel of a running and a waiting job"
    held = ("a",)
    settings = {"LOCAL_CPUS": "1"}  # noqa: RUF012
    words = ("cancel", "1", "2")

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())
            self.world.submit(store, "b")

    def arm(self) -> None:
        self.run_first_attempt(1, "a")
        with self.store() as store:
            self.tick(store)

    def after(self, run: Run) -> None:
        with self.store() as store:
            self.stands = store.job(2).state == "cancelled"
        if not self.stands:
            self.world.let_go("a")

    def wants(self) -> dict[str, Want]:
        if self.stands:
            return {"a": Want("cancelled", ends=("cancelled",)), "b": Want("cancelled", runs=(0,), ends=())}
        return {"a": Want("succeeded"), "b": Want("succeeded")}

    def judge(self, run: Run) -> list[str]:
        faults = super().judge(run)
        if self.answer() and not self.stands:
            faults.append("the answer was given and nothing was done")
        return faults


# -- g: the supervisor --------------------------------------------------------------------------------------


class RecorderLife(Scenario):
    """The recorder of a job, from its first instruction to its last."""

    kind = "g supervisor"
    about = "the recorder, from before its claim until after the end record"
    ends = ("succeeded",)

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def act(self) -> None:
        recorder.CONTROL_EVERY_S = CONTROL_EVERY_S
        detach()
        supervise(self.world.attempt_folder(1))

    def wants(self) -> dict[str, Want]:
        # A recorder that dies between its claim and its guardian ran nothing: lost, charged, and run again.
        return {"a": Want("succeeded", failures=(0, 1), ends=("supervisor_lost", "succeeded"))}

    def judge(self, run: Run) -> list[str]:
        faults = super().judge(run)
        with self.store() as store:
            view = store.show(1)
        for attempt in view.attempts:
            ran = any(note[:3] == ["start", "a", str(attempt.number)] for note in self.world.log())
            if ran and attempt.end_reason == "supervisor_lost":
                faults.append(f"attempt {attempt.number} ran with one supervisor alive, and its end was lost")
        return faults


class RecorderFailure(RecorderLife):
    """As RecorderLife, of a command that fails."""

    about = "the recorder of a command that fails: its last look at the output is a child"
    every = 13

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a", "3,0")
            self.tick(store, self.unborn())

    def wants(self) -> dict[str, Want]:
        ends = ("supervisor_lost", "failed", "succeeded")
        return {"a": Want("succeeded", runs=(1, 2), failures=(0, 1), ends=ends)}


class RecorderInspecting(RecorderLife):
    """As RecorderLife, of a job that has a broken checkpoint: it is looked at by children, before and after."""

    about = "the recorder of a job with a checkpoint: it looks through it in children of its own"
    every = 13

    def arm(self) -> None:
        folder = os.path.join(self.world.folders.checkpoints(1), "checkpoint-5")
        os.makedirs(folder)
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(b"torn")


class RecorderStopping(RecorderLife):
    """As RecorderLife, of a job that is cancelled while it runs."""

    about = "the recorder while its job is cancelled"
    held = ("a",)
    every = 13

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def arm(self) -> None:
        # Cancelled as soon as the command runs, by a process of its own.
        self.canceller = os.fork()
        if self.canceller == 0:
            try:
                self.world.until(lambda: self.started(1) and self.world.runs("a"))
                with self.store() as store:
                    self.tick(store, self.unborn())
                    store.cancel((1,), time.time(), "test")
                    self.tick(store, self.unborn())
            finally:
                os._exit(0)

    def after(self, run: Run) -> None:
        os.kill(self.canceller, signal.SIGKILL)
        os.waitpid(self.canceller, 0)
        with self.store() as store:
            store.cancel((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("cancelled", runs=(0, 1), failures=(0, 1), ends=("cancelled", "supervisor_lost"))}


class GuardianLife(RecorderLife):
    """The guardian of a job: the first child that the recorder forks."""

    about = "the guardian, from its fork until it leaves"
    follow_fork = True

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded", runs=(1,), failures=(0, 1), ends=("supervisor_lost", "succeeded"))}


class GuardianContained(GuardianLife):
    """As GuardianLife, with a cgroup where one can be had."""

    about = "the guardian, with a cgroup"
    settings = {"LOCAL_CGROUP": "auto"}  # noqa: RUF012
    every = 13


# -- h: the daemon ------------------------------------------------------------------------------------------


class DaemonLife(Scenario):
    """An on-demand daemon on an empty queue: it takes the spool, makes a pass, and leaves."""

    kind = "h daemon"
    about = "a daemon from its start to its end, on a spool that another epoch owned"
    every = 13

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            store.hold((1,), time.time(), "test")

    def act(self) -> None:
        self.world.config.values["daemon.idle"] = 0
        Daemon(self.world.folders, self.world.config, lasting=False, log=lambda _: None).run()

    def after(self, run: Run) -> None:
        with self.store() as store:
            store.release((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")}
