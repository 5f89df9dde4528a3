"""`spool logs`: whole, the last lines, as it comes; over restarts, before the start, without a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SPOOL = [sys.executable, "-m", "gpuspool.cli.main"]


def follow(box: Any, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*SPOOL, "logs", "-f", *words],
        env=box.env,
        cwd=box.work,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def raw(box: Any, *words: str) -> bytes:
    return subprocess.run(
        [*SPOOL, "logs", *words], env=box.env, cwd=box.work, stdout=subprocess.PIPE, check=True
    ).stdout


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"one\ntwo\nthree\n",
        b"no end of line",
        b"one\ntwo without end",
        b"\n\n\n",
        b"progress 1%\rprogress 2%\rprogress 3%\ndone\r\n",
        bytes(range(256)) * 3,
        b"x" * 200_000 + b"\n" + b"y" * 70_000,
        b"".join(b"line %d\n" % number for number in range(30_000)),
    ],
    ids=[
        "empty",
        "lines",
        "open",
        "half open",
        "blank",
        "progress bar",
        "binary",
        "long lines",
        "many lines",
    ],
)
def test_the_last_lines_are_those_of_tail(box: Any, output: bytes) -> None:
    path = box.work / "data"
    path.write_bytes(output)
    job = box.submit("--", "cat", "data")
    box.wait(job, "succeeded")
    assert raw(box) == output
    for lines in (0, 1, 2, 3, 100):
        expected = subprocess.run(
            ["tail", "-n", str(lines), str(path)], stdout=subprocess.PIPE, check=True
        ).stdout
        assert raw(box, str(job), "-n", str(lines)) == expected, lines


def test_a_job_that_has_not_started(box: Any) -> None:
    job = box.submit("-H", "--", "true")
    found = box.run("logs", str(job), check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"job {job} has not started yet: held; 'spool release' lets it go\n"
    box.run("cancel", str(job))
    found = box.run("logs", str(job), check=False)
    assert found.stderr == f"job {job} never started: cancelled while it waited\n"
    assert box.run("logs", "-f", str(job)).stderr == found.stderr


def test_following_begins_before_the_start(box: Any) -> None:
    job = box.submit("-H", "--", "sh", "-c", "echo hello; echo there")
    reader = follow(box, str(job))
    assert reader.stderr is not None
    assert b"has not started yet: held" in reader.stderr.readline()
    box.run("release", str(job))
    out, _ = reader.communicate(timeout=30)
    assert (reader.returncode, out) == (0, b"hello\nthere\n")


STEPS = """
import os, signal, sys, time
def stop(*_):
    print("last words", flush=True)
    sys.exit(75)
signal.signal(signal.SIGUSR2, stop)
print("attempt", os.environ["GPUSPOOL_ATTEMPT"], flush=True)
while os.environ["GPUSPOOL_ATTEMPT"] == "1" or not os.path.exists("go"):
    time.sleep(0.02)
print("done", flush=True)
"""


@pytest.mark.parametrize("one_file", [False, True])
def test_following_goes_on_over_a_restart(box: Any, one_file: bool) -> None:
    (box.work / "steps.py").write_text(STEPS)
    options = ("-o", "all.log") if one_file else ()
    job = box.submit(*options, "--", sys.executable, "steps.py")
    reader = follow(box, str(job))
    assert reader.stdout is not None and reader.stderr is not None
    assert reader.stdout.readline() == b"attempt 1\n"
    box.run("preempt", str(job))
    assert reader.stdout.readline() == b"last words\n"
    assert reader.stdout.readline() == b"attempt 2\n"
    assert b"--- attempt 2 ---" in reader.stderr.readline()
    (box.work / "go").touch()
    out, _ = reader.communicate(timeout=30)
    assert (reader.returncode, out) == (0, b"done\n")
    assert box.show(job)["attempt"] == 2
    # Each attempt can be read by itself, where each has a file.
    if not one_file:
        assert raw(box, str(job), "--attempt", "1") == b"attempt 1\nlast words\n"
        assert raw(box, str(job)) == b"attempt 2\ndone\n"
        assert raw(box, "-f", str(job), "--attempt", "1") == b"attempt 1\nlast words\n"
    found = box.run("logs", str(job), "--attempt", "3", check=False)
    assert found.returncode == 2 and "Choose one from 1 to 2" in found.stderr


def test_a_file_that_is_gone_is_named(box: Any) -> None:
    job = box.submit("-o", "out.log", "--", "echo", "hello")
    box.wait(job, "succeeded")
    (box.work / "out.log").unlink()
    for words in ((str(job),), (str(job), "-n", "3")):
        found = box.run("logs", *words, check=False)
        assert found.returncode == 1 and found.stdout == ""
        assert "has no output file" in found.stderr and "out.log" in found.stderr


def test_a_file_that_may_not_be_read_is_named(box: Any) -> None:
    job = box.submit("-o", "out.log", "--", "echo", "hello")
    box.wait(job, "succeeded")
    path = box.work / "out.log"
    path.unlink()
    path.mkdir()
    found = box.run("logs", str(job), check=False)
    assert found.returncode == 1
    assert "out.log" in found.stderr and "Traceback" not in found.stderr


def test_standard_error_apart_only_where_it_is(box: Any) -> None:
    job = box.submit("--", "sh", "-c", "echo out; echo err >&2")
    box.wait(job, "succeeded")
    assert raw(box) == b"out\nerr\n"
    found = box.run("logs", "-e", str(job), check=False)
    assert found.returncode == 2 and "Leave -e out" in found.stderr


def test_an_interrupted_reader_says_nothing(box: Any) -> None:
    job = box.submit("--", "sh", "-c", "echo hello; sleep 60")
    reader = follow(box, str(job))
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"hello\n"
    reader.send_signal(signal.SIGINT)
    out, err = reader.communicate(timeout=30)
    assert (reader.returncode, out, err) == (130, b"", b"")
    box.run("cancel", "--now", str(job))


def test_a_file_that_was_cut_is_read_from_its_beginning(box: Any, eventually: Any) -> None:
    script = (
        "echo a long first line; while ! test -e cut; do sleep 0.02; done; : > out.log; echo new; sleep 0.5"
    )
    job = box.submit("-o", "out.log", "--", "sh", "-c", script)
    reader = follow(box, str(job))
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"a long first line\n"
    Path(box.work / "cut").touch()
    out, _ = reader.communicate(timeout=30)
    assert b"new" in out
