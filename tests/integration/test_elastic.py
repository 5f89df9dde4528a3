"""The launcher of torch jobs: real agents, real ranks, real signals."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

PROGRAMS = Path(__file__).resolve().parents[1] / "support" / "programs"
RANK, GLOO = PROGRAMS / "elastic_rank.py", PROGRAMS / "elastic_gloo.py"
# The launcher runs under users' Pythons: name another one here to try it with that one and its torch.
PYTHON = os.environ.get("ELASTIC_TEST_PYTHON", sys.executable)
DEADLINE_S = 120.0
# What torch gives each rank, as under torchrun.
TORCH_NAMES = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip


def until(what: Callable[[], Any], why: str) -> Any:
    """Wait for real processes; the value of `what` once it is true."""
    end = time.monotonic() + DEADLINE_S
    while not (value := what()):
        assert time.monotonic() < end, f"never: {why}"
        time.sleep(0.01)
    return value


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


class Launch:
    """elastic.py, copied alone into an attempt folder, with a folder for what its ranks write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "seen"
        self.work = root / "work"
        self.temp = root / "tmp"
        self.attempt = root / "attempt"
        for folder in (self.folder, self.work, self.temp, self.attempt):
            folder.mkdir()
        spec = importlib.util.find_spec("gpuspool.launch.elastic")
        assert spec is not None and spec.origin is not None
        self.file = Path(shutil.copy(spec.origin, self.attempt))
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "TMPDIR": str(self.temp),
            "LC_ALL": "C.UTF-8",
            # Where torch's own shutdown were in the path, ranks would be killed after this many seconds.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1",
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str | Path, python: tuple[str, ...] = (PYTHON,)) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*python, str(self.file), *map(str, arguments)],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def ranks(self, *plans: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start one stand-in a plan on this node."""
        return self.start("--nproc", str(len(plans)), *options, "--", RANK, self.folder, *plans)

    def ready(self, rank: int) -> dict[str, Any]:
        file = self.folder / f"ready-{rank}"
        until(file.exists, f"rank {rank} is ready")
        seen: dict[str, Any] = json.loads(file.read_text())
        return seen

    def signals(self, rank: int) -> list[str]:
        file = self.folder / f"signals-{rank}"
        return file.read_text().split() if file.exists() else []

    def saved(self, rank: int) -> bool:
        return (self.folder / f"saved-{rank}").exists()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    it = Launch(tmp_path)
    yield it
    for process in it.started:
        if process.poll() is None:
            process.kill()
    for file in it.folder.glob("ready-?"):  # ranks that a broken launcher left behind hold the pipes open
        pid = json.loads(file.read_text())["pid"]
        with contextlib.suppress(OSError):
            if os.fsencode(it.folder) in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    for process in it.started:
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- how it ends


def test_two_jobs_started_together_do_not_meet(launch: Launch) -> None:
    jobs = [launch.start("--nproc", "2", "--", GLOO) for _ in range(2)]
    ports = set()
    for job in jobs:
        code, out, err = end(job)
        assert (code, err) == (0, "")
        lines = [json.loads(line) for line in out.splitlines()]
        assert {line["rank"] for line in lines} == {0, 1}
        assert [line["sum"] for line in lines] == [3.0, 3.0]
        ports |= {line["port"] for line in lines}
    assert len(ports) == 2
    assert list(launch.temp.iterdir()) == []


def test_a_failing_rank_ends_the_others_and_gives_the_code(launch: Launch) -> None:
    code, _, err = end(launch.ranks("wait,exit:0", "until:ready-0,exit:7"))
    assert code == 7
    assert launch.signals(0) == ["SIGTERM"]
    (line,) = err.splitlines()
    assert line.startswith("gpuspool: rank 1 (local rank 1, pid ")
    assert line.endswith("exited with code 7; ending the other ranks")


def test_the_first_failure_counts_not_what_followed_it(launch: Launch) -> None:
    code, _, err = end(launch.ranks("wait,exit:9", "until:ready-0,until:ready-2,exit:7", "wait,kill:6"))
    assert code == 7
    assert len(err.splitlines()) == 1


def test_the_traceback_of_the_first_failure_is_kept_and_named(launch: Launch) -> None:
    code, _, err = end(launch.ranks("traceback,exit:1"))
    assert code == 1
    file = Path(err.strip().rpartition("its traceback is in ")[2])
    assert "line 7" in file.read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_killed_by_a_signal_takes_the_launcher_along(launch: Launch, number: int) -> None:
    code, _, err = end(launch.ranks("until:ready-1,wait,exit:0", f"until:ready-0,kill:{number}"))
    assert code == -number
    assert signal.Signals(number).name in err


def test_75_of_all_ranks_is_75_and_no_failure(launch: Launch) -> None:
    code, _, err = end(launch.ranks("exit:75", "exit:75", options=("--max-restarts", "3")))
    assert (code, err) == (75, "")
    assert launch.ready(0)["environ"]["TORCHELASTIC_RESTART_COUNT"] == "0"


def test_a_failed_group_is_started_again_when_asked(launch: Launch) -> None:
    code, _, err = end(launch.ranks("again:3,connect,exit:0", options=("--max-restarts", "1")))
    assert code == 0
    assert "exited with code 3" in err


def test_a_group_that_is_started_again_meets_afresh(launch: Launch) -> None:
    code, out, _ = end(launch.start("--nproc", "2", "--max-restarts", "1", "--", GLOO, "fail-first"))
    assert code == 0
    assert [json.loads(line)["sum"] for line in out.splitlines()] == [3.0] * 4


def test_a_program_may_host_its_own_store(launch: Launch) -> None:
    launch.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    code, out, err = end(launch.start("--nproc", "2", "--", GLOO))
    assert (code, err) == (0, "")
    assert [json.loads(line)["sum"] for line in out.splitlines()] == [3.0, 3.0]


def test_no_rank_outlives_a_killed_launcher(launch: Launch) -> None:
    process = launch.ranks("wait", "wait")
    pids = [launch.ready(rank)["pid"] for rank in (0, 1)]
    process.kill()
    process.wait()
    for pid in pids:
        until(lambda pid=pid: gone(pid), f"rank {pid} ends")
    assert launch.signals(0) == []


def test_a_rank_whose_launcher_is_already_dead_starts_nothing(launch: Launch) -> None:
    nobody = str(2**22 + 1)  # above the highest pid there can be
    code, out, err = end(launch.start("--become-rank", nobody, "/bin/echo", "started"))
    assert (code, out, err) == (137, "", "")


# --- stopping


@pytest.mark.parametrize(("name", "left"), [("SIGUSR2", 75), ("SIGTERM", 75), ("SIGUSR1", 0), ("SIGUSR2", 1)])
def test_a_stop_by_the_launcher_lets_a_slow_save_finish(launch: Launch, name: str, left: int) -> None:
    process = launch.ranks("wait,save:3,exit:75", f"wait,exit:{left}")
    launch.ready(0), launch.ready(1)
    process.send_signal(getattr(signal, name))
    code, _, err = end(process)
    assert launch.saved(0)
    assert code == (left or 75)
    assert [launch.signals(0), launch.signals(1)] == [[name], [name]]
    assert ("exited with code 1" in err) == (left == 1)


def test_each_signal_is_handed_on_once(launch: Launch) -> None:
    process = launch.ranks("until:go,exit:75")
    launch.ready(0)
    for name in ("SIGUSR1", "SIGHUP", "SIGINT", "SIGUSR2"):
        process.send_signal(getattr(signal, name))
        until(lambda name=name: name in launch.signals(0), f"{name} arrives")
    (launch.folder / "go").touch()
    assert end(process)[0] == 75
    assert launch.signals(0) == ["SIGUSR1", "SIGHUP", "SIGINT", "SIGUSR2"]


def test_a_stop_sent_to_the_ranks_themselves_lets_a_slow_save_finish(launch: Launch) -> None:
    """Of which the launcher knows nothing: the first 75 tells it, and what fails afterwards ends nobody."""
    process = launch.ranks("wait,save:3,exit:75", "wait,touch:left,exit:75", "until:left,save:1,exit:1")
    for rank in (0, 1):
        os.kill(launch.ready(rank)["pid"], signal.SIGUSR2)
    code, _, err = end(process)
    assert launch.saved(0)
    assert code == 75
    assert "rank 2" in err and "ending" not in err
    assert [launch.signals(0), launch.signals(1), launch.signals(2)] == [["SIGUSR2"], ["SIGUSR2"], []]


def test_sigurg_says_that_the_ranks_were_stopped_by_somebody_else(launch: Launch) -> None:
    process = launch.ranks("wait,save:3,exit:0", "wait,exit:1")
    pids = [launch.ready(rank)["pid"] for rank in (0, 1)]
    process.send_signal(signal.SIGURG)
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    code, _, _ = end(process)
    assert launch.saved(0)
    assert code == 1
    assert launch.signals(0) == ["SIGUSR2"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_save_of_40_seconds_survives(launch: Launch) -> None:
    process = launch.ranks("wait,save:40,exit:75", "wait,exit:75")
    launch.ready(0), launch.ready(1)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    assert launch.saved(0)
    assert process.returncode == 75
    assert launch.signals(0) == ["SIGTERM"]


def blocks(process: subprocess.Popen[str], number: int) -> bool:
    """Whether the launcher has come as far as taking its signals."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_checkpoint_signal_before_there_are_ranks_reaches_them(launch: Launch) -> None:
    process = launch.ranks("wait,save:0,exit:75", "wait,exit:75")
    until(lambda: blocks(process, signal.SIGUSR2), "the launcher takes signals")
    process.send_signal(signal.SIGUSR2)
    assert not (launch.folder / "ready-0").exists()
    assert end(process)[0] == 75
    assert [launch.signals(0), launch.signals(1)] == [["SIGUSR2"], ["SIGUSR2"]]


def test_a_checkpoint_signal_waits_until_a_rank_can_take_it(launch: Launch) -> None:
    process = launch.ranks("deaf,until:go,listen,wait,exit:75", "wait,exit:75")
    launch.ready(0), launch.ready(1)
    process.send_signal(signal.SIGUSR2)
    until(lambda: launch.signals(1), "the rank that can take it has it")
    (launch.folder / "go").touch()
    assert end(process)[0] == 75
    assert launch.signals(0) == ["SIGUSR2"]


def test_term_before_there_are_ranks_ends_it(launch: Launch) -> None:
    process = launch.ranks("wait")
    until(lambda: blocks(process, signal.SIGTERM), "the launcher takes signals")
    process.send_signal(signal.SIGTERM)
    assert end(process) == (-signal.SIGTERM, "", "")
    assert list(launch.folder.iterdir()) == []


# --- several nodes


def nodes(launch: Launch, *commands: tuple[str | Path, ...]) -> list[subprocess.Popen[str]]:
    """One launcher a command, all of one job, meeting on this machine."""
    meeting = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "attempt-1")
    count = ("--nnodes", str(len(commands)))
    return [
        launch.start(*count, "--node-rank", str(node), *meeting, "--local-addr", "127.0.0.1", "--", *command)
        for node, command in enumerate(commands)
    ]


