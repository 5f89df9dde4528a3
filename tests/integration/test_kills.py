"""SIGKILL while jobs run: never two copies, no orphan, the true exit code where anybody can know it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuspool.spool.processes import start_time

#: Notes each of its starts and lives until a file tells it how to leave.
WORKER = """
import os, sys, time
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
print("working", flush=True)
while not os.path.exists("leave"):
    time.sleep(0.02)
sys.exit(int(open("leave").read() or 0))
"""


def start_worker(box: Any, eventually: Any, *options: str) -> tuple[int, int, int, int]:
    """A job that works: its number, and the pids of its recorder, guardian and command."""
    job = box.submit(*options, "--", sys.executable, "-c", WORKER)
    box.wait(job, "running")
    eventually(lambda: "working" in box.output(job))
    started = box.events(job, "started")[-1]["data"]
    return job, json.loads(started["supervisor"])[2], started["guardian"], started["command"][0]


def starts(box: Any) -> list[int]:
    return [int(line) for line in (box.work / "starts").read_text().split()]


def leave(box: Any, code: int) -> None:
    (box.work / "leave.new").write_text(str(code))
    os.rename(box.work / "leave.new", box.work / "leave")


def gone(pid: int) -> bool:
    return start_time(pid) == 0


@pytest.fixture(params=["auto", "off"])
def cgroup(request: pytest.FixtureRequest, box: Any) -> str:
    """With a cgroup where one can be had, and without."""
    box.set(LOCAL_CGROUP=request.param)
    return str(request.param)


def test_the_daemon_is_killed_and_the_job_goes_on(box: Any, eventually: Any, cgroup: str) -> None:
    job, recorder, _, command = start_worker(box, eventually)
    os.kill(box.daemon_pid(), signal.SIGKILL)
    eventually(lambda: box.daemon_pid() == 0)
    leave(box, 7)
    eventually(lambda: gone(command))
    eventually(lambda: gone(recorder))
    # Nobody typed anything: the supervisor's end ran a tick, which settled the attempt.
    found = box.wait(job, "queued")
    assert found["exit_code"] == 7 and found["failures"] == 1
    assert starts(box) == [command]


def test_the_guardian_alone_is_killed(box: Any, eventually: Any, cgroup: str) -> None:
    job, recorder, guardian, command = start_worker(box, eventually, "--backoff-limit", "0")
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: box.events(job, "guardian_replaced") or box.run("tick"))
    assert not gone(command) and not gone(recorder)
    leave(box, 9)
    found = box.wait(job)
    assert (found["state"], found["exit_code"]) == ("failed", 9)
    assert starts(box) == [command]


def test_the_recorder_alone_is_killed(box: Any, eventually: Any, cgroup: str) -> None:
    job, recorder, _, command = start_worker(box, eventually, "--backoff-limit", "0")
    os.kill(recorder, signal.SIGKILL)
    eventually(lambda: box.events(job, "recorder_replaced") or box.run("tick"))
    assert not gone(command)
    leave(box, 9)
    found = box.wait(job)
    assert (found["state"], found["exit_code"]) == ("failed", 9)
    assert starts(box) == [command]


def test_a_replaced_guardian_still_enforces_stop_and_grace(box: Any, eventually: Any, cgroup: str) -> None:
    job, _, guardian, command = start_worker(box, eventually, "--grace", "1s")
    os.kill(guardian, signal.SIGKILL)
    box.run("cancel", str(job))
    assert box.wait(job)["state"] == "cancelled"
    assert gone(command)


def test_guardian_and_recorder_are_killed(box: Any, eventually: Any, cgroup: str) -> None:
    job, recorder, guardian, command = start_worker(box, eventually, "--backoff-limit", "0")
    os.kill(recorder, signal.SIGSTOP)  # so that it cannot take the guard over in between
    os.kill(guardian, signal.SIGKILL)
    os.kill(recorder, signal.SIGKILL)
    box.run("tick")
    found = box.wait(job)
    assert gone(command)
    assert found["end_reason"] == "supervisor_lost"
    assert found["exit_code"] is None and found["signal"] is None, "no code is invented"


def test_all_three_are_killed(box: Any, eventually: Any, cgroup: str) -> None:
    job, recorder, guardian, command = start_worker(box, eventually)
    os.kill(box.daemon_pid(), signal.SIGKILL)
    os.kill(recorder, signal.SIGSTOP)
    os.kill(guardian, signal.SIGKILL)
    os.kill(recorder, signal.SIGKILL)
    eventually(lambda: gone(recorder) and gone(guardian))
    box.run("daemon", "start")
    found = box.wait(job, "queued")
    assert gone(command), "no next attempt while the last may live"
    assert found["attempts"][0]["end_reason"] == "supervisor_lost"
    leave(box, 0)
    box.run("release", str(job))
    assert box.wait(job)["state"] == "succeeded"
    assert len(starts(box)) == 2


STRAGGLER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", "import os, time; open('straggler', 'w').write(str(os.getpid())); time.sleep(600)"], {})
while not os.path.exists("straggler"):
    time.sleep(0.02)
print("working", flush=True)
time.sleep(600 if len(sys.argv) > 1 else 0)
"""


