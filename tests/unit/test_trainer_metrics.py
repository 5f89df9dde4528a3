"""metrics.jsonl stays one history over all attempts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspool.trainer.metrics import History


def written(folder: Path, *steps: int) -> History:
    history = History(str(folder))
    for step in steps:
        history.append(step, {"loss": 1 / step, "epoch": step / 7})
    return history


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_lines_beyond_the_resume_step_are_dropped(tmp_path: Path) -> None:
    written(tmp_path, 2, 4, 6, 8)
    history = History(str(tmp_path))
    assert history.cut(5) == 2
    history.append(6, {"loss": 0.5})
    assert steps(tmp_path) == [2, 4, 6]
    assert [line["attempt"] for line in history.lines()] == [1, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_fresh_start_drops_all(tmp_path: Path) -> None:
    written(tmp_path, 2, 4)
    assert History(str(tmp_path)).cut(0) == 2
    assert steps(tmp_path) == []


def test_nothing_to_drop_leaves_the_file_alone(tmp_path: Path) -> None:
    assert History(str(tmp_path)).cut(3) == 0
    history = written(tmp_path, 2, 4)
    before = (tmp_path / "metrics.jsonl").stat()
    assert history.cut(4) == 0
    assert (tmp_path / "metrics.jsonl").stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    "tail", [b'{"step": 3, "lo', b"\0\0\0\0", b"[1]\n", b'{"loss": 1}\n', b"\xff\n", b"\n\n"]
)
def test_a_torn_tail_goes(tmp_path: Path, tail: bytes) -> None:
    history = written(tmp_path, 1, 2)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert [line["step"] for line in history.lines() if "step" in line] == [1, 2]
    history.cut(9)
    history.append(3, {})
    assert steps(tmp_path) == [1, 2, 3]


def test_the_spools_attempt_number_is_used(tmp_path: Path) -> None:
    history = History(str(tmp_path), attempt=7)
    history.append(1, {"loss": 1.0})
    history.close()
    assert history.lines() == [{"step": 1, "loss": 1.0, "attempt": 7}]
    assert History(str(tmp_path)).attempt == 8


def test_what_json_cannot_hold_is_null(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.append(1, {"loss": float("nan"), "grad_norm": float("inf"), "learning_rate": None})
    assert history.lines() == [
        {"step": 1, "loss": None, "grad_norm": None, "learning_rate": None, "attempt": 1}
    ]


@given(loss=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, loss: float) -> None:
    history = History(str(tmp_path_factory.mktemp("exact")))
    history.append(1, {"loss": loss})
    assert history.lines()[0]["loss"].hex() == loss.hex()
    history.close()


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    code = "import sys; from gpuspool.trainer.metrics import History; h = History(sys.argv[1])\nfor n in range(9): h.append(n, {})"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 1 and "OSError" in done.stderr
    history = History(str(tmp_path))
    assert [line["step"] for line in history.lines()] == [0, 1, 2]
