"""One scenario, crashed at one system call after another: arm, kill, recover, judge."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from crash_scenarios import SCENARIOS, Scenario
from crash_world import World
from tracer import Run, trace


class Points:
    """The points of one scenario, in a world of its own below `base`."""

    def __init__(self, name: str, base: Path, program: Path) -> None:
        kind = SCENARIOS[name]
        self.name = name
        self.world = World(base, program, one=kind.one, held=kind.held, **kind.settings)
        self.scenario: Scenario = kind(self.world)

    def __enter__(self) -> Points:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def point(self, n: int) -> dict[str, Any]:
        """Crash at system call `n`; what was found, JSON-ready.

        0 crashes nowhere: the scenario must come to the same without, and the names of all its system calls are told.
        """
        run = Run(0)
        faults: list[str] = []
        try:
            if self.world.stale:
                self.world.make_template(self.scenario.prepare)
            self.world.reset()
            self.scenario.arm()
            run = trace(
                self.scenario.act,
                n,
                before=self.scenario.before,
                named=n == 0,
                follow_fork=self.scenario.follow_fork,
            )
            if not run.killed and run.status != 0:
                faults.append(f"the traced process ended with status {run.status:#x}")
            self.scenario.after(run)
            faults += self.world.recover(self.scenario.goal, self.scenario.step)
            faults += self.world.judge(self.scenario.jobs)
            faults += self.scenario.judge(run)
        except Exception:
            faults.append(traceback.format_exc())
        result: dict[str, Any] = {
            "scenario": self.name,
            "n": n,
            "calls": run.calls,
            "call": run.last,
            "killed": run.killed,
            "faults": faults,
        }
        if run.points:
            result["points"] = run.points
        if faults or n == 0:
            result["story"] = self.world.story()
        if faults:
            self.world.kill_everything()
            self.world.made_at = 0.0  # whatever was left, the next point starts from nothing
        return result
