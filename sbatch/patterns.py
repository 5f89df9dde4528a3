"""File name patterns as in Slurm's -o and -e: %j, %x, %u, %N, %A, %a, %%, with zero padding (%4j)."""

from __future__ import annotations

import os
import re

_PATTERN = re.compile(r"%(\d*)([a-zA-Z%])")


def fill(pattern: str, names: dict[str, str], cwd: str) -> str:
    """The absolute path that `pattern` names; `names` maps a letter to its text.

    Unknown letters stay as they stand, as in Slurm; a backslash in front of the name switches patterns off.
    """
    if "\\" in pattern:
        return os.path.join(cwd, pattern.replace("\\", ""))

    def one(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "%":
            return "%"
        if letter not in names:
            return match[0]
        text = names[letter].replace("/", "_")
        return text.zfill(min(int(width), 10)) if width and text.isdigit() else text

    return os.path.join(cwd, _PATTERN.sub(one, pattern))


def job_names(job: int, name: str, user: str, node: str) -> dict[str, str]:
    """What the letters of a pattern stand for, for a job that is no array's element."""
    return {"j": str(job), "A": str(job), "a": "0", "x": name, "u": user, "N": node}
