"""One machine scheduled for real: entitlement, kept room, GPUs by UUID, torchrun, and everybody ticking at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent.parent / "support"
SAVER = str(SUPPORT / "programs" / "saver.py")


def test_a_fresh_account_without_anything(box: Any, eventually: Any, tmp_path: Path) -> None:
    """No configuration, no cron, no daemon: it runs, and soon nothing of ours is left."""
    for name in list(box.env):
        if name.startswith("GPUSPOOL_CFG_"):
            del box.env[name]
    box.env |= {"HOME": str(tmp_path / "home"), "GPUSPOOL_CFG_DAEMON_IDLE": "2"}
    os.mkdir(tmp_path / "home")
    done = box.run("submit", "--", "true")
    assert done.stdout.startswith("Submitted job 1 (ondemand, 1 CPU, no walltime)")
    assert box.run("wait", "last", "--timeout", "60").returncode == 0
    assert (tmp_path / "home/.local/state/gpuspool/spool.db").stat().st_mode & 0o777 == 0o600
    eventually(lambda: not box.processes(), 30)


def test_a_more_entitled_job_preempts_and_gets_the_room(box: Any, eventually: Any) -> None:
    """The room that is made is kept: a small job that comes meanwhile does not take it."""
    spot = box.submit(
        "--class", "spot", "-c", "4", "--grace", "30s", "--", sys.executable, SAVER, "--save-s", "2"
    )
    box.wait(spot, "running")
    eventually(lambda: "from" in box.output(spot))
    entitled = box.submit("--class", "reserved", "-c", "3", "--", "sh", "-c", "echo here; sleep 3")
    box.wait(spot, "stopping")
    small = box.submit("--class", "ondemand", "-c", "2", "--", "true")
    assert (
        "preempting" in box.run("why", str(entitled)).stdout or "made" in box.run("why", str(entitled)).stdout
    )
    found = box.wait(entitled)
    assert found["state"] == "succeeded"
    after = box.show(small)
    assert after["started_at"] is None or after["started_at"] > found["started_at"]
    assert box.wait(small)["state"] == "succeeded"
    eventually(lambda: box.show(spot)["attempt"] == 2 and "from" in box.output(spot, 2), 30)
    first, second = box.output(spot, 1), box.output(spot, 2)
    assert second.split("from ")[1].split()[0] == first.split("stopped at ")[1].split()[0], (
        "not a step was lost"
    )
    assert box.show(spot)["attempts"][0]["end_reason"] == "preempted"


def test_gpus_are_handed_out_by_uuid_and_never_twice(box: Any, eventually: Any, fake_nvml: Any) -> None:
    fake_nvml.set(4)
    box.env |= fake_nvml.env
    script = 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; while [ ! -e leave ]; do sleep 0.05; done'
    jobs = [box.submit("-G", str(count), "-c", "1", "--", "sh", "-c", script) for count in (1, 2, 2)]
    for job in jobs[:2]:
        box.wait(job, "running")
        eventually(lambda job=job: box.output(job).strip())
    known = {
        gpu["uuid"]
        for node in json.loads(box.run("node", "list", "--json").stdout)["nodes"]
        for gpu in node["gpus"]
    }
    given = []
    for job in jobs[:2]:
        order, _, uuids = box.output(job).strip().partition(" ")
        assert order == "PCI_BUS_ID"
        given += uuids.split(",")
    assert len(given) == len(set(given)) == 3 and set(given) <= known
    waiting = box.show(jobs[2])
    assert waiting["state"] == "queued" and waiting["reason"] == "Resources"
    assert "1 more GPU (1 free)" in waiting["reason_text"]
    never = box.run("submit", "-G", "5", "--", "true", check=False)
    assert never.returncode == 1 and "can never run" in never.stderr and "4" in never.stderr
    cpu = box.submit("--", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    box.wait(cpu)
    assert box.output(cpu).strip() == "[]", "a job without GPUs sees none on a machine that has some"
    (box.work / "leave").touch()
    for job in jobs:
        assert box.wait(job)["state"] == "succeeded"


def test_begin_hold_backoff(box: Any, eventually: Any) -> None:
    later = box.submit("--begin", "now+3s", "--", "true")
    held = box.submit("--hold", "--", "true")
    assert box.show(later)["state"] == "queued"
    found = box.wait(later)
    assert found["started_at"] >= found["begin_at"]
    assert box.state_of(held) == "queued"
    box.run("release", str(held))
    assert box.wait(held)["state"] == "succeeded"
    failing = box.submit("--backoff-limit", "1", "--", "sh", "-c", "exit 4")
    eventually(lambda: box.show(failing)["reason"] == "BackOff")
    assert box.show(failing)["not_before"] is not None
    box.run("release", str(failing))
    found = box.wait(failing)
    assert (found["state"], found["exit_code"], len(found["attempts"])) == ("failed", 4, 2)


def test_what_another_try_cannot_mend_fails_at_once(box: Any) -> None:
    for command, cause in (
        (["no-such-program-anywhere"], "not_found"),
        ([sys.executable, "missing.py"], "missing_script"),
        ([sys.executable, "-c", "import nothing_of_that_name"], "missing_module"),
        ([sys.executable, "-c", "def"], "syntax_error"),
    ):
        found = box.wait(box.submit("--", *command))
        assert (found["state"], len(found["attempts"]), found["attempts"][0]["cause"]) == ("failed", 1, cause)


def test_everybody_ticks_at_once(box: Any, eventually: Any) -> None:
    """Inline ticks of many submits, an on-demand daemon, `spool tick` and `spool daemon start`, all together."""
    (box.work / "ran").mkdir()
    submit = [
        sys.executable,
        "-m",
        "gpuspool.cli.main",
        "submit",
        "--",
        "sh",
        "-c",
        'echo x >> "ran/$GPUSPOOL_JOB_ID"',
    ]
    running = [
        subprocess.Popen(submit, env=box.env, cwd=box.work, stdout=subprocess.DEVNULL) for _ in range(12)
    ]
    for words in (["tick"], ["tick"], ["daemon", "start"], ["tick"], ["daemon", "start"]):
        command = [sys.executable, "-m", "gpuspool.cli.main", *words]
        running.append(
            subprocess.Popen(command, env=box.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    for process in running:
        process.wait(60)
    for job in range(1, 13):
        assert box.wait(job)["state"] == "succeeded"
    assert [len((box.work / "ran" / str(job)).read_text().split()) for job in range(1, 13)] == [1] * 12
    daemons = [
        line for line in box.processes().values() if "scheduler.daemon" in line or "daemon start" in line
    ]
    assert len(daemons) == 1


def test_without_a_daemon_cron_ticks_are_enough(box: Any, eventually: Any) -> None:
    box.set(DAEMON_AUTO="false")
    jobs = [box.submit("-c", "4", "--", "sh", "-c", "exit 0") for _ in range(3)]
    box.run("tick")
    # Each supervisor's end runs the tick that starts the next job.
    for job in jobs:
        assert box.wait(job)["state"] == "succeeded"
    assert box.daemon_pid() == 0
    eventually(lambda: not box.processes(), 20)


def test_a_spool_that_nobody_schedules_says_so(box: Any) -> None:
    box.set(DAEMON_AUTO="false")
    done = box.run("submit", "--", "true")
    assert "nobody schedules" in done.stderr


@pytest.mark.torch
def test_torchrun_jobs_survive_preemption_without_losing_a_step(box: Any, eventually: Any) -> None:
    """Two at once never collide; the stop reaches the ranks; the exit code is the ranks' own."""
    program = str(SUPPORT / "programs" / "elastic_train.py")
    options = (
        "--class",
        "spot",
        "-c",
        "2",
        "--nproc",
        "2",
        "--grace",
        "60s",
        "--torchrun",
        "--python",
        sys.executable,
    )
    jobs = [box.submit(*options, "--", program, "--steps", "150") for _ in range(2)]
    for job in jobs:
        box.wait(job, "running")
        eventually(lambda job=job: "step 5" in box.output(job), 60)
    box.run("preempt", str(jobs[0]))
    for job in jobs:
        assert box.wait(job, seconds=120)["state"] == "succeeded"
    found = box.show(jobs[0])
    assert [attempt["exit_code"] for attempt in found["attempts"]] == [75, 0]
    first, second = box.output(jobs[0], 1), box.output(jobs[0], 2)
    stopped = first.split("stopped at ")[1].split()[0]
    assert second.split("resumed from ")[1].split()[0] == stopped
    assert len(box.events(jobs[0], "signalled")) == 1
    failing = box.submit(
        *options, "--backoff-limit", "0", "--", program, "--fail-rank", "1", "--fail-code", "41"
    )
    assert box.wait(failing, seconds=60)["exit_code"] == 41


