"""One scenario of the crash harness: a state of the spool, a process to be killed in it, and what must come of it.

Each is one tick, one command or one supervisor of the real program. `prepare` makes the state once, in a child; `arm`
starts what has to be alive in it, before each point; `act` is run under the tracer and killed; `after` happens when it
is dead, before a fresh controller starts; `step` after each of its passes; `wants` says what must be reached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from crash_world import Unborn, World, all_final
from tracer import Run

from gpuspool.launch.local import LocalBackend
from gpuspool.scheduler.daemon import tick_once
from gpuspool.spool.store import Store, open_store

#: Ends of attempts that never ran: the scheduler gave them up, and no failure is charged.
UNRUN = frozenset({"revoked", "launch_failed"})
#: Ends that count against the backoff limit.
CHARGED = frozenset({"failed", "supervisor_lost"})


@dataclass(frozen=True)
class Want:
    """What a job must come to: its state, how often its command ran, which failures it was charged with, and how its
    attempts may have ended (beside UNRUN, which a killed scheduler may leave)."""

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
    serves = True  # the harness plays the daemon that is woken; else the spool is left to itself afterwards
    cron = False  # nobody but cron ticks afterwards: a fresh process each minute
    every = 1  # the ordinary tests take every point, or one in so many
    stride = 1  # and so does the full form
    scans = False  # it searches all of /proc
    limit = 0  # no points beyond this one, where the process goes on for ever; 0: no such
    follow_fork = False  # what is traced is the first child
    race = False  # not a crash: it stands still while `meanwhile` happens, and goes on
    n = 0  # the point at hand
    reached = False  # whether the process came to it

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

    def meanwhile(self) -> None:
        """What happens while a race's process stands still."""

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
                if job.launch_failures > ends.count("launch_failed"):
                    faults.append(f"{name} is charged with {job.launch_failures} failed launches: {ends}")
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
