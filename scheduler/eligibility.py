"""What keeps a job from starting at this moment whatever the room: holds, times and windows. O(1) a job."""

from __future__ import annotations

import datetime as dt

from ..spool.quantities import show_duration
from .state import ClusterState, Pending, Wait


def clock(at: float) -> str:
    """A moment in local time, for sentences."""
    return dt.datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


_HOLDS = {
    "user": "held; 'spool release' lets it go",
    "stop": "stopped by the user; 'spool resume' lets it go on",
    "thrashing": "preempted ten times in a row without progress; 'spool resume' lets it try again",
}


def not_now(state: ClusterState, job: Pending, now: float) -> Wait | None:
    """Why `job` may not start at `now`; None when it may."""
    if job.hold:
        return Wait("Thrashing" if job.hold == "thrashing" else "Held", _HOLDS.get(job.hold, "held"))
    if job.begin_at > now:
        return Wait("BeginTime", f"begins at {clock(job.begin_at)}", job.begin_at)
    if job.not_before > now:
        what = f" after {job.end_reason.replace('_', ' ')}" if job.end_reason else ""
        return Wait("BackOff", f"backing off{what} until {clock(job.not_before)}", job.not_before)
    return _outside_window(state, job, now)


def _outside_window(state: ClusterState, job: Pending, now: float) -> Wait | None:
    job_class = state.classes.get(job.job_class)
    if job_class is None:
        return Wait("BadClass", f"its class {job.job_class!r} is no longer configured")
    if not job_class.window and not job_class.needs_window:
        return None
    window = state.windows.get(job_class.window)
    if window is None:
        return Wait("Window", f"no window is configured for class {job.job_class!r}")
    closes = window.closes_after(now)
    if closes is None:
        opens = window.opens_after(now)
        when = f"opens at {clock(opens)}" if opens else "never opens"
        return Wait("Window", f"outside window {window.name!r}, which {when}", opens)
    slice_s = max(state.min_slice_s, job.grace_s + state.term_to_kill_s)
    if closes - now < slice_s:
        opens = window.opens_after(closes)
        text = f"only {show_duration(closes - now)} of window {window.name!r} are left, {show_duration(slice_s)} are needed"
        return Wait("Window", text, opens)
    return None


def ends_by(state: ClusterState, job: Pending, now: float) -> float | None:
    """When `job` must be over if it starts now: its window's end; None without a window."""
    job_class = state.classes[job.job_class]
    window = state.windows.get(job_class.window)
    return window.closes_after(now) if window else None
