"""What all tests share: a clean environment, a spool of their own, the real `spool`, and waiting by deadline."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))
pytest_plugins = ["fake_nvml", "hungfs"]

AMBIENT = ("GPUSPOOL_", "SLURM_", "SBATCH_", "CUDA_", "TORCHELASTIC_", "FAKE_NVML")
#: A folder name with all that people put into names.
WEIRD = "a b'c\"d\né$x;"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(AMBIENT):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "200")


def until(what: Callable[[], Any], seconds: float = 30.0, why: str = "") -> Any:
    """The first true value of `what()`, looked at often; fails after `seconds` of real waiting for a real process."""
    give_up = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > give_up:
            raise AssertionError(f"did not come true within {seconds} s: {why or what}")
        time.sleep(0.02)


class Box:
    """One user's spool on this machine, used through the real commands."""

    def __init__(self, root: Path, runtime: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.work = root / WEIRD
        for folder in (self.state, self.work):
            folder.mkdir(parents=True, mode=0o700)
        self.config_file = root / "config.toml"
        self.env = {
            **os.environ,
            "HOME": str(root),
            "GPUSPOOL_CFG_STATE_DIR": str(self.state),
            "GPUSPOOL_CFG_FILE": str(self.config_file),
            "GPUSPOOL_CFG_FREE_SPACE_MIB": "1",
            "GPUSPOOL_CFG_LOCAL_CPUS": "4",
            "GPUSPOOL_CFG_SUPERVISOR_HEARTBEAT": "1",
            "GPUSPOOL_CFG_SUPERVISOR_TERM_TO_KILL": "2",
            "GPUSPOOL_CFG_DAEMON_IDLE": "120",
            "XDG_RUNTIME_DIR": str(runtime),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        # Whatever the machine sets, commands may keep their bytecode: compiling themselves each time takes half of theirs.
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "SCRATCH", "WORK", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)

    def set(self, **settings: str) -> None:
        """Settings by their environment variables: set(LOCAL_CGROUP="off")."""
        for name, value in settings.items():
            self.env[f"GPUSPOOL_CFG_{name}"] = value

    def run(
        self, *words: str, check: bool = True, cwd: Path | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run `spool WORDS`."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuspool.cli.main", *words],
            env=self.env,
            cwd=cwd or self.work,
            capture_output=True,
            text=True,
            timeout=more.pop("timeout", 120),
            stdin=subprocess.DEVNULL,
            **more,
        )
        if check and done.returncode:
            raise AssertionError(
                f"spool {' '.join(words)} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
            )
        return done

    def submit(self, *words: str) -> int:
        """Submit a job; its number. Options, then --, then the command."""
        return int(self.run("submit", "--parsable", *words).stdout)

    def show(self, job: int) -> dict[str, Any]:
        """`spool show --json`."""
        return json.loads(self.run("show", "--json", str(job)).stdout)["job"]

    def state_of(self, job: int) -> str:
        """The job's state."""
        return str(self.show(job)["state"])

    def wait(self, job: int, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        """Until the job is in one of `states` (default: final); the job."""
        wanted = states or ("succeeded", "failed", "cancelled")

        def look() -> dict[str, Any] | None:
            found = self.show(job)
            return found if found["state"] in wanted else None

        try:
            return until(look, seconds)  # type: ignore[no-any-return]
        except AssertionError:
            raise AssertionError(
                f"job {job} is not {wanted}:\n{self.run('show', '--events', str(job)).stdout}"
            ) from None

    def events(self, job: int, kind: str = "") -> list[dict[str, Any]]:
        """The job's events, of one kind."""
        return [event for event in self.show(job)["events"] if not kind or event["kind"] == kind]

    def output(self, job: int, attempt: int = 1) -> str:
        """What an attempt wrote."""
        return (self.state / "jobs" / str(job) / "attempts" / str(attempt) / "output.log").read_text(
            errors="replace"
        )

    def daemon_pid(self) -> int:
        """The daemon's pid, 0 when none serves."""
        found = self.run("daemon", "status", "--json", check=False)
        return int(json.loads(found.stdout)["daemon"]["pid"] or 0)

    def processes(self) -> dict[int, str]:
        """Every process that belongs to this box, by its environment or command line: pid → command line."""
        found = {}
        needle = str(self.root).encode()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes()
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if needle in environment or needle in line:
                found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    def tear_down(self) -> None:
        """End everything of this box, the hard way; only what carries its folder in its environment."""
        for _ in range(50):
            left = self.processes()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A spool of its own with 4 CPUs; everything that it started is gone afterwards."""
    import tempfile

    runtime = Path(tempfile.mkdtemp(prefix="spool-run-"))  # short: a FIFO's path has no limit, a socket's has
    made = Box(tmp_path, runtime)
    yield made
    made.tear_down()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`until`, for tests that wait for a real process."""
    return until


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly what was left out."""
    left_out = terminalreporter.stats.get("skipped", [])
    deselected = terminalreporter.stats.get("deselected", [])
    if left_out or deselected:
        terminalreporter.section("LEFT OUT", sep="!", red=True)
        for report in left_out:
            terminalreporter.line(
                f"skipped: {report.nodeid}: {report.longrepr[2] if report.longrepr else ''}"
            )
        if deselected:
            terminalreporter.line(f"deselected: {len(deselected)} tests")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where the run has to be complete, a skipped test is a failed run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        os.environ.get("SPOOL_TESTS_COMPLETE")
        and reporter
        and reporter.stats.get("skipped")
        and exitstatus == 0
    ):
        session.exitstatus = 1
