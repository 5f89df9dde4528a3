"""Kill the real program at every system call of every scenario, and look at what comes of it.

python tests/crash/run.py                      every point of every scenario; prints them all
python tests/crash/run.py --list               the scenarios
python tests/crash/run.py settle --at 213      one point, with the whole story
python tests/crash/run.py settle --calls       the system calls of an undisturbed run
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from crash_driver import drive
from crash_plants import PLANTS
from crash_scenarios import SCENARIOS


def main() -> int:
    """The command line; 1 when something was violated."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", help="all, when none is named")
    parser.add_argument("--list", action="store_true", help="only the list of scenarios")
    parser.add_argument("--calls", action="store_true", help="only the system calls of an undisturbed run")
    parser.add_argument("--quick", action="store_true", help="what the ordinary tests run")
    parser.add_argument("--twice", action="store_true", help="kill the first pass after the crash, too")
    parser.add_argument("--at", type=int, nargs="+", default=[], metavar="N", help="only these points")
    parser.add_argument("--plant", choices=PLANTS, default="", help="plant a fault first")
    parser.add_argument("-j", "--jobs", type=int, default=0, help="processes (two a CPU)")
    given = parser.parse_args()
    for name in given.scenarios:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; choose from {', '.join(SCENARIOS)}")
    if given.list:
        for name, scenario in SCENARIOS.items():
            print(
                f"{name:20} {scenario.kind:12} {f'every {scenario.every}' if scenario.every > 1 else '':9} {scenario.about}"
            )
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that worlds are removed
    names = given.scenarios or list(SCENARIOS)
    workers = given.jobs or 2 * len(os.sched_getaffinity(0))
    began = time.monotonic()
    if given.calls:
        for name in names:
            for number, call in enumerate(drive([name], 1, points=(0,))[0]["points"], 1):
                print(f"{name} {number} {call}")
        return 0
    if len(given.at) == 1:
        workers = 1
    results = drive(
        names,
        workers,
        points=tuple(given.at),
        sampled=given.quick,
        twice=given.twice,
        plant=given.plant,
        told=_tell,
    )
    for result in results:
        if result["reached"]:
            print(
                f"{result['scenario']} {result['n']} {result['call']}{'  FAULT' if result['faults'] else ''}"
            )
        if len(given.at) == 1:
            print(result.get("story", ""))
    _summary(results, time.monotonic() - began)
    return int(any(result["faults"] for result in results))


def _tell(result: dict[str, Any]) -> None:
    if result["faults"]:
        print(f"FAULT {result['scenario']} --at {result['n']} {result['call']}", file=sys.stderr)
        for fault in result["faults"]:
            print(f"    {fault}", file=sys.stderr)


def _summary(results: list[dict[str, Any]], seconds: float) -> None:
    print(f"\n{'scenario':20} {'points':>7} {'CPU ms':>7} {'faults':>7}")
    points = [result for result in results if result["n"]]
    for name in dict.fromkeys(result["scenario"] for result in points):
        mine = [result for result in points if result["scenario"] == name]
        cpu = sum(result["cpu"] for result in mine) / len(mine) * 1000
        print(f"{name:20} {len(mine):7} {cpu:7.0f} {sum(bool(result['faults']) for result in mine):7}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    faulty = sum(bool(result["faults"]) for result in results)
    print(
        f"{len(points)} points in {seconds:.0f} s: {len(points) / seconds * 60:.0f} a minute;"
        f" {cpu:.0f} CPU seconds in all: {len(points) / cpu * 60:.0f} a minute and CPU; {faulty} with faults"
    )


if __name__ == "__main__":
    sys.exit(main())
