"""The one interface to a spool, of coarse verbs: the store implements it here, a daemon's client may elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from .lifecycle import Claim, Ending, LiveAttempt, Room, StreamUpdate
from .model import Job, Stop, Submission
from .queue import JobView, Outcomes

#: Spelt outside of the class, in which `list` is a verb.
LiveAttempts = list[LiveAttempt]


class Spool(Protocol):
    """What commands (submit, list, show, wishes) and the tick (claim, record, settle, request_stops) ask of a spool."""

    def submit(self, submissions: list[Submission], now: float) -> list[int]:
        """Put jobs into the queue, all or none."""

    def list(
        self,
        *,
        finished: bool = False,
        user: str = "",
        project: str = "",
        states: tuple[str, ...] = (),
        name: str = "",
        jobs: tuple[int, ...] = (),
        limit: int = 0,
    ) -> list[Job]:
        """Jobs that match."""

    def show(self, job: int) -> JobView:
        """All of one job."""

    def cancel(self, jobs: tuple[int, ...], now: float, actor: str, *, at_once: bool = False) -> Outcomes:
        """Cancel jobs."""

    def stop(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Stop jobs until they are resumed."""

    def preempt(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Preempt jobs."""

    def hold(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Keep jobs from starting."""

    def release(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Let held jobs go."""

    def resume(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Let stopped jobs go on."""

    def requeue(self, jobs: tuple[int, ...], now: float, actor: str) -> Outcomes:
        """Run jobs again."""

    def live(self) -> LiveAttempts:
        """Attempts that have not ended."""

    def claim(self, claims: Iterable[Claim], now: float, launcher: str, folder_of: Any) -> LiveAttempts:
        """Record starts, compare-and-set."""

    def note_handles(self, handles: Iterable[tuple[int, int, str]]) -> None:
        """Record handles."""

    def record(self, updates: Iterable[StreamUpdate]) -> None:
        """Take in supervisors' events."""

    def settle(self, endings: Iterable[Ending], now: float) -> None:
        """Apply ends: the transitions out of a live state."""

    def request_stops(
        self,
        victims: Iterable[tuple[Job, Stop, str]],
        rooms: Iterable[Room],
        now: float,
        actor: str = "scheduler",
    ) -> None:
        """Mark victims, keep their room."""
