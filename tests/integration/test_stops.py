"""Stopping a real command through the real supervisor: who gets which signal, and what becomes of the job."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

SAVER = str(Path(__file__).parent.parent / "support" / "programs" / "saver.py")


def stopped_at(text: str) -> int:
    return int(re.findall(r"stopped at (\d+)", text)[-1])


def resumed_from(text: str) -> int:
    return int(re.findall(r"from (\d+)", text)[0])


def run_preempted(
    box: Any, eventually: Any, *command: str, options: tuple[str, ...] = (), mark: str = "from"
) -> tuple[int, dict[str, Any]]:
    """Submit, wait until it works, preempt, wait for its second attempt to work; its number and what is known of it."""
    job = box.submit("--class", "spot", "--grace", "20s", *options, "--", *command)
    box.wait(job, "running")
    eventually(lambda: mark in box.output(job), 30)
    box.run("preempt", str(job))
    eventually(lambda: box.show(job)["attempt"] == 2 and box.state_of(job) == "running", 40)
    eventually(lambda: "from" in box.output(job, 2), 30)
    return job, box.show(job)


@pytest.mark.parametrize("fmt", ["hf", "lightning", "torch"])
def test_a_program_that_saves_on_the_signal_goes_on_exactly_there(
    box: Any, eventually: Any, fmt: str
) -> None:
    job, found = run_preempted(box, eventually, sys.executable, SAVER, "--format", fmt)
    assert resumed_from(box.output(job, 2)) == stopped_at(box.output(job, 1)) > 0
    assert found["failures"] == 1, "only the running attempt's own claim counts"
    assert found["attempts"][0]["end_reason"] == "preempted"
    assert [event["data"]["signal"] for event in box.events(job, "signalled")] == ["SIGUSR2"]


def test_exit_0_after_a_stop_is_no_success(box: Any, eventually: Any) -> None:
    job, found = run_preempted(box, eventually, sys.executable, SAVER, "--exit", "0")
    assert found["attempts"][0]["exit_code"] == 0
    assert found["attempts"][0]["end_reason"] == "preempted"
    assert resumed_from(box.output(job, 2)) == stopped_at(box.output(job, 1))


def test_stopped_exit_0_done_makes_it_one(box: Any, eventually: Any) -> None:
    job = box.submit(
        "--class", "spot", "--stopped-exit-0", "done", "--", sys.executable, SAVER, "--exit", "0"
    )
    box.wait(job, "running")
    eventually(lambda: "from" in box.output(job))
    box.run("preempt", str(job))
    assert box.wait(job)["state"] == "succeeded"


def test_a_program_that_catches_only_term_gets_term(box: Any, eventually: Any) -> None:
    job, _ = run_preempted(box, eventually, sys.executable, SAVER, "--on", "TERM")
    assert resumed_from(box.output(job, 2)) == stopped_at(box.output(job, 1)) > 0
    assert [event["data"]["signal"] for event in box.events(job, "signalled")] == ["SIGTERM"]


def test_a_program_that_catches_nothing_goes_on_from_a_periodic_checkpoint(box: Any, eventually: Any) -> None:
    command = (sys.executable, SAVER, "--on", "none", "--every", "20", "{resume}")
    job, found = run_preempted(box, eventually, *command, mark="saved 20")
    assert resumed_from(box.output(job, 2)) % 20 == 0 < resumed_from(box.output(job, 2))
    assert found["attempts"][0]["signal"] == 15
    # It was waited for: the newest checkpoint came after the request.
    times = {event["kind"]: event["at"] for event in box.events(job) if event["attempt"] == 1}
    assert times["checkpoint"] >= times["stop_requested"]


def test_bash_around_python_does_not_die_while_python_saves(box: Any, eventually: Any) -> None:
    script = f"{sys.executable} {SAVER} --save-s 1.5; echo bash saw $?; exit 3"
    job, found = run_preempted(box, eventually, "bash", "-c", script)
    text = box.output(job, 1)
    assert "bash saw 75" in text
    assert resumed_from(box.output(job, 2)) == stopped_at(text)
    assert found["attempts"][0]["exit_code"] == 3
    assert found["attempts"][0]["end_reason"] == "preempted"


def test_a_bash_trap_gets_the_signal_and_python_below_it_does_not(box: Any, eventually: Any) -> None:
    script = f"trap 'echo trapped; kill -TERM $child; wait $child; exit 0' USR2; {sys.executable} {SAVER} --on TERM & child=$!; wait $child"
    job, _ = run_preempted(box, eventually, "bash", "-c", script)
    assert "trapped" in box.output(job, 1)
    assert resumed_from(box.output(job, 2)) == stopped_at(box.output(job, 1))


def test_the_command_s_exit_does_not_end_the_attempt_while_a_signalled_descendant_saves(
    box: Any, eventually: Any
) -> None:
    # The shell leaves at once; python, which got the signal, needs two seconds more.
    # It is told by a file, since a signal of its own would make it the one that is asked.
    script = f"{sys.executable} {SAVER} --save-s 2 & while [ ! -e leave ]; do sleep 0.05; done; exit 0"
    job = box.submit("--class", "spot", "--grace", "20s", "--", "bash", "-c", script)
    box.wait(job, "running")
    eventually(lambda: "from" in box.output(job))
    box.run("stop", str(job))
    eventually(lambda: box.events(job, "signalled"))
    (box.work / "leave").touch()
    found = box.wait(job, "queued")
    assert found["reason"] == "Held"
    assert found["attempts"][0]["exit_code"] == 0
    assert "stopped at" in box.output(job)
    assert found["checkpoint_step"] == stopped_at(box.output(job))


def test_a_child_that_ignores_term_is_killed_after_grace(box: Any, eventually: Any) -> None:
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    job = box.submit("--grace", "1s", "--", sys.executable, "-c", script)
    box.wait(job, "running")
    eventually(lambda: "deaf" in box.output(job))
    box.run("cancel", str(job))
    found = box.wait(job)
    assert found["state"] == "cancelled"
    assert found["attempts"][0]["signal"] == 9


def test_cancel_of_a_program_without_checkpoints_is_prompt(box: Any) -> None:
    import time

    job = box.submit("--grace", "300s", "--", "sleep", "600")
    box.wait(job, "running")
    since = time.monotonic()
    box.run("cancel", str(job))
    assert box.wait(job)["state"] == "cancelled"
    assert time.monotonic() - since < 100, "nothing is waited for that cannot come"


def test_stop_and_resume(box: Any, eventually: Any) -> None:
    job = box.submit("--", sys.executable, SAVER)
    box.wait(job, "running")
    eventually(lambda: "from" in box.output(job))
    box.run("stop", str(job))
    found = box.wait(job, "queued")
    assert found["reason"] == "Held" and found["failures"] == 0
    box.run("resume", str(job))
    box.wait(job, "running")
    eventually(lambda: "from" in box.output(job, 2))
    assert resumed_from(box.output(job, 2)) == stopped_at(box.output(job, 1))


def test_walltime_without_a_resume_rule_fails_and_with_one_goes_on(box: Any) -> None:
    plain = box.submit("-t", "2s", "--grace", "1s", "--", "sleep", "600")
    assert box.wait(plain)["end_reason"] == "timeout"
    assert box.state_of(plain) == "failed"
    able = box.submit("-t", "8s", "--grace", "2s", "--", sys.executable, SAVER, "--steps", "450", "{resume}")
    found = box.wait(able, seconds=90)
    assert found["state"] == "succeeded"
    assert len(found["attempts"]) > 1
    assert {attempt["end_reason"] for attempt in found["attempts"][:-1]} == {"timeout"}


def test_a_finished_program_that_marks_itself_done_is_done_even_when_stopped(
    box: Any, eventually: Any
) -> None:
    script = "trap 'touch \"$GPUSPOOL_DONE\"; exit 0' USR2; echo from; while :; do sleep 0.05; done"
    job = box.submit("--class", "spot", "--", "bash", "-c", script)
    box.wait(job, "running")
    eventually(lambda: "from" in box.output(job))
    box.run("preempt", str(job))
    assert box.wait(job)["state"] == "succeeded"
