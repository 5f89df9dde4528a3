"""`spool daemon`, `tick`, `db` and `config`: who schedules, and what is looked after."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from typing import Any

import pytest

SPOOL = [sys.executable, "-m", "gpuspool.cli.main"]


def test_start_status_stop(box: Any) -> None:
    assert box.run("daemon", "status", check=False).returncode == 1
    assert box.run("daemon", "stop").stdout == "no daemon serves\n"
    started = box.run("daemon", "start").stdout
    pid = int(re.search(r"process (\d+)", started)[1])  # type: ignore[index]
    assert str(box.state) in box.run("daemon", "status").stdout
    status = json.loads(box.run("daemon", "status", "--json").stdout)["daemon"]
    assert status == {"serving": True, "pid": pid, "host": status["host"]}
    assert f"daemon serves: process {pid} " in box.run("daemon", "start").stdout
    foreground = box.run("daemon", "start", "--foreground", check=False)
    assert foreground.returncode == 1 and f"process {pid}" in foreground.stderr
    assert f"daemon stopped (process {pid})" in box.run("daemon", "stop").stdout
    assert box.run("daemon", "status", check=False).returncode == 1


@pytest.mark.parametrize("how", [("daemon", "start"), ("daemon", "start", "--foreground")])
def test_two_that_are_started_at_the_same_moment(box: Any, eventually: Any, how: tuple[str, ...]) -> None:
    box.run("queue")
    both = [
        subprocess.Popen(
            [*SPOOL, *how],
            env=box.env,
            cwd=box.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    if "--foreground" in how:
        loser = eventually(lambda: next((one for one in both if one.poll() is not None), None))
        winner = next(one for one in both if one is not loser)
        _, said = loser.communicate(timeout=30)
        assert loser.returncode == 1
        assert f"a daemon serves already: process {winner.pid} " in said
        assert box.daemon_pid() == winner.pid
        box.run("daemon", "stop")
        winner.communicate(timeout=30)
        assert winner.returncode == 0
        return
    answers = [one.communicate(timeout=30) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    pid = box.daemon_pid()
    said = sorted(out for out, _ in answers)
    assert f"process {pid} " in said[0] and f"process {pid} " in said[1], "both say who serves"
    assert sum(out.startswith("daemon started") for out in said) == 1


def test_jobs_go_on_without_the_daemon_and_are_taken_up_again(box: Any, eventually: Any) -> None:
    box.run("daemon", "start")
    job = box.submit(
        "--backoff-limit", "0", "--", "sh", "-c", "while ! test -e go; do sleep 0.02; done; exit 5"
    )
    box.wait(job, "running")
    assert "jobs go on" in box.run("daemon", "stop").stdout
    assert box.state_of(job) == "running"
    (box.work / "go").touch()
    assert box.run("wait", str(job), check=False).returncode == 5


def test_a_daemon_that_cannot_start_says_why(box: Any) -> None:
    box.run("queue")
    (box.state / "spool.db").unlink()
    (box.state / "spool.db").mkdir()
    found = box.run("daemon", "start", check=False)
    assert found.returncode == 4
    assert "the daemon did not start" in found.stderr and "spool.db" in found.stderr


def test_a_tick_with_and_without_a_daemon(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    said = box.run("submit", "--", "true")
    assert "nobody schedules: type 'spool daemon start' or 'spool tick'" in said.stderr
    assert box.run("tick").stdout == "started 1, ended 0, preempted 0; 1 live, 0 queued\n"
    box.wait(1, "succeeded")
    assert box.run("tick", "-q").stdout == ""
    box.run("daemon", "start")
    assert box.run("tick").stdout == "a daemon serves: it was woken\n"
    assert box.run("tick", "--quiet").stdout == ""


def test_an_idle_tick_is_short_and_counts_as_one(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    assert box.run("tick").stdout == "nothing to do; 0 queued\n"
    box.submit("--begin", "2035-01-15T08:00", "--", "true")
    assert box.run("tick").stdout.endswith("0 live, 1 queued\n")  # the reason has to be noted first
    assert "begins at 2035-01-15" in box.run("queue").stdout
    assert box.run("tick").stdout == "nothing to do; 1 queued\n"
    with sqlite3.connect(box.state / "spool.db") as db:
        db.execute("UPDATE jobs SET begin_at = 1, submitted_at = 1")
        db.execute("UPDATE meta SET value = '1' WHERE key = 'last_tick'")
    db.close()
    assert "nobody has scheduled" in box.run("queue").stderr
    assert box.run("tick").stdout == "started 1, ended 0, preempted 0; 1 live, 0 queued\n"
    assert "nobody has scheduled" not in box.run("queue").stderr


def test_many_ticks_at_once_start_each_job_once(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    for _ in range(6):
        box.submit("--", "sh", "-c", "echo run >> $GPUSPOOL_JOB_ID.runs")
    together = [subprocess.Popen([*SPOOL, "tick", "-q"], env=box.env, cwd=box.work) for _ in range(4)]
    assert [one.wait(60) for one in together] == [0, 0, 0, 0]
    for job in range(1, 7):
        while box.state_of(job) not in ("succeeded", "failed"):
            box.run("tick", "-q")
        assert (box.work / f"{job}.runs").read_text() == "run\n"


def test_nobody_schedules_is_said(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    box.submit("--", "true")
    assert "nobody has scheduled" not in box.run("queue").stderr  # it has only just come
    with sqlite3.connect(box.state / "spool.db") as db:
        db.execute("UPDATE jobs SET submitted_at = submitted_at - 600")
    db.close()
    for words in (("queue",), ("queue", "--json"), ("why", "1")):
        found = box.run(*words)
        assert "nobody has scheduled for 3 minutes: type 'spool daemon start' or 'spool tick'" in found.stderr
        assert "nobody" not in found.stdout
    box.run("hold", "1")
    assert "nobody has scheduled" not in box.run("queue").stderr  # a held job waits for its user


# -- db ------------------------------------------------------------------------------------------------------


def test_check_and_backup(box: Any, tmp_path: Any) -> None:
    box.wait(box.submit("--", "true"), "succeeded")
    found = box.run("db", "check")
    assert found.stdout.splitlines()[-1] == "clean"
    target = tmp_path / "copy ü.db"
    assert box.run("db", "backup", str(target)).stdout == f"copied to {target}\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with sqlite3.connect(target) as db:
        assert db.execute("SELECT id, state FROM jobs").fetchall() == [(1, "succeeded")]
    db.close()
    again = box.run("db", "backup", str(target), check=False)
    assert again.returncode == 4 and "exists already" in again.stderr
    nowhere = box.run("db", "backup", "/no/such/folder/copy.db", check=False)
    assert nowhere.returncode in (1, 4) and "/no/such/folder" in nowhere.stderr
    assert "Traceback" not in nowhere.stderr


def test_check_finds_what_is_wrong(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    box.submit("--", "true")
    with sqlite3.connect(box.state / "spool.db") as db:
        db.execute("UPDATE jobs SET state = 'dreaming'")
    db.close()
    found = box.run("db", "check", check=False)
    assert found.returncode == 1
    assert "FAULT: " in found.stderr and "dreaming" in found.stderr
    found = box.run("db", "check", "--json", check=False)
    assert found.returncode == 1
    assert json.loads(found.stdout)["check"]["faults"]


# -- config --------------------------------------------------------------------------------------------------


def test_config_says_where_each_value_comes_from(box: Any) -> None:
    box.config_file.write_text('[defaults]\ngrace = "90s"\nwalltime = 60\n')
    box.set(DEFAULTS_WALLTIME="2h")
    found = json.loads(box.run("config", "show", "--json").stdout)["config"]
    assert found["defaults.grace"] == {"value": 90, "origin": str(box.config_file)}
    assert found["defaults.walltime"] == {"value": 7200, "origin": "GPUSPOOL_CFG_DEFAULTS_WALLTIME"}
    assert found["defaults.max_attempts"] == {"value": 100, "origin": "default"}
    table = box.run("config", "show").stdout
    assert re.search(rf"defaults\.grace +90 +{re.escape(str(box.config_file))}", table)
    assert "class spot: preemptible" in table
    assert box.run("config", "check").stdout.startswith(
        f"ok: {box.config_file}; 5 classes, 0 windows, 0 projects"
    )
    paths = box.run("config", "path").stdout
    for path in (box.config_file, box.state):
        assert str(path) in paths


# -- nodes and projects --------------------------------------------------------------------------------------


def test_nodes_and_gpus(box: Any, fake_nvml: Any) -> None:
    box.env.update(fake_nvml.env)
    found = json.loads(box.run("node", "list", "--json").stdout)["nodes"]
    assert len(found) == 1
    assert found[0]["cpus"] == 4
    assert [gpu["type"] for gpu in found[0]["gpus"]] == ["h100", "h100"]
    job = box.submit(
        "-G", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; while ! test -e go; do sleep 0.02; done"
    )
    box.wait(job, "running")
    found = json.loads(box.run("node", "list", "--json").stdout)["nodes"][0]["gpus"]
    holders = {gpu["uuid"]: gpu["job"] for gpu in found}
    assert sorted(map(str, holders.values())) == ["1", "None"]
    assert "1/2" in box.run("node", "list").stdout
    (box.work / "go").touch()
    box.wait(job, "succeeded")
    assert holders[box.output(job).strip()] == job


def test_projects(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    assert box.run("project", "set", "vision", "--quota", "4", "--limit", "8").stdout == (
        "project vision: quota 4, limit 8, weight 1\n"
    )
    box.run("project", "set", "vision", "--weight", "2.5", "--quota", "none")
    box.run("project", "set", "team a", "--parent", "vision")
    found = {
        item["name"]: item for item in json.loads(box.run("project", "list", "--json").stdout)["projects"]
    }
    assert found["vision"]["quota"] is None
    assert (found["vision"]["limit_gpus"], found["vision"]["weight"]) == (8, 2.5)
    assert found["team a"]["parent"] == "vision"
    for words, says in (
        (("", "--quota", "1"), "empty"),
        (("x" * 65,), "too long"),
        (("a\nb",), "control characters"),
        (("a", "--quota", "-1"), "-1"),
        (("a", "--quota", "many"), "many"),
        (("a", "--parent", "nobody"), "'nobody'"),
        (("vision", "--parent", "team a"), "circle"),
    ):
        refused = box.run("project", "set", *words, check=False)
        assert refused.returncode in (1, 2) and says in refused.stderr, refused.stderr
    assert len(json.loads(box.run("project", "list", "--json").stdout)["projects"]) == 3
    # What stands in the configuration is changed there.
    box.config_file.write_text("[projects.language]\nquota = 3\n")
    assert box.run("submit", "-A", "language", "--", "true").returncode == 0
    refused = box.run("project", "set", "language", "--quota", "5", check=False)
    assert refused.returncode == 2 and str(box.config_file) in refused.stderr
    assert "language" in box.run("project", "list").stdout


def test_signal_handling_is_as_usual(box: Any) -> None:
    """A daemon started from a shell that ignores signals ends all the same on SIGTERM."""
    line = f"trap '' TERM INT HUP CHLD; exec {' '.join(SPOOL)} daemon start"
    subprocess.run(["bash", "-c", line], env=box.env, cwd=box.work, check=True, stdout=subprocess.DEVNULL)
    pid = box.daemon_pid()
    os.kill(pid, signal.SIGTERM)
    assert box.run("daemon", "stop").returncode == 0
    assert box.daemon_pid() == 0


def test_an_on_demand_daemon_becomes_a_lasting_one(box: Any, eventually: Any) -> None:
    box.set(DAEMON_IDLE="1")
    box.wait(box.submit("--", "true"))
    pid = box.daemon_pid()
    if not pid:  # it has ended already on a busy machine
        box.submit("--hold", "--", "true")
        pid = eventually(box.daemon_pid)
    assert f"process {pid} " in box.run("daemon", "start").stdout
    since = time.monotonic()
    eventually(lambda: time.monotonic() - since > 3)
    assert box.daemon_pid() == pid