@pytest.mark.parametrize("how", ["ends", "is cancelled"])
def test_a_grandchild_that_hid_is_stopped_too(box: Any, eventually: Any, cgroup: str, how: str) -> None:
    job = box.submit(
        "--grace", "0s", "--", sys.executable, "-c", STRAGGLER, *(["x"] if how == "is cancelled" else [])
    )
    eventually(lambda: (box.work / "straggler").exists() and (box.work / "straggler").read_text())
    straggler = int((box.work / "straggler").read_text())
    if how == "is cancelled":
        box.run("cancel", str(job))
    found = box.wait(job)
    assert gone(straggler)
    assert found["state"] == ("cancelled" if how == "is cancelled" else "succeeded")


def test_a_grandchild_that_hid_is_found_when_everybody_was_killed(
    box: Any, eventually: Any, cgroup: str
) -> None:
    job = box.submit("--backoff-limit", "0", "--", sys.executable, "-c", STRAGGLER, "x")
    box.wait(job, "running")
    eventually(lambda: (box.work / "straggler").exists() and (box.work / "straggler").read_text())
    straggler = int((box.work / "straggler").read_text())
    started = eventually(lambda: box.events(job, "started"))[0]["data"]
    # Its environment, session and parents say nothing any more: the node-local note of what was seen does.
    runtime = Path(box.env["XDG_RUNTIME_DIR"]) / "gpuspool"
    eventually(lambda: any(str(straggler) in path.read_text() for path in runtime.glob("*/seen-*")))
    recorder = json.loads(started["supervisor"])[2]
    os.kill(recorder, signal.SIGSTOP)
    os.kill(started["guardian"], signal.SIGKILL)
    os.kill(recorder, signal.SIGKILL)
    box.run("tick")
    assert box.wait(job)["end_reason"] == "supervisor_lost"
    assert gone(straggler)


def test_nobody_else_is_signalled(box: Any, eventually: Any) -> None:
    """Other processes of the same user, in a session of their own, outlive a cancel and a lost supervisor."""
    other = subprocess.Popen(["sleep", "600"], env=box.env, start_new_session=True)
    try:
        job, recorder, guardian, _ = start_worker(box, eventually, "--backoff-limit", "0")
        os.kill(recorder, signal.SIGSTOP)
        os.kill(guardian, signal.SIGKILL)
        os.kill(recorder, signal.SIGKILL)
        box.run("tick")
        box.wait(job)
        assert other.poll() is None
        assert os.getppid() > 0
    finally:
        other.kill()
        other.wait()


def test_a_supervisor_that_comes_late_does_not_run(box: Any, eventually: Any) -> None:
    """A tick was killed between fork and handle, and its supervisor is late: given up first, it finds that and ends."""
    box.set(DAEMON_AUTO="false", SUPERVISOR_LAUNCH_PATIENCE="1")
    job = box.submit("--", sys.executable, "-c", WORKER)
    script = Path(__file__).parent.parent / "support" / "programs" / "late_start.py"
    late = subprocess.run(
        [sys.executable, str(script)], env=box.env, check=True, capture_output=True, text=True
    )
    folder = late.stdout.strip()
    assert not (box.work / "starts").exists()
    eventually(lambda: box.run("tick") and box.show(job)["attempt"] == 2, 20)
    eventually(lambda: (box.work / "starts").exists())
    subprocess.run(
        [sys.executable, "-E", "-P", "-m", "gpuspool.launch.supervisor", folder], env=box.env, check=True
    )
    leave(box, 0)
    eventually(lambda: box.run("tick") and box.state_of(job) == "succeeded")
    assert len(starts(box)) == 1, "one run"
    found = box.show(job)
    assert found["attempts"][0]["end_reason"] == "launch_failed"
    assert found["failures"] == 0 or found["state"] == "succeeded"


