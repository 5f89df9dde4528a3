"""`gpuspool.Client`: submit, look at and steer jobs from a program, over the same store as the `spool` command."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import fields

from ..scheduler.handover import leave_behind
from ..scheduler.intake import Request, put
from ..spool.config import Config, load
from ..spool.errors import BadRequest
from ..spool.folders import resolve
from ..spool.jobids import job_numbers
from ..spool.model import FINAL, Job
from ..spool.processes import user_name
from ..spool.queue import JobView, Outcome, states_from
from ..spool.store import open_store
from ..spool.waiting import exit_code, wait_for

_OPTIONS = tuple(item.name for item in fields(Request) if item.name != "command")


class Client:
    """One spool, as a program sees it.

    Jobs are named as on the command line: 12, "s12", "12_3", "1-5,9", "last". Every method raises StoreUnavailable
    (or its kinds NewerDatabase, NotOwner, DiskFull, UnsafeFolder) when the spool cannot be used, NoSuchJob for a job
    that there is not and BadRequest for a value that cannot be used; all are `gpuspool.spool.errors.GpuspoolError`.

    A client holds a database connection: use it in the thread and the process that made it, and close it, or write
    `with Client() as client`.
    """

    def __init__(self, config: Config | None = None) -> None:
        """Open the spool that `config` names (default: files and GPUSPOOL_CFG_* variables, as the command does).

        Raises ConfigError with every fault of the configuration.
        """
        self.config = load() if config is None else config
        self.folders = resolve(self.config)
        self._store = open_store(self.folders)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs go on."""
        self._store.close()

    # -- submitting --------------------------------------------------------------------------------------

    def submit(self, command: Sequence[str], **options: object) -> int:
        """Put `command` (its words) into the queue; the job's number.

        `options` are those of `spool submit`, by these names and in the same forms: name, project, job_class,
        priority, preemptible, nodes, gpus (in all), gpus_per_node, gpu_type, cpus, memory ("20G"; a bare number is
        MiB), walltime ("2h"; a bare number is minutes), grace and min_runtime ("60s"), begin ("now+2h"), hold, cwd,
        output, error, torchrun, nproc, python, module, stop_signal, resume_arg, checkpoint_dir, checkpoint_format,
        backoff_limit, backoff_reset, max_attempts, max_gpu_hours, on_timeout, stopped_exit_0, comment, env (the
        job's whole environment; default: this process's).

        Raises BadRequest, NoSuchProject, NeverRunnable for what can never start here, or DiskFull; then nothing was
        submitted.
        """
        if isinstance(command, str):
            raise BadRequest(
                what="the command",
                value=command,
                why="it is one text",
                remedy='Write its words: ["python", "train.py"], or ["sh", "-c", text].',
            )
        unknown = [name for name in options if name not in _OPTIONS]
        if unknown:
            raise BadRequest(
                what="the option",
                value=unknown[0],
                why="there is no such option",
                remedy=f"Choose from {', '.join(_OPTIONS)}.",
            )
        values = {name: value for name, value in options.items() if value is not None}
        for name in ("memory", "walltime", "grace", "min_runtime", "priority"):
            if isinstance(values.get(name), int):
                values[name] = str(values[name])
        request = Request(command=list(command), **{"env": dict(os.environ), **values})  # type: ignore[arg-type]
        job, _ = put(self._store, self.config, request, time.time())
        leave_behind(self.folders, self.config)
        return job

    # -- looking -----------------------------------------------------------------------------------------

    def list(
        self,
        *,
        finished: bool = False,
        user: str = "",
        project: str = "",
        name: str = "",
        states: str = "",
        jobs: int | str | None = None,
        limit: int = 0,
    ) -> Sequence[Job]:
        """Jobs by number: those that wait and run, with `finished` all, or those in `states` ("failed,running").

        `limit` gives the newest so many (0: all). Times of a `Job` are UTC seconds, durations seconds, memory MiB.
        """
        return self._store.list(
            finished=finished,
            user=user,
            project=project,
            name=name,
            states=states_from(states),
            jobs=() if jobs is None else self._numbers((jobs,)),
            limit=limit,
        )

    def show(self, job: int | str) -> JobView:
        """All that the spool knows of one job: its row, what was asked for, its attempts and events."""
        return self._store.show(self._numbers((job,))[0])

    def wait(self, *jobs: int | str, timeout_s: float | None = None) -> int:
        """Wait until `jobs` are final; the exit code: the job's own, 128+signal when killed, of several the highest.

        Raises TimeoutError, which names the jobs that are left, after `timeout_s` seconds (None: never).
        """
        numbers = self._numbers(jobs)
        leave_behind(self.folders, self.config)
        found, finished = wait_for(self._store, numbers, timeout_s)
        if not finished:
            left = ", ".join(str(job.id) for job in found if job.state not in FINAL)
            raise TimeoutError(f"not finished within {timeout_s} s: {left}")
        return max(exit_code(job) for job in found)

    # -- steering ----------------------------------------------------------------------------------------
    # An Outcome says for each job whether something was done, and what, in a sentence.

    def cancel(self, *jobs: int | str, now: bool = False) -> Sequence[Outcome]:
        """Cancel jobs: waiting ones at once, running ones after a checkpoint (`now`: without)."""
        return self._told(
            self._store.cancel(self._numbers(jobs), time.time(), user_name(), at_once=now),
        )

    def stop(self, *jobs: int | str) -> Sequence[Outcome]:
        """Stop jobs after a checkpoint; they stay in the queue, held, until `resume`."""
        return self._told(self._store.stop(self._numbers(jobs), time.time(), user_name()))

    def resume(self, *jobs: int | str) -> Sequence[Outcome]:
        """Let stopped, held, failed or cancelled jobs go on from their checkpoints."""
        return self._told(self._store.resume(self._numbers(jobs), time.time(), user_name()))

    def hold(self, *jobs: int | str) -> Sequence[Outcome]:
        """Keep waiting jobs from starting until `release`."""
        return self._told(self._store.hold(self._numbers(jobs), time.time(), user_name()))

    def release(self, *jobs: int | str) -> Sequence[Outcome]:
        """Let held jobs start; one that backs off may start at once."""
        return self._told(self._store.release(self._numbers(jobs), time.time(), user_name()))

    def requeue(self, *jobs: int | str) -> Sequence[Outcome]:
        """Run jobs again: finished ones from the queue, running ones after a checkpoint."""
        return self._told(self._store.requeue(self._numbers(jobs), time.time(), user_name()))

    def preempt(self, *jobs: int | str) -> Sequence[Outcome]:
        """Preempt running jobs: checkpoint, then queued again; never charged."""
        return self._told(self._store.preempt(self._numbers(jobs), time.time(), user_name()))

    # ----------------------------------------------------------------------------------------------------

    def _numbers(self, jobs: Sequence[int | str]) -> tuple[int, ...]:
        if not jobs:
            raise BadRequest(what="the job", value="", why="none is named", remedy='Name some: 12, "last".')
        return job_numbers(self._store, [str(job) for job in jobs], user=user_name())

    def _told(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        if any(outcome.done for outcome in outcomes):
            leave_behind(self.folders, self.config)
        return outcomes
