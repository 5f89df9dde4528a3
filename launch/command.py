"""From what the user wrote to what is run: the argument vector and the environment of an attempt's command."""

from __future__ import annotations

import os

from ..sbatch.environment import submission_environment
from ..spool.model import JobSpec
from .plan import AttemptPlan

ELASTIC = "elastic.py"


def job_argv(spec: JobSpec, folder: str, gpus: int) -> list[str]:
    """The command as started in attempt folder `folder`, `{resume}` still in place."""
    if spec.launcher != "torchrun":
        return list(spec.command)
    workers = spec.nproc or max(1, gpus)
    argv = [spec.python or "python3", os.path.join(folder, ELASTIC), "--nproc", str(workers)]
    if spec.module:
        argv.append("--module")
    return [*argv, "--", *spec.command]


def job_environment(
    env: dict[str, str],
    plan_facts: dict[str, str],
    gpu_uuids: tuple[str, ...] | list[str],
    *,
    hide_gpus: bool,
) -> dict[str, str]:
    """The environment of the command: the user's own, what design.md promises, and its GPUs by UUID.

    `hide_gpus` (a machine with GPUs, a job without) leaves an empty CUDA_VISIBLE_DEVICES, so that a CPU job takes none.
    """
    result = submission_environment(env)
    result |= plan_facts
    result["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if gpu_uuids or hide_gpus:
        result["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_uuids)
    return result


def expand(plan: AttemptPlan, resume_from: str) -> tuple[list[str], dict[str, str]]:
    """Fill in where to go on from: a whole argument `{resume}` becomes the option and the path, or nothing."""
    argv: list[str] = []
    for word in plan.argv:
        if word != "{resume}":
            argv.append(word)
        elif resume_from:
            option = plan.resume_arg
            argv += [option + resume_from] if option.endswith("=") or not option else [option, resume_from]
    return argv, plan.env | {"GPUSPOOL_RESUME_FROM": resume_from}
