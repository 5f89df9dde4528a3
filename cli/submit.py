"""`spool submit`: answer first, let the tick follow."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ..scheduler.intake import CHECKPOINT_FORMATS, Request, put, remarks
from ..spool.model import Submission
from ..spool.quantities import show_duration
from ..spool.queue import HOLD_TEXTS
from .session import Session, print_json, session
from .text import count, local, safe

#: The options of `--help` in the order in which they are thought of; what is in no section stands under "Answer".
SECTIONS = {
    "What it is": ("name", "project", "job_class", "priority", "preemptible", "comment"),
    "What it takes": ("nodes", "gpus", "gpus_per_node", "gpu_type", "cpus", "memory"),
    "When": ("walltime", "begin", "hold", "min_runtime"),
    "Where": ("cwd", "output", "error"),
    "torchrun": ("torchrun", "nproc", "module", "python"),
    "Stopping and going on": (
        "grace",
        "stop_signal",
        "resume_arg",
        "checkpoint_dir",
        "checkpoint_format",
        "on_timeout",
        "stopped_exit_0",
    ),
    "Failures": ("backoff_limit", "backoff_reset", "max_attempts", "max_gpu_hours"),
}


class SubmitCommand(click.Command):
    """A command whose many options stand in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The sections of the help."""
        records = {
            param.name: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None
        }
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Answer"):
            formatter.write_dl(list(records.values()))


@click.command(cls=SubmitCommand, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...")
@click.option(
    "-J", "--job-name", "name", metavar="NAME", default="", help="Name (the script's or program's)."
)
@click.option(
    "-A", "--project", "--account", "project", metavar="NAME", default="", help="Project whose quota counts."
)
@click.option(
    "--class",
    "job_class",
    metavar="NAME",
    default="",
    help="reserved, ondemand, spot, idle, offpeak, or one of the site's.",
)
@click.option("--priority", metavar="NAME", default="", help="low, normal, high, urgent, or 0 to 1000.")
@click.option("--preemptible/--no-preemptible", default=None, help="Override what the class says.")
@click.option("--comment", default="", help="Any text.")
@click.option("-N", "--nodes", metavar="N", type=int, default=None, help="Nodes (1).")
@click.option("-G", "--gpus", metavar="N", type=int, default=None, help="GPUs in all, as in Slurm.")
@click.option("--gpus-per-node", metavar="N", type=int, default=None, help="GPUs on each node.")
@click.option("--gpu-type", metavar="NAME", default="", help="Type of GPU, such as h100 ('spool node list').")
@click.option(
    "-c",
    "--cpus",
    "--cpus-per-task",
    "cpus",
    metavar="N",
    type=int,
    default=None,
    help="CPUs (1; with GPUs a share of the node).",
)
@click.option("--mem", "memory", metavar="SIZE", default="", help="Memory: 500M, 20G; a bare number is MiB.")
@click.option(
    "-t",
    "--time",
    "walltime",
    metavar="TIME",
    default="",
    help="Walltime: 60 (minutes), 1:30:00, 2-12, 90s, 2h (none).",
)
@click.option(
    "-b", "--begin", metavar="WHEN", default="", help="Not before: now+2h, 22:00, tomorrow, 2030-01-31T08:00."
)
@click.option("-H", "--hold", is_flag=True, help="Held until 'spool release'.")
@click.option("--min-runtime", metavar="TIME", default="", help="Not preempted before it ran this long.")
@click.option("-D", "--chdir", "cwd", metavar="FOLDER", default="", help="Working folder (the present one).")
@click.option(
    "-o", "--output", metavar="FILE", default="", help="Output file; %j job, %x name, %u user, %N node."
)
@click.option("-e", "--error", metavar="FILE", default="", help="File for standard error (with the output).")
@click.option("--torchrun", is_flag=True, help="Run the script under torchrun: a worker a GPU.")
@click.option("--nproc", metavar="N", type=int, default=None, help="Workers a node.")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m.")
@click.option("--python", metavar="FILE", default="", help="The Python that has torch (the first on PATH).")
@click.option(
    "--grace", metavar="TIME", default="", help="From the stop signal to the end, at most 5m (60s)."
)
@click.option("--stop-signal", metavar="NAME", default="", help="Signal that asks for a checkpoint (USR2).")
@click.option(
    "--resume-arg",
    default=None,
    help="What {resume} becomes (--resume_from_checkpoint); 'X=' for one argument.",
)
@click.option(
    "--checkpoint-dir", metavar="FOLDER", default="", help="Where the program keeps its checkpoints."
)
@click.option(
    "--checkpoint-format",
    type=click.Choice(CHECKPOINT_FORMATS),
    default=None,
    help="Format, where it cannot be told.",
)
@click.option(
    "--on-timeout", type=click.Choice(["requeue", "fail"]), default=None, help="At the end of the walltime."
)
@click.option(
    "--stopped-exit-0",
    type=click.Choice(["requeue", "done"]),
    default=None,
    help="Meaning of exit 0 after a stop (requeue).",
)
@click.option("--backoff-limit", metavar="N", type=int, default=None, help="Failures that are forgiven (3).")
@click.option(
    "--backoff-reset",
    type=click.Choice(["never", "progress"]),
    default=None,
    help="What clears their count (never).",
)
@click.option("--max-attempts", metavar="N", type=int, default=None, help="Attempts of any kind (100).")
@click.option("--max-gpu-hours", metavar="N", type=float, default=None, help="GPU hours over all attempts.")
@click.option("--parsable", is_flag=True, help="Print the job's number alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@click.option("-W", "--wait", "wait_for_it", is_flag=True, help="Wait for the end; give its exit code.")
@session
def submit(session: Session, /, parsable: bool, as_json: bool, wait_for_it: bool, **given: Any) -> None:
    """Put COMMAND into the queue. Options stand before it; -- may separate the two.

    \b
    spool submit -- python train.py
    spool submit -G 4 -t 8h --torchrun -- train.py --lr 1e-4
    spool submit -G 1 --class spot -- python train.py {resume}
    spool submit -W -c 2 -- sh -c 'make -j2 && make test'
    """
    values = {name: value for name, value in given.items() if value is not None}
    request = Request(**{**values, "command": list(given["command"]), "env": dict(os.environ)})
    now = session.now()
    job, submission = put(session.store, session.config, request, now)
    try:
        if as_json:
            from .queue import job_json

            print_json("job", job_json(session.store.job(job)))
        elif parsable:
            click.echo(job)
        else:
            click.echo(f"Submitted job {job} ({describe(submission)})")
            why = _known_reason(session, submission, now)
            if why:
                click.echo(f"it waits: {why}", err=True)
        for remark in remarks(submission):
            click.echo(f"note: {safe(remark)}", err=True)
    finally:
        # Also when nobody reads the answer any more: the job stands in the store.
        session.after_change()
    if wait_for_it:
        from .wait import wait_and_tell

        try:
            code = wait_and_tell(session, (job,))
        except KeyboardInterrupt:
            click.echo(f"\njob {job} goes on; 'spool cancel {job}' ends it", err=True)
            raise
        sys.exit(code)


def describe(submission: Submission) -> str:
    """The job in a few words: class, what it takes, durations, project."""
    parts = [safe(submission.job_class)]
    if submission.gpus:
        kind = f"{safe(submission.gpu_type)} " if submission.gpu_type else ""
        parts.append(count(submission.gpus, f"{kind}GPU"))
    if submission.cpus:
        parts.append(count(submission.cpus, "CPU"))
    if submission.memory_mib:
        parts.append(f"{submission.memory_mib} MiB")
    parts.append(
        f"walltime {show_duration(submission.walltime_s)}" if submission.walltime_s else "no walltime"
    )
    if submission.preemptible or submission.grace_s != 60:
        parts.append(f"grace {show_duration(submission.grace_s)}")
    if submission.min_runtime_s:
        parts.append(f"minimum runtime {show_duration(submission.min_runtime_s)}")
    if submission.project != "default":
        parts.append(f"project {safe(submission.project)}")
    return ", ".join(parts)


def _known_reason(session: Session, submission: Submission, now: float) -> str:
    """Why it waits, where that is known before any pass has looked at it."""
    if submission.hold:
        return HOLD_TEXTS[submission.hold]
    if submission.begin_at > now:
        return f"begins at {local(submission.begin_at)}"
    window = session.config.windows.get(session.config.classes[submission.job_class].window)
    if window is not None and window.closes_after(now) is None:
        opens = window.opens_after(now)
        return f"window {window.name!r} {f'opens at {local(opens)}' if opens else 'never opens'}"
    return ""
