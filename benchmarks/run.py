"""The budgets of one machine, measured: figures, and ratios against references of the same run. `make bench`.

Nothing is asserted: a busy machine is slow, and the ratio says more than the figure. Each cold command is measured in
turn with its reference, so that both see the same machine. `--quick` takes fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
SPOOL = str(BIN / "spool")
IMPORT_CLICK = [sys.executable, "-c", "import click"]


class Bench:
    """One spool for one measurement, gone afterwards."""

    def __init__(self, **settings: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="spool-bench-"))
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GPUSPOOL_")}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # users have their bytecode
        self.env |= {
            "GPUSPOOL_CFG_STATE_DIR": str(self.root / "spool"),
            "GPUSPOOL_CFG_LOCAL_CPUS": "8",
            "GPUSPOOL_CFG_FREE_SPACE_MIB": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        for name, value in settings.items():
            self.env[f"GPUSPOOL_CFG_{name}"] = value

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            [SPOOL, "daemon", "stop"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        shutil.rmtree(self.root, ignore_errors=True)

    def spool(self, *words: str) -> str:
        """Run a command."""
        done = subprocess.run([SPOOL, *words], env=self.env, cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"spool {' '.join(words)}: {done.stderr}")
        return done.stdout

    def store(self) -> Any:
        """The store, in this process."""
        from gpuspool.spool import config, folders, store

        self.config = config.load(self.env)
        self.folders = folders.resolve(self.config, self.env)
        return store.open_store(self.folders)


def submissions(count: int, *, distinct: bool = False) -> list[Any]:
    """`count` jobs of `true`."""
    from gpuspool.spool.model import JobSpec, Submission

    shared = JobSpec(["true"], "/", {"PATH": "/usr/bin:/bin"})
    return [
        Submission(
            JobSpec(["true", str(n)], "/", {"PATH": "/usr/bin:/bin"}) if distinct else shared,
            "true",
            "me",
            os.getuid(),
        )
        for n in range(count)
    ]


def seconds(command: list[str], env: dict[str, str]) -> float:
    """Wall seconds of one run of a command."""
    since = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - since


def in_turn(one: list[str], other: list[str], env: dict[str, str], rounds: int) -> tuple[float, float]:
    """Medians of two commands that take turns."""
    first, second = [], []
    for _ in range(rounds + 1):
        first.append(seconds(one, env))
        second.append(seconds(other, env))
    return statistics.median(first[1:]), statistics.median(second[1:])


def cold_submit(rounds: int) -> None:
    with Bench() as bench:
        bench.spool("daemon", "start")
        bench.spool("submit", "--hold", "--", "true")
        mine, reference = in_turn([SPOOL, "submit", "--hold", "--", "true"], IMPORT_CLICK, bench.env, rounds)
        row(
            "spool submit, cold",
            f"{mine * 1e3:.0f} ms",
            "2 x import click and 75 ms",
            f"{mine / reference:.2f} x ({reference * 1e3:.0f} ms)",
        )


def bulk_submit(_: int) -> None:
    with Bench() as bench:
        store = bench.store()
        jobs = submissions(20000, distinct=True)
        since = time.perf_counter()
        store.submit(jobs, time.time())
        rate = 20000 / (time.perf_counter() - since)
        store.close()
        row(
            "bulk, distinct commands",
            f"{rate:,.0f} jobs/s",
            "20,000 jobs/s",
            f"{rate / 20000:.2f} x the budget",
        )


def queue_of_many(rounds: int) -> None:
    with Bench(DAEMON_AUTO="false") as bench:
        fill(bench, 99000, 1000)
        mine, reference = in_turn([SPOOL, "queue"], IMPORT_CLICK, bench.env, rounds)
        row(
            "spool queue, 1,000 of 100,000",
            f"{mine * 1e3:.0f} ms",
            "100 ms",
            f"{mine / reference:.2f} x import click",
        )


def fill(bench: Bench, finished: int, queued: int) -> None:
    """A spool with a past: jobs that have ended, and held ones that wait."""
    store = bench.store()
    store.submit(submissions(finished + queued), time.time())
    with store.write() as db:
        db.execute(
            "UPDATE jobs SET state = 'succeeded', ended_at = submitted_at, end_text = 'finished (exit 0)' WHERE id <= ?",
            (finished,),
        )
        db.execute("UPDATE jobs SET hold = 'user', reason = 'Held' WHERE id > ?", (finished,))
    store.close()


def idle_pass(rounds: int) -> None:
    with Bench(DAEMON_AUTO="false") as bench:
        fill(bench, 100000, 0)
        from gpuspool.launch.local import LocalBackend
        from gpuspool.scheduler.controller import Controller

        store = bench.store()
        controller = Controller(
            store, bench.folders, bench.config, LocalBackend(bench.folders, bench.config), time.time
        )
        controller.tick()
        took = []
        for _ in range(50):
            since = time.perf_counter()
            controller.tick()
            took.append(time.perf_counter() - since)
        store.close()
        row("idle pass, 100,000 finished jobs", f"{statistics.median(took) * 1e3:.2f} ms", "5 ms", "")
        mine, reference = in_turn([SPOOL, "tick", "--quiet"], IMPORT_CLICK, bench.env, rounds)
        row(
            "spool tick, cold and idle",
            f"{mine * 1e3:.0f} ms",
            "2 x import click",
            f"{mine / reference:.2f} x",
        )


def dispatch(rounds: int) -> None:
    for daemon, budget in ((True, "50 ms"), (False, "100 ms")):
        with Bench(DAEMON_AUTO="false") as bench:
            if daemon:
                bench.spool("daemon", "start")
                bench.spool("submit", "--", "true")
                bench.spool("wait", "last")
            took = [one_dispatch(bench, daemon) for _ in range(rounds)]
            reference = statistics.median(seconds(["true"], bench.env) for _ in range(rounds))
            what = "from room to command running, " + ("daemon" if daemon else "cold tick")
            row(
                what,
                f"{statistics.median(took) * 1e3:.0f} ms",
                budget,
                f"{statistics.median(took) / reference:.0f} x fork and exec",
            )


def one_dispatch(bench: Bench, daemon: bool) -> float:
    """Seconds from the moment at which a job could start to its command's own clock."""
    mark = bench.root / "mark"
    mark.unlink(missing_ok=True)
    job = bench.spool(
        "submit", "--hold", "--parsable", "--", "sh", "-c", f"date +%s.%N > {mark}.new; mv {mark}.new {mark}"
    ).strip()
    store = bench.store()
    if daemon:
        from gpuspool.scheduler.handover import wake

        since = time.time()
        store.release((int(job),), since, "bench")
        wake(bench.folders)
    else:
        store.release((int(job),), time.time(), "bench")
        since = time.time()
        bench.spool("tick", "--quiet")
    store.close()
    while not mark.exists():
        time.sleep(0.001)
    bench.spool("wait", job) if daemon else settle(bench)
    return float(mark.read_text()) - since


