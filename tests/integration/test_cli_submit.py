"""`spool submit`: every option reaches the job, durations are echoed, and the command is left as it was typed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def quiet(box: Any, fake_nvml: Any) -> Any:
    """A spool with two H100s in which nothing is scheduled."""
    box.env.update(fake_nvml.env)
    box.set(DAEMON_AUTO="no")
    return box


#: Options → what `show --json` has then, by path.
OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "nothing": (
        (),
        {
            "name": "true",
            "project": "default",
            "class": "ondemand",
            "priority": 50,
            "preemptible": False,
            "nodes": 1,
            "gpus": 0,
            "cpus": 1,
            "memory_mib": 0,
            "walltime_s": None,
            "grace_s": 60,
            "spec.launcher": "plain",
            "spec.stop_signal": "USR2",
            "spec.backoff_limit": 3,
            "spec.max_attempts": 100,
            "spec.stopped_exit_0": "requeue",
            "spec.resume_arg": "--resume_from_checkpoint",
        },
    ),
    "short": (
        ("-J", "n", "-N", "1", "-G", "2", "-c", "3", "-t", "60", "-o", "o-%j", "-e", "e-%j", "-H", "-D", "/"),
        {
            "name": "n",
            "gpus": 2,
            "cpus": 3,
            "walltime_s": 3600,
            "hold": "user",
            "spec.output": "o-%j",
            "spec.error": "e-%j",
            "spec.cwd": "/",
            "spec.gpus_per_node": 2,
        },
    ),
    "long": (
        (
            "--job-name=n",
            "--gpus=1",
            "--cpus-per-task=2",
            "--time=1:30:00",
            "--mem=2G",
            "--comment=why not",
            "--hold",
        ),
        {
            "name": "n",
            "gpus": 1,
            "cpus": 2,
            "walltime_s": 5400,
            "memory_mib": 2048,
            "spec.comment": "why not",
            "hold": "user",
        },
    ),
    "per node": (("--gpus-per-node", "2"), {"gpus": 2, "cpus": 0, "spec.gpus_per_node": 2}),
    "type": (("-G", "1", "--gpu-type", "H100"), {"gpu_type": "h100"}),
    "spot": (("--class", "spot"), {"class": "spot", "preemptible": True}),
    "firm spot": (("--class", "spot", "--no-preemptible"), {"class": "spot", "preemptible": False}),
    "soft ondemand": (("--preemptible",), {"class": "ondemand", "preemptible": True}),
    "priority by name": (("--priority", "urgent"), {"priority": 100}),
    "priority by number": (("--priority", "7"), {"priority": 7}),
    "project": (("-A", "vision"), {"project": "vision"}),
    "account": (("--account", "vision"), {"project": "vision"}),
    "times": (
        ("-t", "2-12", "--grace", "2m", "--min-runtime", "30m", "-b", "2035-01-31T08:00:00+00:00"),
        {"walltime_s": 216000, "grace_s": 120, "min_runtime_s": 1800, "begin_at": "2035-01-31T08:00:00.000Z"},
    ),
    "stopping": (
        ("--stop-signal", "SIGTERM", "--on-timeout", "fail", "--stopped-exit-0", "done", "--grace", "0"),
        {"spec.stop_signal": "TERM", "spec.on_timeout": "fail", "spec.stopped_exit_0": "done", "grace_s": 0},
    ),
    "checkpoints": (
        ("--checkpoint-dir", "out/ck", "--checkpoint-format", "hf", "--resume-arg", "--from="),
        {"spec.checkpoint_dir": "$CWD/out/ck", "spec.checkpoint_format": "hf", "spec.resume_arg": "--from="},
    ),
    "failures": (
        (
            "--backoff-limit",
            "0",
            "--backoff-reset",
            "progress",
            "--max-attempts",
            "7",
            "--max-gpu-hours",
            "1.5",
        ),
        {
            "spec.backoff_limit": 0,
            "spec.backoff_reset": "progress",
            "spec.max_attempts": 7,
            "spec.max_gpu_hours": 1.5,
        },
    ),
    "torchrun": (
        ("--torchrun", "--nproc", "2", "-m", "--python", sys.executable),
        {"spec.launcher": "torchrun", "spec.nproc": 2, "spec.module": True, "spec.python": sys.executable},
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_reach_the_job(quiet: Any, case: str) -> None:
    quiet.run("project", "set", "vision")
    options, expected = OPTIONS[case]
    job = quiet.show(quiet.submit(*options, "--", "true"))
    for path, value in expected.items():
        found: Any = job
        for part in path.split("."):
            found = found[part]
        if isinstance(value, str):
            value = value.replace("$CWD", str(quiet.work))
        assert found == value, path


def test_every_option_is_in_the_table() -> None:
    import click

    from gpuspool.cli.submit import submit

    given = {word.split("=")[0] for options, _ in OPTIONS.values() for word in options}
    for param in submit.params:
        names = {*param.opts, *param.secondary_opts}
        if isinstance(param, click.Option) and not names & {"--json", "--parsable", "--wait"}:
            assert names & given, f"{param.opts} is tested nowhere"


@pytest.mark.parametrize(
    ("option", "text", "echoed"),
    [
        ("-t", "60", "walltime 1h"),
        ("-t", "90", "walltime 1h30m"),
        ("-t", "90s", "walltime 1m30s"),
        ("-t", "1:30", "walltime 1m30s"),
        ("-t", "1:30:00", "walltime 1h30m"),
        ("-t", "2-12", "walltime 2d12h"),
        ("-t", "1d12h", "walltime 1d12h"),
        ("--time", "0.5h", "walltime 30m"),
        ("--grace", "90", "grace 1m30s"),
        ("--grace", "2m", "grace 2m"),
        ("--min-runtime", "10m", "minimum runtime 10m"),
        ("--mem", "1.5G", "1536 MiB"),
        ("-G", "2", "2 GPUs"),
        ("-c", "1", "1 CPU,"),
    ],
)
def test_what_was_understood_is_echoed(quiet: Any, option: str, text: str, echoed: str) -> None:
    found = quiet.run("submit", option, text, "--", "true")
    assert re.match(r"Submitted job 1 \(ondemand, ", found.stdout)
    assert echoed in found.stdout


def test_why_it_waits_is_said_when_it_is_known(quiet: Any) -> None:
    assert "it waits: held; 'spool release' lets it go" in quiet.run("submit", "-H", "--", "true").stderr
    assert (
        "it waits: begins at 2035-01-" in quiet.run("submit", "-b", "2035-01-15T08:00", "--", "true").stderr
    )
    quiet.config_file.write_text(
        '[windows.never]\nzone = "UTC"\nopen = ["mon 00:00-00:01"]\n[classes.offpeak]\nwindow = "never"\n'
    )
    found = quiet.run("submit", "--class", "offpeak", "--", "true").stderr
    assert "window 'never' opens at" in found or "it waits" not in found  # on that one minute of the week
    assert "it waits" not in quiet.run("submit", "--", "true").stderr


def command_of(box: Any, *words: str) -> list[str]:
    found = box.show(box.submit(*words))["spec"]["command"]
    assert isinstance(found, list)
    return found


def test_options_after_the_command_are_the_commands(quiet: Any) -> None:
    expected = ["echo", "-G", "2", "--time", "5", "--", "-J", "x"]
    assert command_of(quiet, "-H", "--", *expected) == expected
    assert command_of(quiet, "-H", *expected) == expected  # -- is not needed
    assert command_of(quiet, "--", "--", "-x") == ["--", "-x"]
    assert command_of(quiet, "echo", "--help") == ["echo", "--help"]
    assert quiet.show(1)["gpus"] == 0


def test_names_come_from_the_program_or_its_script(quiet: Any) -> None:
    for command, name in (
        (("python", "train.py", "--x"), "train.py"),
        (("/usr/bin/python3", "a/b/train.py"), "train.py"),
        (("bash", "run.sh"), "run.sh"),
        (("bash", "-c", "x"), "bash"),
        (("/opt/tool",), "tool"),
    ):
        assert quiet.show(quiet.submit("--", *command))["name"] == name


def test_the_answers_forms(quiet: Any) -> None:
    assert quiet.run("submit", "--parsable", "-H", "--", "true").stdout == "1\n"
    job = json.loads(quiet.run("submit", "--json", "-H", "-t", "5", "--", "true").stdout)["job"]
    assert (job["id"], job["state"], job["walltime_s"], job["hold"]) == (2, "queued", 300, "user")
    assert quiet.run("submit", "-H", "--", "true").stdout.startswith(
        "Submitted job 3 (ondemand, 1 CPU, no walltime)"
    )


def test_defaults_of_the_configuration(quiet: Any) -> None:
    quiet.config_file.write_text(
        '[defaults]\nclass = "spot"\nproject = "vision"\nwalltime = "2h"\ngrace = 30\npriority = "high"\n'
        "backoff_limit = 1\n[projects.vision]\nquota = 2\n"
    )
    found = quiet.run("submit", "--", "true").stdout
    assert "(spot, 1 CPU, walltime 2h, grace 30s, project vision)" in found
    job = quiet.show(1)
    assert (job["class"], job["project"], job["walltime_s"], job["priority"]) == ("spot", "vision", 7200, 75)
    assert job["spec"]["backoff_limit"] == 1
    quiet.set(DEFAULTS_GRACE="45s")  # a variable goes before the file
    assert quiet.show(quiet.submit("--", "true"))["grace_s"] == 45
    assert quiet.show(quiet.submit("--grace", "5", "--", "true"))["grace_s"] == 5


def test_the_job_gets_what_was_there_at_submission(box: Any, tmp_path: Path) -> None:
    box.env |= {"MY_SETTING": "größe", "GPUSPOOL_ATTEMPT": "77"}
    folder = tmp_path / "else where"
    folder.mkdir()
    code = (
        "import json, os; mask = os.umask(0); print(json.dumps([os.getcwd(), os.environ['MY_SETTING'],"
        " os.environ['GPUSPOOL_JOB_ID'], os.environ['GPUSPOOL_ATTEMPT'], mask, os.environ['GPUSPOOL_RESUME_FROM']]))"
    )
    old = os.umask(0o027)
    try:
        job = box.submit("-D", str(folder), "--", sys.executable, "-c", code)
    finally:
        os.umask(old)
    box.wait(job, "succeeded")
    assert json.loads(box.output(job)) == [str(folder), "größe", str(job), "1", 0o027, ""]


def test_resume_is_filled_in_as_arguments_of_their_own(box: Any) -> None:
    # A first start has no checkpoint: nothing stands in its place.
    job = box.submit(
        "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "a", "{resume}", "b {resume}"
    )
    box.wait(job, "succeeded")
    assert box.output(job) == "['a', 'b {resume}']\n"


def test_output_patterns(box: Any) -> None:
    job = box.submit(
        "-J", "a/b", "-o", "out-%x-%4j-%u.log", "-e", "err-%j.log", "--", "sh", "-c", "echo out; echo err >&2"
    )
    box.wait(job, "succeeded")
    attempt = box.show(job)["attempts"][0]
    assert Path(attempt["output"]).name == f"out-a_b-{job:04d}-{box.show(job)['user']}.log"
    assert Path(attempt["output"]).read_text() == "out\n"
    assert Path(attempt["error"]) == box.work / f"err-{job}.log"
    assert Path(attempt["error"]).read_text() == "err\n"
    assert box.run("logs").stdout == "out\n"
    assert box.run("logs", "-e").stdout == "err\n"


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("true",), 0, ""),
        (("sh", "-c", "exit 7"), 7, "job 1 failed: exit 7"),
        (("sh", "-c", "kill -9 $$"), 137, "job 1 failed: killed by SIGKILL"),
        (("no-such-program",), 127, "another try cannot mend that"),
    ],
)
def test_wait_gives_the_jobs_own_code(box: Any, command: tuple[str, ...], code: int, says: str) -> None:
    found = box.run("submit", "-W", "--backoff-limit", "0", "--", *command, check=False)
    assert found.returncode == code, found.stderr
    assert found.stdout.startswith("Submitted job 1")
    assert says in found.stderr


def test_a_submission_from_within_a_job(box: Any) -> None:
    """Nothing of the outer attempt leaks into the inner job, and it runs when the outer one is over at the latest."""
    spool = f"{sys.executable} -m gpuspool.cli.main"
    job = box.submit("--", "sh", "-c", f"{spool} submit --parsable -- sh -c 'echo $GPUSPOOL_JOB_ID'")
    box.wait(job, "succeeded")
    assert box.output(job) == "2\n"
    box.wait(2, "succeeded")
    assert box.output(2) == "2\n"
