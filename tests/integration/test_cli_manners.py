"""The manners of the command line: data and talk apart, one JSON value, exit codes, names of jobs, terminals, pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SPOOL = [sys.executable, "-m", "gpuspool.cli.main"]
NASTY = "new\nline \x1b[31mred\x1b[0m \x9b2J quote\"' größe 模型"


@pytest.fixture
def quiet(box: Any) -> Any:
    """A spool in which nothing runs unless the test says so."""
    box.set(DAEMON_AUTO="no")
    return box


def shell(box: Any, line: str) -> subprocess.CompletedProcess[str]:
    """A line for sh in which $SPOOL is the command."""
    env = box.env | {"SPOOL": " ".join(SPOOL)}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env=env,
        cwd=box.work,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def at_terminal(box: Any, *words: str, answer: bytes = b"", **variables: str) -> tuple[int, str]:
    """`spool WORDS` on a terminal of its own: the exit code, and all that stood on the screen."""
    main, side = pty.openpty()
    env = {name: value for name, value in box.env.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        [*SPOOL, *words],
        env=env | {"TERM": "xterm"} | variables,
        cwd=box.work,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    seen, answered = b"", not answer
    while True:
        ready, _, _ = select.select([main], [], [], 60)
        assert ready, seen
        try:
            block = os.read(main, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not block:
            break
        seen += block
        if not answered and b"?" in seen:
            os.write(main, answer)
            answered = True
    os.close(main)
    return child.wait(60), seen.decode()


# -- JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("submit", "--json", "-H", "--", "true"), "job"),
        (("queue", "--json"), "jobs"),
        (("queue", "--json", "-t", "failed"), "jobs"),
        (("show", "--json"), "job"),
        (("show", "--json", "1", "2"), "jobs"),
        (("why", "--json"), "why"),
        (("wait", "--json", "--timeout", "0", "1-2"), "jobs"),
        (("hold", "--json", "1"), "outcomes"),
        (("release", "--json", "1"), "outcomes"),
        (("cancel", "--json", "1"), "outcomes"),
        (("node", "list", "--json"), "nodes"),
        (("project", "list", "--json"), "projects"),
        (("config", "show", "--json"), "config"),
        (("daemon", "status", "--json"), "daemon"),
        (("db", "check", "--json"), "check"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_json_is_exactly_one_value_with_its_schema(quiet: Any, words: tuple[str, ...], key: str) -> None:
    box = quiet
    # Jobs that nobody schedules: what is said about that must not stand on stdout.
    box.submit("-J", NASTY, "--comment", "stray \udcff byte", "--", "true")
    box.submit("-J", "second", "-t", "1h", "--", "true")
    found = box.run(*words, check=False)
    value = json.loads(found.stdout)
    assert list(value) == ["schema", key]
    assert value["schema"] == 1
    assert found.stdout.isascii()


def test_json_has_iso_times_seconds_and_both_states(quiet: Any) -> None:
    quiet.submit("-t", "90", "-b", "2035-01-31T08:00", "--grace", "2m", "--", "true")
    job = json.loads(quiet.run("queue", "--json").stdout)["jobs"][0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", job["submitted_at"])
    assert job["begin_at"].startswith("2035-01-3")
    assert (job["walltime_s"], job["grace_s"]) == (5400, 120)
    assert (job["state"], job["state_code"]) == ("queued", "PD")
    assert job["started_at"] is None


def test_an_error_leaves_stdout_empty_even_with_json(quiet: Any) -> None:
    for words in (
        ("show", "--json", "7"),
        ("queue", "--json", "-t", "nothing"),
        ("submit", "--json", "-t", "0", "--", "x"),
    ):
        found = quiet.run(*words, check=False)
        assert found.returncode
        assert found.stdout == ""
        assert found.stderr.startswith("spool: ")


def test_secrets_of_the_environment_are_in_no_output(quiet: Any) -> None:
    quiet.env["MY_TOKEN"] = "hunter2-secret"
    quiet.submit("--", "true")
    for words in (("show",), ("show", "--json"), ("show", "--events"), ("queue", "-a", "--json")):
        assert "hunter2" not in quiet.run(*words).stdout


# -- exit codes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("queue",), 0),
        (("--version",), 0),
        (("--help",), 0),
        (("submit", "--help"), 0),
        ((), 2),
        (("nonsense",), 2),
        (("submit", "--nonsense", "--", "true"), 2),
        (("submit",), 2),
        (("submit", "--", ""), 2),
        (("cancel",), 2),
        (("wait",), 2),
        (("show", "x"), 2),
        (("show", "1.5"), 2),
        (("show", "-1"), 2),
        (("show", "3-1"), 2),
        (("show", "1,,2"), 2),
        (("show", "99"), 3),
        (("show", "99-120"), 3),
        (("show", "1_0"), 3),
        (("show", "9" * 40), 3),
        (("logs", "99"), 3),
        (("cancel", "1", "99"), 3),
        (("logs", "1"), 1),
        (("logs", "1-2"), 2),
        (("release", "1"), 1),
        (("wait", "1", "--timeout", "0"), 124),
        (("wait", "1", "--timeout", "-3"), 2),
        (("daemon", "status"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_exit_codes(quiet: Any, words: tuple[str, ...], code: int) -> None:
    quiet.submit("--", "true")
    quiet.submit("--", "true")
    found = quiet.run(*words, check=False)
    assert found.returncode == code, found.stderr
    assert "Traceback" not in found.stderr
    # Nothing of a refused command was carried out.
    assert quiet.state_of(1) == "queued"


def test_a_store_that_cannot_be_used_is_4(quiet: Any) -> None:
    quiet.run("queue")
    (quiet.state / "spool.db").write_bytes(b"not a database at all" * 100)
    for words in (("queue",), ("submit", "--", "true")):
        found = quiet.run(*words, check=False)
        assert found.returncode == 4
        assert "damaged" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sumbit", "submit"),
        ("squeue", "queue"),
        ("scancel", "cancel"),
        ("ls", "queue"),
        ("nodes", "node list"),
        ("log", "logs"),
    ],
)
def test_a_mistyped_command_names_the_one_that_was_meant(quiet: Any, typed: str, meant: str) -> None:
    found = quiet.run(typed, check=False)
    assert found.returncode == 2
    assert f"Did you mean 'spool {meant}'?" in found.stderr


# -- names of jobs -------------------------------------------------------------------------------------------


def test_jobs_are_named_by_number_range_list_and_last(quiet: Any) -> None:
    for _ in range(6):
        quiet.submit("-H", "--", "true")

    def named(*words: str) -> list[int]:
        value = json.loads(quiet.run("show", "--json", *words).stdout)
        return [job["id"] for job in value.get("jobs", [value.get("job")])]

    assert named("2") == named("s2") == [2]
    assert named("last") == named() == [6]
    assert named("1-3,5") == [1, 2, 3, 5]
    assert named("s1-s3", "2,6") == [1, 2, 3, 6]
    assert named("4-1000000000000") == [4, 5, 6]
    assert named("5,1") == [5, 1]


def test_many_jobs_are_asked_about(quiet: Any) -> None:
    quiet.set(FREE_SPACE_MIB="1")
    from gpuspool.api.client import Client
    from gpuspool.spool.config import load

    with Client(load(quiet.env)) as client:
        for _ in range(12):
            client.submit(["true"], hold=True, cwd=str(quiet.work))
    refused = quiet.run("cancel", "1-12", check=False)
    assert refused.returncode == 2
    assert "12 jobs" in refused.stderr and "--yes" in refused.stderr
    refused = quiet.run("cancel", "--me", check=False)
    assert refused.returncode == 2
    code, screen = at_terminal(quiet, "cancel", "1-12", answer=b"n\n")
    assert code == 1 and "cancel 12 jobs?" in screen and "nothing was done" in screen
    assert {job["state"] for job in json.loads(quiet.run("queue", "--json").stdout)["jobs"]} == {"queued"}
    assert quiet.run("cancel", "1-3").returncode == 0  # a few never ask
    code, screen = at_terminal(quiet, "hold", "--yes", "1-12")
    assert code == 1 and "?" not in screen
    code, _ = at_terminal(quiet, "requeue", "1-3", "4-12", answer=b"y\n")
    assert quiet.state_of(1) == "queued"
    assert quiet.run("cancel", "--me", "--yes").returncode == 0
    assert quiet.run("queue").stdout == ""


def test_other_peoples_jobs_are_asked_about(quiet: Any) -> None:
    import sqlite3

    quiet.submit("-H", "--", "true")
    with sqlite3.connect(quiet.state / "spool.db") as db:
        db.execute("UPDATE jobs SET user = 'alice'")
    db.close()
    refused = quiet.run("cancel", "1", check=False)
    assert refused.returncode == 2 and "job 1 of alice" in refused.stderr
    code, screen = at_terminal(quiet, "cancel", "1", answer=b"n\n")
    assert code == 1 and "cancel job 1 of alice?" in screen
    assert quiet.state_of(1) == "queued"
    assert quiet.run("cancel", "--yes", "1").returncode == 0


# -- tables --------------------------------------------------------------------------------------------------


def test_nothing_raw_reaches_a_terminal(quiet: Any) -> None:
    stray = os.fsdecode(b"stray \xff byte")
    job = quiet.submit("-J", NASTY, "--comment", NASTY + stray, "-H", "--", "echo", NASTY, stray)
    quiet.run("project", "set", "größe 模型")
    for words in (
        ("queue",),
        ("queue", "-a"),
        ("show",),
        ("why",),
        ("show", "--events"),
        ("project", "list"),
        ("hold", str(job)),
    ):
        found = quiet.run(*words, check=False)
        for line in (found.stdout + found.stderr).splitlines():
            assert line.isprintable(), (words, line)
    shown = quiet.run("queue").stdout
    assert "new\\nline \\x1b[31mred" in shown
    assert "模型" in quiet.run("show").stdout
    # The job itself gets what was typed, byte for byte.
    assert quiet.show(job)["spec"]["command"] == ["echo", NASTY, stray]


def test_nothing_raw_stands_in_errors(quiet: Any) -> None:
    quiet.run("queue")
    for words in (
        ("submit", "-A", "\x1b[31mx", "--", "true"),
        ("submit", "--\x1b[31mx", "--", "true"),
        ("submit", "-t", "\x1b[31mx", "--", "true"),
        ("\x1b[31mx",),
        ("queue", "-t", "\x1b[31mx"),
        ("show", "\x1b[31mx"),
        ("project", "set", "\x1b[31mx"),
        ("queue", "-n", "\udcff\x1b[31m"),
        ("submit", "--class", "\udcff\x1b[31m", "--", "true"),
    ):
        found = quiet.run(*words, check=False)
        assert "\x1b" not in found.stdout + found.stderr, words
        assert "Traceback" not in found.stderr, found.stderr


def test_columns_that_hold_nothing_are_not_shown(quiet: Any) -> None:
    quiet.submit("-H", "--", "true")
    heads = quiet.run("queue").stdout.splitlines()[0].split("  ")
    assert not {"GPUS", "CPUS", "USER", "PROJECT", "TRY", "STEP", "TIME"} & {head.strip() for head in heads}
    quiet.submit("-H", "-c", "2", "--", "true")
    assert "CPUS" in quiet.run("queue").stdout.splitlines()[0]


def test_an_empty_queue_says_so_on_standard_error(quiet: Any) -> None:
    found = quiet.run("queue")
    assert (found.stdout, found.stderr) == ("", "no jobs wait or run\n")
    assert json.loads(quiet.run("queue", "--json").stdout)["jobs"] == []


def test_colour_only_on_a_terminal_and_never_against_no_color(box: Any) -> None:
    job = box.submit("--backoff-limit", "0", "--", "false")
    box.wait(job, "failed")
    _, screen = at_terminal(box, "queue", "-a")
    assert "\x1b[31mfailed\x1b[0m" in screen
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        _, screen = at_terminal(box, "queue", "-a", **variables)
        assert "failed" in screen and "\x1b" not in screen
    assert "\x1b" not in box.run("queue", "-a").stdout


def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe(quiet: Any) -> None:
    quiet.submit("-J", "n" * 40, "-b", "2035-01-31T08:00", "-c", "3", "--class", "spot", "--", "true")
    quiet.run("hold", "last")
    whole = quiet.run("queue").stdout
    assert "(held; 'spool release' lets it go)" in whole
    _, screen = at_terminal(quiet, "queue", COLUMNS="80")
    assert max(len(line) for line in screen.splitlines()) <= 80, screen
    assert "…" in screen


# -- pipes and streams ---------------------------------------------------------------------------------------


def test_a_reader_that_leaves_is_no_error_to_talk_about(quiet: Any) -> None:
    for _ in range(3):
        quiet.submit("-H", "-J", "x" * 200, "--", "true")
    found = shell(quiet, "$SPOOL show 1-3 --json | head -1")
    assert found.stdout == "{\n"
    found = shell(quiet, "$SPOOL queue -a | true")
    assert found.stderr == ""
    assert found.returncode in (0, 141)
    found = shell(quiet, "sleep 0.5 | $SPOOL queue -a >&-")
    assert "Traceback" not in found.stderr and "Exception" not in found.stderr


def test_a_job_whose_answer_nobody_reads_runs_all_the_same(box: Any) -> None:
    # The reader is gone for sure before the first byte is written.
    found = shell(box, "mkfifo pipe; (exec 4<pipe; exec 4<&-) & exec 5>pipe; wait; $SPOOL submit -- true >&5")
    assert found.returncode == 141
    assert "Traceback" not in found.stderr
    assert box.wait(1)["state"] == "succeeded"


def test_a_full_disk_behind_stdout_is_named(quiet: Any) -> None:
    quiet.submit("-H", "--", "true")
    found = shell(quiet, "$SPOOL queue > /dev/full")
    assert found.returncode == 1
    assert "No space left on device" in found.stderr
    assert "Traceback" not in found.stderr and "Exception ignored" not in found.stderr


def test_closed_standard_streams(quiet: Any) -> None:
    quiet.submit("-H", "--", "true")
    for line in (
        "$SPOOL queue >&-",
        "$SPOOL queue 2>&-",
        "$SPOOL queue <&- >&- 2>&-",
        "$SPOOL nonsense 2>&-",
    ):
        found = shell(quiet, line)
        assert "Traceback" not in found.stderr, line


def test_other_locales(quiet: Any) -> None:
    quiet.env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    quiet.submit("-H", "-J", "größe 模型", "--comment", "…", "--", "true")
    quiet.env |= {"LC_ALL": "C.UTF-8"}  # what was typed under another locale is the same text
    assert quiet.show(1)["name"] == "größe 模型"
    # Letters that the terminal does not have are shown escaped.
    quiet.env["PYTHONIOENCODING"] = "latin-1"
    found = subprocess.run([*SPOOL, "queue"], env=quiet.env, cwd=quiet.work, capture_output=True, check=True)
    assert "größe \\u6a21\\u578b".encode("latin-1") in found.stdout
    found = subprocess.run([*SPOOL, "show"], env=quiet.env, cwd=quiet.work, capture_output=True, check=True)
    assert b"\\u2026" in found.stdout


def test_a_working_folder_that_is_gone_stops_only_what_needs_it(quiet: Any, tmp_path: Path) -> None:
    quiet.submit("-H", "--", "true")
    found = shell(quiet, "mkdir gone && cd gone && rmdir ../gone && $SPOOL queue && $SPOOL cancel last")
    assert found.returncode == 0, found.stderr
    assert quiet.state_of(1) == "cancelled"
