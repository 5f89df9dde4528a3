"""`spool why`: why a job waits, by a look at this moment with the scheduler's own rules."""

from __future__ import annotations

import click

from ..spool.model import FINAL, Job, State
from ..spool.quantities import show_duration
from .session import Session, print_json, session
from .show import ended_how
from .text import iso, local, safe


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def why(session: Session, jobs: tuple[str, ...], as_json: bool) -> None:
    """Say why JOBS (the last one) wait, by the scheduler's rules and the state of this moment."""
    from ..scheduler import snapshot
    from ..scheduler.plan import plan

    found = session.store.list(jobs=session.jobs(jobs or ("last",)))
    now = session.now()
    if not session.store.nodes():
        from ..scheduler.nodes import note_this_machine

        note_this_machine(session.store, session.config, now)
    state = snapshot.take(session.store, session.config, session.store.live())
    decided = plan(state, now)
    starts = {start.job.id for start in decided.starts}
    places = session.store.attempts_of(tuple(job.id for job in found))
    answers = []
    for job in found:
        place = places.get(job.id, ("", ""))[0]
        code, text, until = _answer(job, place, decided.reasons.get(job.id), job.id in starts, now)
        answers.append(
            {"job": job.id, "state": str(job.state), "code": code, "text": text, "until": iso(until)}
        )
    if as_json:
        print_json("why", answers)
    else:
        for answer in answers:
            click.echo(f"job {answer['job']}: {safe(str(answer['text']))}")
    session.warn_if_quiet()


def _answer(job: Job, place: str, reason: object, starts: bool, now: float) -> tuple[str, str, float | None]:
    """The reason's code, the sentence, and the earliest time at which it may change."""
    from ..scheduler.state import Never, Wait

    if job.state in FINAL:
        return "Ended", ended_how(job.state, job.end_text), None
    if job.state != State.QUEUED:
        return "Runs", f"{job.state} on {place} since {local(job.state_since)}", None
    if starts:
        return "Starts", "starts in the next pass", None
    if isinstance(reason, Wait):
        later = ""
        if reason.until and local(reason.until) not in reason.text:
            later = f" (at the earliest {local(reason.until)})"
        waits = f"; it has waited for {show_duration(max(0.0, now - job.submitted_at))}"
        return reason.code, f"{reason.text}{later}{waits}", reason.until
    if isinstance(reason, Never):
        return f"Never{reason.code}", f"never on this cluster as it is: {reason.text}", None
    return "Unknown", "not looked at yet", None
