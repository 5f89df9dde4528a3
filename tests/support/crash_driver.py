"""Runs crash points over several processes; each worker has worlds of its own, in memory where that is to be had.

Started as a program it is such a worker: `crash_driver.py BASE PROGRAM SHARE/SHARES FLAGS PLANT POINTS SCENARIO...`.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: One point in so many where all of the machine's processes are searched and cannot be kept out of sight.
SCANNED = 25
PROGRAM = Path(__file__).resolve().parent / "programs" / "crash_job.c"


def drive(
    names: list[str],
    workers: int,
    *,
    points: tuple[int, ...] = (),
    sampled: bool = False,
    twice: bool = False,
    plant: str = "",
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run scenarios `names` over `workers` processes; what was found, by scenario and point.

    Each scenario is run undisturbed (point 0) and at every system call, or, `sampled`, at those that the ordinary tests
    take, or only at `points`. `twice`: the first pass after the crash is killed, too, somewhere.
    `plant`: a fault of `crash_plants` to be planted first. `told` is called with each result as it comes.
    """
    memory = "/dev/shm"
    parent = memory if os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK) else None
    base = Path(tempfile.mkdtemp(prefix="spool-crash-", dir=parent))
    running: list[subprocess.Popen[str]] = []
    results: list[dict[str, Any]] = []
    try:
        command = [sys.executable, __file__, str(base), str(_compiled(base))]
        for share in range(workers):
            tail = [
                f"{share}/{workers}",
                " ".join(name for name, wanted in (("sampled", sampled), ("twice", twice)) if wanted),
                plant,
                ",".join(map(str, points)),
                *names,
            ]
            running.append(
                subprocess.Popen(
                    [*command, *tail], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
                )
            )
        for line in _lines(running):
            results.append(json.loads(line))
            if told is not None:
                told(results[-1])
        for share, process in enumerate(running):
            if process.wait() != 0:
                raise RuntimeError(f"worker {share} of {', '.join(names)} ended with {process.returncode}")
    finally:
        for process in running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(base, ignore_errors=True)
    return sorted(results, key=lambda result: (names.index(result["scenario"]), result["n"]))


def _lines(running: list[subprocess.Popen[str]]) -> Iterator[str]:
    with selectors.DefaultSelector() as ready:
        for process in running:
            ready.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        while ready.get_map():
            for key, _ in ready.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line:
                    yield line
                else:
                    ready.unregister(key.fileobj)


def _compiled(folder: Path) -> Path:
    """The jobs' command."""
    target = folder / "crash_job"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the crash harness needs a C compiler: install gcc")
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", str(PROGRAM), "-o", str(target)]
    # Without a dynamic loader it starts in a third of the time, where there is a static C library.
    if subprocess.run([*command, "-static"], stderr=subprocess.DEVNULL, check=False).returncode:
        subprocess.run(command, check=True)
    return target


# -- the worker ---------------------------------------------------------------------------------------------


def alone() -> bool:
    """Go on in a child that sees no processes but its own (a PID namespace), if this user may; False if not.

    A search for what a lost supervisor left reads all of /proc: on a busy machine thousands of calls that are no
    points of interest. It also holds everything that a worker starts, and ends it with the worker.
    """
    _end_with_parent()
    trial = os.fork()
    if trial == 0:
        os._exit(0 if _enter_namespace() else 1)
    if os.waitpid(trial, 0)[1] or not _enter_namespace():
        return False
    _leave_to_child()  # the namespace's init only waits
    return True


def _enter_namespace() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x20000000 | 0x00020000):  # CLONE_NEWPID, CLONE_NEWNS
        return False
    _leave_to_child()
    private, nothing = 0x44000, 0xE  # MS_REC | MS_PRIVATE; nosuid, nodev, noexec
    failed = libc.mount(b"none", b"/", None, private, None)
    return not failed and not libc.mount(b"proc", b"/proc", b"proc", nothing, None)


def _leave_to_child() -> None:
    """Return in a forked child; this process only waits for it, and ends as it does."""
    pid = os.fork()
    if pid == 0:
        _end_with_parent()
        return
    while (ended := os.waitpid(-1, 0))[0] != pid:
        pass
    os._exit(os.waitstatus_to_exitcode(ended[1]) & 0xFF)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def work(
    base: Path, program: Path, share: int, shares: int, flags: set[str], points: list[int], names: list[str]
) -> None:
    """One worker: its share of the points of each scenario, a line of JSON each on standard output.

    A result has `step`, too: every so many-th point was taken.
    """
    from crash_point import Points
    from crash_scenarios import SCENARIOS
    from crash_world import checker

    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[share % len(cpus)]})  # tracer and traced on one CPU: a switch costs a fifth
    for name in names:
        with Points(name, base / f"{name}-{share}", program, twice="twice" in flags) as scene:
            if share == 0 and not points:
                print(json.dumps(scene.point(0)), flush=True)
            limit = SCENARIOS[name].limit
            step = SCENARIOS[name].every if "sampled" in flags else SCENARIOS[name].stride
            if SCENARIOS[name].scans and "alone" not in flags:
                step = max(step, SCANNED)
            missed = 0
            for n in points[share::shares] if points else itertools.count(share * step + 1, shares * step):
                if limit and n > limit:
                    break
                wall, cpu = time.monotonic(), _cpu()
                result = scene.point(n)
                missed = 0 if result["reached"] else missed + 1
                if missed == 2 and not points:
                    break  # beyond the end, which drifts a little
                result |= {"step": step, "wall": time.monotonic() - wall, "cpu": _cpu() - cpu}
                print(json.dumps(result), flush=True)
    checker().close()


def _cpu() -> float:
    """CPU seconds of this process and all that it has reaped."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main(base: str, program: str, share: str, flags: str, plant: str, points: str, *names: str) -> None:
    """The worker's command line."""
    wanted = {*flags.split(), *(["alone"] if alone() else [])}
    if plant:
        from crash_plants import PLANTS

        PLANTS[plant].plant()
    mine, shares = map(int, share.split("/"))
    chosen = [int(word) for word in points.split(",") if word]
    work(Path(base), Path(program), mine, shares, wanted, chosen, list(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
