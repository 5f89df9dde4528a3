"""How users name jobs: 12, s12, 12_3 (an array's element), 1-5,9, last."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import BadRequest, NoSuchJob
from .queue import QueueVerbs

_NUMBER = re.compile(r"[sS]?([0-9]+)(?:_([0-9]+)|-[sS]?([0-9]+))?")
#: SQLite's largest integer; a longer number names no job.
_LARGEST = 2**63 - 1


def job_numbers(store: QueueVerbs, words: Iterable[str], *, user: str = "") -> tuple[int, ...]:
    """The jobs that `words` name, each once, in that order; `last` is the newest of `user` ('': of anybody).

    A range gives the jobs that there are in it. Raises BadRequest for what is no job's name, NoSuchJob for a single
    number, an element or a range that names none.
    """
    found: list[int] = []
    for word in ",".join(words).split(","):
        word = word.strip()
        if word.lower() == "last":
            found.append(store.last_job(user))
            continue
        match = _NUMBER.fullmatch(word)
        if not match:
            raise BadRequest(
                what="the job",
                value=word,
                why="it is no job number",
                remedy="Write 12, s12, 12_3 (element 3 of array 12), 1-5,9 or last.",
            )
        first, index, last = (min(int(part), _LARGEST) if part else None for part in match.groups())
        assert first is not None
        if index is not None:
            rows = store.rows("SELECT id FROM jobs WHERE array_id = ? AND array_index = ?", (first, index))
        elif last is not None:
            if last < first:
                raise BadRequest(
                    what="the job range",
                    value=word,
                    why="it ends before it begins",
                    remedy=f"Write {last}-{first}.",
                )
            rows = store.rows("SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id", (first, last))
        else:
            rows = store.rows("SELECT id FROM jobs WHERE id = ?", (first,))
        if not rows:
            raise NoSuchJob(job=word)
        found += [row[0] for row in rows]
    return tuple(dict.fromkeys(found))
