"""`spool submit`: answer first, let the tick follow."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ..scheduler.intake import Request, build, refuse_never
from ..spool.model import Submission
from ..spool.quantities import show_duration
from ..spool.store import refuse_without_space
from .session import Session, print_json, session
from .text import safe

CHECKPOINT_FORMATS = ("auto", "hf", "lightning", "torch", "safetensors", "gpuspool")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-J", "--job-name", "name", default="", help="Name; default: the script's or program's.")
@click.option("-A", "--project", "--account", "project", default="", help="Project whose quota counts.")
@click.option(
    "--class", "job_class", default="", help="reserved, ondemand, spot, idle, offpeak, or one of the site's."
)
@click.option("--priority", default="", help="low, normal, high, urgent, or 0 to 1000.")
@click.option("--preemptible/--no-preemptible", default=None, help="Override what the class says.")
@click.option("-N", "--nodes", type=int, default=None, help="Nodes (1).")
@click.option("-G", "--gpus", type=int, default=None, help="GPUs in all, as in Slurm.")
@click.option("--gpus-per-node", type=int, default=None, help="GPUs on each node.")
@click.option("--gpu-type", default="", help="Type of GPU, such as h100; 'spool node list' shows them.")
@click.option(
    "-c",
    "--cpus",
    "--cpus-per-task",
    "cpus",
    type=int,
    default=None,
    help="CPUs (1; with GPUs a share of the node).",
)
@click.option("--mem", "memory", default="", help="Memory: 500M, 20G; a bare number is MiB.")
@click.option("-t", "--time", "walltime", default="", help="Walltime: 60 (minutes), 1:30:00, 2-12, 90s, 2h.")
@click.option("--grace", default="", help="From the stop signal to the end, at most 5m (60s).")
@click.option("--min-runtime", default="", help="Not preempted before it ran this long.")
@click.option("-b", "--begin", default="", help="Not before: now+2h, 22:00, tomorrow, 2030-01-31T08:00.")
@click.option("-H", "--hold", is_flag=True, help="Held until 'spool release'.")
@click.option("-D", "--chdir", "cwd", default="", help="Working folder (the present one).")
@click.option("-o", "--output", default="", help="Output file; %j job, %x name, %u user, %N node.")
@click.option("-e", "--error", default="", help="File for standard error (with the output).")
@click.option("--torchrun", is_flag=True, help="Run the script under torchrun: one worker a GPU.")
@click.option("--nproc", type=int, default=None, help="Workers a node under --torchrun.")
@click.option("--python", default="", help="The Python that has torch (the first on PATH).")
@click.option("-m", "--module", is_flag=True, help="Under --torchrun: run a module, as python -m.")
@click.option("--stop-signal", default="", help="Signal that asks for a checkpoint (USR2).")
@click.option(
    "--resume-arg",
    default=None,
    help="What {resume} becomes (--resume_from_checkpoint); 'X=' for one argument.",
)
@click.option("--checkpoint-dir", default="", help="Where the program keeps its checkpoints.")
@click.option(
    "--checkpoint-format",
    type=click.Choice(CHECKPOINT_FORMATS),
    default=None,
    help="Format, where it cannot be told.",
)
@click.option("--backoff-limit", type=int, default=None, help="Failures that are forgiven (3).")
@click.option(
    "--backoff-reset", type=click.Choice(["never", "progress"]), default=None, help="What clears that count."
)
@click.option("--max-attempts", type=int, default=None, help="Attempts of any kind (100).")
@click.option("--max-gpu-hours", type=float, default=None, help="GPU hours over all attempts.")
@click.option(
    "--on-timeout", type=click.Choice(["requeue", "fail"]), default=None, help="At the end of the walltime."
)
@click.option(
    "--stopped-exit-0",
    type=click.Choice(["requeue", "done"]),
    default=None,
    help="Meaning of exit 0 after a stop.",
)
@click.option("--comment", default="", help="Any text.")
@click.option("--parsable", is_flag=True, help="Print the job's number alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@click.option("-W", "--wait", "wait_for_it", is_flag=True, help="Wait for the end; give the job's exit code.")
@session
def submit(session: Session, parsable: bool, as_json: bool, wait_for_it: bool, **given: Any) -> None:
    """Put COMMAND into the queue. Options stand before it; -- may separate the two.

    \b
    spool submit -- python train.py
    spool submit -G 4 -t 8h --torchrun -- train.py --lr 1e-4
    spool submit -G 1 --class spot -- python train.py {resume}
    """
    values = {name: value for name, value in given.items() if value is not None}
    request = Request(**{**values, "command": list(given["command"]), "env": dict(os.environ)})
    if given["preemptible"] is None:
        request.preemptible = None
    now = session.now()
    submission = build(request, session.config, now)
    refuse_without_space(session.folders, session.config["spool.free_space_mib"])
    refuse_never(session.store, session.config, submission, now)
    job = session.store.submit([submission], now)[0]
    if as_json:
        print_json(
            "job", {"id": job, "name": submission.name, "class": submission.job_class, "state": "queued"}
        )
    elif parsable:
        click.echo(job)
    else:
        click.echo(f"Submitted job {job} ({describe(submission)})")
        why = _known_reason(session, submission, now)
        if why:
            click.echo(f"it waits: {why}", err=True)
    if session.after_change() == "nobody":
        click.echo("nobody schedules: type 'spool daemon start' or 'spool tick'", err=True)
    if wait_for_it:
        from .wait import wait_for

        sys.exit(wait_for(session, (job,), None))


def describe(submission: Submission) -> str:
    """The job in a few words: class, what it takes, walltime, project."""
    parts = [submission.job_class]
    if submission.gpus:
        kind = f" {submission.gpu_type}" if submission.gpu_type else ""
        parts.append(f"{submission.gpus}{kind} GPU{'s' if submission.gpus > 1 else ''}")
    if submission.cpus:
        parts.append(f"{submission.cpus} CPU{'s' if submission.cpus > 1 else ''}")
    parts.append(
        f"walltime {show_duration(submission.walltime_s)}" if submission.walltime_s else "no walltime"
    )
    if submission.project != "default":
        parts.append(f"project {safe(submission.project)}")
    return ", ".join(parts)


def _known_reason(session: Session, submission: Submission, now: float) -> str:
    """Why it waits, where that is known before any pass has looked at it."""
    if submission.hold:
        return "held; 'spool release' lets it go"
    if submission.begin_at > now:
        from ..scheduler.eligibility import clock

        return f"begins at {clock(submission.begin_at)}"
    window = session.config.windows.get(session.config.classes[submission.job_class].window)
    if window is not None and window.closes_after(now) is None:
        from ..scheduler.eligibility import clock

        opens = window.opens_after(now)
        return (
            f"window {window.name!r} opens at {clock(opens)}"
            if opens
            else f"window {window.name!r} never opens"
        )
    return ""