def settle(bench: Bench) -> None:
    """Tick until nothing lives."""
    while "live" not in (said := bench.spool("tick")) or " 0 live" not in said:
        time.sleep(0.01)


def thousand(_: int) -> None:
    for daemon, budget in ((True, "10 s"), (False, "30 s")):
        with Bench(DAEMON_AUTO="false") as bench:
            count = 1000 if daemon else 200
            if daemon:
                bench.spool("daemon", "start")
            store = bench.store()
            since = time.perf_counter()
            store.submit(submissions(count), time.time())
            bench.spool("tick")
            left = "SELECT count(*) FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')"
            while store.rows(left)[0][0]:
                time.sleep(0.02)
            took = (time.perf_counter() - since) * 1000 / count
            good = store.rows("SELECT count(*) FROM jobs WHERE state = 'succeeded' AND attempt = 1")[0][0]
            store.close()
            since = time.perf_counter()
            for _ in range(count):
                subprocess.run(["true"])
            reference = (time.perf_counter() - since) * 1000 / count
            how = "daemon" if daemon else f"cold ticks, by {count}"
            row(
                f"1,000 jobs of true, 8 slots, {how}",
                f"{took:.1f} s",
                budget,
                f"{took / reference:.1f} x a loop of subprocess.run; {good} of {count} ran once",
            )


