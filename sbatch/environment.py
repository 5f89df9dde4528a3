"""Variables of a surrounding Slurm job, which must not leak into a job that is submitted from within it."""

from __future__ import annotations

_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMIX_", "PMI_", "PMI2_")
#: What a user sets in a profile to talk to Slurm at all, rather than what a job was given.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_EXIT_ERROR"})
#: A surrounding elastic launcher's: a nested one would take its own rank for the outer one's.
_LAUNCHER = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)


def scrub(env: dict[str, str]) -> dict[str, str]:
    """`env` without what a surrounding Slurm job or elastic launcher set for its own processes."""
    nested = "SLURM_JOB_ID" in env or "TORCHELASTIC_RUN_ID" in env
    return {
        name: value
        for name, value in env.items()
        if (not name.startswith(_PREFIXES) or name in _KEPT)
        and not name.startswith("TORCHELASTIC_")
        and not (nested and name in _LAUNCHER)
    }


#: Variables of ours that describe one attempt; a nested submission must not inherit them.
RUNTIME_VARIABLES = frozenset(
    {
        "GPUSPOOL_JOB_ID",
        "GPUSPOOL_ATTEMPT",
        "GPUSPOOL_CHECKPOINT_DIR",
        "GPUSPOOL_RESUME_FROM",
        "GPUSPOOL_GRACE_S",
        "GPUSPOOL_DONE",
        "GPUSPOOL_SCRATCH",
        "GPUSPOOL_STOP_SIGNAL",
        "GPUSPOOL_TOKEN",
    }
)


def submission_environment(env: dict[str, str]) -> dict[str, str]:
    """The environment that a job keeps from its submission: the user's, without what a surrounding job set."""
    return {name: value for name, value in scrub(env).items() if name not in RUNTIME_VARIABLES}
