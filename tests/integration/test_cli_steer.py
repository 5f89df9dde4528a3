"""The commands that steer: every verb on every state, what they say, and that it comes true."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

#: A program that runs until `go` exists and saves on USR2, which takes as long as `slow` exists.
PROGRAM = """
import os, signal, sys, time
def stop(*_):
    while os.path.exists("slow"):
        time.sleep(0.02)
    sys.exit(75)
signal.signal(signal.SIGUSR2, stop)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""

STATES = ("queued", "held", "stopped", "running", "stopping", "succeeded", "failed", "cancelled")
#: verb × state → (exit code, sentence, what the job is afterwards; None: as before).
TABLE: dict[str, dict[str, tuple[int, str, str | None]]] = {
    "cancel": {
        "queued": (0, "cancelled", "cancelled"),
        "held": (0, "cancelled", "cancelled"),
        "stopped": (0, "cancelled", "cancelled"),
        "running": (0, "is being cancelled", "cancelled"),
        "stopping": (0, "is being cancelled", "cancelled"),
        "succeeded": (1, "has succeeded already", None),
        "failed": (1, "has failed already", None),
        "cancelled": (1, "is cancelled already", None),
    },
    "stop": {
        "queued": (0, "stopped; 'spool resume' lets it go on", "stopped"),
        "held": (0, "stopped; 'spool resume' lets it go on", "stopped"),
        "stopped": (1, "is stopped already", None),
        "running": (0, "is being stopped; 'spool resume' lets it go on", "stopped"),
        "stopping": (0, "is being stopped; 'spool resume' lets it go on", "stopped"),
        "succeeded": (1, "has succeeded already", None),
        "failed": (1, "has failed already", None),
        "cancelled": (1, "is cancelled already", None),
    },
    "resume": {
        "queued": (1, "is queued and not stopped", None),
        "held": (0, "resumed", "queued"),
        "stopped": (0, "resumed", "queued"),
        "running": (1, "is running and not stopped", None),
        "stopping": (1, "is stopping and not stopped", None),
        "succeeded": (1, "has succeeded; 'spool requeue' runs it again", None),
        "failed": (0, "queued again; it goes on from its checkpoint", "queued"),
        "cancelled": (0, "queued again; it goes on from its checkpoint", "queued"),
    },
    "hold": {
        "queued": (0, "held; 'spool release' lets it go on", "held"),
        "held": (1, "is held already", None),
        "stopped": (1, "is held already", None),
        "running": (1, "is running; 'spool stop' stops a job that runs", None),
        "stopping": (1, "is stopping; 'spool stop' stops a job that runs", None),
        "succeeded": (1, "has succeeded already", None),
        "failed": (1, "has failed already", None),
        "cancelled": (1, "is cancelled already", None),
    },
    "release": {
        "queued": (1, "is queued and not held", None),
        "held": (0, "released", "queued"),
        "stopped": (0, "released", "queued"),
        "running": (1, "is running and not held", None),
        "stopping": (1, "is stopping and not held", None),
        "succeeded": (1, "has succeeded already", None),
        "failed": (1, "has failed already", None),
        "cancelled": (1, "is cancelled already", None),
    },
    "requeue": {
        "queued": (1, "is queued already", None),
        "held": (1, "is queued already", None),
        "stopped": (1, "is queued already", None),
        "running": (0, "is being stopped, then it is queued again", "queued"),
        "stopping": (1, "is being stopped already", None),
        "succeeded": (0, "queued again", "queued"),
        "failed": (0, "queued again", "queued"),
        "cancelled": (0, "queued again", "queued"),
    },
    "preempt": {
        "queued": (1, "is queued and does not run", None),
        "held": (1, "is queued and does not run", None),
        "stopped": (1, "is queued and does not run", None),
        "running": (0, "is being preempted", "queued"),
        "stopping": (1, "is being stopped already", None),
        "succeeded": (1, "has succeeded already", None),
        "failed": (1, "has failed already", None),
        "cancelled": (1, "is cancelled already", None),
    },
}


def bring(box: Any, state: str) -> int:
    """A job in `state`."""
    live = state in ("running", "stopping")
    if not live:
        box.set(DAEMON_AUTO="no")
    if live:
        (box.work / "program.py").write_text(PROGRAM)
        job = int(box.submit("--", sys.executable, "program.py"))
        box.wait(job, "running")
        while "ready" not in box.run("logs", str(job)).stdout:
            pass
        if state == "stopping":
            (box.work / "slow").touch()
            box.run("preempt", str(job))
            box.wait(job, "stopping")
        return job
    if state in ("succeeded", "failed"):
        job = int(box.submit("--backoff-limit", "0", "--", "true" if state == "succeeded" else "false"))
        while box.state_of(job) != state:
            box.run("tick", "-q")
        return job
    job = int(box.submit("--", "true"))
    verb = {"held": "hold", "stopped": "stop", "cancelled": "cancel"}.get(state)
    if verb:
        box.run(verb, str(job))
    return job


