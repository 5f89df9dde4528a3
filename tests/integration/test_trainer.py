"""The trainer as a program: stopped, killed and started again, it must end as if nothing had happened."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]

DEADLINE_S = 120.0
# 60 rows by 4 make 15 steps an epoch: the runs go into a second one, whose order differs. Losses are logged every
# 2 steps, and some stops fall between two lines.
STEPS, SAVE, LOG = 18, 5, 2
OPTIONS = [
    "--max-steps",
    str(STEPS),
    "--save-steps",
    str(SAVE),
    "--logging-steps",
    str(LOG),
    "--learning-rate",
    "1e-3",
]


def environment(**more: str) -> dict[str, str]:
    kept = {"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "PYTHONPATH"}
    ours = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {name: value for name, value in os.environ.items() if name in kept} | ours | more


def until(what: Callable[[], Any], why: str) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (value := what()):
        assert time.monotonic() < end, f"never: {why}"
        time.sleep(0.01)
    return value


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    masks = dict(line.split(":\t") for line in text.splitlines() if line.startswith("Sig"))
    return bool(int(masks["SigCgt"], 16) >> (number - 1) & 1)


def ranks_of(agent: int) -> dict[int, int]:
    """Return the trainer processes below a launcher: rank to pid."""
    ranks = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == agent and b"gpuspool.trainer" in (entry / "cmdline").read_bytes():
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    pairs = dict(each.partition(b"=")[::2] for each in variables)
                    ranks[int(pairs[b"RANK"])] = int(entry.name)
    return ranks


class Program:
    """One started trainer, or a launcher of some, with its output folder."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self.output = output

    def steps(self) -> list[int]:
        path = self.output / "metrics.jsonl"
        return [line["step"] for line in lines(self.output)] if path.exists() else []

    def wait_for(self, step: int) -> None:
        def reached() -> bool:
            assert self.process.poll() is None, self.finish()
            return any(each >= step for each in self.steps())

        until(reached, f"step {step} of {self.output}")

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


class Site:
    """A tiny model with its data, and how to start trainers on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        subprocess.run(
            [sys.executable, "-m", "gpuspool.trainer.tiny", str(root), "--rows", "60"],
            check=True,
            env=environment(),
        )

    def start(
        self,
        output: Path,
        *options: str,
        launcher: Sequence[str] = (sys.executable, "-m", "gpuspool.trainer"),
        preexec: Callable[[], None] | None = None,
        **more: str,
    ) -> Program:
        common = ["--model", str(self.root / "model"), "--data", str(self.root / "data.jsonl"), *OPTIONS]
        batch = "4" if "--nproc" not in launcher and "--nproc-per-node" not in launcher else "2"
        process = subprocess.Popen(
            [*launcher, *common, "--batch-size", batch, "--output-dir", str(output), *options],
            env=environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,
        )
        self.started.append(process)
        return Program(process, output)

    def run(self, output: Path, *options: str, **more: Any) -> tuple[int, str, str]:
        return self.start(output, *options, **more).finish()


def elastic() -> list[str]:
    spec = importlib.util.find_spec("gpuspool.launch.elastic")
    assert spec is not None and spec.origin is not None
    return [sys.executable, spec.origin, "--nproc", "2", "-m", "--", "gpuspool.trainer"]


def torchrun() -> list[str]:
    options = ["--standalone", "--nproc-per-node", "2", "-m"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "gpuspool.trainer"]


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def curve(output: Path) -> list[dict[str, Any]]:
    """The history without what is meant to differ."""
    return [{key: value for key, value in line.items() if key != "attempt"} for line in lines(output)]


def assert_same_end(output: Path, reference: Path) -> None:
    """Losses, weights, optimiser, scheduler and random numbers at the end are equal to the last bit."""
    import torch

    assert curve(output) == curve(reference)
    ends = [folder / f"checkpoint-{STEPS}" for folder in (output, reference)]
    assert (
        ends[0].joinpath("model.safetensors").read_bytes()
        == ends[1].joinpath("model.safetensors").read_bytes()
    )
    for name in sorted(path.name for path in ends[1].glob("*.p*t*") if path.name != "training_args.bin"):
        # Written by the two runs above.
        one, other = (torch.load(end / name, weights_only=False) for end in ends)
        assert flat(one) == flat(other), name


def flat(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: flat(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [flat(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def checkpoints(output: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in output.glob("checkpoint-*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def reference(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of one process that keeps a checkpoint of every step."""
    output = tmp_path_factory.mktemp("reference")
    code, out, err = site.run(output, "--save-steps", "1", "--save-total-limit", "0")
    assert code == 0, err
    assert checkpoints(output) == list(range(1, STEPS + 1))
    assert f"finished: {STEPS} steps" in out
    return output


