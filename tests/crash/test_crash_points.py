"""SIGKILL at every system call of every kind of tick, command and supervisor, and then a fresh controller.

`make crash` runs the full form: all scenarios, all points, and the list of them. Here are all points of the main
scenarios of each kind, and a sample of the rest. The faults are found by `crash_world.World.judge` and `Scenario.judge`.
"""

from __future__ import annotations

from typing import Any

import pytest
from crash_driver import drive
from crash_plants import PLANTS
from crash_scenarios import SCENARIOS

#: More than there are CPUs for: a point also waits, for grace, locks and second looks.
WORKERS = 3

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


def scenarios(kind: str) -> list[str]:
    """Those of one kind of which every point is taken; '': those of which a sample is."""
    whole = [name for name, scenario in SCENARIOS.items() if scenario.every == 1]
    return (
        [name for name in whole if SCENARIOS[name].kind == kind] if kind else [*SCENARIOS.keys() - set(whole)]
    )


KINDS = sorted({scenario.kind for scenario in SCENARIOS.values() if scenario.every == 1})


# The long ones first, so that two processes end at about the same time.
@pytest.mark.parametrize("kind", ["", *sorted(KINDS, key=lambda kind: "eacdbfg".index(kind[0]))])
def test_nothing_is_lost_and_nothing_runs_twice(kind: str) -> None:
    names = scenarios(kind)
    results = drive(names, WORKERS, sampled=True)
    assert not report(results), report(results)
    for name in names:
        mine = [result for result in results if result["scenario"] == name]
        points = sum(result["reached"] for result in mine)
        step = max(result.get("step", 1) for result in mine)
        print(f"{name}: {points} points, one in {step}; {mine[0]['calls']} system calls undisturbed")
        # What should be covered was covered; counts drift, the more so as naming all calls is slow.
        whole = min(mine[0]["calls"], SCENARIOS[name].limit or 10**6)
        assert points * step >= whole * 0.7, name


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    results = drive([plant.scenario], WORKERS, points=plant.points, plant=name)
    found = [fault for result in results for fault in result["faults"]]
    assert any(plant.finds in fault for fault in found), found
