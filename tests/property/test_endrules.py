"""What must hold of the end rules for every job and every end."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspool.spool import endrules, states
from gpuspool.spool.endrules import EndFacts, JobFacts, decide
from gpuspool.spool.model import FINAL, State, Stop

NOW = 1_700_000_000.0
COUNT = st.integers(0, 12) | st.integers(0, 10**6)
#: A job whose claim was counted: at least one of each.
JOBS = st.builds(
    JobFacts,
    failures=st.integers(1, 12) | st.integers(1, 10**6),
    delays=COUNT,
    interruptions=COUNT,
    launch_failures=COUNT,
    counted=st.integers(1, 200),
    backoff_limit=st.integers(0, 100),
    backoff_reset=st.sampled_from(["never", "progress"]),
    max_attempts=st.integers(1, 200),
    max_gpu_hours=st.sampled_from([0.0, 0.5, 100.0]),
    gpu_seconds=st.floats(0, 1e6),
    own_min_runtime_s=st.sampled_from([0, 600, 1200, 38400]),
    has_resume_rule=st.booleans(),
    on_timeout=st.sampled_from(["", "requeue", "fail"]),
    stopped_exit_0=st.sampled_from(["requeue", "done"]),
    kind=st.sampled_from(["submit", "sbatch"]),
    wish=st.sampled_from(["", "cancel", "stop"]),
)
STOPS = st.just("") | st.sampled_from(list(Stop)).map(str)
#: The three ways in which an attempt can end: it ran and somebody saw how, it ran and nobody did, it never ran.
RAN = st.builds(
    EndFacts,
    exit_code=st.none() | st.sampled_from([0, 1, 75, 126, 127, 255]) | st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    stop=STOPS,
    done_marker=st.booleans(),
    progress=st.booleans(),
    ran_s=st.floats(0, 1e6),
    cause=st.just("") | st.sampled_from(sorted(endrules.HOPELESS)) | st.just("out_of_memory"),
    self_requeue=st.booleans(),
)
UNSEEN = st.builds(EndFacts, supervisor_lost=st.just(True), stop=STOPS, progress=st.booleans())
NEVER_RAN = st.sampled_from([EndFacts(revoked=True), EndFacts(launch_failed=True), EndFacts(refused=True)])
ENDS = RAN | UNSEEN | NEVER_RAN
JITTER = st.floats(0, 1, exclude_max=True)
TRIES = settings(max_examples=150, deadline=None)


@TRIES
@given(JOBS, ENDS, JITTER)
def test_what_holds_of_every_end(job: JobFacts, end: EndFacts, jitter: float) -> None:
    found = decide(job, end, NOW, jitter)
    # Every state is one that an attempt may end in, and a known word and a sentence go with it.
    assert found.state is State.QUEUED or found.state in FINAL
    for source in (State.RUNNING, State.STOPPING):
        states.check(1, source, found.state)
    assert found.end_reason
    assert found.text
    # Counts are never negative, and grow by what this end may add.
    counts = (
        found.failures,
        found.delays,
        found.interruptions,
        found.launch_failures,
        found.counted,
        found.own_min_runtime_s,
    )
    assert min(counts) >= 0
    assert found.failures <= job.failures
    assert found.counted in (job.counted, job.counted - 1)
    assert found.delays <= job.delays + 1
    assert found.interruptions <= job.interruptions + 1
    assert found.launch_failures <= job.launch_failures + 1
    # A hold or a delay only for a job that waits; a delay is no longer than five minutes and its jitter.
    if found.state is not State.QUEUED:
        assert (found.hold, found.not_before) == ("", 0.0)
    assert found.not_before == 0.0 or NOW + 10 <= found.not_before <= NOW + 375
    assert found.hold in ("", "stop", "thrashing")


@TRIES
@given(JOBS, ENDS, JITTER)
def test_what_the_user_asked_for_is_what_happens(job: JobFacts, end: EndFacts, jitter: float) -> None:
    found = decide(job, end, NOW, jitter)
    if end.stop == Stop.CANCEL or job.wish == "cancel":
        assert found.state is not State.QUEUED, "no cancelled job comes back"
    if end.stop == Stop.CANCEL and not (end.done_marker and end.exit_code == 0):
        assert found.state is State.CANCELLED
    if found.state is State.CANCELLED:
        assert end.stop == Stop.CANCEL or job.wish == "cancel", "nobody else cancels"
    if end.stop == Stop.USER_STOP and found.state is State.QUEUED:
        assert found.hold == "stop"
    if job.wish == "stop" and found.state is State.QUEUED:
        assert found.hold in ("stop", "thrashing")
    if found.hold == "stop":
        assert end.stop == Stop.USER_STOP or job.wish == "stop"


@TRIES
@given(JOBS, ENDS, JITTER)
def test_a_job_succeeds_only_by_exit_0(job: JobFacts, end: EndFacts, jitter: float) -> None:
    if decide(job, end, NOW, jitter).state is State.SUCCEEDED:
        assert end.exit_code == 0


@TRIES
@given(JOBS, ENDS, JITTER)
def test_a_job_fails_only_for_a_reason(job: JobFacts, end: EndFacts, jitter: float) -> None:
    found = decide(job, end, NOW, jitter)
    if found.state is not State.FAILED:
        return
    hopeless = end.exit_code in (126, 127) or end.cause in endrules.HOPELESS
    reasons = {
        "limit": found.charged and found.failures > job.backoff_limit,
        "attempts": found.counted >= job.max_attempts,
        "gpu hours": bool(job.max_gpu_hours) and job.gpu_seconds >= job.max_gpu_hours * 3600,
        "walltime": end.stop == Stop.WALLTIME
        and (job.on_timeout == "fail" or job.kind == "sbatch" or not job.has_resume_rule),
        "hopeless": hopeless and end.ran_s <= 10 and not end.progress and job.counted <= 1,
        "refused": end.refused,
        "launch": end.launch_failed and job.launch_failures >= endrules.LAUNCH_BOUND,
    }
    assert any(reasons.values())


@TRIES
@given(JOBS, RAN | UNSEEN, st.sampled_from(sorted(endrules.NEVER_CHARGED)), JITTER)
def test_ends_from_outside_are_never_charged(job: JobFacts, end: EndFacts, stop: str, jitter: float) -> None:
    end = dataclasses.replace(end, stop=stop)
    found = decide(job, end, NOW, jitter)
    assert not found.charged
    assert found.failures == (0 if end.progress and job.backoff_reset == "progress" else job.failures - 1)
    assert found.not_before == 0.0, "at once"


@TRIES
@given(JOBS, ENDS, JITTER, JITTER)
def test_jitter_changes_only_the_delay_and_nothing_else_changes_at_all(
    job: JobFacts, end: EndFacts, one: float, other: float
) -> None:
    first, second = decide(job, end, NOW, one), decide(job, end, NOW, other)
    assert dataclasses.replace(first, not_before=0.0) == dataclasses.replace(second, not_before=0.0)
    assert decide(job, end, NOW, one) == first


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ENDS, min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(1, 40),
    st.sampled_from(["never", "progress"]),
)
def test_no_job_is_run_for_ever(ends: list[EndFacts], limit: int, attempts: int, reset: str) -> None:
    """Whatever happens to a job over and over: it ends, is held, or is never started; max_attempts sees to it."""
    facts = {
        "failures": 0,
        "delays": 0,
        "interruptions": 0,
        "launch_failures": 0,
        "counted": 0,
        "own_min_runtime_s": 0,
    }
    starts = 0
    while True:
        job = JobFacts(
            **{**facts, "failures": facts["failures"] + 1, "counted": facts["counted"] + 1},
            backoff_limit=limit,
            backoff_reset=reset,
            max_attempts=attempts,
        )
        end = ends[starts % len(ends)]
        starts += 1
        found = decide(job, end, NOW, 0.5)
        if found.state is not State.QUEUED or found.hold:
            return
        facts = {name: getattr(found, name) for name in facts}
        if starts > 20 * attempts + 200:
            # Only a job that is given up before each start goes on: nothing of it ever ran.
            assert all(end.revoked for end in ends), "it was started again and again"
            return


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 10**9))
def test_delays_are_finite(jitter: float, delays: int) -> None:
    job = JobFacts(failures=1, delays=delays, interruptions=0, launch_failures=0, counted=1)
    assert math.isfinite(decide(job, EndFacts(exit_code=1), NOW, jitter).not_before)
