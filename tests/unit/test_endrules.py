"""What follows the end of an attempt: each row of design.md's table, the bounds, the delays, the streaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuspool.spool import endrules
from gpuspool.spool.endrules import EndFacts, JobFacts, Next, decide
from gpuspool.spool.model import State, Stop

NOW = 1_000_000.0
#: A job in its first attempt, whose claim has been counted.
JOB = JobFacts(failures=1, delays=0, interruptions=0, launch_failures=0, counted=1)
#: The same later on: two failures behind it, one of them since the last progress, and the claim.
LATER = JobFacts(failures=3, delays=1, interruptions=1, launch_failures=2, counted=4, own_min_runtime_s=600)


def after(job: JobFacts = JOB, jitter: float = 0.0, /, **end: Any) -> Next:
    """What follows for `job` after the end with these facts."""
    return decide(job, EndFacts(**end), NOW, jitter)


def but(job: JobFacts, **changes: Any) -> JobFacts:
    """`job` with some facts changed."""
    return dataclasses.replace(job, **changes)


RESUMES = but(JOB, has_resume_rule=True)
BATCH = but(RESUMES, kind="sbatch")
CHARGED, FREE = True, False

#: job, end, (state, end_reason, charged?). The rows stand in the table's order; a row that a stronger one overrides
#: stands beside it.
TABLE: list[tuple[str, JobFacts, dict[str, Any], tuple[State, str, bool]]] = [
    # $GPUSPOOL_DONE and exit 0: before everything else.
    ("done", JOB, {"exit_code": 0, "done_marker": True}, (State.SUCCEEDED, "done", FREE)),
    (
        "done beats cancel",
        JOB,
        {"exit_code": 0, "done_marker": True, "stop": Stop.CANCEL},
        (State.SUCCEEDED, "done", FREE),
    ),
    (
        "done beats preemption",
        JOB,
        {"exit_code": 0, "done_marker": True, "stop": Stop.PREEMPT},
        (State.SUCCEEDED, "done", FREE),
    ),
    ("done needs exit 0", JOB, {"exit_code": 1, "done_marker": True}, (State.QUEUED, "failed", CHARGED)),
    ("done needs an exit", JOB, {"signal": 9, "done_marker": True}, (State.QUEUED, "failed", CHARGED)),
    # Given up before it ran.
    ("revoked", JOB, {"revoked": True}, (State.QUEUED, "revoked", FREE)),
    # The user's cancel, whatever the exit code says.
    ("cancel, exit 0", JOB, {"exit_code": 0, "stop": Stop.CANCEL}, (State.CANCELLED, "cancelled", FREE)),
    ("cancel, exit 1", JOB, {"exit_code": 1, "stop": Stop.CANCEL}, (State.CANCELLED, "cancelled", FREE)),
    ("cancel, exit 75", JOB, {"exit_code": 75, "stop": Stop.CANCEL}, (State.CANCELLED, "cancelled", FREE)),
    ("cancel, abort", JOB, {"signal": 6, "stop": Stop.CANCEL}, (State.CANCELLED, "cancelled", FREE)),
    (
        "cancel, nobody saw",
        JOB,
        {"supervisor_lost": True, "stop": Stop.CANCEL},
        (State.CANCELLED, "cancelled", FREE),
    ),
    # The user's stop.
    ("stop, exit 0", JOB, {"exit_code": 0, "stop": Stop.USER_STOP}, (State.QUEUED, "stopped", FREE)),
    ("stop, exit 1", JOB, {"exit_code": 1, "stop": Stop.USER_STOP}, (State.QUEUED, "stopped", FREE)),
    ("stop, killed", JOB, {"signal": 9, "stop": Stop.USER_STOP}, (State.QUEUED, "stopped", FREE)),
    # Walltime: submit with and without a resume rule, sbatch, --on-timeout over both.
    ("walltime, no rule", JOB, {"signal": 15, "stop": Stop.WALLTIME}, (State.FAILED, "timeout", FREE)),
    (
        "walltime, no rule, exit 0",
        JOB,
        {"exit_code": 0, "stop": Stop.WALLTIME},
        (State.FAILED, "timeout", FREE),
    ),
    ("walltime, rule", RESUMES, {"exit_code": 75, "stop": Stop.WALLTIME}, (State.QUEUED, "timeout", CHARGED)),
    (
        "walltime, rule, progress",
        RESUMES,
        {"exit_code": 75, "stop": Stop.WALLTIME, "progress": True},
        (State.QUEUED, "timeout", FREE),
    ),
    (
        "walltime, sbatch",
        BATCH,
        {"exit_code": 0, "stop": Stop.WALLTIME, "progress": True},
        (State.FAILED, "timeout", FREE),
    ),
    (
        "walltime, sbatch requeue",
        but(BATCH, on_timeout="requeue"),
        {"signal": 15, "stop": Stop.WALLTIME, "progress": True},
        (State.QUEUED, "timeout", FREE),
    ),
    (
        "walltime, requeue, no rule",
        but(JOB, on_timeout="requeue"),
        {"signal": 15, "stop": Stop.WALLTIME},
        (State.QUEUED, "timeout", CHARGED),
    ),
    (
        "walltime, fail",
        but(RESUMES, on_timeout="fail"),
        {"exit_code": 75, "stop": Stop.WALLTIME, "progress": True},
        (State.FAILED, "timeout", FREE),
    ),
    # From outside: never charged.
    ("preempted", JOB, {"exit_code": 75, "stop": Stop.PREEMPT}, (State.QUEUED, "preempted", FREE)),
    ("preempted, exit 0", JOB, {"exit_code": 0, "stop": Stop.PREEMPT}, (State.QUEUED, "preempted", FREE)),
    ("preempted, exit 1", JOB, {"exit_code": 1, "stop": Stop.PREEMPT}, (State.QUEUED, "preempted", FREE)),
    (
        "preempted, not found",
        JOB,
        {"exit_code": 127, "stop": Stop.PREEMPT},
        (State.QUEUED, "preempted", FREE),
    ),
    ("window", JOB, {"signal": 15, "stop": Stop.WINDOW}, (State.QUEUED, "window_closed", FREE)),
    ("drain", JOB, {"exit_code": 1, "stop": Stop.DRAIN}, (State.QUEUED, "drained", FREE)),
    ("node lost", JOB, {"supervisor_lost": True, "stop": Stop.NODE_LOST}, (State.QUEUED, "node_lost", FREE)),
    ("slurm", JOB, {"signal": 15, "stop": Stop.SLURM}, (State.QUEUED, "preempted_by_slurm", FREE)),
    (
        "preempted, exit 0 is done",
        but(JOB, stopped_exit_0="done"),
        {"exit_code": 0, "stop": Stop.PREEMPT},
        (State.SUCCEEDED, "done", FREE),
    ),
    (
        "window, exit 0 is done",
        but(JOB, stopped_exit_0="done"),
        {"exit_code": 0, "stop": Stop.WINDOW},
        (State.SUCCEEDED, "done", FREE),
    ),
    (
        "preempted, exit 1 is not done",
        but(JOB, stopped_exit_0="done"),
        {"exit_code": 1, "stop": Stop.PREEMPT},
        (State.QUEUED, "preempted", FREE),
    ),
    (
        "a lost node is never done",
        but(JOB, stopped_exit_0="done"),
        {"exit_code": 0, "stop": Stop.NODE_LOST},
        (State.QUEUED, "node_lost", FREE),
    ),
    # Exit 75 and the program's own requeue.
    ("75", JOB, {"exit_code": 75}, (State.QUEUED, "tempfail", CHARGED)),
    ("75, progress", JOB, {"exit_code": 75, "progress": True}, (State.QUEUED, "tempfail", FREE)),
    ("own requeue", JOB, {"exit_code": 1, "self_requeue": True}, (State.QUEUED, "tempfail", CHARGED)),
    ("own requeue, exit 0", JOB, {"exit_code": 0, "self_requeue": True}, (State.QUEUED, "tempfail", CHARGED)),
    (
        "own requeue, progress",
        JOB,
        {"exit_code": 255, "self_requeue": True, "progress": True},
        (State.QUEUED, "tempfail", FREE),
    ),
    # Exit 0.
    ("exit 0", JOB, {"exit_code": 0}, (State.SUCCEEDED, "succeeded", FREE)),
    ("exit 0, no progress", LATER, {"exit_code": 0}, (State.SUCCEEDED, "succeeded", FREE)),
    (
        "exit 0, cancel undelivered",
        but(JOB, wish="cancel"),
        {"exit_code": 0},
        (State.SUCCEEDED, "succeeded", FREE),
    ),
    # What another try cannot mend: first attempt, within 10 s, no progress.
    ("127", JOB, {"exit_code": 127, "ran_s": 1.0}, (State.FAILED, "failed", CHARGED)),
    ("126", JOB, {"exit_code": 126, "ran_s": 10.0}, (State.FAILED, "failed", CHARGED)),
    ("missing module", JOB, {"exit_code": 1, "cause": "missing_module"}, (State.FAILED, "failed", CHARGED)),
    ("missing script", JOB, {"exit_code": 2, "cause": "missing_script"}, (State.FAILED, "failed", CHARGED)),
    ("syntax error", JOB, {"exit_code": 1, "cause": "syntax_error"}, (State.FAILED, "failed", CHARGED)),
    ("not found", JOB, {"exit_code": 1, "cause": "not_found"}, (State.FAILED, "failed", CHARGED)),
    ("not executable", JOB, {"exit_code": 1, "cause": "not_executable"}, (State.FAILED, "failed", CHARGED)),
    ("127 later in the run", JOB, {"exit_code": 127, "ran_s": 10.1}, (State.QUEUED, "failed", CHARGED)),
    ("127 with progress", JOB, {"exit_code": 127, "progress": True}, (State.QUEUED, "failed", CHARGED)),
    ("127 in a second attempt", but(JOB, counted=2), {"exit_code": 127}, (State.QUEUED, "failed", CHARGED)),
    ("127 after a failure", but(JOB, failures=2), {"exit_code": 127}, (State.QUEUED, "failed", CHARGED)),
    # The backend.
    ("refused", JOB, {"refused": True}, (State.FAILED, "refused", FREE)),
    ("refused later", LATER, {"refused": True}, (State.FAILED, "refused", FREE)),
    ("launch failed", JOB, {"launch_failed": True}, (State.QUEUED, "launch_failed", FREE)),
    (
        "launch failed too often",
        but(JOB, launch_failures=5),
        {"launch_failed": True},
        (State.FAILED, "launch_failed", FREE),
    ),
    # Anything else is a failure.
    ("exit 1", JOB, {"exit_code": 1}, (State.QUEUED, "failed", CHARGED)),
    ("exit 1, progress", JOB, {"exit_code": 1, "progress": True}, (State.QUEUED, "failed", CHARGED)),
    ("segfault", JOB, {"signal": 11}, (State.QUEUED, "failed", CHARGED)),
    ("out of memory", JOB, {"signal": 9, "cause": "out_of_memory"}, (State.QUEUED, "failed", CHARGED)),
    ("no code at all", JOB, {}, (State.QUEUED, "failed", CHARGED)),
    ("supervisor lost", JOB, {"supervisor_lost": True}, (State.QUEUED, "supervisor_lost", CHARGED)),
    (
        "supervisor lost is no exit 0",
        JOB,
        {"supervisor_lost": True, "exit_code": 0},
        (State.QUEUED, "supervisor_lost", CHARGED),
    ),
    ("exit 1 once too often", but(JOB, failures=4), {"exit_code": 1}, (State.FAILED, "failed", CHARGED)),
    (
        "lost once too often",
        but(JOB, failures=4),
        {"supervisor_lost": True},
        (State.FAILED, "supervisor_lost", CHARGED),
    ),
    ("75 once too often", but(JOB, failures=4), {"exit_code": 75}, (State.FAILED, "tempfail", CHARGED)),
    (
        "walltime once too often",
        but(RESUMES, failures=4),
        {"exit_code": 75, "stop": Stop.WALLTIME},
        (State.FAILED, "timeout", CHARGED),
    ),
    ("no failure forgiven", but(JOB, backoff_limit=0), {"exit_code": 1}, (State.FAILED, "failed", CHARGED)),
    (
        "preempted at the limit",
        but(JOB, failures=4),
        {"exit_code": 1, "stop": Stop.PREEMPT},
        (State.QUEUED, "preempted", FREE),
    ),
]


@pytest.mark.parametrize(("job", "end", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(job: JobFacts, end: dict[str, Any], wanted: tuple[State, str, bool]) -> None:
    """State, word and charge of each row; and the count that goes with the charge."""
    found = after(job, **end)
    assert (found.state, found.end_reason, found.charged) == wanted
    # The claim counted one. A "no" row gives it back, a charged one keeps it.
    assert found.failures == job.failures - (0 if found.charged else 1)
    assert found.text, "a sentence for the user"


def test_each_row_of_a_stop_covers_every_exit() -> None:
    """Programs that were stopped leave with 0, 1, -6 or 75 as they like: a delivered stop decides before that."""
    exits: list[dict[str, Any]] = [
        {"exit_code": 0},
        {"exit_code": 1},
        {"exit_code": 75},
        {"exit_code": 127},
        {"signal": 6},
        {"signal": 9},
        {},
    ]
    for stop in Stop:
        words = {
            (
                after(RESUMES, stop=stop, progress=True, **how).state,
                after(RESUMES, stop=stop, progress=True, **how).end_reason,
            )
            for how in exits
        }
        assert len(words) == 1, f"{stop}: {words}"


def test_the_first_failures_are_forgiven_and_wait_longer_each_time() -> None:
    """Attempts of a job that always fails: 3 forgiven with 10, 20, 40 s, then failed."""
    job, waits, states = JOB, [], []
    for _ in range(4):
        found = after(job, exit_code=1)
        waits.append(found.not_before - NOW if found.not_before else None)
        states.append(found.state)
        job = but(job, failures=found.failures + 1, delays=found.delays, counted=found.counted + 1)
    assert states == [State.QUEUED] * 3 + [State.FAILED]
    assert waits == [10.0, 20.0, 40.0, None]


@pytest.mark.parametrize(
    ("delays", "seconds"),
    [(0, 10), (1, 20), (2, 40), (3, 80), (4, 160), (5, 300), (6, 300), (99, 300), (10**6, 300)],
)
def test_the_delay_doubles_up_to_five_minutes(delays: int, seconds: int) -> None:
    job = but(JOB, delays=delays, backoff_limit=100)
    assert after(job, exit_code=1).not_before == NOW + seconds
    assert after(job, 0.999, exit_code=1).not_before == pytest.approx(NOW + seconds * 1.24975)


def test_jitter_stretches_and_never_shortens() -> None:
    times = [after(JOB, jitter, exit_code=1).not_before for jitter in (0.0, 0.25, 0.5, 0.75, 0.999)]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    assert times[0] == NOW + 10
    assert times[-1] < NOW + 12.5


def test_progress_starts_the_delay_afresh_and_the_count_only_on_request() -> None:
    job = but(JOB, failures=3, delays=2, backoff_limit=5)
    kept = after(job, exit_code=1, progress=True)
    assert (kept.failures, kept.delays, kept.not_before) == (3, 1, NOW + 10)
    reset = after(but(job, backoff_reset="progress"), exit_code=1, progress=True)
    assert (reset.failures, reset.delays, reset.not_before) == (1, 1, NOW + 10)
    without = after(but(job, backoff_reset="progress"), exit_code=1)
    assert (without.failures, without.delays, without.not_before) == (3, 3, NOW + 40)


def test_a_job_that_progresses_between_its_failures_goes_on_for_ever_with_reset() -> None:
    job = but(JOB, backoff_limit=0, backoff_reset="progress")
    assert after(job, exit_code=1, progress=True).state is State.FAILED, (
        "limit 0 forgives none, progress or not"
    )
    job = but(job, backoff_limit=1)
    for _ in range(20):
        found = after(job, exit_code=1, progress=True)
        assert found.state is State.QUEUED
        job = but(job, failures=found.failures + 1, delays=found.delays)


def test_progress_of_an_uncharged_end_clears_the_delays_too() -> None:
    assert after(LATER, exit_code=75, progress=True).delays == 0
    assert after(LATER, stop=Stop.PREEMPT, progress=True).delays == 0
    assert after(LATER, stop=Stop.PREEMPT).delays == LATER.delays
    assert after(but(LATER, backoff_reset="progress"), stop=Stop.PREEMPT, progress=True).failures == 0


# -- streaks of interruptions ----------------------------------------------------------------------------


def test_a_job_that_is_preempted_over_and_over_is_protected_and_then_held() -> None:
    """Nothing after two, 10 minutes after three, doubled each time, held after ten."""
    job, runtimes, holds = JOB, [], []
    for _ in range(10):
        found = after(job, exit_code=75, stop=Stop.PREEMPT)
        assert found.state is State.QUEUED
        assert found.not_before == 0.0, "at once"
        runtimes.append(found.own_min_runtime_s)
        holds.append(found.hold)
        job = but(job, interruptions=found.interruptions, own_min_runtime_s=found.own_min_runtime_s)
    assert runtimes == [0, 0, 600, 1200, 2400, 4800, 9600, 19200, 38400, 38400]
    assert holds == [""] * 9 + ["thrashing"]


@pytest.mark.parametrize("stop", sorted(endrules.NEVER_CHARGED))
def test_every_interruption_counts_for_the_streak(stop: Stop) -> None:
    assert after(but(JOB, interruptions=2), stop=stop).own_min_runtime_s == 600
    assert after(but(JOB, interruptions=9), stop=stop).hold == "thrashing"


def test_progress_ends_the_streak() -> None:
    found = after(but(JOB, interruptions=9, own_min_runtime_s=38400), stop=Stop.PREEMPT, progress=True)
    assert (found.interruptions, found.own_min_runtime_s, found.hold) == (0, 0, "")


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 1},
        {"exit_code": 75},
        {"supervisor_lost": True},
        {"revoked": True},
        {"launch_failed": True},
    ],
)
def test_other_ends_neither_lengthen_nor_end_the_streak(end: dict[str, Any]) -> None:
    found = after(but(JOB, interruptions=4, own_min_runtime_s=1200), **end)
    assert (found.interruptions, found.own_min_runtime_s, found.hold) == (4, 1200, "")


# -- bounds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 75, "stop": Stop.PREEMPT},
        {"exit_code": 75, "progress": True},
        {"exit_code": 1},
        {"exit_code": 0, "stop": Stop.USER_STOP},
    ],
    ids=["preempted", "tempfail", "failed", "stopped"],
)
def test_max_attempts_bounds_every_job(end: dict[str, Any]) -> None:
    job = but(JOB, max_attempts=5, failures=1)
    assert after(but(job, counted=4), **end).state is State.QUEUED
    found = after(but(job, counted=5), **end)
    assert (found.state, found.hold, found.not_before) == (State.FAILED, "", 0.0)
    assert "reached its 5 attempts" in found.text


def test_max_gpu_hours_bounds_every_job() -> None:
    job = but(JOB, max_gpu_hours=2.5)
    assert after(but(job, gpu_seconds=8999.9), stop=Stop.PREEMPT).state is State.QUEUED
    found = after(but(job, gpu_seconds=9000.0), stop=Stop.PREEMPT)
    assert found.state is State.FAILED
    assert "used its 2.5 GPU hours" in found.text
    assert after(but(JOB, gpu_seconds=1e9), stop=Stop.PREEMPT).state is State.QUEUED, "0 is no bound"


def test_a_bound_takes_no_success_away() -> None:
    job = but(JOB, counted=100, max_gpu_hours=1.0, gpu_seconds=1e6)
    assert after(job, exit_code=0).state is State.SUCCEEDED
    assert after(job, exit_code=0, stop=Stop.CANCEL).state is State.CANCELLED


@pytest.mark.parametrize("end", [{"revoked": True}, {"launch_failed": True}])
def test_what_never_ran_does_not_count_as_an_attempt(end: dict[str, Any]) -> None:
    job = but(JOB, counted=100, max_gpu_hours=1.0, gpu_seconds=1e6)
    found = after(job, **end)
    assert (found.state, found.counted) == (State.QUEUED, 99)
    assert after(LATER, exit_code=1).counted == LATER.counted


def test_launch_failures_have_a_bound_and_a_delay_of_their_own() -> None:
    job, waits = but(JOB, backoff_limit=0), []
    for number in range(1, 6):
        found = after(job, launch_failed=True)
        assert (found.state, found.launch_failures, found.failures) == (State.QUEUED, number, 0)
        waits.append(found.not_before - NOW if found.not_before else 0)
        job = but(job, launch_failures=found.launch_failures)
    assert waits == [0, 10, 20, 40, 80]
    found = after(job, launch_failed=True)
    assert (found.state, found.not_before) == (State.FAILED, 0.0)
    assert "6 times" in found.text


def test_a_start_that_worked_clears_the_launch_failures_and_a_revoked_one_does_not() -> None:
    job = but(JOB, launch_failures=4)
    assert after(job, exit_code=1).launch_failures == 0
    assert after(job, stop=Stop.PREEMPT).launch_failures == 0
    assert after(job, revoked=True).launch_failures == 4


# -- wishes that were not delivered ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    [
        {"revoked": True},
        {"exit_code": 1},
        {"exit_code": 75},
        {"launch_failed": True},
        {"supervisor_lost": True},
        {"signal": 15, "stop": Stop.PREEMPT},
        {"exit_code": 0, "stop": Stop.USER_STOP},
    ],
    ids=["revoked", "failed", "tempfail", "not started", "lost", "preempted", "stopped"],
)
def test_a_cancel_holds_though_no_signal_reached_the_job(end: dict[str, Any]) -> None:
    found = after(but(JOB, wish="cancel"), **end)
    assert (found.state, found.hold, found.not_before) == (State.CANCELLED, "", 0.0)
    assert found.text.endswith("; cancelled as asked")


@pytest.mark.parametrize(
    "end",
    [
        {"revoked": True},
        {"exit_code": 1},
        {"exit_code": 75},
        {"launch_failed": True},
        {"supervisor_lost": True},
        {"signal": 15, "stop": Stop.PREEMPT},
    ],
    ids=["revoked", "failed", "tempfail", "not started", "lost", "preempted"],
)
def test_a_stop_holds_though_no_signal_reached_the_job(end: dict[str, Any]) -> None:
    found = after(but(JOB, wish="stop"), **end)
    assert (found.state, found.hold, found.not_before) == (State.QUEUED, "stop", 0.0)


def test_a_wish_changes_no_final_state() -> None:
    assert after(but(JOB, wish="cancel", failures=4), exit_code=1).state is State.FAILED
    assert after(but(JOB, wish="stop"), exit_code=0).state is State.SUCCEEDED
    assert after(but(JOB, wish="stop"), exit_code=0, stop=Stop.CANCEL).state is State.CANCELLED


def test_a_held_job_stays_held_for_the_reason_it_has() -> None:
    assert after(but(JOB, wish="stop", interruptions=9), stop=Stop.PREEMPT).hold == "thrashing"


# -- sentences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({"exit_code": 3}, "exit 3"),
        ({"signal": 9}, "killed by SIGKILL"),
        ({"signal": 250}, "killed by signal 250"),
        ({}, "no exit code"),
        ({"supervisor_lost": True}, "its supervisor was lost"),
        ({"exit_code": 137, "stop": Stop.PREEMPT}, "preempted (exit 137)"),
        ({"supervisor_lost": True, "stop": Stop.NODE_LOST}, "node lost (nobody saw how)"),
        (
            {"exit_code": 1, "cause": "missing_module"},
            "missing module; another try cannot mend that",
        ),
        ({"exit_code": 127}, "exit 127; another try cannot mend that"),
    ],
)
def test_sentences(end: dict[str, Any], text: str) -> None:
    assert after(JOB, **end).text == text


def test_the_last_failure_says_how_many_were_forgiven() -> None:
    assert after(but(JOB, failures=4), exit_code=2).text == "exit 2; failure 4, and the backoff limit is 3"
