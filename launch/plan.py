"""plan.json and control.json: what the scheduler tells the supervisors of an attempt, and nothing it keeps for itself."""

from __future__ import annotations

import json
import os
from typing import Any

from ..spool.durable import read_json, write_json, write_passing
from ..spool.errors import GpuspoolError
from ..spool.values import dataclass, field

FORMAT = 1


class PlanUnreadable(GpuspoolError):
    """The plan of the attempt in {folder} cannot be read: {why}."""


@dataclass(slots=True)
class AttemptPlan:
    """Everything a supervisor needs to run one rank of an attempt; holds an environment, so its file is 0600."""

    job: int
    attempt: int
    token: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    umask: int
    output: str
    error: str
    checkpoint_dir: str
    checkpoint_format: str
    own_checkpoint_dir: bool  # the default folder below jobs/<id>: ours to make
    done_file: str
    scratch: str
    walltime_s: int  # from the command's start; 0: none
    ends_by: float | None  # UTC seconds by which all must be over (a window's end); None: no such
    grace_s: int
    term_to_kill_s: int
    heartbeat_s: int
    stop_signal: str
    launcher: str
    waits_for_checkpoint: bool  # the job has a resume rule, so a periodic checkpoint is worth waiting for
    cgroup: str  # folder to make the attempt's cgroup in; "": none
    runtime: str
    wake: list[str] = field(default_factory=list)  # what to run when nobody reads the wake FIFO
    gpu_uuids: list[str] = field(default_factory=list)
    resume_arg: str = ""
    format: int = FORMAT

    @property
    def guard_lock(self) -> str:
        """The guardian's lock: node-local, so that it says something even when the run folder hangs."""
        return os.path.join(self.runtime, f"guard-{self.token}")

    def write(self, folder: str) -> None:
        """Write plan.json into the attempt's folder, whole or not at all. Raises OSError.

        No fsync: a local attempt does not outlive its boot, and without a plan nothing starts.
        """
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        write_passing(os.path.join(folder, "plan.json"), json.dumps(fields, separators=(",", ":")).encode())


def read_plan(folder: str) -> AttemptPlan:
    """The plan of the attempt in `folder`. Raises PlanUnreadable."""
    value = read_json(os.path.join(folder, "plan.json"))
    if not isinstance(value, dict):
        raise PlanUnreadable(folder=folder, why="it is missing or damaged")
    names = AttemptPlan.__dataclass_fields__
    try:
        return AttemptPlan(**{name: item for name, item in value.items() if name in names})
    except TypeError as error:
        raise PlanUnreadable(folder=folder, why=str(error)) from None


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A request to stop: which kind, and the grace in seconds from when the supervisor reads it."""

    kind: str
    grace_s: int


def write_control(folder: str, request: StopRequest) -> None:
    """Ask the supervisors of the attempt in `folder` to stop, durably. Raises OSError."""
    write_json(os.path.join(folder, "control.json"), {"stop": request.kind, "grace_s": request.grace_s})


def read_control(folder: str) -> StopRequest | None:
    """The stop request that stands in `folder`, None when there is none (or it is damaged)."""
    value: Any = read_json(os.path.join(folder, "control.json"))
    if not isinstance(value, dict) or not isinstance(value.get("stop"), str):
        return None
    grace = value.get("grace_s")
    return StopRequest(value["stop"], grace if type(grace) is int and 0 <= grace <= 3600 else 0)
