"""What follows the end of an attempt: the table of design.md ("The life of a job") as one pure function.

The first row that matches wins. A delivered stop decides before the exit code, because programs that were
stopped leave with 0, 1, -6 or 75 as they like.
"""

from __future__ import annotations

from .model import State, Stop
from .values import dataclass

EX_TEMPFAIL = 75
BACKOFF_BASE_S = 10.0
BACKOFF_MAX_S = 300.0
LAUNCH_BOUND = 5
THRASH_MIN_RUNTIME_S = 600
THRASH_AFTER = 3
THRASH_HOLD = 10
#: Causes with which a first attempt that never progressed is failed at once.
HOPELESS = frozenset({"not_found", "not_executable", "missing_module", "missing_script", "syntax_error"})
#: Ends from outside that never count against the backoff limit.
NEVER_CHARGED = frozenset({Stop.PREEMPT, Stop.WINDOW, Stop.DRAIN, Stop.NODE_LOST, Stop.SLURM})


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the rules need to know of the job; counts are as they stood while the attempt ran."""

    failures: (
        int  # charged ends, this attempt's claim included: the claim counts, and an end may give it back
    )
    delays: int  # charged ends since the last progress: the exponent of the delay
    interruptions: int  # ends from outside in a row without progress
    launch_failures: int
    counted: int  # attempts of any kind that ran, this one included
    backoff_limit: int = 3
    backoff_reset: str = "never"
    max_attempts: int = 100
    max_gpu_hours: float = 0.0
    gpu_seconds: float = 0.0  # this attempt included
    own_min_runtime_s: int = 0
    has_resume_rule: bool = False
    on_timeout: str = ""
    stopped_exit_0: str = "requeue"
    kind: str = "submit"
    wish: str = ""  # "cancel" or "stop": asked for by the user, delivered or not


@dataclass(frozen=True, slots=True)
class EndFacts:
    """How the attempt ended."""

    exit_code: int | None = None  # None: by a signal, or nobody saw it
    signal: int | None = None
    stop: str = ""  # the strongest stop that was *delivered*: at least one process was sent a signal
    done_marker: bool = False
    progress: bool = False
    ran_s: float = 0.0
    cause: str = ""
    supervisor_lost: bool = False
    revoked: bool = False  # given up before it ran
    launch_failed: bool = False  # the backend could not start it, but might later
    refused: bool = False  # the backend will never take these options
    self_requeue: bool = False  # the program's own `scontrol requeue`


@dataclass(frozen=True, slots=True)
class Next:
    """What becomes of the job: its state, the word for how the attempt ended, and the counts to store."""

    state: State
    end_reason: str
    text: str
    failures: int
    delays: int
    interruptions: int
    launch_failures: int
    counted: int
    own_min_runtime_s: int
    hold: str = ""
    not_before: float = 0.0
    charged: bool = False


def decide(job: JobFacts, end: EndFacts, now: float, jitter: float) -> Next:
    """The next state of `job` after `end`.

    `jitter` in [0, 1) stretches the delay of a retry by up to a quarter, so that a hundred jobs which failed
    together do not come back together; `now` and the returned `not_before` are UTC seconds.
    """
    row = _first_row(job, end, now, jitter)
    row = _bounded(job, row)
    # What the user asked for holds even if the attempt ended before the signal reached it.
    if row.state is State.QUEUED and job.wish == Stop.CANCEL:
        text = f"{row.text}; cancelled as asked"
        return _replace(row, state=State.CANCELLED, hold="", not_before=0.0, text=text)
    if row.state is State.QUEUED and job.wish == Stop.USER_STOP and not row.hold:
        return _replace(row, hold="stop", not_before=0.0)
    return row


def _replace(row: Next, **changes: object) -> Next:
    import dataclasses

    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def _first_row(job: JobFacts, end: EndFacts, now: float, jitter: float) -> Next:
    base = Next(
        state=State.QUEUED,
        end_reason="",
        text="",
        failures=0 if end.progress and job.backoff_reset == "progress" else max(0, job.failures - 1),
        delays=0 if end.progress else job.delays,
        interruptions=0 if end.progress else job.interruptions,
        launch_failures=0,
        counted=job.counted,
        own_min_runtime_s=0 if end.progress else job.own_min_runtime_s,
    )
    how = _how(end)
    if end.done_marker and end.exit_code == 0:
        return _replace(base, state=State.SUCCEEDED, end_reason="done", text="finished (exit 0, marked done)")
    if end.revoked:
        return _replace(
            base,
            end_reason="revoked",
            text="given up before it ran",
            counted=max(0, job.counted - 1),
            launch_failures=job.launch_failures,
        )
    if end.stop == Stop.CANCEL:
        return _replace(base, state=State.CANCELLED, end_reason="cancelled", text=f"cancelled ({how})")
    if end.stop == Stop.USER_STOP:
        return _replace(base, hold="stop", end_reason="stopped", text=f"stopped by the user ({how})")
    if end.stop == Stop.WALLTIME:
        requeue = job.on_timeout == "requeue" or (
            job.on_timeout != "fail" and job.kind == "submit" and job.has_resume_rule
        )
        if not requeue:
            return _replace(
                base, state=State.FAILED, end_reason="timeout", text=f"reached its walltime ({how})"
            )
        if end.progress:
            return _replace(
                base, end_reason="timeout", text="reached its walltime; goes on from its checkpoint"
            )
        return _charge(job, base, "timeout", f"reached its walltime without progress ({how})", now, jitter)
    if end.stop in NEVER_CHARGED:
        if end.stop != Stop.NODE_LOST and end.exit_code == 0 and job.stopped_exit_0 == "done":
            return _replace(
                base, state=State.SUCCEEDED, end_reason="done", text="left with exit 0 when asked to stop"
            )
        return _interrupted(job, base, end, how)
    if end.self_requeue or end.exit_code == EX_TEMPFAIL:
        if end.progress:
            return _replace(base, end_reason="tempfail", text="asked to be run again (exit 75)")
        return _charge(job, base, "tempfail", "asked to be run again (exit 75) without progress", now, jitter)
    if end.exit_code == 0 and not end.supervisor_lost:
        return _replace(base, state=State.SUCCEEDED, end_reason="succeeded", text="finished (exit 0)")
    first = job.counted <= 1 and base.failures == 0
    hopeless = end.exit_code in (126, 127) or end.cause in HOPELESS
    if hopeless and first and end.ran_s <= 10.0 and not end.progress:
        return _replace(
            base,
            state=State.FAILED,
            end_reason="failed",
            failures=base.failures + 1,
            charged=True,
            text=f"{end.cause.replace('_', ' ') or how}; another try cannot mend that",
        )
    if end.refused:
        return _replace(base, state=State.FAILED, end_reason="refused", text="refused by the backend")
    if end.launch_failed:
        failed = job.launch_failures + 1
        if failed > LAUNCH_BOUND:
            return _replace(
                base,
                state=State.FAILED,
                end_reason="launch_failed",
                text=f"could not be started {failed} times",
            )
        return _replace(
            base,
            end_reason="launch_failed",
            text="could not be started",
            counted=max(0, job.counted - 1),
            launch_failures=failed,
            # The first one is tried again at once: more often than not the scheduler was restarted in mid-launch.
            not_before=now + _delay(failed - 2, jitter) if failed > 1 else 0.0,
        )
    if end.supervisor_lost:
        return _charge(job, base, "supervisor_lost", "its supervisor was lost", now, jitter)
    return _charge(job, base, "failed", how, now, jitter)


def _interrupted(job: JobFacts, base: Next, end: EndFacts, how: str) -> Next:
    """Ended from outside: queued at once, never charged, and protected when it happens over and over."""
    word = {
        Stop.PREEMPT: "preempted",
        Stop.WINDOW: "window_closed",
        Stop.DRAIN: "drained",
        Stop.NODE_LOST: "node_lost",
        Stop.SLURM: "preempted_by_slurm",
    }[Stop(end.stop)]
    streak = 0 if end.progress else job.interruptions + 1
    own, hold = base.own_min_runtime_s, ""
    if streak >= THRASH_HOLD:
        hold = "thrashing"
    elif streak >= THRASH_AFTER:
        own = THRASH_MIN_RUNTIME_S * 2 ** (streak - THRASH_AFTER)
    return _replace(
        base,
        end_reason=word,
        text=f"{word.replace('_', ' ')} ({how})",
        interruptions=streak,
        own_min_runtime_s=own,
        hold=hold,
    )


def _charge(job: JobFacts, base: Next, reason: str, text: str, now: float, jitter: float) -> Next:
    failures = base.failures + 1
    common = {"end_reason": reason, "failures": failures, "delays": base.delays + 1, "charged": True}
    if failures > job.backoff_limit:
        return _replace(
            base,
            state=State.FAILED,
            text=f"{text}; failure {failures}, and the backoff limit is {job.backoff_limit}",
            **common,
        )
    return _replace(base, text=text, not_before=now + _delay(base.delays, jitter), **common)


def _delay(exponent: int, jitter: float) -> float:
    return min(BACKOFF_BASE_S * 2.0 ** min(exponent, 20), BACKOFF_MAX_S) * (1.0 + 0.25 * jitter)


def _bounded(job: JobFacts, row: Next) -> Next:
    """Attempts and GPU hours bound every job, whatever ended it."""
    if row.state is not State.QUEUED or row.end_reason in ("revoked", "launch_failed"):
        return row
    if job.max_gpu_hours and job.gpu_seconds >= job.max_gpu_hours * 3600:
        return _replace(
            row,
            state=State.FAILED,
            text=f"{row.text}; used its {job.max_gpu_hours:g} GPU hours",
            not_before=0.0,
            hold="",
        )
    if row.counted >= job.max_attempts:
        return _replace(
            row,
            state=State.FAILED,
            text=f"{row.text}; reached its {job.max_attempts} attempts",
            not_before=0.0,
            hold="",
        )
    return row


def _how(end: EndFacts) -> str:
    if end.supervisor_lost:
        return "nobody saw how"
    if end.signal is not None:
        import signal as signals

        try:
            return f"killed by {signals.Signals(end.signal).name}"
        except ValueError:
            return f"killed by signal {end.signal}"
    if end.exit_code is None:
        return "no exit code"
    return f"exit {end.exit_code}"