def test_the_reference_learns_something(reference: Path) -> None:
    history = curve(reference)
    assert [line["step"] for line in history] == list(range(LOG, STEPS + 1, LOG))
    assert history[-1]["loss"] < history[0]["loss"] - 0.5
    assert set(history[0]) == {"step", "loss", "learning_rate", "grad_norm", "epoch"}


def test_stopped_twice_and_resumed_is_the_same_run(site: Site, reference: Path, tmp_path: Path) -> None:
    output, done = tmp_path / "out", tmp_path / "done"
    spool = {"GPUSPOOL_CHECKPOINT_DIR": str(output), "GPUSPOOL_DONE": str(done)}

    first = site.start(
        output, "--step-delay-s", "0.3", **spool, GPUSPOOL_RESUME_FROM="", GPUSPOOL_ATTEMPT="1"
    )
    first.wait_for(6)
    first.process.send_signal(signal.SIGUSR2)
    code, out, err = first.finish()
    assert code == 75, err
    assert "stopped by SIGUSR2 at step" in out
    stopped_at = checkpoints(output)[-1]
    assert checkpoints(output) == sorted({5, stopped_at}) and stopped_at < 10
    assert not done.exists()

    resume = str(output / f"checkpoint-{stopped_at}")
    second = site.start(
        output, "--step-delay-s", "0.3", **spool, GPUSPOOL_RESUME_FROM=resume, GPUSPOOL_ATTEMPT="2",
        GPUSPOOL_STOP_SIGNAL="USR1",
    )  # fmt: skip
    second.wait_for(12)
    second.process.send_signal(signal.SIGTERM)
    code, out, err = second.finish()
    assert code == 75, err
    assert f"goes on at step {stopped_at} from {resume}" in out

    code, out, err = site.run(output, "--resume_from_checkpoint", "auto", GPUSPOOL_DONE=str(done))
    assert code == 0, err
    assert done.exists()
    assert_same_end(output, reference)
    assert sorted({line["attempt"] for line in lines(output)}) == [1, 2, 3]
    assert len(checkpoints(output)) == 3  # the default limit


def test_killed_and_the_newest_checkpoint_damaged(site: Site, reference: Path, tmp_path: Path) -> None:
    killed = site.start(tmp_path, "--step-delay-s", "0.2")
    killed.wait_for(12)
    killed.process.kill()
    assert killed.finish()[0] == -signal.SIGKILL
    assert checkpoints(tmp_path) == [5, 10]
    weights = tmp_path / "checkpoint-10" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    (tmp_path / "tmp-saving" / "checkpoint-15").mkdir(parents=True, exist_ok=True)

    code, out, err = site.run(tmp_path, "--resume_from_checkpoint", "auto")
    assert code == 0, err
    assert "checkpoint-10 is skipped: it has model.safetensors with" in err
    assert "goes on at step 5 from" in out
    assert_same_end(tmp_path, reference)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp-")] == []


@pytest.mark.parametrize("step", [1, 15, 17])
def test_resume_from_an_explicit_step(site: Site, reference: Path, tmp_path: Path, step: int) -> None:
    """After the first step, at the very end of an epoch, and right before the end."""
    shutil.copy(reference / "metrics.jsonl", tmp_path)
    code, out, err = site.run(tmp_path, "--resume_from_checkpoint", str(reference / f"checkpoint-{step}"))
    assert code == 0, err
    assert f"goes on at step {step} from" in out
    assert_same_end(tmp_path, reference)


def test_a_stop_before_the_first_step_saves_nothing(site: Site, reference: Path, tmp_path: Path) -> None:
    resume = str(reference / "checkpoint-5")
    program = site.start(tmp_path, "--resume_from_checkpoint", resume)
    until(lambda: catches(program.process.pid, signal.SIGUSR2), "a handler")
    program.process.send_signal(signal.SIGUSR2)
    code, out, err = program.finish()
    assert (code, err) == (75, "")
    assert "stopped by SIGUSR2" in out and "nothing to save" in out
    assert checkpoints(tmp_path) == []
    assert program.steps() == []


