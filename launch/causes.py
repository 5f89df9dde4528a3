"""From the end of a program's output to the cause of its failure, with a sentence of advice.

The rules are data; here are those that the end-of-attempt rules need (what another try cannot mend) and the most
common ones beside them.
"""

from __future__ import annotations

import re

from ..spool.values import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """A recognised cause: a stable word and a sentence for the user."""

    name: str
    text: str


_RULES: tuple[tuple[str, str, str], ...] = (
    (
        "missing_module",
        r"ModuleNotFoundError: (No module named .+)",
        "{0}: install it in the job's Python, or choose another one with --python",
    ),
    (
        "missing_script",
        r"can't open file '?(.+?)'?: \[Errno 2\]",
        "there is no script {0}: paths are taken from the working folder (-D)",
    ),
    ("syntax_error", r"^((?:Syntax|Indentation|Tab)Error: .+)", "{0}: no retry mends it"),
    (
        "cuda_out_of_memory",
        r"CUDA out of memory|CUDA error: out of memory",
        "the GPU's memory ran out: a smaller batch?",
    ),
    ("not_found", r"^gpuspool: cannot use (command .+)", "{0}"),
    ("not_executable", r"^gpuspool: cannot use (working folder .+)", "{0}"),
)
_COMPILED = tuple((name, re.compile(pattern, re.MULTILINE), text) for name, pattern, text in _RULES)


def classify(tail: str, lines: int = 200) -> Cause | None:
    """The cause that the last `lines` lines of output name, the latest mention first; None when none does."""
    text = "\n".join(tail.replace("\r", "\n").splitlines()[-lines:])
    best: tuple[int, Cause] | None = None
    for name, pattern, sentence in _COMPILED:
        for match in pattern.finditer(text):
            if best is None or match.start() > best[0]:
                best = (match.start(), Cause(name, sentence.format(*(match.groups() or ("",)))[:300]))
    return best[1] if best else None
