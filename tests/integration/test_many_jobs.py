"""A thousand short jobs: all succeed, each ran once, nothing is left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

COUNT = 1000
SUBMIT = """
import sys, time
from gpuspool.spool.config import load
from gpuspool.spool.folders import resolve
from gpuspool.spool.model import JobSpec, Submission
from gpuspool.spool.store import open_store
spec = JobSpec(["sh", "-c", 'echo "$GPUSPOOL_JOB_ID" >> ran'], sys.argv[2], {"PATH": "/usr/bin:/bin"})
store = open_store(resolve(load()))
store.submit([Submission(spec, "echo", "me", 0) for _ in range(int(sys.argv[1]))], time.time())
"""


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
def test_a_thousand_jobs(box: Any, eventually: Any) -> None:
    box.set(LOCAL_CPUS="8")
    box.run("daemon", "start")
    box.wait(box.submit("--", "true"))
    daemon = box.daemon_pid()
    before = open_files(daemon)
    subprocess.run([sys.executable, "-c", SUBMIT, str(COUNT), str(box.work)], env=box.env, check=True)
    box.run("tick")
    eventually(lambda: not json.loads(box.run("queue", "--json").stdout)["jobs"], 180)
    found = json.loads(box.run("queue", "-a", "--json").stdout)["jobs"]
    assert Counter((job["state"], job["attempt"]) for job in found) == {("succeeded", 1): COUNT + 1}
    ran = Counter((box.work / "ran").read_text().split())
    assert len(ran) == COUNT and set(ran.values()) == {1}, "each ran, and ran once"
    # Nothing is left: no process but the daemon and its fork server, no open file, no note, no scratch, no cgroup.
    eventually(lambda: len(box.processes()) == 2, 20)
    assert box.daemon_pid() == daemon and open_files(daemon) == before
    runtime = Path(box.env["XDG_RUNTIME_DIR"]) / "gpuspool"
    assert not [path for path in runtime.rglob("*") if path.name.startswith(("guard-", "seen-"))]
    attempt = json.loads((box.state / "jobs/5/attempts/1/plan.json").read_text())
    assert not Path(attempt["scratch"]).exists()
    if attempt["cgroup"]:
        assert not os.path.exists(os.path.join(attempt["cgroup"], f"gpuspool-{attempt['token']}"))
    assert box.run("db", "check").stdout.splitlines()[-1] == "clean"
