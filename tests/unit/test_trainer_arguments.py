"""The trainer's command line and environment: what is taken, and one sentence for what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuspool.trainer.arguments import Arguments, BadInput, parse
from gpuspool.trainer.train import planned_steps


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model from the outside."""
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").touch()
    return folder


def parsed(model: Path, *options: str, **environ: str) -> Arguments:
    return parse(["--model", str(model), "--data", "d.jsonl", *options], environ)


def test_defaults_come_from_the_spool(model: Path) -> None:
    arguments = parsed(
        model,
        GPUSPOOL_CHECKPOINT_DIR="/ck points",
        GPUSPOOL_RESUME_FROM="/ck points/checkpoint-3",
        GPUSPOOL_DONE="/done",
        GPUSPOOL_ATTEMPT="4",
        GPUSPOOL_STOP_SIGNAL="USR1",
    )
    assert (arguments.output_dir, arguments.resume) == ("/ck points", "/ck points/checkpoint-3")
    assert (arguments.done_file, arguments.attempt) == ("/done", 4)
    assert arguments.max_length == 64  # the model's window


def test_options_beat_the_environment(model: Path) -> None:
    environ = {"GPUSPOOL_CHECKPOINT_DIR": "/a", "GPUSPOOL_RESUME_FROM": "/a/checkpoint-3"}
    arguments = parsed(model, "--output-dir", "/b", "--resume_from_checkpoint", "auto", **environ)
    assert (arguments.output_dir, arguments.resume, arguments.resume_asked) == ("/b", "auto", True)
    assert parsed(model, "--output-dir", "/b", "--resume-from-checkpoint", "/x").resume == "/x"


def test_an_empty_resume_variable_is_a_decision_and_none_is_not(model: Path) -> None:
    fresh = parsed(model, "--output-dir", "o", GPUSPOOL_RESUME_FROM="")
    assert (fresh.resume, fresh.resume_asked) == (None, True)
    silent = parsed(model, "--output-dir", "o")
    assert (silent.resume, silent.resume_asked) == (None, False)
    assert silent.output_dir == os.path.abspath("o")
    assert (silent.done_file, silent.attempt) == (None, None)


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ([], {}, "give --output-dir, or set GPUSPOOL_CHECKPOINT_DIR"),
        (["--output-dir", "o", "--max-steps", "-3"], {}, "'-3' is not a whole number from 0"),
        (["--output-dir", "o", "--batch-size", "0"], {}, "'0' is less than 1"),
        (["--output-dir", "o", "--learning-rate", "nan"], {}, "'nan' is not a number from 0"),
        (["--output-dir", "o", "--epochs", "0"], {}, "'0' is not above 0"),
        (["--output-dir", "o", "--max-length", "65"], {}, "beyond the model's window of 64"),
        (["--output-dir", "o", "--max-length", "1"], {}, "'1' is less than 2"),
        (["--output-dir", "o", "--max-step", "5"], {}, "unrecognized arguments: --max-step"),
        (["--output-dir", "o"], {"GPUSPOOL_STOP_SIGNAL": "HELLO"}, "'HELLO' is not the name of a signal"),
        (["--output-dir", "o"], {"GPUSPOOL_STOP_SIGNAL": "KILL"}, "SIGKILL cannot be caught"),
    ],
)
def test_refused(model: Path, options: list[str], environ: dict[str, str], expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        parsed(model, *options, **environ)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_model_folder_without_a_part(model: Path, missing: str, expected: str) -> None:
    (model / missing).unlink()
    with pytest.raises(BadInput, match=expected):
        parsed(model, "--output-dir", "o")


def test_model_that_is_none(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        parsed(tmp_path / "none", "--output-dir", "o")
    with pytest.raises(BadInput, match="is not a folder"):
        parsed(model / "config.json", "--output-dir", "o")
    (model / "config.json").write_text("{")
    with pytest.raises(BadInput, match=r"config\.json is not JSON"):
        parsed(model, "--output-dir", "o")


@pytest.mark.parametrize(
    ("rows", "world", "options", "steps"),
    [
        (60, 1, ["--batch-size", "4", "--epochs", "2"], 30),
        (61, 1, ["--batch-size", "4", "--epochs", "2"], 32),
        (61, 2, ["--batch-size", "4", "--epochs", "1"], 8),
        (61, 2, ["--batch-size", "4", "--epochs", "1.5", "--gradient-accumulation-steps", "3"], 5),
        (1, 4, ["--batch-size", "4", "--epochs", "1", "--gradient-accumulation-steps", "3"], 1),
        (61, 2, ["--max-steps", "7"], 7),
    ],
)
def test_planned_steps(model: Path, rows: int, world: int, options: list[str], steps: int) -> None:
    assert planned_steps(rows, world, parsed(model, "--output-dir", "o", *options)) == steps


def test_help_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; sys.argv[1:] = sys.argv[1:]\n"
        "try: runpy.run_module('gpuspool.trainer', run_name='__main__', alter_sys=True)\n"
        "finally: print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    for options, status in ((["--help"], 0), (["--model", str(tmp_path), "--data", "x"], 2)):
        done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert done.stdout.endswith("[]\n")
