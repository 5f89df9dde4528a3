"""`spool why`: why a job waits, by a look at this moment with the scheduler's own rules."""

from __future__ import annotations

import click

from ..spool.model import FINAL, Job, State
from ..spool.quantities import show_duration
from .session import Session, print_json, session
from .text import local, safe


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def why(session: Session, jobs: tuple[str, ...], as_json: bool) -> None:
    """Say why a job waits, by the rules of the scheduler and the state of this moment."""
    from ..scheduler import snapshot
    from ..scheduler.plan import plan

    numbers = session.jobs(jobs)
    found = [session.store.job(number) for number in numbers]
    state = snapshot.take(session.store, session.config, session.store.live())
    now = session.now()
    decided = plan(state, now)
    starts = {start.job.id for start in decided.starts}
    answers = []
    for job in found:
        code, text = _answer(session, job, decided.reasons.get(job.id), job.id in starts, now)
        answers.append({"job": job.id, "state": str(job.state), "code": code, "text": text})
    if as_json:
        print_json("why", answers)
        return
    for answer in answers:
        click.echo(f"job {answer['job']}: {safe(str(answer['text']))}")
    session.warn_if_quiet()


def _answer(session: Session, job: Job, reason: object, starts: bool, now: float) -> tuple[str, str]:
    from ..scheduler.state import Never, Wait

    if job.state in FINAL:
        return "Ended", f"{job.state}: {job.end_text}"
    if job.state != State.QUEUED:
        place = session.store.attempts_of((job.id,)).get(job.id, ("", ""))[0]
        return "Runs", f"{job.state} on {place} since {local(job.state_since)}"
    if starts:
        return "Starts", "starts in the next pass"
    if isinstance(reason, Wait):
        later = (
            f" (at the earliest {local(reason.until)})"
            if reason.until and str(local(reason.until)) not in reason.text
            else ""
        )
        waits = f"; it has waited for {show_duration(max(0.0, now - job.submitted_at))}"
        return reason.code, f"{reason.text}{later}{waits}"
    if isinstance(reason, Never):
        return f"Never{reason.code}", f"never on this cluster as it is: {reason.text}"
    return "Unknown", "not looked at yet"
