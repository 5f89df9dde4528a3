"""A disk that fills up while a job runs: named, nothing lost, the scheduler stays up. Needs root (a small tmpfs)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.fail("needs root to mount a tmpfs; deselect with -m 'not root'")
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass
    return filler


@pytest.mark.parametrize("which", ["run folder", "state folder", "both"])
def test_a_job_ends_on_a_full_disk(box: Any, eventually: Any, small_disk: Path, which: str) -> None:
    if which in ("run folder", "both"):
        (small_disk / "run").mkdir(mode=0o700)
        box.set(RUN_DIR=str(small_disk / "run"))
    if which in ("state folder", "both"):
        (small_disk / "state").mkdir(mode=0o700)
        box.set(STATE_DIR=str(small_disk / "state"))
        box.state = small_disk / "state"
        box.set(RUN_DIR=str(small_disk / "run" if which == "both" else box.root / "run"))
    script = "import os, time\nwhile not os.path.exists('leave'): time.sleep(0.02)\nopen('left', 'w')\nraise SystemExit(5)"
    job = box.submit("--backoff-limit", "0", "--", sys.executable, "-c", script)
    box.wait(job, "running")
    filler = fill(small_disk)
    try:
        (box.work / "leave").touch()
        eventually(lambda: (box.work / "left").exists())
        # While it is full: reading works, submitting is refused by name, the daemon is alive.
        refused = box.run("submit", "--", "true", check=False)
        assert refused.returncode == 1 and "room" in refused.stderr.lower(), refused.stderr
        assert box.run("queue").returncode == 0
        pid = box.daemon_pid()
        assert pid
    finally:
        filler.unlink()
    found = box.wait(job)
    assert (found["state"], found["exit_code"]) == ("failed", 5)
    assert box.daemon_pid() == pid
    assert box.wait(box.submit("--", "true"))["state"] == "succeeded"
    assert box.run("db", "check").returncode == 0