def test_a_finished_run_is_not_run_again(site: Site, reference: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    for number, resume in enumerate(([], ["--resume_from_checkpoint", "auto"])):
        done = tmp_path / f"done{number}"
        code, out, err = site.run(reference, *resume, GPUSPOOL_DONE=str(done))
        assert (code, err) == (0, "")
        assert f"this run is finished: {STEPS} of {STEPS} steps" in out
        assert done.exists()
    final = str(reference / f"checkpoint-{STEPS}")
    code, out, _ = site.run(
        tmp_path / "elsewhere", GPUSPOOL_RESUME_FROM=final, GPUSPOOL_DONE=str(tmp_path / "d")
    )
    assert code == 0 and "this run is finished" in out and (tmp_path / "d").exists()
    assert before == {path: path.stat().st_mtime_ns for path in reference.rglob("*")}


def test_a_full_disk_says_so_and_leaves_no_checkpoint(site: Site, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    code, _, err = site.run(tmp_path, preexec=small_files)
    assert code == 1
    assert "checkpoint-5 could not be written: " in err and "Traceback" not in err
    assert checkpoints(tmp_path) == []
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]


def test_bad_input_is_one_sentence_and_exit_2(site: Site, reference: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "a"}\n{"text": "b"\n')
    other = tmp_path / "other"
    shutil.copytree(reference / "checkpoint-5", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"n_embd": 128}))
    marker = json.loads((other / "gpuspool_complete.json").read_text())
    marker["files"]["config.json"] = (other / "config.json").stat().st_size
    (other / "gpuspool_complete.json").write_text(json.dumps(marker))
    unloadable = tmp_path / "unloadable"
    shutil.copytree(site.root / "model", unloadable)
    (unloadable / "config.json").write_text('{"model_type": "no-such-thing"}')
    (tmp_path / "out" / "checkpoint-3").mkdir(parents=True)
    for options, expected in (
        (["--data", str(tmp_path / "none.jsonl")], "does not exist"),
        (["--data", str(broken)], "line 2 is not JSON"),
        (["--model", str(tmp_path)], "has no config.json"),
        (["--model", str(unloadable)], "cannot be loaded"),
        (["--resume_from_checkpoint", str(tmp_path / "none")], "is not a folder"),
        (["--resume_from_checkpoint", str(other)], "checkpoint of another model: its n_embd is 128"),
        (
            ["--output-dir", str(tmp_path / "out")],
            "already holds checkpoint-3: add --resume_from_checkpoint auto",
        ),
    ):
        code, out, err = site.run(tmp_path / "fresh", *options)
        assert code == 2, (options, err)
        assert err.startswith("gpuspool.trainer: ") and expected in err, (options, err)
        assert err.count("\n") == 1, err
        assert out == ""
    assert not (tmp_path / "fresh").exists() or checkpoints(tmp_path / "fresh") == []


def test_two_ranks_stop_together_and_go_on_as_one_run(site: Site, tmp_path: Path) -> None:
    """The signal reaches one rank only; all stop at the same step, and the launcher does not change the result."""
    accumulate = ["--gradient-accumulation-steps", "2"]
    whole, output = tmp_path / "whole", tmp_path / "output"
    code, out, err = site.run(whole, *accumulate, launcher=elastic())
    assert code == 0, err
    assert f"{STEPS} steps with 2 processes on cpu; starts afresh" in out
    assert out.count("starts afresh") == 1

    stopped = site.start(output, *accumulate, "--step-delay-s", "0.3", launcher=elastic())
    stopped.wait_for(6)
    os.kill(ranks_of(stopped.process.pid)[1], signal.SIGUSR2)
    code, out, err = stopped.finish()
    assert code == 75, err
    assert "stopped by another rank at step" in out

    again = site.start(
        output, *accumulate, "--step-delay-s", "0.3", "--resume_from_checkpoint", "auto", launcher=torchrun()
    )
    again.wait_for(12)
    for pid in ranks_of(again.process.pid).values():
        os.kill(pid, signal.SIGTERM)
    code, out, err = again.finish()
    assert code == 1, err  # torchrun's own, whatever the ranks returned
    assert "exitcode  : 75" in err and "is complete" in out

    code, out, err = site.run(output, *accumulate, "--resume_from_checkpoint", "auto", launcher=elastic())
    assert code == 0, err
    assert_same_end(output, whole)
    names = {path.name for path in (output / f"checkpoint-{STEPS}").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "gpuspool_rank_0.json", "gpuspool_rank_1.json"} <= names
    marker = json.loads((output / f"checkpoint-{STEPS}" / "gpuspool_complete.json").read_text())
    assert marker["files"].keys() == names - {"gpuspool_complete.json"}

    code, out, err = site.run(tmp_path / "one", "--resume_from_checkpoint", str(whole / "checkpoint-15"))
    assert code == 0, err
    assert "written by 2 processes, this run has 1: it goes on, not bit for bit" in out


def test_a_rank_that_is_stopped_early_waits_for_the_others(site: Site, tmp_path: Path) -> None:
    program = site.start(tmp_path, launcher=elastic())
    pid = until(lambda: ranks_of(program.process.pid).get(0), "rank 0")
    until(lambda: catches(pid, signal.SIGUSR2), "a handler")
    os.kill(pid, signal.SIGUSR2)
    code, out, err = program.finish()
    assert code == 75, err
    assert "nothing to save" in out
    assert checkpoints(tmp_path) == []