def what_it_is(job: dict[str, Any]) -> str:
    """The word of STATES for a job."""
    return {"user": "held", "stop": "stopped"}.get(job["hold"], job["state"])


@pytest.mark.parametrize("state", STATES)
def test_every_verb_on_a_job_that_is(box: Any, state: str) -> None:
    """The refusals: a sentence, exit 1, and nothing is changed."""
    job = bring(box, state)
    for verb, rows in TABLE.items():
        code, sentence, after = rows[state]
        if after is not None:
            continue
        found = box.run(verb, str(job), check=False)
        assert (found.returncode, found.stdout) == (code, ""), (verb, found.stderr)
        assert found.stderr.startswith(f"job {job} {sentence}\n"), (verb, found.stderr)
        assert what_it_is(box.show(job)) == state, verb


@pytest.mark.parametrize(
    ("verb", "state"),
    [(verb, state) for verb, rows in TABLE.items() for state in STATES if rows[state][2] is not None],
)
def test_what_is_done_comes_true(box: Any, eventually: Any, verb: str, state: str) -> None:
    code, sentence, after = TABLE[verb][state]
    job = bring(box, state)
    (box.work / "slow").unlink(missing_ok=True)
    if state == "stopping":
        (box.work / "slow").touch()
    found = box.run(verb, str(job), check=False)
    assert (found.returncode, found.stdout) == (code, f"job {job} {sentence}\n"), found.stderr
    (box.work / "slow").unlink(missing_ok=True)
    if after == "queued" and state == "running":
        # Queued again, and started again: another attempt runs.
        again = eventually(lambda: box.show(job)["attempt"] == 2 and box.show(job))
        assert again["attempts"][0]["end_reason"] == "preempted"
    else:
        eventually(lambda: what_it_is(box.show(job)) == after)
    assert any(event["actor"] == box.show(job)["user"] for event in box.show(job)["events"][1:])


def test_cancel_now_does_not_wait_for_a_checkpoint(box: Any) -> None:
    job = bring(box, "running")
    (box.work / "slow").touch()  # it would save for ever
    box.run("cancel", str(job))
    box.wait(job, "stopping")
    assert box.run("cancel", "--now", str(job)).stdout == f"job {job} is being cancelled\n"
    found = box.wait(job, "cancelled", seconds=30)
    assert found["signal"] in (15, 9)


def test_resume_while_it_is_still_being_stopped(box: Any) -> None:
    job = bring(box, "running")
    (box.work / "slow").touch()
    box.run("stop", str(job))
    box.wait(job, "stopping")
    found = box.run("resume", str(job), check=False)
    assert found.returncode == 1 and "is still being stopped" in found.stderr
    (box.work / "slow").unlink()
    box.wait(job, "queued")
    assert box.run("resume", str(job)).returncode == 0
    box.wait(job, "running")
    assert box.show(job)["attempt"] == 2


