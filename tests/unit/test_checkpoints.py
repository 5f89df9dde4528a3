"""The checkpoint finder on files made by hand: what is whole, what is torn, and which is the newest."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuspool.launch.checkpoints import FORMATS, Broken, Checkpoint, find, verify

WEIRD = ["with space", "quo'te\"s", "new\nline", "größe-öß", "dollar$(true)"]


def safetensors(*sizes: int) -> bytes:
    """Return a whole safetensors file with one U8 tensor of each size."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for number, size in enumerate(sizes):
        header[f"t{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(range(256)) * (end // 256) + bytes(end % 256)


def torch_file(value: object = None, payload: bytes = b"\0" * 300, *, protocol: int = 2) -> bytes:
    """Return a file laid out as torch.save does: a stored zip with archive/data.pkl and the tensors' bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=protocol))
        archive.writestr("archive/data/0", payload)
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def hf(folder: Path, step: int, **files: bytes | None) -> Path:
    """Make a complete checkpoint of transformers.Trainer; a keyword replaces a file, None leaves it out."""
    folder.mkdir(parents=True)
    content: dict[str, bytes | None] = {
        "config.json": b"{}",
        "model.safetensors": safetensors(500),
        "optimizer.pt": torch_file(),
        "scheduler.pt": torch_file(),
        "rng_state.pth": torch_file(),
        "training_args.bin": torch_file(),
        "trainer_state.json": json.dumps({"global_step": step, "log_history": []}).encode(),
    }
    content |= {name.replace("__", "."): data for name, data in files.items()}
    for name, data in content.items():
        if data is not None:
            (folder / name).write_bytes(data)
    return folder


def ours(folder: Path, step: int) -> Path:
    """Make a complete checkpoint with our marker."""
    (folder / "inner").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"w" * 40)
    (folder / "inner" / "rank1").write_bytes(b"r" * 7)
    files = {"weights.bin": 40, "inner/rank1": 7}
    marker = {"format": 1, "step": step, "files": files}
    (folder / "gpuspool_complete.json").write_text(json.dumps(marker))
    return folder


def steps(folder: Path, fmt: str = "auto") -> list[int | None]:
    return [each.step for each in find(str(folder), fmt).complete]


def reason(folder: Path) -> str:
    result = verify(str(folder))
    assert isinstance(result, Broken), result
    return result.reason


# --- which is the newest -----------------------------------------------------------------------------------


def test_highest_step_wins_over_string_order_and_mtime(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        hf(tmp_path / f"checkpoint-{step}", step)
    later = time.time() + 1000
    for file in (tmp_path / "checkpoint-9").iterdir():
        os.utime(file, (later, later))
    found = find(str(tmp_path))
    assert [each.step for each in found.complete] == [100, 20, 9]
    assert found.newest == found.complete[0]
    assert found.newest is not None and found.newest.path == str(tmp_path / "checkpoint-100")
    assert found.newest.format == "hf"
    assert found.broken == ()


def test_broken_newest_is_skipped_with_a_reason(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-10", 10)
    hf(tmp_path / "checkpoint-20", 20, model__safetensors=safetensors(500)[:-1])
    hf(tmp_path / "checkpoint-30", 30, trainer_state__json=None)
    found = find(str(tmp_path))
    assert found.newest is not None and found.newest.step == 10
    assert {Path(each.path).name: each.reason for each in found.broken} == {
        "checkpoint-30": "has no trainer_state.json: it was not written to its end",
        "checkpoint-20": "model.safetensors is cut short: "
        f"{len(safetensors(500)) - 1} bytes where its header says {len(safetensors(500))}",
    }


def test_step_comes_from_the_state_not_from_the_folder(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-10", 700)
    hf(tmp_path / "best", 300)
    assert steps(tmp_path) == [700, 300]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=120.ckpt", 120),
        ("epoch=3-step=120-v1.ckpt", 120),
        ("epoch=9-val_loss=0.25-step=100.ckpt", 100),
        ("step_120.pt", 120),
        ("step120.pth", 120),
        ("model_step_000120.pt", 120),
        ("checkpoint-120.pth.tar", 120),
        ("ckpt_120.pt", 120),
        ("global_step120.pt", 120),
        ("iter_0000120.pt", 120),
        ("step-120.safetensors", 120),
        ("checkpoint.pt", None),
        ("loss=0.25.pt", None),
        ("llama-7b.safetensors", None),
        ("step=" + "9" * 200 + ".pt", None),
    ],
)
def test_names_in_the_wild(tmp_path: Path, name: str, step: int | None) -> None:
    (tmp_path / name).write_bytes(safetensors(9) if name.endswith("safetensors") else torch_file())
    found = find(str(tmp_path))
    assert [each.step for each in found.complete] == [step]
    assert found.broken == ()
    assert verify(str(tmp_path / name)) == found.newest


def test_rolling_and_temporary_folders(tmp_path: Path) -> None:
    hf(tmp_path / "checkpoint-120-rolling", 120)
    for name in (
        "tmp-checkpoint-900",
        "checkpoint-901.tmp",
        "checkpoint-902_tmp",
        ".checkpoint-903",
        "checkpoint-904.partial",
    ):
        hf(tmp_path / name, 900)
    (tmp_path / "tmp-step_905.pt").write_bytes(torch_file())
    (tmp_path / "tmpab12cd_9.pt").write_bytes(torch_file())
    found = find(str(tmp_path))
    assert [each.step for each in found.complete] == [120]
    assert found.broken == ()
    assert "temporary" in reason(tmp_path / "tmp-checkpoint-900")


def test_epoch_names_are_ordered_by_number_not_by_mtime(tmp_path: Path) -> None:
    for epoch in (2, 10, 9):
        (tmp_path / f"model_epoch{epoch}.pt").write_bytes(torch_file())
    found = find(str(tmp_path))
    assert [Path(each.path).name for each in found.complete] == [
        "model_epoch10.pt",
        "model_epoch9.pt",
        "model_epoch2.pt",
    ]
    assert {each.step for each in found.complete} == {None}


def test_new_content_without_a_step_changes_the_identity(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(torch_file())
    os.utime(path, (1000, 1000))
    first = find(str(tmp_path)).newest
    assert first == find(str(tmp_path)).newest
    path.write_bytes(torch_file())
    os.utime(path, (2000, 2000))
    second = find(str(tmp_path)).newest
    assert first is not None and second is not None
    assert (first.mtime, second.mtime) == (1000, 2000)
    assert first.identity != second.identity


def test_newest_without_any_number_is_by_mtime(tmp_path: Path) -> None:
    for name, mtime in (("a.pt", 3000), ("b.pt", 1000)):
        (tmp_path / name).write_bytes(torch_file())
        os.utime(tmp_path / name, (mtime, mtime))
    newest = find(str(tmp_path)).newest
    assert newest is not None and newest.path.endswith("a.pt")


# --- where it looks ----------------------------------------------------------------------------------------


def test_known_nestings(tmp_path: Path) -> None:
    for version, step in ((2, 300), (10, 400)):
        folder = tmp_path / "lightning_logs" / f"version_{version}" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / f"epoch=1-step={step}.ckpt").write_bytes(torch_file())
    hf(tmp_path / "checkpoints" / "checkpoint-350", 350)
    (tmp_path / "unrelated").mkdir()
    (tmp_path / "unrelated" / "step=999.ckpt").write_bytes(torch_file())
    assert steps(tmp_path) == [400, 350, 300]
    assert steps(tmp_path / "lightning_logs") == [400, 300]
    assert steps(tmp_path / "lightning_logs" / "version_2") == [300]


def test_the_folder_itself_and_one_file(tmp_path: Path) -> None:
    folder = hf(tmp_path / "out", 50)
    hf(folder / "checkpoint-50", 50)
    hf(folder / "checkpoint-40", 40)
    found = find(str(folder))
    # The parts of a checkpoint are no checkpoints, and at the same step the child has more in it.
    assert [Path(each.path).name for each in found.complete] == ["checkpoint-50", "out", "checkpoint-40"]
    one = find(str(folder / "optimizer.pt"))
    assert one.newest is not None and one.newest.format == "torch"


def test_missing_folder_and_unknown_format(tmp_path: Path) -> None:
    assert find(str(tmp_path / "none")) == find(str(tmp_path / "none" / "deeper"))
    assert find(str(tmp_path / "none")).complete == ()
    assert reason(tmp_path / "none") == "does not exist"
    with pytest.raises(ValueError, match="choose one of auto, gpuspool, hf"):
        find(str(tmp_path), "onnx")


def test_exported_model_is_not_a_checkpoint(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors"):
        (tmp_path / name).write_bytes(safetensors(10))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(torch_file())
    assert find(str(tmp_path)) == find(str(tmp_path / "none"))


def test_declared_format_shuts_the_others_out(tmp_path: Path) -> None:
    ours(tmp_path / "checkpoint-10", 10)
    hf(tmp_path / "checkpoint-20", 20)
    (tmp_path / "step=30.ckpt").write_bytes(torch_file())
    (tmp_path / "step_40.pt").write_bytes(torch_file())
    (tmp_path / "step_50.safetensors").write_bytes(safetensors(3))
    assert steps(tmp_path) == [50, 40, 30, 20, 10]
    assert {fmt: steps(tmp_path, fmt) for fmt in FORMATS if fmt != "auto"} == {
        "gpuspool": [10],
        "hf": [20],
        "lightning": [30],
        "torch": [40],
        "safetensors": [50, 20],  # declared by the user: the folder of weights counts as well
    }


@pytest.mark.parametrize("name", WEIRD)
def test_weird_names(tmp_path: Path, name: str) -> None:
    hf(tmp_path / name / f"{name} checkpoint-7", 7)
    assert steps(tmp_path / name) == [7]


def test_limit_opens_the_most_recent_only(tmp_path: Path) -> None:
    for step in range(1, 30):
        (tmp_path / f"step_{step}.pt").write_bytes(torch_file())
    (tmp_path / "step_30.pt").write_bytes(b"")
    found = find(str(tmp_path), limit=3)
    assert [each.step for each in found.complete] == [29, 28, 27]
    assert [each.reason for each in found.broken] == ["is empty"]


# --- ours --------------------------------------------------------------------------------------------------


def test_ours_is_complete_by_its_marker(tmp_path: Path) -> None:
    ours(tmp_path / "anything", 12)
    result = verify(str(tmp_path / "anything"))
    assert isinstance(result, Checkpoint)
    assert (result.step, result.format) == (12, "gpuspool")
    assert steps(tmp_path) == [12]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: (f / "weights.bin").unlink(), "lacks weights.bin"),
        (
            lambda f: (f / "weights.bin").write_bytes(b"w" * 39),
            "39 bytes where gpuspool_complete.json says 40",
        ),
        (lambda f: shutil.rmtree(f / "inner"), "lacks inner/rank1"),
        (lambda f: (f / "gpuspool_complete.json").write_text('{"format": 1, "step": 3'), "not whole JSON"),
        (
            lambda f: (f / "gpuspool_complete.json").write_text(
                '{"format": 2, "step": 3, "files": {"a": 1}}'
            ),
            "format 1",
        ),
        (
            lambda f: (f / "gpuspool_complete.json").write_text('{"format": 1, "step": 3, "files": {}}'),
            "format 1",
        ),
        (
            lambda f: (f / "gpuspool_complete.json").write_text(
                '{"format": 1, "step": true, "files": {"a": 1}}'
            ),
            "format 1",
        ),
        (
            lambda f: (f / "gpuspool_complete.json").write_text(
                '{"format": 1, "step": 3, "files": {"../other/weights.bin": 40}}'
            ),
            "unusable entry",
        ),
    ],
)
def test_ours_damaged(tmp_path: Path, damage: object, expected: str) -> None:
    folder = ours(tmp_path / "checkpoint-3", 3)
    damage(folder)  # type: ignore[operator]
    assert expected in reason(folder)


def test_ours_without_marker_is_not_complete(tmp_path: Path) -> None:
    folder = ours(tmp_path / "checkpoint-3", 3)
    (folder / "gpuspool_complete.json").unlink()
    assert find(str(tmp_path)).newest is None


# --- transformers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"trainer_state__json": b'{"global_step": 5'}, "not whole JSON"),
        ({"trainer_state__json": b'{"epoch": 5}'}, "without a global_step"),
        ({"trainer_state__json": b"[" * 100_000}, "not whole JSON"),
        ({"trainer_state__json": b"[]"}, "no object"),
        ({"model__safetensors": None}, "has no weights"),
        ({"model__safetensors": b""}, "model.safetensors is empty"),
        ({"model__safetensors": safetensors(500) + b"x"}, "longer than its header"),
        ({"optimizer__pt": torch_file()[:-30]}, "optimizer.pt is cut short"),
        ({"rng_state__pth": torch_file()[:-1]}, "rng_state.pth is cut short"),
        ({"training_args__bin": b""}, "training_args.bin is empty"),
        (
            {"model__safetensors": None, "adapter_model__safetensors": safetensors(9)},
            "without its adapter_config.json",
        ),
    ],
)
def test_hf_torn(tmp_path: Path, files: dict[str, bytes | None], expected: str) -> None:
    assert expected in reason(hf(tmp_path / "checkpoint-5", 5, **files))


def test_hf_adapter_needs_no_base_model(tmp_path: Path) -> None:
    folder = hf(
        tmp_path / "checkpoint-5", 5, model__safetensors=None, adapter_model__safetensors=safetensors(9)
    )
    (folder / "adapter_config.json").write_text("{}")
    assert steps(tmp_path) == [5]


def test_hf_several_adapters_in_folders(tmp_path: Path) -> None:
    folder = hf(tmp_path / "checkpoint-5", 5, model__safetensors=None)
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "adapter_model.safetensors").write_bytes(safetensors(9))
        (folder / name / "adapter_config.json").write_text("{}")
    assert steps(tmp_path) == [5]
    (folder / "two" / "adapter_model.safetensors").write_bytes(safetensors(9)[:-1])
    assert "two/adapter_model.safetensors is cut short" in reason(folder)


def test_hf_sharded_weights(tmp_path: Path) -> None:
    folder = hf(tmp_path / "checkpoint-5", 5, model__safetensors=None)
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        (folder / name).write_bytes(safetensors(9))
    weight_map = {f"layer{number}": name for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert steps(tmp_path) == [5]
    (folder / names[1]).unlink()
    assert "lacks the shard model-00002-of-00003.safetensors" in reason(folder)
    (folder / "model.safetensors.index.json").unlink()  # the index is written last: the names tell as well
    assert "lacks the shard model-00002-of-00003.safetensors" in reason(folder)
    (folder / names[1]).write_bytes(safetensors(9))
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "without a weight_map" in reason(folder)


def test_hf_state_with_an_enormous_log_is_read_at_both_ends(tmp_path: Path) -> None:
    entry = {"loss": 1.0, "step": 999_999, "global_step": 3}
    state = {"best_metric": None, "epoch": 1.0, "global_step": 77, "log_history": [entry] * 60_000}
    raw = json.dumps(state, indent=2, sort_keys=True).encode() + b"\n"
    assert len(raw) > 4 << 20
    folder = hf(tmp_path / "checkpoint-77", 77, trainer_state__json=raw)
    assert steps(tmp_path) == [77]
    (folder / "trainer_state.json").write_bytes(raw[:-3])
    assert "cut short" in reason(folder)


def test_layouts_that_cannot_be_proved_say_so(tmp_path: Path) -> None:
    deepspeed = tmp_path / "global_step120"
    deepspeed.mkdir()
    (deepspeed / "mp_rank_00_model_states.pt").write_bytes(torch_file())
    distributed = tmp_path / "step_120"
    distributed.mkdir()
    (distributed / ".metadata").write_bytes(b"x")
    (distributed / "__0_0.distcp").write_bytes(b"x")
    loose = tmp_path / "step_121"
    loose.mkdir()
    (loose / "model.pt").write_bytes(torch_file())
    assert "DeepSpeed" in reason(deepspeed)
    assert "torch distributed" in reason(distributed)
    assert "gpuspool_complete.json last" in reason(loose)
    assert find(str(tmp_path)).newest is None


def test_folder_of_safetensors(tmp_path: Path) -> None:
    folder = tmp_path / "step_120"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(9))
    newest = find(str(tmp_path)).newest
    assert newest is not None and (newest.step, newest.format) == (120, "safetensors")


# --- lightning and links -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("step", [0, 7, 255, 256, 70_000, 2_000_000])
def test_lightning_last_tells_its_step_without_unpickling(tmp_path: Path, step: int, protocol: int) -> None:
    value = {"epoch": 3, "global_step": step, "pytorch-lightning_version": "2.5", "state_dict": {}}
    (tmp_path / "last.ckpt").write_bytes(torch_file(value, protocol=protocol))
    assert steps(tmp_path) == [step]


def test_last_as_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "epoch=0-step=9.ckpt").write_bytes(torch_file())
    (tmp_path / "real" / "epoch=3-step=120.ckpt").write_bytes(torch_file())
    (tmp_path / "last.ckpt").symlink_to("real/epoch=3-step=120.ckpt")
    (tmp_path / "same.ckpt").symlink_to("epoch=0-step=9.ckpt")
    (tmp_path / "gone.ckpt").symlink_to("nowhere.ckpt")
    (tmp_path / "loop.ckpt").symlink_to("loop.ckpt")
    found = find(str(tmp_path))
    assert [(Path(each.path).name, each.step) for each in found.complete] == [
        ("last.ckpt", 120),
        ("epoch=0-step=9.ckpt", 9),
    ]
    reasons = {Path(each.path).name: each.reason for each in found.broken}
    assert reasons.keys() == {"gone.ckpt", "loop.ckpt"}
    assert reasons["gone.ckpt"] == "is a link to nothing"


def test_link_to_a_folder(tmp_path: Path) -> None:
    hf(tmp_path / "elsewhere" / "checkpoint-8", 8)
    run = tmp_path / "run"
    run.mkdir()
    (run / "latest").symlink_to("../elsewhere/checkpoint-8")
    newest = find(str(run)).newest
    assert newest is not None and (newest.path, newest.step) == (str(run / "latest"), 8)


# --- hostile and moving folders ----------------------------------------------------------------------------


def test_special_files_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_1.ckpt")  # opening it would wait for ever
    folder = hf(tmp_path / "checkpoint-2", 2, optimizer__pt=None)
    os.mkfifo(folder / "optimizer.pt")
    (tmp_path / "step_3.pt").symlink_to("/dev/zero")
    state = hf(tmp_path / "checkpoint-4", 4, trainer_state__json=None)
    os.mkfifo(state / "trainer_state.json")
    found = find(str(tmp_path))
    assert {Path(each.path).name: each.reason for each in found.broken} == {
        "step_1.ckpt": "is not a regular file",
        "step_3.pt": "is not a regular file",
        "checkpoint-4": "has no trainer_state.json: it was not written to its end",
    }
    assert [each.step for each in found.complete] == [2]  # what Trainer itself does not need is no obstacle


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.pt", b"", "is empty"),
        ("a.pt", pickle.dumps({"a": 1}, protocol=2), "old format"),
        ("a.pt", b"PK\x03\x04" + b"x" * 200, "no central directory"),
        ("a.pt", b"garbage" * 100, "not a file that torch.save writes"),
        ("a.safetensors", b"\xff" * 100, "no safetensors header"),
        ("a.safetensors", b"\2\0\0", "cut short within its header"),
        ("a.safetensors", struct.pack("<Q", 10) + b"{" * 10, "not JSON"),
        ("a.safetensors", struct.pack("<Q", 1000) + b"{" * 10, "cut short within its header"),
        ("a.safetensors", struct.pack("<Q", 9) + b'{"t": []}', "without the offsets"),
    ],
)
def test_garbage(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert expected in reason(tmp_path / name)
    assert find(str(tmp_path)).newest is None


def test_zip_that_is_not_torchs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "not one that torch.save writes" in reason(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(b"prefix" + torch_file())
    assert find(str(tmp_path)).newest is None


def test_hole_or_overlap_between_tensors(tmp_path: Path) -> None:
    for first, second in (([0, 4], [5, 9]), ([0, 4], [3, 9])):
        header = {"a": {"data_offsets": first}, "b": {"data_offsets": second}}
        raw = json.dumps(header).encode()
        (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"x" * 9)
        assert "overlap or leave a hole" in reason(tmp_path / "a.safetensors")


def test_a_huge_sparse_file_costs_only_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "step_1.safetensors"
    size = 1 << 40
    raw = json.dumps({"t": {"data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    os.truncate(path, 8 + len(raw) + size)
    (tmp_path / "step_2.pt").write_bytes(torch_file())
    os.truncate(tmp_path / "step_2.pt", size)
    assert steps(tmp_path) == [1]


def test_ten_thousand_entries(tmp_path: Path) -> None:
    for number in range(5_000):
        (tmp_path / f"log-{number}.txt").touch()
        (tmp_path / f"step_{number}.pt").touch()
    (tmp_path / "step_17.pt").write_bytes(torch_file())
    found = find(str(tmp_path))
    assert [each.step for each in found.complete] == [17]
    assert len(found.broken) == 4_999


def test_no_permission_is_a_reason(tmp_path: Path) -> None:
    hf(tmp_path / "run" / "checkpoint-1", 1)
    hf(tmp_path / "run" / "checkpoint-2", 2)
    (tmp_path / "run" / "closed").mkdir()
    (tmp_path / "run" / "checkpoint-2" / "model.safetensors").chmod(0)
    hf(tmp_path / "run" / "checkpoint-3", 3).chmod(0)
    (tmp_path / "run").chmod(0o755)
    # Root may read everything, so the look itself is done as nobody, from inside: the folders above are private.
    code = (
        "import json, os, sys; from gpuspool.launch.checkpoints import find; os.chdir(sys.argv[1]);\n"
        "os.geteuid() or os.seteuid(65534); found = find('.')\n"
        "print(json.dumps([[c.step for c in found.complete], {b.path: b.reason for b in found.broken}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    complete, broken = json.loads(done.stdout)
    assert complete == [1]
    assert broken.keys() == {"./checkpoint-2", "./checkpoint-3"}
    assert broken["./checkpoint-2"].endswith("Permission denied")
    for path in (tmp_path / "run" / "checkpoint-3", tmp_path / "run" / "closed"):
        path.chmod(0o755)


def test_a_folder_that_changes_under_the_look(tmp_path: Path) -> None:
    """Rotation, renames and half-written files while we look: never an exception, never a torn one."""
    whole = torch_file(payload=os.urandom(50_000))
    stop = threading.Event()
    hf(tmp_path / "checkpoint-1", 1)

    def churn() -> None:
        step = 2
        while not stop.is_set():
            folder = hf(tmp_path / f"checkpoint-{step}", step)
            with (tmp_path / f"step_{step}.pt").open("wb") as file:
                for start in range(0, len(whole), 5_000):
                    file.write(whole[start : start + 5_000])
                    file.flush()
            shutil.rmtree(folder)
            (tmp_path / f"step_{step}.pt").unlink()
            step += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(150):
            found = find(str(tmp_path))
            assert found.complete and found.complete[-1].step == 1
            for each in found.broken:
                assert each.reason
    finally:
        stop.set()
        thread.join()


# --- fuzz --------------------------------------------------------------------------------------------------

FILES = {
    "step_9.safetensors": safetensors(300, 17),
    "step_9.pt": torch_file({"a": 1}, os.urandom(120)),
    "step=9.ckpt": torch_file({"global_step": 9}, b"PK\x05\x06" * 40),
}
fuzz = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@fuzz
@given(name=st.sampled_from(sorted(FILES)), fraction=st.floats(0, 1, exclude_max=True))
def test_truncated_is_never_complete(name: str, fraction: float) -> None:
    whole = FILES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(whole[: int(len(whole) * fraction)])
        assert isinstance(verify(str(path)), Broken)
        assert find(folder).newest is None
        path.write_bytes(whole)
        assert isinstance(verify(str(path)), Checkpoint)


def test_every_truncation_of_each_format(tmp_path: Path) -> None:
    for name, whole in FILES.items():
        path = tmp_path / name
        path.write_bytes(whole)
        for length in range(len(whole) - 1, -1, -1):
            os.truncate(path, length)
            assert isinstance(verify(str(path)), Broken), (name, length)


@fuzz
@given(name=st.sampled_from(sorted(FILES)), seed=st.integers(0, 2**32), count=st.integers(1, 8))
def test_corrupted_anywhere_never_raises(name: str, seed: int, count: int) -> None:
    random_ = random.Random(seed)
    content = bytearray(FILES[name])
    for _ in range(count):
        content[random_.randrange(len(content))] = random_.choice((0, 1, 0x7F, 0xFF, random_.randrange(256)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        assert isinstance(verify(str(path)), Checkpoint | Broken)
        path.write_bytes(content[: random_.randrange(len(content))])
        find(folder)


@fuzz
@given(
    data=st.binary(max_size=400),
    marker=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["format", "step", "files", "weight_map", "global_step"]) | st.text(), inner
            )
        ),
        max_leaves=12,
    ),
)
def test_any_json_in_a_checkpoint_never_raises(data: bytes, marker: object) -> None:
    text = json.dumps(marker)
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(
            ("gpuspool_complete.json", "trainer_state.json", "model.safetensors.index.json")
        ):
            hf(Path(folder, f"checkpoint-{number}"), number)
            Path(folder, f"checkpoint-{number}", name).write_text(text)
        raw = text.encode()
        Path(folder, "a.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
        Path(folder, "b.pt").write_bytes(data)
        Path(folder, "c.ckpt").write_bytes(b"PK\x03\x04" + data)
        find(folder)