def supervisor(_: int) -> None:
    for daemon in (True, False):
        with Bench(DAEMON_AUTO="false", SUPERVISOR_HEARTBEAT="10") as bench:
            if daemon:
                bench.spool("daemon", "start")
                time.sleep(1.5)
            job = bench.spool("submit", "--parsable", "--", "sleep", "60").strip()
            bench.spool("tick")
            started = []
            while not started:
                bench.spool("tick")
                found = json.loads(bench.spool("show", "--json", job))["job"]
                started = [event["data"] for event in found["events"] if event["kind"] == "started"]
            pids = [json.loads(started[0]["supervisor"])[2], started[0]["guardian"]]
            before = [cpu(pid) for pid in pids]
            time.sleep(21)
            used = (sum(map(cpu, pids)) - sum(before)) / 21 * 100
            memory = sum(private_kib(pid) for pid in pids) / 1024
            bench.spool("cancel", "--now", job)
            bench.spool("tick")
            how = "forked warm" if daemon else "cold"
            row(
                f"supervisor, both processes, {how}",
                f"{memory:.1f} MiB private, {used:.2f} % of a core",
                "30 MiB, 0.1 %",
                "",
            )


def cpu(pid: int) -> float:
    """CPU seconds of a process, from its scheduler statistics (nanoseconds; clock ticks are too coarse)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def private_kib(pid: int) -> int:
    """Private memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def policy(_: int) -> None:
    import random

    from gpuspool.scheduler.plan import plan
    from gpuspool.scheduler.state import ClusterState, Gpu, Machine, Pending
    from gpuspool.spool.config import BUILT_IN_CLASSES
    from gpuspool.spool.model import Project

    rng = random.Random(1)
    shapes = [(g, c) for g in (0, 1, 2, 4, 8) for c in (1, 4, 8)]
    for nodes in (1, 100):
        machines = [
            Machine(f"n{n}", 64, 512000, tuple(Gpu(f"g{n}-{i}", i, "h100", 81920) for i in range(8)))
            for n in range(nodes)
        ]
        pending = []
        for n in range(10000):
            gpus, cpus = rng.choice(shapes)
            kind = rng.choice(["ondemand", "spot", "idle"])
            pending.append(
                Pending(
                    n + 1,
                    1,
                    "default",
                    kind,
                    50,
                    kind != "ondemand",
                    1,
                    gpus,
                    cpus,
                    1000,
                    "",
                    3600,
                    60,
                    "",
                    0.0,
                    0.0,
                    n,
                    n,
                )
            )
        state = ClusterState(
            pending,
            [],
            machines,
            {"default": Project("default", None, None, 1.0, "")},
            dict(BUILT_IN_CLASSES),
        )
        took = []
        for _ in range(5):
            since = time.perf_counter()
            plan(state, 1e6)
            took.append(time.perf_counter() - since)
        row(
            f"one pass, 10,000 queued, {nodes} node{'s' if nodes > 1 else ''}",
            f"{statistics.median(took) * 1e3:.0f} ms",
            "250 ms at 1,000 nodes",
            "",
        )


def row(what: str, figure: str, budget: str, ratio: str) -> None:
    """One line of the table, as soon as it is known."""
    print(f"{what:<52}{figure:<42}{budget:<28}{ratio}", flush=True)


MEASUREMENTS: tuple[Callable[[int], None], ...] = (
    cold_submit,
    bulk_submit,
    queue_of_many,
    idle_pass,
    dispatch,
    thousand,
    supervisor,
    policy,
)


def main() -> None:
    """Run all measurements, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(measure.__name__ for measure in MEASUREMENTS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    row("WHAT", "SEEN", "BUDGET", "RATIO")
    for measure in MEASUREMENTS:
        if not options.names or measure.__name__ in options.names:
            measure(5 if options.quick else 15)


if __name__ == "__main__":
    main()