def test_two_supervisors_of_one_attempt_run_it_once(box: Any, eventually: Any) -> None:
    box.set(DAEMON_AUTO="false", SUPERVISOR_LAUNCH_PATIENCE="60")
    job = box.submit("--", sys.executable, "-c", WORKER)
    script = Path(__file__).parent.parent / "support" / "programs" / "late_start.py"
    folder = subprocess.run(
        [sys.executable, str(script)], env=box.env, check=True, capture_output=True, text=True
    ).stdout.strip()
    command = [sys.executable, "-E", "-P", "-m", "gpuspool.launch.supervisor", folder]
    twins = [subprocess.Popen(command, env=box.env) for _ in range(4)]
    eventually(lambda: (box.work / "starts").exists())
    leave(box, 0)
    for twin in twins:
        twin.wait(30)
    eventually(lambda: box.run("tick") and box.state_of(job) == "succeeded")
    assert len(starts(box)) == 1


@pytest.mark.root
def test_a_reboot_is_a_lost_node(box: Any, eventually: Any) -> None:
    """Another boot id, bind-mounted over the real one in a mount namespace: requeued, never charged."""
    if os.geteuid() != 0:
        pytest.fail(
            "needs root to make a mount namespace; run the tests as root or deselect with -m 'not root'"
        )
    job, recorder, guardian, command = start_worker(box, eventually)
    box.run("daemon", "stop")
    for pid in (recorder, guardian, command):
        os.kill(pid, signal.SIGSTOP)
    for pid in (guardian, recorder, command):
        os.kill(pid, signal.SIGKILL)
    fake = box.root / "boot_id"
    fake.write_text("11111111-2222-3333-4444-555555555555\n")
    leave(box, 0)
    shell = f"mount --bind '{fake}' /proc/sys/kernel/random/boot_id && exec {sys.executable} -m gpuspool.cli.main daemon start --foreground"
    daemon = subprocess.Popen(["unshare", "-m", "sh", "-c", shell], env=box.env, stderr=subprocess.DEVNULL)
    try:
        found = box.wait(job)
        assert found["state"] == "succeeded"
        assert [attempt["end_reason"] for attempt in found["attempts"]] == ["node_lost", "succeeded"]
        assert found["failures"] == 0, "success gives its claim back and a lost node is never charged"
    finally:
        daemon.terminate()
        daemon.wait(20)


def test_two_daemons_at_one_moment(box: Any) -> None:
    command = [sys.executable, "-m", "gpuspool.cli.main", "daemon", "start", "--foreground"]
    daemons = [subprocess.Popen(command, env=box.env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        done = None
        while done is None:
            done = next((daemon for daemon in daemons if daemon.poll() is not None), None)
        other = next(daemon for daemon in daemons if daemon is not done)
        assert done.returncode == 1
        assert f"process {other.pid}" in done.stderr.read()
        assert other.poll() is None
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.communicate(timeout=20)


def test_a_recycled_pid_is_never_signalled() -> None:
    """The right pid with another start time is somebody else."""
    from gpuspool.launch.processes import Process, send

    victim = subprocess.Popen(["sleep", "600"])
    try:
        start = start_time(victim.pid)
        assert not send(Process(victim.pid, start + 1, 0, 0), signal.SIGKILL)
        assert not send(Process(victim.pid, 0, 0, 0), signal.SIGKILL)
        assert victim.poll() is None
        assert send(Process(victim.pid, start, 0, 0), signal.SIGTERM)
        assert victim.wait(10) == -signal.SIGTERM
    finally:
        victim.kill()
        victim.wait()
