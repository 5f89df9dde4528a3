"""SIGKILL at every system call of every kind of tick, command and supervisor, and then a fresh controller.

`make crash` runs the full form: all scenarios, all points, and the list of them. Here are all points of one scenario
of each kind, and a sample of the rest. The faults are found by `crash_world.World.judge` and `Scenario.judge`.
"""

from __future__ import annotations

from typing import Any

import pytest
from crash_driver import drive
from crash_plants import PLANTS
from crash_scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def report(results: list[dict[str, Any]]) -> str:
    """The faults, the story of the first one, and the command that repeats it."""
    lines = []
    for result in results:
        if result["faults"]:
            if not lines:
                lines.append(result["story"])
            lines.append(
                f"python tests/crash/run.py {result['scenario']} --at {result['n']}    {result['call']}"
            )
            lines += [f"    {fault}" for fault in result["faults"]]
    return "\n".join(lines)


# The long ones first: two processes then end at about the same time.
@pytest.mark.parametrize("name", sorted(SCENARIOS, key=lambda name: (SCENARIOS[name].every, name != "lost")))
def test_nothing_is_lost_and_nothing_runs_twice(name: str) -> None:
    results = drive([name], 2, every=SCENARIOS[name].every)
    points = [result["n"] for result in results if result["reached"]]
    print(f"{name}: {len(points)} points, {results[0]['calls']} system calls undisturbed")
    assert not report(results), report(results)
    # What was claimed to be covered was covered; counts drift by a few from run to run.
    assert (
        len(points) * SCENARIOS[name].every >= min(results[0]["calls"], SCENARIOS[name].limit or 10**6) * 0.9
    )


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    results = drive([plant.scenario], 2, points=plant.points, plant=name)
    found = [fault for result in results for fault in result["faults"]]
    assert any(plant.finds in fault for fault in found), found
