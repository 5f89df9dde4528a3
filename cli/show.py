"""`spool show`: all of one job, with its timeline."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict
from typing import Any

import click

from ..spool.model import FINAL, LIVE, Attempt, Event, State
from ..spool.quantities import show_duration
from ..spool.queue import JobView
from .queue import job_json, waits_for
from .session import Session, print_json, session
from .text import count, iso, local, safe

#: Events that say too little for a timeline; `--events` shows them.
QUIET_EVENTS = frozenset({"leftovers"})


@click.command()
@click.argument("jobs", nargs=-1)
@click.option("--events", "all_events", is_flag=True, help="Every event, none left out.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def show(session: Session, jobs: tuple[str, ...], all_events: bool, as_json: bool) -> None:
    """Show all of JOBS (the last one): what was asked for, the attempts, and the timeline.

    \b
    spool show
    spool show 12 --json
    """
    views = [session.store.show(job) for job in session.jobs(jobs or ("last",))]
    if as_json:
        values = [view_json(view) for view in views]
        print_json("job", values[0]) if len(values) == 1 else print_json("jobs", values)
        return
    click.echo("\n\n".join(render(view, all_events) for view in views))


def render(view: JobView, all_events: bool = False) -> str:
    """The page of one job."""
    job, spec = view.job, view.spec
    last = view.attempts[-1] if view.attempts else None
    state = job.state
    if job.state in FINAL:
        state = ended_how(job.state, job.end_text)
    elif job.state == State.QUEUED:
        state += f" ({safe(waits_for(job))})"
    elif job.state in LIVE and last is not None:
        state += f" on {safe(last.node)}"
    firm = "preemptible" if job.preemptible else "not preemptible"
    asks = [
        count(job.nodes, "node") if job.nodes > 1 else "",
        count(job.gpus, f"{safe(job.gpu_type)} GPU".strip()) if job.gpus else "",
        count(job.cpus, "CPU") if job.cpus else "a share of the node's CPUs",
        f"{job.memory_mib} MiB" if job.memory_mib else "",
    ]
    failures = job.failures - (job.state in LIVE)  # the claim of what runs counts until its end gives it back
    started = f", started {local(job.started_at)}" if job.started_at else ""
    ended = f", ended {local(job.ended_at)}" if job.ended_at else ""
    facts = [
        ("Job", f"{job.id}  {safe(job.name)}"),
        ("State", state),
        ("User", f"{safe(job.user)}, project {safe(job.project)}"),
        (
            "Class",
            f"{safe(job.job_class)}, {firm}, priority {job.priority}",
        ),
        ("Asks for", ", ".join(part for part in asks if part)),
        ("Walltime", show_duration(job.walltime_s) if job.walltime_s else "none"),
        ("Grace", show_duration(job.grace_s)),
        ("Begin", local(job.begin_at) if job.begin_at else ""),
        ("Times", f"submitted {local(job.submitted_at)}{started}{ended}"),
        (
            "Command",
            safe(shlex.join(spec.command)).replace("'{resume}'", "{resume}")
            + ("  (under torchrun)" if spec.launcher == "torchrun" else ""),
        ),
        ("Folder", safe(spec.cwd)),
        ("Output", safe(output_file(view, last)) if last else ""),
        ("Errors", safe(error_file(view, last)) if last and spec.error else ""),
        ("Checkpoint", _checkpoint(job.checkpoint, job.checkpoint_step)),
        ("Failures", f"{failures} ({spec.backoff_limit} are forgiven)" if failures else ""),
        ("GPU time", show_duration(job.gpu_seconds) if job.gpu_seconds else ""),
        ("Comment", safe(spec.comment)),
    ]
    lines = [f"{name:<11}{text}" for name, text in facts if text]
    lines.append("Timeline")
    lines += timeline(view.events, all_events)
    return "\n".join(lines)


def ended_how(state: str, text: str) -> str:
    """A final state and its sentence, without saying `failed: failed at once`."""
    return safe(text) if text.startswith(state) else f"{state}: {safe(text)}"


def timeline(events: list[Event], all_events: bool = False) -> list[str]:
    """One line an event, in order of time."""
    lines = []
    for event in sorted(events, key=lambda event: (event.at, event.id)):
        if event.kind in QUIET_EVENTS and not all_events:
            continue
        attempt = f"#{event.attempt}" if event.attempt else ""
        lines.append(f"  {local(event.at)}.{int(event.at % 1 * 1000):03d}  {attempt:<4}{_sentence(event)}")
    return lines


def _sentence(event: Event) -> str:
    data: dict[str, Any] = json.loads(event.data)
    text = safe(event.text)
    match event.kind:
        case "submitted":
            return f"submitted by {safe(event.actor)}"
        case "claimed":
            gpus = f", GPUs {', '.join(data.get('gpus', []))}" if data.get("gpus") else ""
            return f"claimed for {safe(data.get('node', ''))}{gpus}"
        case "started":
            resume = data.get("resume_from")
            step = f" (step {data['resume_step']})" if data.get("resume_step") is not None else ""
            return "started" + (f", goes on from {safe(str(resume))}{step}" if resume else "")
        case "checkpoint":
            step = f"step {data['step']}" if data.get("step") is not None else "no step"
            return f"checkpoint complete: {step}, {safe(str(data.get('path', '')))}"
        case "checkpoint_broken":
            return f"checkpoint passed over: {safe(str(data.get('path', '')))}: {text}"
        case "stop_requested":
            return f"asked to stop by {safe(event.actor)}: {text}"
        case "stopping":
            return f"stopping ({data.get('stop')}), grace {show_duration(data.get('grace_s') or 0)}"
        case "signalled":
            return f"{safe(str(data.get('signal')))} sent to process {data.get('pid')}"
        case "ended":
            charged = ", counts against the backoff limit" if data.get("charged") else ""
            return f"ended: {text}{charged}"
        case "held" | "released" | "resumed" | "requeued" | "cancelled":
            return f"{event.kind} by {safe(event.actor)}" + (f": {text}" if text else "")
        case _:
            return event.kind.replace("_", " ") + (f": {text}" if text else "")


def _checkpoint(path: str, step: int | None) -> str:
    if not path:
        return ""
    return safe(path) + (f" (step {step})" if step is not None else "")


def output_file(view: JobView, attempt: Attempt) -> str:
    """The file that an attempt's output goes to."""
    return _file(view, attempt, view.spec.output) or os.path.join(attempt.folder, "output.log")


