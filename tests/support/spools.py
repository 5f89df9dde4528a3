"""Builders for tests of the spool layer: folders, submissions, claims, the life of an attempt, other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from gpuspool.spool.endrules import EndFacts, JobFacts, Next, decide
from gpuspool.spool.eventlog import Line
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import Claim, Ending, LiveAttempt, StreamUpdate
from gpuspool.spool.model import Job, JobSpec, Submission
from gpuspool.spool.store import Store

_tokens = count(1)


def make_folders(root: Path) -> Folders:
    """The three private folders of a spool below `root`."""
    made = []
    for name in ("state", "run", "runtime"):
        path = root / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.append(str(path))
    return Folders(*made)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where that can be had, for tests that make thousands of things durable."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


def submission(command: str = "true", /, spec: JobSpec | None = None, **changes: Any) -> Submission:
    """A job on its way in; `changes` are fields of Submission."""
    values = {"name": "job", "user": "ann", "uid": 1000, **changes}
    return Submission(spec=spec or JobSpec([command], "/"), **values)


def claim_of(job: Job, *gpus: str, node: str = "node1", **changes: Any) -> Claim:
    """The decision to start `job` as it was looked at."""
    values: dict[str, Any] = {
        "job": job.id,
        "version": job.version,
        "token": f"token-{next(_tokens)}",
        "backend": "local",
        "node": node,
        "gpu_uuids": gpus,
        "cpus": job.cpus,
        "memory_mib": job.memory_mib,
        "walltime_s": job.walltime_s,
        "grace_s": job.grace_s,
        "ends_by": None,
    }
    return Claim(**{**values, **changes})


def start(store: Store, job: int, now: float, *gpus: str, running: bool = True) -> LiveAttempt:
    """Claim `job` and (unless not `running`) record its supervisor's `started`; the live attempt."""
    [live] = store.claim(
        [claim_of(store.job(job), *gpus)], now, '["h", "b", 1, 2]', lambda j, n: f"/jobs/{j}/{n}"
    )
    if running:
        tell(store, live, "started", now + 1, supervisor='["h", "b", 3, 4]')
    return live_of(store, job)


def live_of(store: Store, job: int) -> LiveAttempt:
    """The live attempt of `job`, as it is now."""
    [live] = [entry for entry in store.live() if entry.job.id == job]
    return live


def tell(store: Store, live: LiveAttempt, kind: str, at: float, **data: Any) -> None:
    """Record the next event of the attempt's rank 0."""
    rows = store.rows(
        "SELECT offset, next_number FROM streams WHERE job_id = ? AND attempt = ? AND incarnation = 0 AND rank = 0",
        (live.job.id, live.attempt.number),
    )
    offset, number = rows[0] if rows else (0, 1)
    lines = [Line(number, at, kind, data)]
    store.record([StreamUpdate(live.job.id, live.attempt.number, 0, 0, lines, offset + 100, number + 1)])


def job_facts(job: Job, spec: JobSpec, **changes: Any) -> JobFacts:
    """What the end rules look at, from rows."""
    values = {
        "failures": job.failures,
        "delays": job.delays,
        "interruptions": job.interruptions,
        "launch_failures": job.launch_failures,
        "counted": job.counted,
        "backoff_limit": spec.backoff_limit,
        "backoff_reset": spec.backoff_reset,
        "max_attempts": spec.max_attempts,
        "max_gpu_hours": spec.max_gpu_hours,
        "gpu_seconds": job.gpu_seconds,
        "own_min_runtime_s": job.own_min_runtime_s,
        "has_resume_rule": spec.has_resume_rule,
        "on_timeout": spec.on_timeout,
        "stopped_exit_0": spec.stopped_exit_0,
        "kind": spec.kind,
        "wish": job.wish,
    }
    return JobFacts(**{**values, **changes})


def ending_of(store: Store, live: LiveAttempt, facts: EndFacts, now: float, **changes: Any) -> Ending:
    """The end of a live attempt as the rules decide it."""
    after: Next = decide(job_facts(live.job, store.spec(live.job.spec_id)), facts, now, 0.0)
    return Ending(live.job, live.attempt, facts, after, **{"ended_at": now, **changes})


def finish(store: Store, job: int, facts: EndFacts, now: float, **changes: Any) -> Job:
    """Settle the live attempt of `job`; the job afterwards."""
    store.settle([ending_of(store, live_of(store, job), facts, now, **changes)], now)
    return store.job(job)


def python(script: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    """A real Python process that runs `script`."""
    words = [sys.executable, "-c", script, *(str(argument) for argument in arguments)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **more)


def answers(*processes: subprocess.Popen[str]) -> list[Any]:
    """What each process printed (one JSON value), once all of them have ended well."""
    found = []
    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, f"exit {process.returncode}: {said}"
        found.append(json.loads(said))
    return found


def folder_words(folders: Folders) -> tuple[str, str, str]:
    """The folders as arguments of a `python` script, which makes Folders(*sys.argv[1:4]) of them."""
    return folders.state, folders.run, folders.runtime