def test_a_job_without_supervisor_costs_little(box: Any, eventually: Any) -> None:
    """Both processes of an idle supervisor together: private memory and CPU within the budget's order."""
    job = box.submit("--", "sleep", "30")
    box.wait(job, "running")
    started = eventually(lambda: box.events(job, "started"))[0]["data"]
    pids = [json.loads(started["supervisor"])[2], started["guardian"]]
    private = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                private += int(line.split()[1])
    assert private < 60 * 1024, f"{private} KiB"
    before = [sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) for pid in pids]
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > 1)
    after = [sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15])) for pid in pids]
    assert sum(after) - sum(before) <= 20, "ticks of 10 ms in a second"


def test_a_changed_configuration_comes_into_force_while_the_daemon_runs(box: Any, eventually: Any) -> None:
    """A wrong one is named in the daemon's log and the old one stays in force."""
    box.run("daemon", "start")
    pid = box.daemon_pid()
    box.config_file.write_text(
        "[windows.always]\nzone = 'UTC'\nopen = ['daily 00:00-24:00']\n[classes.offpeak]\nwindow = 'always'\n"
    )
    job = box.submit("--class", "offpeak", "--", "true")
    assert box.wait(job)["state"] == "succeeded"
    box.config_file.write_text("[windows.always]\nzone = 'Nowhere/At_All'\n")
    box.env["GPUSPOOL_CFG_FILE"] = str(box.root / "other.toml")  # so that only the daemon reads the wrong one
    assert box.wait(box.submit("--", "true"))["state"] == "succeeded"
    assert "Nowhere/At_All" in (box.state / "daemon.log").read_text()
    assert box.daemon_pid() == pid
