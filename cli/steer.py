"""The commands that steer jobs: cancel, stop, resume, hold, release, requeue, preempt."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..spool.model import LIVE, Job, State
from ..spool.queue import Outcome, states_from
from .session import Session, confirm_many, session

UNFINISHED = (State.QUEUED, *LIVE)


class _Choice:
    """Which jobs a command is for, as its arguments and options say."""

    def __init__(self, command: str, states: tuple[State, ...], wanted: Callable[[Job], bool] | None = None):
        self.command, self.states, self.wanted = command, states, wanted

    def __call__(
        self,
        session: Session,
        jobs: tuple[str, ...],
        *,
        user: str,
        me: bool,
        name: str,
        project: str,
        states: str,
        yes: bool,
    ) -> tuple[int, ...]:
        """The jobs, asked about where they are many. Raises BadRequest, NoSuchJob or UsageError."""
        store = session.store
        chosen = states_from(states)
        filters = bool(user or me or name or project or chosen)
        if not jobs and not filters:
            raise click.UsageError(
                "name jobs (12, 1-5,9, last), or choose them with --me, --user, --name, --project, --states"
            )
        found = store.list(
            jobs=session.jobs(jobs) if jobs else (),
            user=session.user if me else user,
            name=name,
            project=project,
            states=chosen if chosen or jobs else self.states,
        )
        if not jobs and not chosen and self.wanted is not None:
            found = [job for job in found if self.wanted(job)]
        if not found:
            click.echo("no such jobs", err=True)
        confirm_many(found, self.command, session.user, yes=yes)
        return tuple(job.id for job in found)


def _steering(
    name: str,
    states: tuple[State, ...],
    which: str,
    wanted: Callable[[Job], bool] | None = None,
    **options: click.Option,
) -> Callable[[Callable[..., list[Outcome]]], click.Command]:
    """A command that carries out `function(session, jobs)`; filters alone mean the jobs in `states` (`which`)."""
    choose = _Choice(name, states, wanted)

    def wrap(function: Callable[..., list[Outcome]]) -> click.Command:
        @session
        def run(session: Session, /, jobs: tuple[str, ...], as_json: bool, **given: object) -> None:
            more = {key: given.pop(key) for key in options}
            chosen = choose(session, jobs, **given)  # type: ignore[arg-type]
            session.tell(function(session, chosen, **more), as_json=as_json)

        command = click.command(name=name, help=function.__doc__)(run)
        command.params += [
            click.Argument(["jobs"], nargs=-1),
            *options.values(),
            click.Option(["--me"], is_flag=True, help=f"All my {which} jobs."),
            click.Option(["-u", "--user"], default="", help=f"All {which} jobs of this user."),
            click.Option(["-n", "--name"], default="", help=f"All {which} jobs of this name."),
            click.Option(
                ["-A", "--project", "--account", "project"],
                default="",
                help=f"All {which} jobs of this project.",
            ),
            click.Option(
                ["-t", "--states"],
                default="",
                help=f"Jobs in these states instead of all that are {which}: failed, or PD,R.",
            ),
            click.Option(["-y", "--yes"], is_flag=True, help="Do not ask, however many jobs."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print what happened as JSON."),
        ]
        return command

    return wrap


_AT_ONCE = click.Option(
    ["--now", "at_once"], is_flag=True, help="No checkpoint, no grace: SIGTERM, then SIGKILL."
)


@_steering("cancel", UNFINISHED, "unfinished", at_once=_AT_ONCE)
def cancel(session: Session, jobs: tuple[int, ...], at_once: bool) -> list[Outcome]:
    """Cancel jobs: waiting ones at once, running ones after a checkpoint (--now: without)."""
    return session.store.cancel(jobs, session.now(), session.user, at_once=at_once)


@_steering("stop", UNFINISHED, "unfinished", lambda job: job.hold != "stop")
def stop(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Stop jobs after a checkpoint; they stay in the queue, held, until 'spool resume'."""
    return session.store.stop(jobs, session.now(), session.user)


@_steering("resume", (State.QUEUED,), "stopped or held", lambda job: bool(job.hold))
def resume(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Let stopped, held, failed or cancelled jobs go on from their checkpoints."""
    return session.store.resume(jobs, session.now(), session.user)


@_steering("hold", (State.QUEUED,), "waiting", lambda job: not job.hold)
def hold(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Keep waiting jobs from starting until 'spool release'."""
    return session.store.hold(jobs, session.now(), session.user)


@_steering("release", (State.QUEUED,), "held", lambda job: bool(job.hold))
def release(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Let held jobs start; one that backs off may start at once."""
    return session.store.release(jobs, session.now(), session.user)


@_steering("requeue", LIVE, "running")
def requeue(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Run jobs again: finished ones from the queue, running ones after a checkpoint."""
    return session.store.requeue(jobs, session.now(), session.user)


@_steering("preempt", LIVE, "running")
def preempt(session: Session, jobs: tuple[int, ...]) -> list[Outcome]:
    """Preempt running jobs: checkpoint, then queued again; never charged."""
    return session.store.preempt(jobs, session.now(), session.user)
