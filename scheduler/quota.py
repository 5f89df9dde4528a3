"""Admission by quota and limit (design.md, "Policy: Quota"). O(projects) a job of class `ondemand`, else O(1).

`reserved` is admitted while its project's non-preemptible allocation stays within quota. `ondemand` is admitted if
afterwards the free and preemptible capacity covers what all quotas may still claim. What is preemptible may go over
quota, up to the project's limit. An unset quota is unlimited for admission. Jobs without GPUs hold no quota.
"""

from __future__ import annotations

from .ledger import Ledger
from .state import Never, Pending, Wait


def admit(ledger: Ledger, job: Pending) -> Wait | Never | None:
    """Why quota or limit keep `job` waiting; None when they do not."""
    if not job.gpus:
        return None
    project = ledger.state.projects.get(job.project)
    if project is None:
        return Wait("NoProject", f"its project {job.project!r} does not exist (any more)")
    held = ledger.allocated.get(job.project, 0)
    if project.limit_gpus is not None:
        if job.gpus > project.limit_gpus:
            text = f"asks for {job.gpus} GPUs, its project {project.name!r} may hold at most {project.limit_gpus:g}"
            return Never("Limit", text)
        if held + job.gpus > project.limit_gpus:
            more = held + job.gpus - project.limit_gpus
            return Wait(
                "Limit",
                f"project {project.name!r} holds {held:g} of at most {project.limit_gpus:g} GPUs, {more:g} too many",
            )
    if job.preemptible:
        return None
    firm = ledger.non_preemptible.get(job.project, 0)
    if ledger.state.classes[job.job_class].quota_bound:
        if project.quota is None or firm + job.gpus <= project.quota:
            return None
        if job.gpus > project.quota:
            text = f"asks for {job.gpus} GPUs, the quota of project {project.name!r} is {project.quota:g}"
            return Never("Quota", text)
        more = firm + job.gpus - project.quota
        text = f"project {project.name!r} holds {firm:g} of its {project.quota:g} GPUs of quota firmly; needs {more:g} more"
        return Wait("Quota", text)
    return _on_demand(ledger, job)


def _on_demand(ledger: Ledger, job: Pending) -> Wait | None:
    firm_total = sum(ledger.non_preemptible.values()) + job.gpus
    claims = 0.0
    for name, project in ledger.state.projects.items():
        if project.quota is not None:
            firm = ledger.non_preemptible.get(name, 0) + (job.gpus if name == job.project else 0)
            claims += max(0.0, project.quota - firm)
    missing = firm_total + claims - ledger.gpu_capacity
    if missing <= 0 or not claims:
        return None  # without claims the placement alone decides
    text = (
        f"the quotas of all projects still claim {claims:g} GPUs; {missing:g} more would have to be unclaimed"
    )
    return Wait("QuotaClaims", text)
