"""The checkpoint finder on files that torch, safetensors, transformers and our trainer really write."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuspool.launch.checkpoints import Broken, Checkpoint, find, verify

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]


def assert_only_whole_is_complete(path: Path, fmt: str, step: int | None) -> None:
    """The file as it is counts, and cut at some 60 places, near the ends above all, it does not."""
    whole = verify(str(path))
    assert isinstance(whole, Checkpoint), whole
    assert (whole.format, whole.step) == (fmt, step)
    size = path.stat().st_size
    for cut in sorted({*range(1, 30), *range(size // 7, size, max(1, size // 7)), *range(size - 30, size)}):
        short = path.with_name(f"cut {path.name}")
        shutil.copy(path, short)
        os.truncate(short, size - cut)
        assert isinstance(verify(str(short)), Broken), f"{cut} bytes short"
        short.unlink()


def test_torch_save(tmp_path: Path) -> None:
    import torch

    for step, value in enumerate(
        ({"w": torch.ones(300, 40)}, torch.arange(9), {"n": 1}, list(torch.ones(50, 3)))
    ):
        torch.save(value, tmp_path / f"step_{step}.pt")
        assert_only_whole_is_complete(tmp_path / f"step_{step}.pt", "torch", step)
    assert [each.step for each in find(str(tmp_path)).complete] == [3, 2, 1, 0]


def test_torch_save_of_more_entries_than_a_plain_zip_can_count(tmp_path: Path) -> None:
    import torch

    torch.save([torch.zeros(1) for _ in range(66_000)], tmp_path / "many.pt")
    result = verify(str(tmp_path / "many.pt"))
    assert isinstance(result, Checkpoint), result
    os.truncate(tmp_path / "many.pt", (tmp_path / "many.pt").stat().st_size - 1)
    assert isinstance(verify(str(tmp_path / "many.pt")), Broken)


def test_torchs_old_format_proves_nothing(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(3)}, tmp_path / "step_1.pt", _use_new_zipfile_serialization=False)
    result = verify(str(tmp_path / "step_1.pt"))
    assert isinstance(result, Broken) and "old format" in result.reason


def test_safetensors(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"a": torch.ones(30, 7), "b": torch.zeros(2, dtype=torch.bfloat16), "c": torch.zeros(0)}
    save_file(tensors, tmp_path / "step_5.safetensors", metadata={"format": "pt"})
    assert_only_whole_is_complete(tmp_path / "step_5.safetensors", "safetensors", 5)


def test_lightning_layout(tmp_path: Path) -> None:
    import torch

    for step, name in ((70_000, "last.ckpt"), (400, "epoch=1-step=400.ckpt")):
        content = {
            "epoch": 1,
            "global_step": step,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": {"w": torch.ones(9)},
        }
        torch.save(content, tmp_path / name)
        assert_only_whole_is_complete(tmp_path / name, "lightning", step)
    newest = find(str(tmp_path)).newest
    assert newest is not None and newest.path.endswith("last.ckpt")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and data."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "gpuspool.trainer.tiny", str(folder), "--rows", "40"], check=True)
    return folder


PLAIN_TRAINER = """
import json, sys
import torch, transformers
site, output = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(site + "/model")
model = transformers.AutoModelForCausalLM.from_pretrained(site + "/model")
ids = [torch.tensor(tokenizer(json.loads(line)["text"])["input_ids"]) for line in open(site + "/data.jsonl")]
arguments = transformers.TrainingArguments(
    output_dir=output, max_steps=12, save_steps=4, per_device_train_batch_size=1, use_cpu=True, report_to="none",
    disable_tqdm=True,
)
data = [{"input_ids": each, "labels": each} for each in ids]
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer)
trainer.train()
trainer.save_model()
model.save_pretrained(output + "/checkpoint-12", max_shard_size="200KB")
"""


def test_transformers_trainer(site: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    output = tmp_path / "out put"
    command = [sys.executable, "-c", PLAIN_TRAINER, str(site), str(output)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The last one is sharded as well by now; the exported model beside them is none.
    (output / "checkpoint-12" / "model.safetensors").unlink(missing_ok=True)
    found = find(str(output))
    assert [(each.step, each.format) for each in found.complete] == [(12, "hf"), (8, "hf"), (4, "hf")]
    assert found.broken == ()

    shards = sorted((output / "checkpoint-12").glob("model-*-of-*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    os.truncate(output / "checkpoint-8" / "optimizer.pt", 1000)
    found = find(str(output))
    assert found.newest is not None and found.newest.step == 4
    assert [each.reason for each in found.broken] == [
        f"lacks the shard {shards[0].name}, which model.safetensors.index.json names",
        "optimizer.pt is cut short: it has no central directory at its end",
    ]
    (output / "checkpoint-4" / "trainer_state.json").unlink()
    assert find(str(output)).newest is None


def test_our_trainer_while_it_runs(site: Path, tmp_path: Path) -> None:
    """Whatever moment one looks, what is found is complete, goes up, and is still there: two are kept."""
    command: list[Any] = [sys.executable, "-m", "gpuspool.trainer", "--model", site / "model"]
    command += [
        "--data",
        site / "data.jsonl",
        "--output-dir",
        tmp_path,
        "--max-steps",
        "40",
        "--batch-size",
        "1",
    ]
    command += ["--save-steps", "1", "--save-total-limit", "2"]
    environ = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    looked, last = 0, 0
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = find(str(tmp_path))
            assert found.broken == ()
            if found.newest is not None:
                assert found.newest.format == "gpuspool"
                assert found.newest.step is not None and found.newest.step >= last
                last = found.newest.step
                looked += 1
            elif last:
                raise AssertionError("no checkpoint, where there was one")
    assert process.returncode == 0
    newest = find(str(tmp_path)).newest
    assert newest is not None and newest.step == 40
    assert looked > 5
