"""The tutorial, run as it stands: each console block's commands and the output that it promises."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """(kind, text) of each fenced block, in order."""
    return re.findall(r"^```([a-z:._]+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def steps(text: str) -> list[tuple[str, str]]:
    """(command, promised output) of a console block."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def test_the_tutorial_does_what_it_says(box: Any) -> None:
    box.set(LOCAL_CPUS="0")  # as detected: the page takes all of them
    env = {name: value for name, value in box.env.items() if name != "OMP_NUM_THREADS"}  # nproc looks at it
    commands = 0
    for kind, text in blocks():
        if kind.startswith("file:"):
            (box.work / kind[5:]).write_text(text)
            continue
        assert kind == "console", kind
        for command, promised in steps(text):
            done = subprocess.run(
                ["bash", "-c", command], env=env, cwd=box.work, capture_output=True, text=True, timeout=120
            )
            assert done.stdout == promised, (
                f"$ {command}\n{done.stdout}\n{done.stderr}\n{box.run('queue', '-a').stdout}\n{box.run('show', 'last').stdout}"
            )
            commands += 1
    assert commands > 20, "the page has lost its commands"