def test_one_of_several_is_refused(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    for _ in range(3):
        box.submit("--", "true")
    box.run("cancel", "2")
    found = box.run("cancel", "1-3", check=False)
    assert found.returncode == 1
    assert found.stdout == "job 1 cancelled\njob 3 cancelled\n"
    assert found.stderr.startswith("job 2 is cancelled already\n")
    outcomes = json.loads(box.run("cancel", "--json", "1-3", check=False).stdout)["outcomes"]
    assert [outcome["done"] for outcome in outcomes] == [False] * 3


def test_jobs_are_chosen_by_filters(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    box.run("project", "set", "vision")
    for name, project in (("a", "default"), ("a", "vision"), ("b", "default"), ("b", "vision")):
        box.submit("-J", name, "-A", project, "--", "true")

    def held() -> list[int]:
        return [job["id"] for job in json.loads(box.run("queue", "--json").stdout)["jobs"] if job["hold"]]

    assert box.run("hold", "-n", "a").stdout.count("held") == 2
    assert held() == [1, 2]
    assert box.run("hold", "--me").returncode == 0  # those that are held already are passed over
    assert held() == [1, 2, 3, 4]
    box.run("release", "-A", "vision", "-n", "b")
    assert held() == [1, 2, 3]
    box.run("release", "-u", box.show(1)["user"])
    assert held() == []
    box.run("cancel", "-A", "vision")
    assert [job["id"] for job in json.loads(box.run("queue", "--json").stdout)["jobs"]] == [1, 3]
    # States that the verb would pass over are named.
    assert box.run("requeue", "-t", "cancelled").stdout.count("queued again") == 2
    assert [job["id"] for job in json.loads(box.run("queue", "-t", "PD", "--json").stdout)["jobs"]] == [
        1,
        2,
        3,
        4,
    ]
    found = box.run("cancel", "-n", "nothing")
    assert (found.stdout, found.stderr) == ("", "no such jobs\n")
    assert box.run("resume", "--me").stderr == "no such jobs\n"


def test_queue_filters(box: Any) -> None:
    box.set(DAEMON_AUTO="no")
    box.run("project", "set", "vision")
    box.submit("-J", "a", "-H", "--", "true")
    box.submit("-J", "b", "-A", "vision", "--", "true")
    box.submit("-J", "a", "--", "true")
    box.run("cancel", "3")

    def shown(*words: str) -> list[int]:
        return [job["id"] for job in json.loads(box.run("queue", "--json", *words).stdout)["jobs"]]

    assert shown() == [1, 2]
    assert shown("-a") == shown("-t", "all") == [1, 2, 3]
    assert shown("-a", "-l", "2") == [2, 3]
    assert shown("-n", "a") == [1]
    assert shown("-a", "-n", "a") == [1, 3]
    assert shown("-A", "vision") == [2]
    assert shown("-t", "cancelled") == shown("-t", "CA") == [3]
    assert shown("-t", "queued,cancelled") == [1, 2, 3]
    assert shown("-j", "3") == [3]
    assert shown("-j", "1-3", "-t", "PD") == [1, 2]
    assert shown("--me") == [1, 2]
    assert shown("-u", "nobody-at-all") == []
    found = box.run("queue", "-u", "nobody-at-all")
    assert (found.stdout, found.stderr) == ("", "no such jobs\n")


def test_why_each_kind_of_job_waits(box: Any, fake_nvml: Any) -> None:
    box.env.update(fake_nvml.env)
    box.set(DAEMON_AUTO="no")
    box.config_file.write_text(
        '[windows.w]\nzone = "UTC"\nopen = ["mon 00:00-00:01"]\n[classes.offpeak]\nwindow = "w"\n'
        "[projects.small]\nlimit = 1\nquota = 1\n"
    )
    box.submit("-H", "--", "true")
    box.submit("--begin", "2035-01-15T08:00", "--", "true")
    box.submit("--class", "offpeak", "--", "true")
    box.submit("-A", "small", "--class", "spot", "-G", "1", "--", "sleep", "600")
    while box.state_of(4) != "running":
        box.run("tick", "-q")
    box.submit("-A", "small", "--class", "spot", "-G", "1", "--", "true")
    box.submit("--class", "spot", "-G", "2", "--", "true")
    box.submit("--", "true")
    box.run("cancel", "7")
    answers = {answer["job"]: answer for answer in json.loads(box.run("why", "--json", "1-7").stdout)["why"]}
    expected = {
        1: ("Held", "held; 'spool release' lets it go"),
        2: ("BeginTime", "begins at 2035-01-15"),
        3: ("Window", "'w'"),
        4: ("Runs", "running on "),
        5: ("Limit", "'small'"),
        7: ("Ended", "cancelled while it waited"),
    }
    for job, (code, text) in expected.items():
        assert answers[job]["code"] == code, answers[job]
        assert text in answers[job]["text"], answers[job]
    assert answers[2]["until"].startswith("2035-01-15")
    assert answers[6]["code"] == "Resources" and "GPU" in answers[6]["text"], answers[6]
    # The same sentence stands in the queue once a pass has looked at it.
    box.run("tick", "-q")
    queue = {job["id"]: job for job in json.loads(box.run("queue", "--json").stdout)["jobs"]}
    for job in (1, 2, 5):
        assert queue[job]["reason"] == answers[job]["code"]
        assert answers[job]["text"].startswith(queue[job]["reason_text"])
    assert box.run("why").stdout.startswith("job 7: cancelled")


def test_show_tells_the_story(box: Any) -> None:
    job = bring(box, "running")
    box.run("preempt", str(job))
    box.wait(job, "queued", "initializing", "running")
    (box.work / "go").touch()
    box.wait(job, "succeeded")
    page = box.run("show", str(job)).stdout
    lines = page[page.index("Timeline") :].splitlines()
    user = box.show(job)["user"]
    for text in (
        f"submitted by {user}",
        "#1  claimed for ",
        "#1  started",
        f"#1  asked to stop by {user}: preempt",
        "#1  SIGUSR2 sent to process",
        "#1  ended: preempted (exit 75)",
        "#2  started",
        "#2  ended: finished (exit 0)",
    ):
        assert any(text in line for line in lines), text
        while text not in lines[0]:
            lines.pop(0)
    assert "counts against" not in page
    assert "Failures" not in page
    found = box.show(job)
    assert [attempt["end_reason"] for attempt in found["attempts"]] == ["preempted", "succeeded"]
    assert "env" not in found["spec"]
