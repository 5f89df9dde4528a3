"""The scenarios of the crash harness: a state of the spool, a process to be killed in it, and what must come of it.

Each is one tick, one command or one supervisor of the real program. `prepare` makes the state once, in a child;
`arm` starts what has to be alive in it, before each point; `act` is run under the tracer and killed; `after` happens
when it is dead, before a fresh controller starts; `step` after each of its passes; `wants` says what must be reached.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from crash_world import CONTROL_EVERY_S, NearForkServer, Unborn, World, all_final
from tracer import Run

from gpuspool.launch import recorder
from gpuspool.launch.local import LocalBackend
from gpuspool.launch.processes import look
from gpuspool.launch.supervisor import detach, supervise
from gpuspool.scheduler.controller import Controller
from gpuspool.scheduler.daemon import Daemon, TickLock, tick_once
from gpuspool.spool.durable import read_json
from gpuspool.spool.errors import GpuspoolError
from gpuspool.spool.processes import ProcessName
from gpuspool.spool.store import Store, open_store

#: Attempts that never ran: the scheduler gave them up, and nobody is charged.
UNRUN = frozenset({"revoked"})
#: Ends that count against the backoff limit.
CHARGED = frozenset({"failed", "supervisor_lost"})


@dataclass(frozen=True)
class Want:
    """What a job must come to: its state, how often its command ran, which failures it was charged with, and how its
    attempts may have ended (beside `revoked`, which a killed scheduler may leave)."""

    state: str
    runs: tuple[int, ...] = (1,)
    failures: tuple[int, ...] = (0,)
    ends: tuple[str, ...] = ("succeeded",)


class Scenario:
    """One kind of crash. Class attributes are its description."""

    kind = ""  # of tick, command or process, as in docs/reliability.md
    about = ""
    settings: dict[str, str] = {}  # noqa: RUF012
    one = False  # room for one job at a time
    held: tuple[str, ...] = ()  # jobs that run until they are let go
    quick = True  # its every point is part of the ordinary tests
    follow_fork = False
    jobs: int | None = None  # how many there must be in the end; None: as `wants` says

    def __init__(self, world: World) -> None:
        self.world = world

    @classmethod
    def name(cls) -> str:
        """As on the command line."""
        return "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("-")

    def prepare(self) -> None:
        """Make the template's state; runs in a child."""

    def arm(self) -> None:
        """Bring the copy of the template to life."""

    def before(self) -> None:
        """In the child, before it is traced."""

    def act(self) -> None:
        """What is killed."""
        assert tick_once(self.world.folders, self.world.config, time.time) is not None

    def after(self, run: Run) -> None:
        """The process is dead (or has ended): what happens before a fresh controller starts."""

    def step(self, store: Store) -> None:
        """After each pass of the fresh controller."""

    def goal(self, store: Store) -> bool:
        """Whether the spool has come to rest."""
        return all_final(store)

    def wants(self) -> dict[str, Want]:
        """By job name."""
        raise NotImplementedError

    def judge(self, run: Run) -> list[str]:
        """Faults of the settled spool, as far as this scenario knows better than the world."""
        faults = []
        store = open_store(self.world.folders)
        try:
            found = {job.name: job for job in store.list(finished=True)}
            wants = self.wants()
            for name in wants.keys() - found.keys():
                faults.append(f"{name} is lost")
            for name, want in wants.items():
                job = found.get(name)
                if job is None:
                    continue
                attempts = store.show(job.id).attempts
                ends = [attempt.end_reason for attempt in attempts]
                runs = self.world.runs(name)
                if job.state != want.state:
                    faults.append(f"{name} is {job.state} ({job.end_text}), not {want.state}")
                if runs not in want.runs:
                    faults.append(f"{name} ran {runs} times, not {want.runs}")
                charged = sum(1 for end in ends if end in CHARGED)
                if job.failures != charged or charged not in want.failures:
                    faults.append(
                        f"{name} is charged with {job.failures} failures, not {want.failures}: {ends}"
                    )
                if not set(ends) <= set(want.ends) | UNRUN:
                    faults.append(f"{name}: its attempts ended {ends}, not {want.ends}")
                counted = sum(1 for end in ends if end not in UNRUN)
                if job.counted != counted:
                    faults.append(f"{name}: {job.counted} attempts counted, {counted} ended {ends}")
                if job.launch_failures:
                    faults.append(f"{name} is charged with {job.launch_failures} failed launches")
        finally:
            store.close()
        return faults

    # -- helpers -----------------------------------------------------------------------------------------

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store, closed afterwards: no connection crosses a fork."""
        store = open_store(self.world.folders)
        try:
            yield store
        finally:
            store.close()

    def tick(self, store: Store, backend: LocalBackend | None = None) -> None:
        """One pass, uncrashed."""
        self.world.controller(store, backend).tick()

    def unborn(self) -> Unborn:
        """A backend that makes plans and starts nothing."""
        return Unborn(self.world.folders, self.world.config)

    def started(self, job: int) -> bool:
        """Whether the first attempt's supervisor has noted the start and the command runs."""
        path = os.path.join(self.world.attempt_folder(job), "events-0-0.jsonl")
        try:
            with open(path) as file:
                return '"started"' in file.read()
        except FileNotFoundError:
            return False

    def run_first_attempt(self, job: int, name: str) -> None:
        """Start the prepared first attempt of a held job, until its command waits."""
        self.world.start(self.world.attempt_folder(job))
        self.world.until(lambda: self.started(job) and self.world.runs(name), why=f"{name} runs")


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
    quick = False

    def before(self) -> None:
        self.backend = LocalBackend(self.world.folders, self.world.config)
        self.backend.warm = True


