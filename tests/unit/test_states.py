"""The state machine's one table, cell by cell."""

from __future__ import annotations

import pytest

from gpuspool.spool import states
from gpuspool.spool.errors import IllegalTransition
from gpuspool.spool.model import FINAL, LIVE, SLURM_CODE, State

#: design.md, "The life of a job", written out once more: a slip in the table shows as a difference.
FORWARD = {
    "queued": "initializing cancelled failed",
    "initializing": "running queued failed cancelled",
    "running": "stopping queued succeeded failed cancelled",
    "stopping": "queued succeeded failed cancelled",
    "succeeded": "",
    "failed": "",
    "cancelled": "",
}
CELLS = [(source, target) for source in State for target in State]


@pytest.mark.parametrize(("source", "target"), CELLS, ids=[f"{a}-{b}" for a, b in CELLS])
def test_every_cell(source: State, target: State) -> None:
    """What the scheduler may do; and the user, who alone brings a final job back."""
    forward = str(target) in FORWARD[str(source)].split()
    back = source in FINAL and target is State.QUEUED
    for by_user, allowed in ((False, forward), (True, forward or back)):
        if allowed:
            states.check(7, source, target, by_user=by_user)
        else:
            with pytest.raises(IllegalTransition):
                states.check(7, source, target, by_user=by_user)


def test_the_error_says_what_is_allowed() -> None:
    with pytest.raises(
        IllegalTransition,
        match=r"Job 7 cannot go from queued to running\. .* initializing, cancelled, failed\.",
    ):
        states.check(7, "queued", "running")
    with pytest.raises(IllegalTransition, match="nothing without the user"):
        states.check(7, "failed", "queued")
    with pytest.raises(IllegalTransition, match="it can go to queued"):
        states.check(7, "failed", "running", by_user=True)


def test_each_state_is_in_the_table_and_has_a_code_of_slurm() -> None:
    assert set(states.ALLOWED) == set(State)
    assert set(SLURM_CODE) == set(State)
    assert set(FINAL) | set(LIVE) | {State.QUEUED} == set(State)


def test_no_state_is_a_dead_end_and_each_can_be_reached() -> None:
    reached = {State.QUEUED}
    while more := {target for state in reached for target in states.ALLOWED[state]} - reached:
        reached |= more
    assert reached == set(State)
    assert all(states.ALLOWED[state] for state in State)