def error_file(view: JobView, attempt: Attempt) -> str:
    """The file that an attempt's standard error goes to: the output's, where none was named."""
    return _file(view, attempt, view.spec.error) or output_file(view, attempt)


def _file(view: JobView, attempt: Attempt, pattern: str) -> str:
    if not pattern:
        return ""
    from ..sbatch.patterns import fill, job_names

    job = view.job
    return fill(pattern, job_names(job.id, job.name, job.user, attempt.node), view.spec.cwd)


def view_json(view: JobView) -> dict[str, Any]:
    """A job with spec, attempts and events; the environment stays out, since it may hold secrets."""
    place = (view.attempts[-1].node, view.attempts[-1].gpu_uuids) if view.attempts else None
    spec = asdict(view.spec)
    del spec["env"]
    attempts = []
    for attempt in view.attempts:
        row = asdict(attempt)
        for name in ("token", "launcher", "handle"):
            del row[name]
        row["gpu_uuids"] = json.loads(attempt.gpu_uuids)
        for name in ("created_at", "started_at", "ended_at", "stop_at", "lost_at", "ends_by"):
            row[name] = iso(row[name])
        row["output"] = output_file(view, attempt)
        row["error"] = error_file(view, attempt)
        attempts.append(row)
    events = [
        {
            "at": iso(event.at),
            "attempt": event.attempt,
            "actor": event.actor,
            "kind": event.kind,
            "text": event.text,
            "data": json.loads(event.data),
        }
        for event in view.events
    ]
    return job_json(view.job, place) | {"spec": spec, "attempts": attempts, "events": events}
