"""Kill the real program at every system call of every scenario, and look at what comes of it.

python tests/crash/run.py                      every point of every scenario; prints them all
python tests/crash/run.py --list               the scenarios
python tests/crash/run.py settle --at 213      one point, with the whole story when something is wrong
python tests/crash/run.py --calls settle       the system calls of an undisturbed run
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

PROGRAM = Path(__file__).resolve().parent.parent / "support" / "programs" / "crash_job.c"


def base_folder() -> Path:
    """A new folder for worlds: in memory where that is to be had."""
    memory = "/dev/shm"
    parent = memory if os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK) else None
    return Path(tempfile.mkdtemp(prefix="spool-crash-", dir=parent))


def compile_job(folder: Path) -> Path:
    """The jobs' command."""
    target = folder / "crash_job"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("the crash harness needs a C compiler: install gcc")
    subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", str(PROGRAM), "-o", str(target)], check=True
    )
    return target


def alone() -> bool:
    """Go on in a child that sees no processes but its own (a PID namespace), if this user may; False if not.

    A search for what a lost supervisor left reads all of /proc: on a busy machine thousands of calls that are no
    points of interest. It also holds everything that a worker starts, and ends it with the worker.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if libc.unshare(0x20000000 | 0x00020000):  # CLONE_NEWPID, CLONE_NEWNS
        return False
    for is_init in (True, False):  # the first one is the namespace's init, which only waits
        pid = os.fork()
        if pid == 0:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            if is_init:
                private, nothing = 0x44000, 0xE  # MS_REC | MS_PRIVATE; nosuid, nodev, noexec
                failed = libc.mount(b"none", b"/", None, private, None)
                if failed or libc.mount(b"proc", b"/proc", b"proc", nothing, None):
                    raise SystemExit("a PID namespace without its own /proc")
            continue
        while (ended := os.waitpid(-1, 0))[0] != pid:
            pass
        os._exit(os.waitstatus_to_exitcode(ended[1]) & 0xFF)
    return True


def work(base: Path, program: Path, names: list[str], share: int, shares: int, points: list[int]) -> None:
    """One worker: its share of the points of each scenario, a line of JSON each."""
    from crash_point import Points

    isolated = alone()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[share % len(cpus)]})  # tracer and traced on one CPU: a switch costs a fifth
    for name in names:
        with Points(name, base / f"{name}-{share}", program) as scene:
            if share == 0 and not points:
                print(json.dumps(scene.point(0)), flush=True)
            for n in points[share::shares] or itertools.count(share + 1, shares):
                result = scene.point(n)
                print(json.dumps(result), flush=True)
                if not points and not result["killed"]:
                    break


def drive(names: list[str], workers: int, points: list[int], told: Any = None) -> list[dict[str, Any]]:
    """Run all points of scenarios `names` over `workers` processes; the results by scenario and number."""
    base = base_folder()
    try:
        program = compile_job(base)
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--worker",
            str(base),
            str(program),
            "--share",
        ]
        tail = ["--at", *map(str, points)] if points else []
        running = [
            subprocess.Popen(
                [*command, f"{share}/{workers}", *names, *tail],
                stdout=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            for share in range(workers)
        ]
        results = []
        import selectors

        with selectors.DefaultSelector() as ready:
            for process in running:
                ready.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while ready.get_map():
                for key, _ in ready.select():
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    if not line:
                        ready.unregister(key.fileobj)
                        continue
                    result = json.loads(line)
                    results.append(result)
                    if told:
                        told(result)
        for process in running:
            if process.wait() != 0:
                results.append(
                    {
                        "scenario": names[0],
                        "n": 0,
                        "call": "",
                        "killed": False,
                        "faults": [f"a worker ended with {process.returncode}"],
                        "story": "",
                    }
                )
        return sorted(results, key=lambda result: (names.index(result["scenario"]), result["n"]))
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*")
    parser.add_argument("--list", action="store_true", help="the scenarios")
    parser.add_argument("--calls", action="store_true", help="only the system calls of an undisturbed run")
    parser.add_argument("--quick", action="store_true", help="the scenarios of the ordinary tests")
    parser.add_argument("--at", type=int, nargs="+", default=[], metavar="N", help="only these points")
    parser.add_argument("-j", "--jobs", type=int, default=0, help="processes (default: two a CPU)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    given = parser.parse_args()

    from crash_scenarios import SCENARIOS

    names = given.scenarios or [
        name for name, scenario in SCENARIOS.items() if scenario.quick or not given.quick
    ]
    for name in names:
        if name not in SCENARIOS:
            parser.error(f"there is no scenario {name!r}; choose from {', '.join(SCENARIOS)}")
    if given.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:20} {scenario.kind:14} {'' if scenario.quick else 'full '} {scenario.about}")
        return 0
    if given.worker:
        share, shares = map(int, given.share.split("/"))
        work(Path(given.worker[0]), Path(given.worker[1]), names, share, shares, given.at)
        return 0
    workers = given.jobs or 2 * len(os.sched_getaffinity(0))
    if given.calls or len(given.at) == 1:
        workers = 1
    began = time.monotonic()
    count = faulty = 0

    def tell(result: dict[str, Any]) -> None:
        nonlocal faulty
        if result["faults"]:
            faulty += 1
            print(f"FAULT {result['scenario']} --at {result['n']} {result['call']}", file=sys.stderr)
            for fault in result["faults"]:
                print(f"    {fault}", file=sys.stderr)

    results = drive(names, workers, [0] if given.calls else given.at, tell)
    for result in results:
        for number, call in enumerate(result.get("points", ()), 1):
            if given.calls:
                print(f"{result['scenario']} {number} {call}")
        if result["killed"]:
            count += 1
            print(
                f"{result['scenario']} {result['n']} {result['call']}{'  FAULT' if result['faults'] else ''}"
            )
        if len(given.at) == 1:
            print(result.get("story", ""))
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(
        f"{count} points in {seconds:.0f} s: {count / seconds * 60:.0f} a minute; {cpu:.0f} CPU seconds, "
        f"{count / max(cpu, 0.01) * 60:.0f} a minute and CPU; {faulty} faults"
    )
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
