"""`spool show`: all of one job, with its timeline."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

import click

from ..spool.model import Attempt, Event
from ..spool.quantities import show_duration
from ..spool.queue import JobView
from .queue import job_json
from .session import Session, print_json, session
from .text import iso, local, safe

#: Events that say too little for a timeline; `--events` shows them.
QUIET_EVENTS = frozenset({"leftovers"})


@click.command()
@click.argument("jobs", nargs=-1, required=True)
@click.option("--events", "all_events", is_flag=True, help="Every event, none left out.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@session
def show(session: Session, jobs: tuple[str, ...], all_events: bool, as_json: bool) -> None:
    """Show all of a job: what was asked for, its attempts, and the timeline."""
    views = [session.store.show(job) for job in session.jobs(jobs)]
    if as_json:
        values = [view_json(view) for view in views]
        print_json("job", values[0]) if len(values) == 1 else print_json("jobs", values)
        return
    click.echo("\n\n".join(render(view, session, all_events) for view in views))


def render(view: JobView, session: Session, all_events: bool = False) -> str:
    """The page of one job."""
    job, spec = view.job, view.spec
    where = job.reason_text or (job.reason if job.reason != "None" else "")
    state = job.state + (f" ({safe(job.end_text)})" if job.ended_at else f" ({safe(where)})" if where else "")
    asks = [
        f"{job.gpus} GPUs" if job.gpus else "",
        f"{job.cpus} CPUs" if job.cpus else "a share of the node's CPUs",
    ]
    asks += [
        f"{job.memory_mib} MiB" if job.memory_mib else "",
        f"type {job.gpu_type}" if job.gpu_type else "",
    ]
    facts = [
        ("Job", f"{job.id}  {safe(job.name)}"),
        ("State", state),
        ("User", f"{safe(job.user)}, project {safe(job.project)}"),
        (
            "Class",
            f"{job.job_class}, {'preemptible' if job.preemptible else 'not preemptible'}, priority {job.priority}",
        ),
        ("Asks for", ", ".join(part for part in asks if part)),
        ("Walltime", show_duration(job.walltime_s) if job.walltime_s else "none"),
        ("Grace", show_duration(job.grace_s)),
        (
            "Command",
            safe(shlex.join(spec.command)) + ("  (under torchrun)" if spec.launcher == "torchrun" else ""),
        ),
        ("Folder", safe(spec.cwd)),
        ("Output", safe(output_of(view, view.attempts[-1])) if view.attempts else ""),
        ("Checkpoint", _checkpoint(job.checkpoint, job.checkpoint_step)),
        ("Failures", f"{job.failures} of {spec.backoff_limit} forgiven" if job.failures else ""),
        ("GPU time", show_duration(job.gpu_seconds) if job.gpu_seconds else ""),
        ("Comment", safe(spec.comment)),
    ]
    lines = [f"{name:<11}{text}" for name, text in facts if text]
    lines.append("Timeline")
    lines += timeline(view.events, all_events)
    return "\n".join(lines)


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
            return f"stopping ({data.get('stop')}), grace {data.get('grace_s')} s"
        case "signalled":
            return f"{data.get('signal')} sent to process {data.get('pid')}"
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


def output_of(view: JobView, attempt: Attempt) -> str:
    """The file that an attempt's output goes to."""
    import os

    if not view.spec.output:
        return os.path.join(attempt.folder, "output.log")
    from ..sbatch.patterns import fill

    job = view.job
    names = {"j": str(job.id), "x": job.name, "u": job.user, "N": attempt.node, "A": str(job.id), "a": "0"}
    return fill(view.spec.output, names, view.spec.cwd)


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
        row["output"] = output_of(view, attempt)
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
