"""One scenario, crashed at one system call after another: arm, kill, recover, judge."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

import crash_judge
from crash_scenarios import SCENARIOS, Scenario
from crash_world import World
from tracer import Run, trace

from gpuspool.scheduler.daemon import tick_once


class Points:
    """The points of one scenario, in a world of its own below `base`; `twice` as in `crash_driver.drive`."""

    def __init__(self, name: str, base: Path, program: Path, *, twice: bool = False) -> None:
        kind = SCENARIOS[name]
        self.name, self.twice = name, twice
        self.world = World(base, program, one=kind.one, held=kind.held, serves=kind.serves, **kind.settings)
        self.scenario: Scenario = kind(self.world)

    def __enter__(self) -> Points:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def point(self, n: int) -> dict[str, Any]:
        """Crash at system call `n`; what was found, JSON-ready.

        0 crashes nowhere: the scenario must come to the same without, and the names of all its system calls are told.
        """
        world, scenario = self.world, self.scenario
        run = Run(0)
        faults: list[str] = []
        try:
            if world.stale:
                world.make_template(scenario.prepare)
            world.reset()
            scenario.n = n
            scenario.arm()
            run = trace(
                scenario.act,
                n,
                before=scenario.before,
                meanwhile=scenario.meanwhile if scenario.race else None,
                named=n == 0,
                follow_fork=scenario.follow_fork,
            )
            if (scenario.race or not run.reached) and run.status != 0:
                faults.append(f"the traced process ended with status {run.status:#x}")
            scenario.reached = run.reached
            faults += world.join()
            scenario.after(run)
            if self.twice:
                # Anywhere within a pass, and elsewhere for the next point.
                again = trace(self._pass, 1 + n * 7919 % 450)
                faults += [] if again.reached or not again.status else [f"the second: {again.status:#x}"]
            if scenario.cron:
                faults += world.recover_by_cron(scenario.goal, scenario.step)
            elif scenario.serves:
                faults += world.recover(scenario.goal, scenario.step)
            else:
                faults += world.watch(scenario.goal)
            faults += world.judge()
            faults += scenario.judge(run)
        except Exception:
            faults.append(traceback.format_exc())
        result: dict[str, Any] = {
            "scenario": self.name,
            "n": n,
            "calls": run.calls,
            "call": run.last.replace(str(world.base), ""),
            "reached": run.reached,
            "faults": faults,
        }
        if run.points:
            result["points"] = [call.replace(str(world.base), "") for call in run.points]
        if faults or n == 0:
            result["story"] = crash_judge.story(world.folders, world.log())
        if faults:
            world.kill_everything()
            world.made_at = 0.0  # whatever was left, the next point starts from nothing
        return result

    def _pass(self) -> None:
        tick_once(self.world.folders, self.world.config, time.time)
