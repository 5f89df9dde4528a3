"""The commands that steer jobs: cancel, stop, resume, hold, release, requeue, preempt."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..spool.model import Job, State
from .session import Session, confirm_many, session


def _steering(function: Callable[..., None]) -> click.Command:
    command = click.command(name=function.__name__)(session(function))
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print what happened as JSON."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask, however many jobs."),
        click.option("-u", "--user", default="", help="All unfinished jobs of this user."),
        click.option("-n", "--name", default="", help="All unfinished jobs of this name."),
        click.argument("jobs", nargs=-1),
    ):
        command = option(command)
    return command


def _chosen(
    session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, verb: str
) -> tuple[int, ...]:
    if jobs:
        numbers = session.jobs(jobs)
        for number in numbers:
            session.store.job(number)  # an unknown one is named before anything happens
    elif user or name:
        numbers = tuple(job.id for job in session.store.list(user=user, name=name))
    else:
        raise click.UsageError("name jobs (12, 1-5,9, last), or choose them with --user or --name")
    confirm_many(len(numbers), verb, yes)
    return numbers


@_steering
def stop(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Stop jobs after a checkpoint; they stay in the queue, held, until 'spool resume'."""
    chosen = _chosen(session, jobs, user, name, yes, "stop")
    session.tell(session.store.stop(chosen, session.now(), session.user), as_json=as_json)


@_steering
def resume(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Let stopped, held, failed or cancelled jobs go on from their checkpoints."""
    chosen = _chosen(session, jobs, user, name, yes, "resume")
    session.tell(session.store.resume(chosen, session.now(), session.user), as_json=as_json)


@_steering
def hold(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Keep waiting jobs from starting until 'spool release'."""
    chosen = _chosen(session, jobs, user, name, yes, "hold")
    session.tell(session.store.hold(chosen, session.now(), session.user), as_json=as_json)


@_steering
def release(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Let held jobs start; one that backs off may start at once."""
    chosen = _chosen(session, jobs, user, name, yes, "release")
    session.tell(session.store.release(chosen, session.now(), session.user), as_json=as_json)


@_steering
def requeue(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Run jobs again: finished ones from the queue, running ones after a checkpoint."""
    chosen = _chosen(session, jobs, user, name, yes, "requeue")
    session.tell(session.store.requeue(chosen, session.now(), session.user), as_json=as_json)


@_steering
def preempt(session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool) -> None:
    """Preempt running jobs: checkpoint, then queued again; never charged."""
    chosen = _chosen(session, jobs, user, name, yes, "preempt")
    session.tell(session.store.preempt(chosen, session.now(), session.user), as_json=as_json)


def _cancel(
    session: Session, jobs: tuple[str, ...], user: str, name: str, yes: bool, as_json: bool, at_once: bool
) -> None:
    """Cancel jobs: waiting ones at once, running ones after a checkpoint (--now: without)."""
    chosen = _chosen(session, jobs, user, name, yes, "cancel")
    session.tell(session.store.cancel(chosen, session.now(), session.user, at_once=at_once), as_json=as_json)


_cancel.__name__ = "cancel"
cancel = click.option(
    "--now", "at_once", is_flag=True, help="No checkpoint, no grace: SIGTERM, then SIGKILL."
)(_steering(_cancel))


def unfinished(jobs: list[Job]) -> list[Job]:
    """Those that are not final."""
    return [job for job in jobs if job.state not in (State.SUCCEEDED, State.FAILED, State.CANCELLED)]
