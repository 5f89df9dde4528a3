"""The state machine of a job as one table: which state may follow which, and nothing else."""

from __future__ import annotations

from .errors import IllegalTransition
from .model import FINAL, State

ALLOWED: dict[State, tuple[State, ...]] = {
    State.QUEUED: (State.INITIALIZING, State.CANCELLED, State.FAILED),
    State.INITIALIZING: (State.RUNNING, State.QUEUED, State.FAILED, State.CANCELLED),
    State.RUNNING: (State.STOPPING, State.QUEUED, *FINAL),
    State.STOPPING: (State.QUEUED, *FINAL),
    # Only by the user: `resume` and `requeue`.
    State.SUCCEEDED: (State.QUEUED,),
    State.FAILED: (State.QUEUED,),
    State.CANCELLED: (State.QUEUED,),
}


def check(job: int, source: str, target: str, *, by_user: bool = False) -> None:
    """Raise `IllegalTransition` unless `target` may follow `source`.

    A job that already stands in `target` is as illegal as any other: whoever asks did not look.
    """
    allowed = ALLOWED[State(source)]
    if State(target) in allowed and (by_user or State(source) not in FINAL):
        return
    raise IllegalTransition(
        job=job,
        source=source,
        target=target,
        allowed=", ".join(allowed) if by_user or State(source) not in FINAL else "nothing without the user",
    )
