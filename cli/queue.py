"""`spool queue`: the jobs that wait and run, in one read and a hand-formatted table."""

from __future__ import annotations

import json
from typing import Any

import click

from ..spool.model import LIVE, SLURM_CODE, Job, State
from ..spool.quantities import show_duration
from ..spool.queue import states_from
from .session import Session, print_json, session
from .text import iso, safe, shorten, state_painter, table, terminal_columns

RIGHT = frozenset({"JOB", "GPUS", "CPUS", "TIME", "TRY", "STEP"})
_REASON_WIDTH = 90


@click.command()
@click.option("-a", "--all", "finished", is_flag=True, help="Finished jobs too.")
@click.option("-u", "--user", default="", help="Jobs of this user.")
@click.option("--me", is_flag=True, help="My jobs.")
@click.option("-A", "--project", "--account", "project", default="", help="Jobs of this project.")
@click.option("-n", "--name", default="", help="Jobs of this name.")
@click.option("-t", "--states", default="", help="Jobs in these states: running,queued; all; or PD,R,F.")
@click.option("-j", "--jobs", "wanted", default="", help="These jobs: 12, 1-5,9, last.")
@click.option("-l", "--limit", type=click.IntRange(0), default=0, help="At most the newest so many.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@session
def queue(
    session: Session,
    finished: bool,
    user: str,
    me: bool,
    project: str,
    name: str,
    states: str,
    wanted: str,
    limit: int,
    as_json: bool,
) -> None:
    """Show the jobs that wait and run (with -a also the finished ones).

    \b
    spool queue
    spool queue -a -l 20         the newest 20, finished or not
    spool queue -t failed --me   my failed jobs
    """
    chosen = states_from(states)
    jobs = session.store.list(
        finished=finished,
        user=session.user if me else user,
        project=project,
        name=name,
        states=chosen,
        jobs=session.jobs((wanted,)) if wanted else (),
        limit=limit,
    )
    places = session.store.attempts_of(tuple(job.id for job in jobs if job.state in LIVE)) if jobs else {}
    if as_json:
        print_json("jobs", [job_json(job, places.get(job.id)) for job in jobs])
    elif jobs:
        click.echo(render(jobs, places, session.now(), columns=terminal_columns()))
    elif user or me or project or name or chosen or wanted:
        click.echo("no such jobs", err=True)
    else:
        click.echo("no jobs" if finished else "no jobs wait or run", err=True)
    session.warn_if_quiet()


def render(
    jobs: list[Job], places: dict[int, tuple[str, str]], now: float, *, columns: int | None = None
) -> str:
    """The table of the queue; `columns` is the width of the terminal, if it goes to one."""
    heads = [
        "JOB",
        "NAME",
        "USER",
        "PROJECT",
        "CLASS",
        "STATE",
        "TIME",
        "GPUS",
        "CPUS",
        "TRY",
        "STEP",
        "WHERE / WHY",
    ]
    name_width = 24 if columns is None or columns >= 100 else 16
    one_user = len({job.user for job in jobs}) == 1
    one_project = len({job.project for job in jobs}) == 1
    rows = []
    for job in jobs:
        node = places.get(job.id, ("", ""))[0]
        rows.append(
            [
                str(job.id),
                shorten(safe(job.name), name_width),
                "" if one_user else safe(job.user),
                "" if one_project else safe(job.project),
                safe(job.job_class),
                job.state,
                _time(job, now),
                str(job.gpus) if job.gpus else "",
                str(job.cpus) if job.cpus > 1 else "",
                str(job.attempt) if job.attempt > 1 else "",
                str(job.checkpoint_step) if job.checkpoint_step is not None else "",
                _where(job, node),
            ]
        )
    return table(heads, rows, right=RIGHT, columns=columns, paint=state_painter())


def _time(job: Job, now: float) -> str:
    if job.state in LIVE:
        return show_duration(max(0.0, now - job.state_since))
    if job.started_at is not None and job.ended_at is not None:
        return show_duration(max(0.0, job.ended_at - job.started_at))
    return ""


def _where(job: Job, node: str) -> str:
    if job.state == State.QUEUED:
        return shorten(f"({safe(waits_for(job))})", _REASON_WIDTH)
    if job.state in LIVE:
        return safe(node)
    return shorten(safe(job.end_text), _REASON_WIDTH)


def waits_for(job: Job) -> str:
    """Why a queued job waits, as last noted by a pass."""
    return job.reason_text or (job.reason if job.reason not in ("", "None") else "not looked at yet")


def job_json(job: Job, place: tuple[str, str] | None = None) -> dict[str, Any]:
    """A job as --json prints it: times ISO 8601 UTC, durations in seconds, Slurm's state code beside ours."""
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "project": job.project,
        "class": job.job_class,
        "priority": job.priority,
        "preemptible": bool(job.preemptible),
        "state": job.state,
        "state_code": SLURM_CODE[State(job.state)],
        "hold": job.hold,
        "reason": job.reason,
        "reason_text": job.reason_text,
        "nodes": job.nodes,
        "gpus": job.gpus,
        "gpu_type": job.gpu_type,
        "cpus": job.cpus,
        "memory_mib": job.memory_mib,
        "walltime_s": job.walltime_s or None,
        "grace_s": job.grace_s,
        "min_runtime_s": job.min_runtime_s,
        "submitted_at": iso(job.submitted_at),
        "begin_at": iso(job.begin_at or None),
        "not_before": iso(job.not_before or None),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "attempt": job.attempt,
        "failures": job.failures,
        "checkpoint": job.checkpoint,
        "checkpoint_step": job.checkpoint_step,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "end_reason": job.end_reason,
        "end_text": job.end_text,
        "gpu_seconds": round(job.gpu_seconds, 3),
        "node": place[0] if place else "",
        "gpu_uuids": json.loads(place[1]) if place else [],
    }
