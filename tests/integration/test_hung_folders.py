"""A working, log or checkpoint folder whose file system hangs delays neither walltime nor stop. Needs root (FUSE)."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root


@pytest.mark.parametrize("what", ["working folder", "output"])
@pytest.mark.parametrize("how", ["walltime", "cancel"])
def test_a_hung_folder_delays_neither_walltime_nor_cancel(
    box: Any, eventually: Any, hung_folder: Any, tmp_path: Path, what: str, how: str
) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    box.set(DAEMON_AUTO="false")
    place = ["-D", str(folder)] if what == "working folder" else ["-o", str(folder / "out")]
    limits = ["-t", "4s", "--grace", "1s"] if how == "walltime" else ["--grace", "0s"]
    job = box.submit(*place, *limits, "--on-timeout", "fail", "--", "sleep", "600")
    hung_folder(folder)  # after the submission, which looks at the folder
    since = time.monotonic()
    box.run("daemon", "start", cwd=Path("/"))
    box.wait(job, "running")
    if how == "cancel":
        box.run("cancel", str(job), cwd=Path("/"))
    found = box.wait(job, seconds=40)
    assert found["state"] == ("failed" if how == "walltime" else "cancelled")
    assert found["attempts"][0]["end_reason"] == ("timeout" if how == "walltime" else "cancelled")
    assert time.monotonic() - since < 40


def test_a_checkpoint_folder_that_comes_to_hang_delays_no_stop(
    box: Any, eventually: Any, hung_folder: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    job = box.submit(
        "--checkpoint-dir",
        str(folder),
        "--grace",
        "2s",
        "--",
        sys.executable,
        "-c",
        "import time; print('up', flush=True); time.sleep(600)",
    )
    box.wait(job, "running")
    eventually(lambda: "up" in box.output(job))
    hung_folder(folder)
    box.run("cancel", str(job))
    assert box.wait(job, seconds=60)["state"] == "cancelled"