class StartContained(StartCold):
    """With a cgroup where one can be had, and on a machine that is new to the spool."""

    about = "spool tick in a spool that no pass has seen yet, with cgroups"
    settings = {"LOCAL_CGROUP": "auto"}  # noqa: RUF012
    quick = False

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
                self.world.until(lambda path=path: os.path.exists(path), why=path)
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
    quick = False

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
        self.world.start(self.world.attempt_folder(1))

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")}


# -- e: a tick that looks after a lost supervisor -----------------------------------------------------------


class Lost(Scenario):
    """Recorder and guardian were killed and the command lives: it is stopped before it is started again."""

    kind = "e lost"
    about = "passes stop what a lost supervisor left, and start the job again"
    held = ("a",)

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            self.tick(store, self.unborn())

    def arm(self) -> None:
        self.run_first_attempt(1, "a")
        with self.store() as store:
            self.tick(store)
        folder = self.world.attempt_folder(1)
        name = ProcessName.parse(str(read_json(os.path.join(folder, "claim-0-0"))["process"]))
        assert name is not None
        guardian = look(_only_child(name.pid))
        assert guardian is not None
        os.kill(name.pid, signal.SIGSTOP)  # or it would take the guard over
        os.kill(guardian.pid, signal.SIGKILL)
        os.kill(name.pid, signal.SIGKILL)
        self.world.until(lambda: look(name.pid) is None and look(guardian.pid) is None, why="both are gone")

    def act(self) -> None:
        with self.store() as store:
            controller = Controller(store, self.world.folders, self.world.config, self.backend, time.time)
            for _ in range(40):
                controller.tick()
                if store.job(1).attempt > 1 or store.job(1).state == "queued":
                    break
                time.sleep(0.02)

    def before(self) -> None:
        self.backend = LocalBackend(self.world.folders, self.world.config)

    def after(self, run: Run) -> None:
        pass

    def step(self, store: Store) -> None:
        if self.world.runs("a") > 1:
            self.world.let_go("a")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded", runs=(2,), failures=(1,), ends=("supervisor_lost", "succeeded"))}


def _only_child(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])


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
            self.tick(store)
        with self.store() as store:
            self.world.until(lambda: self.tick(store) or all_final(store), why="first ends")

    def act(self) -> None:
        self.words = (
            "submit",
            "--parsable",
            "-J",
            "a",
            "-D",
            str(self.world.work),
            "--",
            *self.world.command("a"),
        )
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
    quick = False

    def act(self) -> None:
        from gpuspool.scheduler.intake import Request, build

        request = Request(command=self.world.command("a"), cwd=str(self.world.work), env={})
        submissions = [build(request, self.world.config, time.time()) for _ in range(3)]
        for name, submission in zip(("a", "b", "c"), submissions, strict=True):
            submission.name = name
            submission.spec.command[2] = name
        with self.store() as store:
            store.submit(submissions, time.time())

    def arm(self) -> None:
        owner = read_json(self.world.folders.owner)
        from gpuspool.spool.durable import write_json

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
    quick = False

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a", "3,0")
            self.tick(store, self.unborn())

    def wants(self) -> dict[str, Want]:
        ends = ("supervisor_lost", "failed", "succeeded")
        return {"a": Want("succeeded", runs=(1, 2), failures=(0, 1), ends=ends)}


class RecorderStopping(RecorderLife):
    """As RecorderLife, of a job that is cancelled while it runs."""

    about = "the recorder while its job is cancelled"
    held = ("a",)
    quick = False

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


# -- h: the daemon ------------------------------------------------------------------------------------------


class DaemonLife(Scenario):
    """An on-demand daemon on an empty queue: it takes the spool, makes a pass, and leaves."""

    kind = "h daemon"
    about = "a daemon from its start to its end, on a spool that another epoch owned"
    quick = False

    def prepare(self) -> None:
        with self.store() as store:
            self.world.submit(store, "a")
            store.hold((1,), time.time(), "test")

    def act(self) -> None:
        self.world.config.values["daemon.idle"] = 0
        try:
            Daemon(self.world.folders, self.world.config, lasting=False, log=lambda _: None).run()
        except GpuspoolError:
            raise

    def after(self, run: Run) -> None:
        with self.store() as store:
            store.release((1,), time.time(), "test")

    def wants(self) -> dict[str, Want]:
        return {"a": Want("succeeded")}


SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name(): scenario
    for scenario in (
        StartCold,
        StartWarm,
        StartForkServer,
        StartContained,
        Settle,
        Preempt,
        StartBeneficiary,
        CancelRunning,
        StopUnseen,
        CancelInitializing,
        CancelLate,
        GiveUpLate,
        Lost,
        Submit,
        SubmitFirst,
        SubmitMany,
        Cancel,
        RecorderLife,
        RecorderFailure,
        RecorderStopping,
        GuardianLife,
        DaemonLife,
    )
}
