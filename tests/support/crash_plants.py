"""Faults that are planted to see whether the crash harness finds them: each is a mistake that somebody might make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import crash_world

from gpuspool.launch import guard
from gpuspool.launch.local import LocalBackend
from gpuspool.scheduler.controller import Controller
from gpuspool.spool.lifecycle import LiveAttempt
from gpuspool.spool.store import Store


@dataclass(frozen=True)
class Plant:
    """A fault: how to plant it in this process, the scenario that must find it, at which points, and in which words."""

    plant: Callable[[], None]
    scenario: str
    points: tuple[int, ...]
    finds: str


def _revoke_without_claim() -> None:
    """An attempt is given up on the scheduler's word alone: its supervisor may still come."""
    LocalBackend.revoke = lambda self, folder, token: True  # type: ignore[method-assign]


def _status_by_the_reaper() -> None:
    """The guardian reaps the command before it has told anybody how it ended."""
    guard._peek = lambda pid: None


def _jobs_one_by_one() -> None:
    """Several jobs are submitted in as many transactions."""
    whole = Store.submit

    def submit(self: Store, submissions: list[Any], now: float) -> list[int]:
        return [whole(self, [submission], now)[0] for submission in submissions]

    Store.submit = submit  # type: ignore[method-assign]


def _noted_before_written() -> None:
    """A stop is noted as delivered before its file is there: a kill between the two loses it."""
    crash_world.PATIENCE_S = 3.0
    after = Controller._stop

    def stop(self: Controller, state: Any, decided: Any, live: list[LiveAttempt], report: Any) -> None:
        asked = [entry.attempt for entry in live if entry.attempt.stop_kind]
        self.store.note_stops_written((item.job_id, item.number, item.stop_kind) for item in asked)
        after(self, state, decided, live, report)

    Controller._stop = stop  # type: ignore[method-assign]


PLANTS: dict[str, Plant] = {
    "revoke-without-claim": Plant(
        _revoke_without_claim, "give-up-late", tuple(range(1, 400, 9)), "ran and was"
    ),
    "status-by-the-reaper": Plant(
        _status_by_the_reaper, "guardian-life", tuple(range(60, 140, 2)), "ran again"
    ),
    "jobs-one-by-one": Plant(_jobs_one_by_one, "submit-many", tuple(range(30, 300, 6)), "of 3 jobs"),
    "noted-before-written": Plant(
        _noted_before_written, "cancel-running", tuple(range(120, 420, 6)), "did not settle"
    ),
}
