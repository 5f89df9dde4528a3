"""Admission by quota and limit, and who is entitled to reclaim (design.md, "Policy: Quota"). O(1) a job.

`reserved` is admitted while its project's non-preemptible allocation stays within quota. `ondemand` is admitted if
afterwards the free and preemptible capacity covers what all quotas may still claim, or if it only uses what its own
project's quota claims: else one broken GPU of a fully shared out cluster would keep every on-demand job waiting. What
is preemptible may go over quota, up to the project's limit. An unset quota is unlimited for admission. Jobs without
GPUs hold no quota. The effective value of `preemptible` counts, not the class's.
"""

from __future__ import annotations

from .ledger import Ledger
from .state import Never, Pending, Wait

#: Quotas may be fractions; sums of such are compared to within this.
_CLOSE = 1e-6


def admit(ledger: Ledger, job: Pending) -> Wait | Never | None:
    """Why quota or limit keep `job` waiting; None when they do not."""
    project = ledger.state.projects.get(job.project)
    if project is None:
        return Wait("NoProject", f"its project {job.project!r} does not exist (any more)")
    if not job.gpus:
        return None
    limit = project.limit_gpus
    if limit is not None and job.gpus > limit:
        text = f"asks for {_gpus(job.gpus, '')}, its project {project.name!r} may hold at most {limit:g}"
        return Never("Limit", text)
    if not job.preemptible:
        blocked = _beyond_quota(ledger, job) or _quota(ledger, job)
        if blocked is not None:
            return blocked
    # The limit comes last: it is the only one that stopping the project's own jobs can help.
    held = ledger.held.get(job.project, 0)
    if limit is not None:
        more = max(held, ledger.to_hold(job.project)) + job.gpus - limit
        if more > _CLOSE:
            text = (
                f"needs {_gpus(more)} under the limit of project {project.name!r} ({held} of {limit:g} held)"
            )
            return Wait("Limit", text)
    return None


def _quota(ledger: Ledger, job: Pending) -> Wait | None:
    """Why quotas do not admit a non-preemptible `job` now."""
    if within_quota(ledger, job):
        return None
    project = ledger.state.projects[job.project]
    firm = ledger.firm.get(job.project, 0)
    quota = project.quota or 0.0
    if ledger.state.classes[job.job_class].quota_bound:
        if project.quota is None:
            return None
        text = f"needs {_gpus(firm + job.gpus - quota)} of quota: project {project.name!r} holds {firm} of {quota:g} firmly"
        return Wait("Quota", text)
    rise = max(firm + job.gpus, quota) - max(firm, quota)
    missing = ledger.committed + rise - ledger.capacity
    if missing <= _CLOSE or not ledger.quotas:
        return None  # without any quota the placement alone decides
    unclaimed = max(0.0, ledger.capacity - ledger.committed)
    return Wait(
        "QuotaClaims", f"needs {_gpus(missing)} that no project's quota claims ({unclaimed:g} unclaimed)"
    )


def _beyond_quota(ledger: Ledger, job: Pending) -> Never | None:
    """Why quotas never admit a non-preemptible `job`, even on an empty cluster."""
    project = ledger.state.projects[job.project]
    if ledger.state.classes[job.job_class].quota_bound:
        if project.quota is not None and job.gpus > project.quota:
            text = (
                f"asks for {_gpus(job.gpus, '')}, the quota of project {project.name!r} is {project.quota:g}"
            )
            return Never("Quota", text)
        return None
    beyond = max(0.0, job.gpus - (project.quota or 0.0))
    left = max(0.0, ledger.all_gpus - ledger.quotas)
    if not ledger.quotas or beyond <= left + _CLOSE:
        return None
    text = f"asks for {_gpus(beyond, '')} beyond its quota, all quotas together leave {left:g}; a preemptible class may borrow"
    return Never("QuotaClaims", text)


def over_limit(ledger: Ledger, job: Pending) -> float:
    """GPUs by which `job` would be over its project's limit even when all that stops has ended; 0: it would not."""
    project = ledger.state.projects.get(job.project)
    if project is None or project.limit_gpus is None or not job.gpus:
        return 0.0
    return max(0.0, ledger.to_hold(job.project) + job.gpus - project.limit_gpus)


def within_quota(ledger: Ledger, job: Pending) -> bool:
    """Whether `job` uses no more than its project's quota: of what it holds firmly, or (preemptible) of all it holds."""
    project = ledger.state.projects.get(job.project)
    if project is None or project.quota is None or not job.gpus:
        return False
    held = ledger.to_hold(job.project) if job.preemptible else ledger.firm.get(job.project, 0)
    return held + job.gpus <= project.quota + _CLOSE


def entitled(ledger: Ledger, job: Pending) -> bool:
    """Whether `job` may reclaim from projects over their quota; such jobs also go first, so that none has to.

    A class that is bound to quota is unlimited where none is set. Idle jobs reclaim nothing.
    """
    if ledger.is_idle(job.job_class):
        return False
    project = ledger.state.projects.get(job.project)
    if project is not None and project.quota is None and job.gpus:
        return not job.preemptible and ledger.state.classes[job.job_class].quota_bound
    return within_quota(ledger, job)


def _gpus(count: float, more: str = "more ") -> str:
    return f"{count:g} {more}GPU{'' if count == 1 else 's'}"
