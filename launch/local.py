"""The local backend: attempts on this machine, each under a supervisor of its own."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..sbatch.patterns import fill, job_names
from ..spool.config import Config
from ..spool.durable import claim, make_private, read_json, write_json, write_passing
from ..spool.eventlog import read
from ..spool.folders import Folders
from ..spool.lifecycle import LiveAttempt
from ..spool.model import JobSpec
from ..spool.processes import ProcessName, boot_id, host_name
from ..spool.values import dataclass
from . import cgroup, scratch
from .command import ELASTIC, job_argv, job_environment
from .forkserver import ForkServer, spawn_cold
from .guardian import is_held
from .plan import AttemptPlan, PlanUnreadable, StopRequest, read_plan, write_control
from .processes import MARKER, Process, ancestors, descendants, in_session, look, marked, send


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of an attempt's supervisor: unclaimed, revoked, alive, dead, or rebooted (another boot)."""

    word: str
    supervisor: ProcessName | None = None


class LocalBackend:
    """Starts, stops and looks after attempts on this machine."""

    name = "local"

    def __init__(self, folders: Folders, config: Config) -> None:
        self.folders, self.config = folders, config
        self.node = host_name()
        self.fork_server: ForkServer | None = None
        self.warm = False  # the daemon sets it: worth a fork server
        self._cgroup: str | None = None

    def configure(self, config: Config) -> None:
        """Start further attempts under another configuration."""
        self.config = config
        self._cgroup = None

    def close(self) -> None:
        """End the fork server, if there is one; supervisors go on."""
        if self.fork_server is not None:
            self.fork_server.close()
            self.fork_server = None

    # -- starting ----------------------------------------------------------------------------------------

    def prepare(self, live: LiveAttempt, spec: JobSpec, *, hide_gpus: bool) -> None:
        """Make the attempt's folder and plan, durably. Raises OSError (a full disk, say)."""
        job, attempt = live.job, live.attempt
        folder = attempt.folder
        make_private(folder)
        checkpoints = spec.checkpoint_dir or self.folders.checkpoints(job.id)
        if not spec.checkpoint_dir:
            make_private(checkpoints)
        if spec.launcher == "torchrun":
            with open(os.path.join(os.path.dirname(__file__), ELASTIC), "rb") as source:
                write_passing(os.path.join(folder, ELASTIC), source.read())
        own_scratch = scratch.make(attempt.token)
        gpu_uuids = _uuids(attempt.gpu_uuids)
        names = job_names(job.id, job.name, job.user, self.node)
        output = fill(spec.output, names, spec.cwd) if spec.output else os.path.join(folder, "output.log")
        done = os.path.join(folder, "done")
        facts = {
            "GPUSPOOL_JOB_ID": str(job.id),
            "GPUSPOOL_ATTEMPT": str(attempt.number),
            "GPUSPOOL_CHECKPOINT_DIR": checkpoints,
            "GPUSPOOL_RESUME_FROM": "",
            "GPUSPOOL_GRACE_S": str(attempt.grace_s),
            "GPUSPOOL_DONE": done,
            "GPUSPOOL_SCRATCH": own_scratch,
            "GPUSPOOL_STOP_SIGNAL": spec.stop_signal,
            MARKER: attempt.token,
        }
        AttemptPlan(
            job=job.id,
            attempt=attempt.number,
            token=attempt.token,
            argv=job_argv(spec, folder, len(gpu_uuids)),
            cwd=spec.cwd,
            env=job_environment(spec.env, facts, gpu_uuids, hide_gpus=hide_gpus),
            umask=spec.umask,
            output=output,
            error=fill(spec.error, names, spec.cwd) if spec.error else "",
            checkpoint_dir=checkpoints,
            checkpoint_format=spec.checkpoint_format,
            own_checkpoint_dir=not spec.checkpoint_dir,
            done_file=done,
            scratch=own_scratch,
            walltime_s=attempt.walltime_s,
            ends_by=attempt.ends_by,
            grace_s=attempt.grace_s,
            term_to_kill_s=self.config["supervisor.term_to_kill"],
            heartbeat_s=self.config["supervisor.heartbeat"],
            stop_signal=spec.stop_signal,
            launcher=spec.launcher,
            waits_for_checkpoint=spec.has_resume_rule or bool(job.checkpoint),
            cgroup=self._cgroup_parent(),
            runtime=self.folders.runtime,
            wake=tick_command(),
            gpu_uuids=list(gpu_uuids),
            resume_arg=spec.resume_arg,
        ).write(folder)

    def start(self, attempts: list[LiveAttempt]) -> dict[str, str]:
        """Start the supervisors of prepared attempts; by attempt folder its process name, '' when only its claim tells.

        A folder that is missing in the answer was certainly not started.
        """
        folders = [live.attempt.folder for live in attempts]
        found: dict[str, str] = {}
        if self.warm:
            try:
                if self.fork_server is None or self.fork_server.wire.closed:
                    self.close()
                    self.fork_server = ForkServer()
                here = boot_id()
                for folder, (pid, start) in self.fork_server.start(folders).items():
                    found[folder] = ProcessName(self.node, here, pid, start).text()
            except OSError:
                self.close()
            if len(found) < len(folders):
                self.close()  # it fell silent, or cannot fork: the next start makes a new one
        for folder in folders:
            # A twin of one that was forked after all finds its claim and ends.
            if folder not in found:
                try:
                    spawn_cold(folder)
                except OSError:
                    continue
                found[folder] = ""
        return found

    def _cgroup_parent(self) -> str:
        if self._cgroup is None:
            self._cgroup = cgroup.find_parent() if self.config["local.cgroup"] == "auto" else ""
        return self._cgroup

    # -- steering ----------------------------------------------------------------------------------------

    def stop(self, folder: str, request: StopRequest) -> None:
        """Ask the attempt in `folder` to stop, durably. Raises OSError."""
        write_control(folder, request)

    def revoke(self, folder: str, token: str) -> bool:
        """Give an attempt up: `revoked` first, then the claim. True when it certainly never runs.

        False: its supervisor was quicker. It either runs (and is stopped like any other) or finds `revoked` and ends.
        """
        make_private(folder)
        write_json(os.path.join(folder, "revoked"), {"token": token})
        path = os.path.join(folder, "claim-0-0")
        if claim(path, {"by": "scheduler", "token": token}):
            return True
        value = read_json(path)
        return isinstance(value, dict) and value.get("by") == "scheduler"

    # -- looking -----------------------------------------------------------------------------------------

    def sight(self, live: LiveAttempt) -> Sight:
        """Whether the attempt's supervisor lives."""
        attempt = live.attempt
        here = boot_id()
        launcher = ProcessName.parse(attempt.launcher)
        if launcher is not None and launcher.boot_id != here:
            return Sight("rebooted")
        value: Any = read_json(os.path.join(attempt.folder, "claim-0-0"))
        if not isinstance(value, dict):
            return Sight("unclaimed")
        if value.get("by") != "supervisor":
            return Sight("revoked")
        supervisor = ProcessName.parse(str(value.get("process", "")))
        if supervisor is not None and supervisor.boot_id != here:
            return Sight("rebooted", supervisor)
        alive = (
            (supervisor is not None and supervisor.alive())
            or is_held(os.path.join(attempt.folder, "lock-0"))
            or is_held(os.path.join(self.folders.runtime, f"guard-{attempt.token}"))
        )
        return Sight("alive" if alive else "dead", supervisor)

    def leftovers(self, live: LiveAttempt) -> list[Process]:
        """What is alive of an attempt without supervisor: by cgroup, descent, session, marker, and what was seen."""
        token = live.attempt.token
        found: dict[int, Process] = {}
        if parent := self._cgroup_parent():
            for process in cgroup.members(os.path.join(parent, f"gpuspool-{token}")):
                found[process.pid] = process
        roots = []
        sight = self.sight(live)
        if sight.supervisor is not None:
            for process in in_session(sight.supervisor.pid, sight.supervisor.start):
                roots.append(process)
        roots += marked(token)
        for pid, start in [*self._seen(token), *_commands(live.attempt.folder)]:
            known = look(pid)
            if known is not None and known.start == start:
                roots.append(known)
        for process in roots:
            found[process.pid] = process
            for child in descendants(process.pid):
                found[child.pid] = child
        for pid in ancestors(os.getpid()):
            found.pop(pid, None)
        return list(found.values())

    def _seen(self, token: str) -> list[tuple[int, int]]:
        """Pid and start time of what a recorder saw as the attempt's; [] for a note that is missing or damaged."""
        value = read_json(os.path.join(self.folders.runtime, f"seen-{token}"))
        return [pair for entry in value if (pair := _name(entry))] if isinstance(value, list) else []

    def signal(self, processes: list[Process], number: int) -> None:
        """Send `number` to each of `processes` that is still the one that was looked at."""
        for process in processes:
            send(process, number)

    def forget(self, live: LiveAttempt) -> None:
        """Remove the node-local traces of an attempt that has ended without its supervisor, its scratch included."""
        token = live.attempt.token
        try:
            folder = read_plan(live.attempt.folder).scratch
        except (PlanUnreadable, OSError):
            folder = scratch.path_of(token)  # made before the plan was
        if os.path.basename(folder) == f"scratch-{token}":
            scratch.remove_aside(folder)
        for name in (f"guard-{token}", f"seen-{token}"):
            try:
                os.unlink(os.path.join(self.folders.runtime, name))
            except OSError:
                pass
        if parent := self._cgroup_parent():
            cgroup.remove(os.path.join(parent, f"gpuspool-{token}"))


def _name(value: Any) -> tuple[int, int] | None:
    """Pid and start time as a process was noted; None for anything else."""
    fine = (
        isinstance(value, list) and len(value) == 2 and all(type(part) is int and part > 0 for part in value)
    )
    return (value[0], value[1]) if fine else None


def _commands(folder: str) -> list[tuple[int, int]]:
    """Pid and start time of the command, by the event that noted its start."""
    lines = read(os.path.join(folder, "events-0-0.jsonl"), 0, 1).lines
    return [pair for line in lines if line.kind == "started" and (pair := _name(line.data.get("command")))]


def tick_command() -> list[str]:
    """What a supervisor runs when it ends and no daemon serves: a cold tick, by full interpreter path."""
    return [sys.executable, "-E", "-P", "-m", "gpuspool.scheduler.daemon", "--once"]


def _uuids(text: str) -> list[str]:
    import json

    return [str(uuid) for uuid in json.loads(text)]
