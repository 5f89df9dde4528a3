"""What keeps a job from starting at this moment whatever the room: holds, times and windows. O(1) a job."""

from __future__ import annotations

import datetime as dt

from ..spool.quantities import show_duration
from ..spool.queue import HOLD_TEXTS
from .state import NEVER, ClusterState, Pending, Wait


def clock(at: float) -> str:
    """A moment in local time, for sentences."""
    return dt.datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


class Moment:
    """One moment, at which every window is looked at once, however many jobs ask."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self.state, self.now = state, now
        self._closes: dict[str, float | None] = {}
        self._opens: dict[tuple[str, float], float | None] = {}

    def wait_of(self, job: Pending) -> Wait | None:
        """Why `job` may not start now; None when it may."""
        if job.hold:
            return Wait("Thrashing" if job.hold == "thrashing" else "Held", HOLD_TEXTS.get(job.hold, "held"))
        if job.begin_at > self.now:
            return Wait("BeginTime", f"begins at {clock(job.begin_at)}", job.begin_at)
        if job.not_before > self.now:
            what = f"; its last attempt: {job.end_reason.replace('_', ' ')}" if job.end_reason else ""
            return Wait("BackOff", f"backs off until {clock(job.not_before)}{what}", job.not_before)
        job_class = self.state.classes.get(job.job_class)
        if job_class is None:
            return Wait("BadClass", f"its class {job.job_class!r} is not configured any more")
        if not job_class.window and not job_class.needs_window:
            return None
        return self._outside(job, job_class.window)

    def closes(self, job: Pending) -> float | None:
        """When `job` must be over if it starts now: the end of its window; None without a window."""
        name = self.state.classes[job.job_class].window
        return self._closing(name) if name in self.state.windows else None

    def latest_start(self, job: Pending) -> float:
        """Until when `job` may start in the window that is open now; NEVER: no such bound."""
        closes = self.closes(job)
        return NEVER if closes is None else closes - self._slice_s(job)

    def _outside(self, job: Pending, name: str) -> Wait | None:
        if name not in self.state.windows:
            return Wait("Window", f"no window is configured for class {job.job_class!r}")
        closes = self._closing(name)
        if closes is None:
            opens = self._opening(name, self.now)
            when = f"opens at {clock(opens)}" if opens is not None else "never opens"
            return Wait("Window", f"outside window {name!r}, which {when}", opens)
        if closes - self.now < self._slice_s(job):
            opens = self._opening(name, closes)
            again = f" and opens again at {clock(opens)}" if opens is not None else ""
            need = show_duration(self._slice_s(job))
            text = f"needs {need} of window {name!r}, which closes at {clock(closes)}{again}"
            return Wait("Window", text, opens)
        return None

    def _slice_s(self, job: Pending) -> int:
        return max(self.state.min_slice_s, job.grace_s + self.state.term_to_kill_s)

    def _closing(self, name: str) -> float | None:
        if name not in self._closes:
            self._closes[name] = self.state.windows[name].closes_after(self.now)
        return self._closes[name]

    def _opening(self, name: str, after: float) -> float | None:
        if (name, after) not in self._opens:
            self._opens[name, after] = self.state.windows[name].opens_after(after)
        return self._opens[name, after]
