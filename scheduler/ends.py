"""From what a supervisor wrote (or could not write any more) to the facts of an end, and to what follows."""

from __future__ import annotations

import random
from typing import Any

from ..spool.endrules import EndFacts, JobFacts, decide
from ..spool.lifecycle import Ending, LiveAttempt
from ..spool.model import Job, JobSpec


def job_facts(job: Job, spec: JobSpec, gpu_seconds: float) -> JobFacts:
    """What the end rules look at, of a job."""
    return JobFacts(
        failures=job.failures,
        delays=job.delays,
        interruptions=job.interruptions,
        launch_failures=job.launch_failures,
        counted=job.counted,
        backoff_limit=spec.backoff_limit,
        backoff_reset=spec.backoff_reset,
        max_attempts=spec.max_attempts,
        max_gpu_hours=spec.max_gpu_hours,
        gpu_seconds=job.gpu_seconds + gpu_seconds,
        own_min_runtime_s=job.own_min_runtime_s,
        has_resume_rule=spec.has_resume_rule,
        on_timeout=spec.on_timeout,
        stopped_exit_0=spec.stopped_exit_0,
        kind=spec.kind,
        wish=job.wish,
    )


def ending(
    live: LiveAttempt,
    spec: JobSpec,
    facts: EndFacts,
    now: float,
    *,
    at: float | None = None,
    record: dict[str, Any] | None = None,
) -> Ending:
    """The end of an attempt as decided. `record` is the supervisor's end record where there is one."""
    record = record or {}
    job, attempt = live.job, live.attempt
    ended_at = now if at is None else min(at, now)
    held = max(0.0, ended_at - attempt.created_at) if attempt.gpus else 0.0
    gpu_seconds = held * attempt.gpus
    after = decide(job_facts(job, spec, gpu_seconds), facts, now, random.random())
    newest = record.get("checkpoint")
    newest = newest if isinstance(newest, dict) else {}
    checkpoint, step = str(newest.get("path", "")), newest.get("step")
    if not newest and attempt.checkpoint:
        checkpoint, step = attempt.checkpoint, attempt.checkpoint_step
    return Ending(
        job,
        attempt,
        facts,
        after,
        cause_text=str(record.get("cause_text", "")),
        checkpoint=checkpoint,
        checkpoint_step=step if isinstance(step, int) else None,
        checkpoint_identity=str(newest.get("identity", "")),
        gpu_seconds=gpu_seconds,
        cpu_seconds=_number(record.get("cpu_seconds")),
        max_rss_mib=_number(record.get("max_rss_mib")),
        ended_at=ended_at,
    )


def facts_of(live: LiveAttempt, record: dict[str, Any]) -> EndFacts:
    """The facts in a supervisor's end record; fields that are damaged count as not there."""
    if record.get("not_run"):
        reason = str(record["not_run"])
        return EndFacts(revoked=reason == "revoked", launch_failed=reason != "revoked")
    code, number = record.get("exit_code"), record.get("signal")
    delivered = bool(record.get("delivered"))
    return EndFacts(
        exit_code=code if type(code) is int else None,
        signal=number if type(number) is int else None,
        stop=_stop(record.get("stop")) if delivered else "",
        done_marker=bool(record.get("done")),
        progress=progressed(live.job, record.get("checkpoint"), bool(record.get("fresh_checkpoint"))),
        ran_s=_number(record.get("ran_s")),
        cause=str(record.get("cause", "")),
        supervisor_lost=not record.get("saw_end", True),
    )


def progressed(job: Job, checkpoint: Any, fresh: bool) -> bool:
    """A step above the highest that any earlier attempt checkpointed; without steps, new content."""
    if not isinstance(checkpoint, dict):
        return False
    step = checkpoint.get("step")
    if isinstance(step, int):
        return job.progress_step is None or step > job.progress_step
    return fresh and checkpoint.get("identity", "") != job.progress_identity


def lost_facts(live: LiveAttempt, *, stop: str = "") -> EndFacts:
    """The facts when nobody saw the end; progress by what was recorded before."""
    attempt, job = live.attempt, live.job
    step = attempt.checkpoint_step
    progress = bool(attempt.checkpoint) and (
        step is None or job.progress_step is None or step > job.progress_step
    )
    return EndFacts(stop=stop, progress=progress, supervisor_lost=True)


def _stop(value: Any) -> str:
    from ..spool.model import Stop

    return str(value) if value in list(Stop) else str(Stop.PREEMPT)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
