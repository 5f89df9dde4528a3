"""`spool wait`: the job's own exit code, the highest of several, 124, held jobs, a daemon that is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

SPOOL = [sys.executable, "-m", "gpuspool.cli.main"]


def start(box: Any, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SPOOL, *words], env=box.env, cwd=box.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_codes_of_one_and_of_several(box: Any) -> None:
    one = ("--backoff-limit", "0", "--")
    good, three, nine = (
        box.submit("--", "true"),
        box.submit(*one, "sh", "-c", "exit 3"),
        box.submit(*one, "sh", "-c", "exit 9"),
    )
    killed = box.submit(*one, "sh", "-c", "kill -TERM $$")
    cancelled = box.submit("-H", "--", "true")
    box.run("cancel", str(cancelled))

    def code(*words: str) -> int:
        return int(box.run("wait", *words, check=False).returncode)

    assert code(str(good)) == 0
    assert code(str(three)) == 3
    assert code(f"{good}-{nine}") == 9
    assert code(str(killed)) == 128 + signal.SIGTERM
    assert code(str(cancelled)) == 130
    assert code("1-5") == 143
    found = box.run("wait", "1-5", "--json", "--quiet", check=False)
    assert found.stderr == ""
    assert [job["exit_code"] for job in json.loads(found.stdout)["jobs"]] == [0, 3, 9, None, None]
    told = box.run("wait", "1-5", check=False).stderr.splitlines()
    assert len(told) == 4 and told[0].startswith("job 2 failed: exit 3")


def test_it_waits_and_sees_the_end_at_once(box: Any) -> None:
    job = box.submit("--", "sh", "-c", "while ! test -e go; do sleep 0.02; done; exit 0")
    waiter = start(box, "wait", str(job))
    box.wait(job, "running")
    assert waiter.poll() is None
    (box.work / "go").touch()
    out, err = waiter.communicate(timeout=30)
    assert (waiter.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("timeout", ["0", "0.5s", "1"])
def test_the_time_that_it_is_given(box: Any, timeout: str) -> None:
    job = box.submit("-H", "--", "true")
    if timeout == "0.5s":
        found = box.run("wait", str(job), "--timeout", timeout, check=False)
        assert found.returncode == 2 and "at least one second" in found.stderr
        return
    found = box.run("wait", str(job), "--timeout", timeout, check=False)
    assert found.returncode == 124
    assert f"not finished in time: {job}" in found.stderr


def test_a_held_job_is_named_while_it_is_waited_for(box: Any, eventually: Any) -> None:
    job = box.submit("-H", "--", "true")
    waiter = start(box, "wait", str(job))
    assert waiter.stderr is not None
    assert f"job {job} is waited for, but held; 'spool release' lets it go" in waiter.stderr.readline()
    box.run("release", str(job))
    waiter.communicate(timeout=30)
    assert waiter.returncode == 0


def test_a_waiter_sees_to_it_that_somebody_schedules(box: Any, eventually: Any) -> None:
    """The daemon was killed, as a login node does at the end of a session: whoever waits brings one back."""
    box.run("submit", "-H", "--", "true")
    pid = eventually(box.daemon_pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: box.daemon_pid() != pid)
    box.set(DAEMON_AUTO="no")
    job = box.submit("--", "true")
    box.set(DAEMON_AUTO="yes")
    assert box.run("wait", str(job)).returncode == 0


def test_an_interrupted_wait_says_that_the_job_goes_on(box: Any, eventually: Any) -> None:
    waiter = start(box, "submit", "-W", "--", "sleep", "60")
    box.wait(eventually(lambda: 1 if (box.state / "jobs" / "1").exists() else 0), "running")
    waiter.send_signal(signal.SIGINT)
    out, err = waiter.communicate(timeout=30)
    assert waiter.returncode == 130
    assert out.startswith("Submitted job 1")
    assert "job 1 goes on; 'spool cancel 1' ends it" in err and "Traceback" not in err
    assert box.state_of(1) == "running"
    box.run("cancel", "--now", "1")
    assert box.run("wait", "1", check=False).returncode in (143, 137)
