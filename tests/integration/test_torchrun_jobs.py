"""torchrun jobs through the spool: long saves, agents that are killed, user environments without gpuspool."""

from __future__ import annotations

import os
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from gpuspool.spool.processes import start_time

PROGRAM = str(Path(__file__).parent.parent / "support" / "programs" / "elastic_train.py")
pytestmark = pytest.mark.torch


def submit(box: Any, *options: str, words: tuple[str, ...] = ()) -> int:
    common = ("-c", "2", "--nproc", "2", "--torchrun", "--python", sys.executable)
    return int(box.submit(*options, *common, "--", PROGRAM, *words))


def ranks(agent: int) -> list[int]:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [int(pid) for pid in children if b"LOCAL_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]


@pytest.mark.slow
def test_a_save_of_40_seconds_survives_a_grace_of_60(box: Any, eventually: Any) -> None:
    """torchrun itself would kill the ranks 30 s after the signal."""
    job = submit(box, "--class", "spot", "--grace", "60s", words=("--save-s", "40", "--steps", "100000"))
    box.wait(job, "running")
    eventually(lambda: "step 5" in box.output(job), 60)
    box.run("stop", str(job))
    found = box.wait(job, "queued", seconds=120)
    assert found["attempts"][0]["exit_code"] == 75
    assert found["attempts"][0]["end_reason"] == "stopped"
    stopped = int(box.output(job).split("stopped at ")[1].split()[0])
    assert found["checkpoint_step"] == stopped
    events = {event["kind"]: event["at"] for event in box.events(job)}
    assert events["ended"] > events["signalled"]


def test_no_rank_outlives_an_agent_that_is_killed(box: Any, eventually: Any) -> None:
    job = submit(box, "--backoff-limit", "0", words=("--steps", "100000"))
    box.wait(job, "running")
    eventually(lambda: "step 5" in box.output(job), 60)
    agent = box.events(job, "started")[0]["data"]["command"][0]
    workers = ranks(agent)
    assert len(workers) == 2
    os.kill(agent, signal.SIGKILL)
    found = box.wait(job)
    assert found["signal"] == signal.SIGKILL
    assert all(start_time(pid) == 0 for pid in workers)


def test_the_user_s_python_needs_no_gpuspool(box: Any, eventually: Any, tmp_path: Path) -> None:
    """A virtual environment with torch alone, by a path file, and files of the user's that are called like ours."""
    import torch

    home = tmp_path / "env"
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    packages = Path(torch.__file__).parent.parent
    # Everything beside torch, but nothing of ours: links to all packages except gpuspool's.
    for entry in packages.iterdir():
        if "gpuspool" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    (box.work / "launch.py").write_text("MINE = 'my own launch'\n")
    (box.work / "trainer.py").write_text("MINE = 'my own trainer'\n")
    (box.work / "main.py").write_text(
        "import importlib.util, launch, trainer\n"
        "print(launch.MINE, trainer.MINE, importlib.util.find_spec('gpuspool'), flush=True)\n"
    )
    job = box.submit(
        "-c", "1", "--nproc", "1", "--torchrun", "--python", str(home / "bin/python"), "--", "main.py"
    )
    assert box.wait(job)["state"] == "succeeded", box.output(job)
    assert "my own launch my own trainer None" in box.output(job)
