"""What commands import: the hot ones start without the heavy libraries, and layers that must not meet do not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

#: Each costs a tenth of a cold submit or more; none is needed to put a job into the queue or to look at it.
HEAVY = (
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "numpy",
    "psutil",
    "pydantic",
    "pynvml",
    "rich",
    "shutil",
    "sqlalchemy",
    "sqlmodel",
    "submitit",
    "subprocess",
    "tomllib",
    "torch",
    "zoneinfo",
)
HOT = {
    "submit": ("submit", "-H", "-t", "60", "-G", "1", "--", "python", "train.py", "{resume}"),
    "queue": ("queue",),
    "queue --json": ("queue", "--json"),
    "cancel": ("cancel", "last"),
    "hold": ("hold", "last"),
    "tick": ("tick",),
    "wait": ("wait", "--timeout", "0", "last"),
}


def imported(box: Any, *words: str) -> set[str]:
    """The top-level packages, and our own modules, that `spool WORDS` imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpuspool.cli.main", *words],
        env=box.env,
        cwd=box.work,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    names = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "click" in names, done.stderr
    # What the editable install's finder and the environment bring is there before the program begins.
    return {name for name in names if name.startswith("gpuspool.")} | {
        name.partition(".")[0] for name in names
    }


@pytest.mark.parametrize("command", HOT)
def test_hot_commands_import_little(box: Any, fake_nvml: Any, command: str) -> None:
    box.env.update(fake_nvml.env)
    box.set(DAEMON_AUTO="no")
    box.run("node", "list", "--refresh")  # the first GPU job of a spool reads the machine
    box.submit("-H", "--", "true")
    found = imported(box, *HOT[command])
    assert not found & set(HEAVY)
    assert "ctypes" not in found
    assert not {name for name in found if name.startswith("gpuspool.launch")}
    assert "gpuspool.api" not in found


def test_the_package_itself_is_free() -> None:
    code = "import sys; import gpuspool; print([m for m in sys.modules if m.startswith('gpuspool.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_face_does_not_import_the_command_line() -> None:
    code = (
        "import sys; from gpuspool import Client;"
        "print([m for m in sys.modules if m.startswith('gpuspool.cli') or m in ('click', 'sqlmodel', 'rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_formats_that_submit_takes_are_those_that_the_finder_knows() -> None:
    from gpuspool.launch.checkpoints import FORMATS
    from gpuspool.scheduler.intake import CHECKPOINT_FORMATS

    assert set(CHECKPOINT_FORMATS) == set(FORMATS)