def test_two_nodes_train_together(launch: Launch) -> None:
    for process in nodes(launch, (GLOO,), (GLOO,)):
        code, out, err = end(process)
        assert (code, err) == (0, "")
        assert json.loads(out)["sum"] == 3.0


def test_a_failure_on_one_node_ends_the_other(launch: Launch) -> None:
    plan: tuple[str | Path, ...] = (RANK, launch.folder, "wait,exit:0", "until:ready-0,exit:9")
    first, second = nodes(launch, plan, plan)
    assert end(second)[0] == 9
    code, _, err = end(first)
    assert code == -signal.SIGTERM
    assert "a rank of node 1 failed" in err
    assert launch.signals(0) == ["SIGTERM"]


def test_the_node_with_the_store_leaves_last(launch: Launch) -> None:
    plan: tuple[str | Path, ...] = (RANK, launch.folder, "wait,exit:75", "wait,save:3,connect,exit:75")
    first, second = nodes(launch, plan, plan)
    launch.ready(0), launch.ready(1)
    for process in (first, second):
        process.send_signal(signal.SIGUSR2)
    assert end(second)[0] == 75
    assert launch.saved(1)
    assert end(first)[0] == 75
    assert launch.signals(1) == ["SIGUSR2"]


def test_another_job_at_the_same_endpoint_is_turned_away(launch: Launch) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def node(rank: int, job: str) -> subprocess.Popen[str]:
        options = ("--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", endpoint, "--rdzv-id", job)
        return launch.start(*options, "--", RANK, launch.folder, "exit:0")

    first = node(0, "attempt-1")
    code, _, err = end(node(1, "attempt-2"))
    assert code == 1
    assert "another job (attempt-1) meets there" in err
    # The first waits inside torch's C++ for its other node; a signal must reach it there, too.
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == -signal.SIGTERM
    assert list(launch.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--nnodes", "2", "--node-rank", "0", "--rdzv-id", "x"), "--rdzv-endpoint HOST:PORT"),
        (("--nnodes", "2", "--node-rank", "0", "--rdzv-id", "x", "--rdzv-endpoint", "host"), "HOST:PORT"),
        (("--nnodes", "2", "--rdzv-id", "x", "--rdzv-endpoint", "host:1"), "--node-rank"),
        (("--nnodes", "2", "--node-rank", "2", "--rdzv-id", "x", "--rdzv-endpoint", "host:1"), "--node-rank"),
        (("--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "host:1"), "--rdzv-id"),
        (("--nproc", "0"), "--nproc '0'"),
        (("-m", "--no-python"), "exclude each other"),
    ],
)
def test_a_wrong_command_line_is_refused(launch: Launch, options: tuple[str, ...], complaint: str) -> None:
    code, _, err = end(launch.start(*options, "--", "train.py"))
    assert code == 2
    assert complaint in err


# --- what a rank sees


def test_a_rank_sees_what_plain_python_would_show_it(launch: Launch) -> None:
    """Its own folder's modules, its own PYTHONPATH, its own environment, its own command line; nothing of ours."""
    project = launch.root / "my project"
    extra = launch.root / "extra"
    for folder in (project, extra):
        folder.mkdir()
    shutil.copy(RANK, project / "train.py")
    with (project / "train.py").open("a") as file:
        file.write("\nimport launch, trainer, extra_module\nact('touch', launch.WHERE + trainer.WHERE)\n")
    for name in ("launch", "trainer"):
        (project / f"{name}.py").write_text(f"WHERE = 'project-{name}-'\n")
        (launch.attempt / f"{name}.py").write_text("WHERE = 'attempt'\n")
    (launch.attempt / "torch.py").write_text("raise SystemExit('imported from the attempt folder')\n")
    (extra / "extra_module.py").touch()
    launch.env["PYTHONPATH"] = str(extra)
    launch.env["PYTHONHASHSEED"] = "7"
    odd = "a$$b ${HOME} 'é' \n"
    words = [
        str(project / "train.py"),
        str(launch.folder),
        "until:ready-1",
        "until:ready-0",
        odd,
        "--",
        "--nproc",
    ]
    assert end(launch.start("--nproc", "2", "--", *words)) == (0, "", "")
    seen = launch.ready(0)
    assert seen["argv"] == words
    assert seen["path"][:2] == [str(project), str(extra)]
    assert {name: seen["environ"].get(name) for name in launch.env} == launch.env
    assert set(seen["environ"]) - set(launch.env) == TORCH_NAMES
    assert seen["environ"]["OMP_NUM_THREADS"] == "1"
    assert (launch.folder / "project-launch-project-trainer-").exists()


def test_the_process_of_a_rank_is_the_users_program(launch: Launch) -> None:
    process = launch.ranks("wait,exit:0")
    pid = launch.ready(0)["pid"]
    line = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert line == [PYTHON, "-u", str(RANK), str(launch.folder), "wait,exit:0"]
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0


def test_as_many_ranks_as_there_are_cpus(launch: Launch) -> None:
    launch.env["CUDA_VISIBLE_DEVICES"] = ""
    on_one_cpu = (
        "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    plan = ("--nproc", "auto", "--local-addr", "127.0.0.2", "--", RANK, launch.folder, "connect,exit:0")
    assert end(launch.start(*plan, python=(PYTHON, "-c", on_one_cpu))) == (0, "", "")
    seen = launch.ready(0)["environ"]
    assert (seen["WORLD_SIZE"], seen["MASTER_ADDR"]) == ("1", "127.0.0.2")


def test_a_module_is_run_as_python_m_does(launch: Launch) -> None:
    package = launch.work / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(RANK, package / "train.py")
    code, _, _ = end(launch.start("-m", "--", "mine.train", launch.folder, "exit:4"))
    assert code == 4
    assert launch.ready(0)["path"][0] == str(launch.work)


def test_a_program_that_is_no_python_starts_with_a_clean_slate(launch: Launch) -> None:
    """No blocked and no ignored signals: Python ignores SIGPIPE, and the launcher blocks what it takes."""
    script = launch.work / "run.sh"
    script.write_text("#!/bin/sh\ngrep -E '^Sig(Blk|Ign)' /proc/self/status\nenv\nexit 5\n")
    script.chmod(0o755)
    del launch.env["LC_ALL"]  # in the C locale a Python sets LC_CTYPE for itself and its children
    code, out, _ = end(launch.start("--no-python", "--", "./run.sh"))
    assert code == 5
    masks, names = out.splitlines()[:2], {line.partition("=")[0] for line in out.splitlines()[2:]}
    # Signals 32 and 33 are the C library's own; a parent that used posix_spawn leaves one of them ignored.
    assert [int(line.split()[1], 16) & ~(3 << 31) for line in masks] == [0, 0]
    assert "LC_CTYPE" not in names
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} - set(launch.env) == TORCH_NAMES - {"OMP_NUM_THREADS"}


# --- what is missing


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("--", "absent.py"), 127, "there is no script 'absent.py'"),
        (("--no-python", "--", "absent-program"), 127, "there is no program 'absent-program'"),
        (("--no-python", "--", "./plain"), 126, "there is no program './plain' that can be executed"),
    ],
)
def test_a_missing_program_is_said_at_once(
    launch: Launch, arguments: tuple[str, ...], code: int, complaint: str
) -> None:
    (launch.work / "plain").write_text("not executable")
    found, _, err = end(launch.start(*arguments))
    assert found == code
    assert complaint in err


def test_a_python_without_torch_is_named(launch: Launch) -> None:
    # -S leaves out the site-packages, and torch with them.
    code, _, err = end(launch.start("--", RANK, python=(PYTHON, "-S")))
    assert code == 1
    (line,) = err.splitlines()
    assert PYTHON in line and "--python" in line and "No module named 'torch'" in line


def test_gpus_that_are_not_there_are_missed(launch: Launch) -> None:
    launch.env["CUDA_VISIBLE_DEVICES"] = ""
    code, _, err = end(launch.start("--nproc", "gpu", "--", RANK, launch.folder, "exit:0"))
    assert code == 1
    assert "sees no GPU here" in err
