"""The supervisor without any scheduler: a plan in, events and an end record out."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuspool.launch.plan import AttemptPlan, StopRequest, write_control
from gpuspool.launch.recorder import read_end
from gpuspool.spool.eventlog import read

SAVER = str(Path(__file__).parent.parent / "support" / "programs" / "saver.py")


@pytest.fixture
def attempt(tmp_path: Path) -> Any:
    """Makes the folder and plan of an attempt."""

    def make(argv: list[str], **changes: Any) -> Path:
        folder = tmp_path / "attempt"
        token = secrets.token_hex(8)  # a straggler is known by it, so two tests must never share one
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "runtime").mkdir()
        folder.mkdir()
        values: dict[str, Any] = {
            "job": 1,
            "attempt": 1,
            "token": token,
            "argv": argv,
            "cwd": str(tmp_path),
            "env": dict(os.environ)
            | {"GPUSPOOL_TOKEN": token, "GPUSPOOL_CHECKPOINT_DIR": str(tmp_path / "checkpoints")},
            "umask": 0o077,
            "output": str(folder / "output.log"),
            "error": "",
            "checkpoint_dir": str(tmp_path / "checkpoints"),
            "checkpoint_format": "",
            "own_checkpoint_dir": True,
            "done_file": str(folder / "done"),
            "scratch": "",
            "walltime_s": 0,
            "ends_by": None,
            "grace_s": 2,
            "term_to_kill_s": 1,
            "heartbeat_s": 1,
            "stop_signal": "USR2",
            "launcher": "plain",
            "waits_for_checkpoint": False,
            "cgroup": "",
            "runtime": str(tmp_path / "runtime"),
            "resume_arg": "--resume_from_checkpoint",
        }
        AttemptPlan(**(values | changes)).write(str(folder))
        return folder

    return make


def supervise(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-E", "-P", "-m", "gpuspool.launch.supervisor", str(folder)])


def end_of(folder: Path) -> dict[str, Any]:
    assert supervise(folder).wait(60) == 0
    record = read_end(str(folder), 0, 0)
    assert record is not None
    return record


def kinds(folder: Path) -> list[str]:
    return [line.kind for line in read(str(folder / "events-0-0.jsonl"), 0, 1).lines]


def test_an_exit_code_a_signal_and_a_command_that_is_not_there(attempt: Any) -> None:
    folder = attempt(["sh", "-c", "exit 7"])
    record = end_of(folder)
    assert (record["exit_code"], record["signal"], record["stop"]) == (7, None, "")
    assert kinds(folder)[0] == "started"


def test_a_signal(attempt: Any) -> None:
    record = end_of(attempt(["sh", "-c", "kill -SEGV $$"]))
    assert (record["exit_code"], record["signal"]) == (None, 11)


def test_a_window_that_closes_stops_the_command_in_time(attempt: Any, tmp_path: Path) -> None:
    closes = time.time() + 4
    folder = attempt([sys.executable, SAVER], ends_by=closes, grace_s=1)
    record = end_of(folder)
    assert (record["stop"], record["delivered"], record["exit_code"]) == ("window", True, 75), record
    assert record["at"] <= closes + 0.5
    assert record["checkpoint"]["step"] > 0


def test_a_walltime_is_measured_from_the_command_s_start(attempt: Any) -> None:
    record = end_of(attempt(["sleep", "600"], walltime_s=3, grace_s=1))
    assert record["stop"] == "walltime" and record["signal"] == 15
    assert 2.0 <= record["ran_s"] <= 5.0


def test_a_control_file_that_stands_before_the_start_means_no_start(attempt: Any, tmp_path: Path) -> None:
    folder = attempt(["touch", str(tmp_path / "ran")])
    write_control(str(folder), StopRequest("preempt", 10))
    assert end_of(folder)["not_run"] == "revoked"
    assert not (tmp_path / "ran").exists()


def test_revoked_before_the_claim_means_no_start(attempt: Any, tmp_path: Path) -> None:
    folder = attempt(["touch", str(tmp_path / "ran")])
    (folder / "revoked").touch()
    assert end_of(folder)["not_run"] == "revoked"
    assert not (tmp_path / "ran").exists()


def test_a_claim_of_the_scheduler_means_no_start_and_no_record(attempt: Any, tmp_path: Path) -> None:
    folder = attempt(["touch", str(tmp_path / "ran")])
    (folder / "claim-0-0").write_text(json.dumps({"by": "scheduler"}))
    supervise(folder).wait(30)
    assert read_end(str(folder), 0, 0) is None
    assert not (tmp_path / "ran").exists()


def test_signals_that_the_starter_ignored_do_not_reach_the_command(attempt: Any) -> None:
    """An inherited ignored SIGCHLD would lose every exit code, an ignored SIGTERM the stop."""
    folder = attempt(["sh", "-c", "sh -c 'exit 3'; echo saw $?"])
    shell = (
        f"trap '' CHLD TERM USR2 PIPE; exec {sys.executable} -E -P -m gpuspool.launch.supervisor '{folder}'"
    )
    subprocess.run(["sh", "-c", shell], check=True)
    record = read_end(str(folder), 0, 0)
    assert record is not None and record["exit_code"] == 0
    assert (folder / "output.log").read_text() == "saw 3\n"


def test_resume_takes_the_highest_step_and_passes_over_a_torn_one(attempt: Any, tmp_path: Path) -> None:
    folder = attempt([sys.executable, SAVER, "--steps", "1", "{resume}"], own_checkpoint_dir=True)
    for step, whole in ((9, True), (10, True), (11, False)):
        place = tmp_path / "checkpoints" / f"checkpoint-{step}"
        place.mkdir()
        (place / "x").write_text("x" * (4 if whole else 3))
        (place / "gpuspool_complete.json").write_text(
            json.dumps({"format": 1, "step": step, "files": {"x": 4}})
        )
    end_of(folder)
    assert "from 10" in (folder / "output.log").read_text()
    assert "checkpoint_broken" in kinds(folder)


def test_leftovers_are_stopped_before_the_end_is_recorded(attempt: Any, tmp_path: Path) -> None:
    folder = attempt(["sh", "-c", "setsid sleep 600 & echo $! > left; exit 0"])
    record = end_of(folder)
    assert record["exit_code"] == 0 and record["leftovers"] >= 1
    assert not Path(f"/proc/{(tmp_path / 'left').read_text().strip()}").exists()
