"""The tracer itself: it kills where it says it does, and touches nobody else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tracer import TraceFailed, trace

LINES = 20


def writes(path: Path) -> None:
    """LINES system calls with an effect that can be counted."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for _ in range(LINES):
        os.write(fd, b"x\n")


def test_it_is_killed_before_the_call_that_it_enters(tmp_path: Path) -> None:
    whole = trace(lambda: writes(tmp_path / "whole"), named=True)
    assert not whole.reached and whole.status == 0 and whole.calls == len(whole.points)
    first = next(number for number, call in enumerate(whole.points, 1) if call.startswith("write "))
    assert whole.points[first - 1] == f"write {tmp_path / 'whole'}"
    for done in range(LINES):
        path = tmp_path / str(done)
        run = trace(lambda path=path: writes(path), first + done)
        assert run.reached and run.calls == first + done
        assert os.WTERMSIG(run.status) == signal.SIGKILL
        assert path.read_bytes() == b"x\n" * done


def test_beyond_the_end_nothing_is_killed(tmp_path: Path) -> None:
    run = trace(lambda: writes(tmp_path / "file"), 100_000)
    assert not run.reached and run.status == 0
    assert (tmp_path / "file").read_bytes() == b"x\n" * LINES


def test_it_stands_still_while_something_else_happens(tmp_path: Path) -> None:
    path = tmp_path / "file"
    calls = trace(lambda: writes(path), named=True).points
    path.unlink()
    at = next(number for number, call in enumerate(calls, 1) if call.startswith("write ")) + 5

    def meanwhile() -> None:
        with path.open("ab") as file:
            file.write(b"between\n")

    run = trace(lambda: writes(path), at, meanwhile=meanwhile)
    assert run.reached and run.status == 0
    assert path.read_bytes() == b"x\n" * 5 + b"between\n" + b"x\n" * (LINES - 5)


def test_a_child_of_the_killed_one_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "child"

    def body() -> None:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            writes(path)
            os._exit(0)
        while True:
            os.getppid()

    run = trace(body, 50)
    assert run.reached
    give_up = time.monotonic() + 20
    while not (path.exists() and len(path.read_bytes()) == 2 * LINES):
        assert time.monotonic() < give_up, "the child was killed, too"
        time.sleep(0.005)


def test_the_first_child_can_be_traced_in_its_place(tmp_path: Path) -> None:
    def body() -> None:
        pid = os.fork()
        if pid == 0:
            writes(tmp_path / "child")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        (tmp_path / "parent").write_text(str(status))
        os._exit(0)

    whole = trace(body, named=True, follow_fork=True)
    os.waitpid(whole.first, 0)
    assert any(call == f"write {tmp_path / 'child'}" for call in whole.points)
    assert not any("parent" in call for call in whole.points)
    assert (tmp_path / "parent").read_text() == "0", "the parent goes on, untraced"
    run = trace(body, 5, follow_fork=True)
    os.waitpid(run.first, 0)
    assert run.reached
    assert os.WTERMSIG(int((tmp_path / "parent").read_text())) == signal.SIGKILL, (
        "its own parent sees how it ended"
    )


def test_what_raises_is_told_from_what_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        raise ValueError("so it is")

    run = trace(body)
    assert os.waitstatus_to_exitcode(run.status) == 70
    assert "ValueError: so it is" in capfd.readouterr().err


def test_a_process_that_hangs_is_ended() -> None:
    with pytest.raises(TraceFailed, match="did not end"):
        trace(signal.pause, timeout_s=0.3)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
