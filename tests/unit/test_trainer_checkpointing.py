"""The trainer's checkpoints: marked last, chosen by step, never lost, wherever the process is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuspool.launch import checkpoints as finder
from gpuspool.trainer.checkpointing import (
    MARKER,
    STAGING,
    CheckpointError,
    Complete,
    Incomplete,
    choose,
    complete_in,
    discard_superseded,
    finish,
    finished_step,
    prune,
    publish,
    read,
    sync_files,
    tidy,
    write_atomically,
)


def made(output: Path, step: int, *, name: str | None = None) -> Path:
    """Publish a checkpoint the way a run does."""
    name = name or f"checkpoint-{step}"
    staged = output / STAGING / name
    (staged / "inner").mkdir(parents=True)
    (staged / "weights").write_bytes(b"w" * step)
    (staged / "inner" / "rank").write_bytes(b"r")
    (staged / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    publish(str(staged), str(output / name), step, {"weights": step})
    return output / name


def steps(output: Path) -> list[int]:
    return [each.step for each in complete_in(str(output))[0]]


def test_published_is_complete_for_us_and_for_the_finder(tmp_path: Path) -> None:
    folder = made(tmp_path, 12)
    assert read(str(folder)) == Complete(str(folder), 12)
    marker = json.loads((folder / MARKER).read_text())
    assert marker == {
        "format": 1,
        "step": 12,
        "files": {
            "weights": 12,
            "inner/rank": 1,
            "trainer_state.json": (folder / "trainer_state.json").stat().st_size,
        },
    }
    found = finder.find(str(tmp_path)).newest
    assert found is not None and (found.path, found.step, found.format) == (str(folder), 12, "gpuspool")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-12"]


def test_the_step_is_the_markers_and_the_order_is_by_number(tmp_path: Path) -> None:
    made(tmp_path, 9)
    made(tmp_path, 100)
    made(tmp_path, 20)
    made(tmp_path, 300, name="checkpoint-7")
    assert steps(tmp_path) == [300, 100, 20, 9]
    newest = finder.find(str(tmp_path)).newest
    assert newest is not None and newest.step == 300


def test_files_of_another_rank_must_be_here(tmp_path: Path) -> None:
    staged = tmp_path / STAGING / "checkpoint-3"
    staged.mkdir(parents=True)
    (staged / "rng_1.pth").write_bytes(b"123")
    assert sync_files(str(staged), only="_1.") == {"rng_1.pth": 3}
    for promised in ({"rng_2.pth": 3}, {"rng_1.pth": 4}):
        with pytest.raises(CheckpointError, match="output folder must be shared"):
            publish(str(staged), str(tmp_path / "checkpoint-3"), 3, promised)
    assert steps(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (MARKER, None, "was not written to its end"),
        (MARKER, b"{", "not JSON"),
        (MARKER, b"[" * 100_000, "not JSON"),
        (MARKER, b"[1]", "not of format 1"),
        (MARKER, b'{"format": 2, "step": 1, "files": {}}', "not of format 1"),
        (MARKER, b'{"format": 1, "step": 1, "files": {"a\\u0000": 1}}', "lacks a"),
        ("weights", b"www", "has weights with 3 bytes instead of 20"),
        ("weights", None, "lacks weights"),
    ],
)
def test_damage_is_seen(tmp_path: Path, name: str, content: bytes | None, expected: str) -> None:
    made(tmp_path, 10)
    folder = made(tmp_path, 20)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(Incomplete, match=expected):
        read(str(folder))
    choice = choose(str(tmp_path), "auto", asked=True)
    assert choice.resume is not None and choice.resume.step == 10
    assert len(choice.notes) == 1 and str(folder) in choice.notes[0] and expected in choice.notes[0]


def test_auto_without_any_is_a_fresh_start(tmp_path: Path) -> None:
    assert choose(str(tmp_path / "none"), "auto", asked=True) == choose(str(tmp_path), None, asked=False)
    (tmp_path / STAGING / "checkpoint-5").mkdir(parents=True)
    (tmp_path / "checkpoint-6").mkdir()
    choice = choose(str(tmp_path), "auto", asked=True)
    assert choice.resume is None and "checkpoint-6 is skipped" in choice.notes[0]


def test_a_path_that_is_broken_gives_way_to_the_one_before(tmp_path: Path) -> None:
    made(tmp_path, 10)
    folder = made(tmp_path, 20)
    (folder / "weights").write_bytes(b"")
    choice = choose(str(tmp_path / "elsewhere"), str(folder), asked=True)
    assert choice.resume is not None and choice.resume.step == 10
    assert "going on from" in choice.notes[0]
    prune(str(tmp_path), 1)
    (tmp_path / "checkpoint-10" / "weights").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint beside it"):
        choose(str(tmp_path), str(folder), asked=True)


def test_a_checkpoint_of_another_program_is_taken_when_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-8"
    folder.mkdir()
    with pytest.raises(CheckpointError, match="no complete checkpoint beside it"):
        choose(str(tmp_path), str(folder), asked=True)
    (folder / "trainer_state.json").write_text('{"global_step": 8}')
    choice = choose(str(tmp_path), str(folder), asked=True)
    assert choice.resume == Complete(str(folder), 8) and "another program" in choice.notes[0]
    assert choose(str(tmp_path), "auto", asked=True).resume is None


def test_a_used_folder_without_a_word_about_resuming_is_refused(tmp_path: Path) -> None:
    made(tmp_path, 9)
    made(tmp_path, 10)
    with pytest.raises(
        CheckpointError, match="already holds checkpoint-10: add --resume_from_checkpoint auto"
    ):
        choose(str(tmp_path), None, asked=False)
    assert choose(str(tmp_path), None, asked=True).resume is None


def test_prune_keeps_the_newest_complete_whatever_the_limit(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        made(tmp_path, step)
    (tmp_path / "checkpoint-15" / "weights").unlink()
    old = made(tmp_path, 4)
    os.utime(old, (2e9, 2e9))  # the mtime means nothing
    assert [each.step for each in prune(str(tmp_path), 1)] == [5, 4]
    assert steps(tmp_path) == [10]
    assert prune(str(tmp_path), 1) == prune(str(tmp_path), 0) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-15"]


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    made(tmp_path, 5)
    folder = made(tmp_path, 6, name="checkpoint-5")
    assert steps(tmp_path) == [6]
    assert (folder / "weights").stat().st_size == 6
    tidy(str(tmp_path), 99)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_what_lies_beyond_the_resume_step_goes_only_when_there_is_a_new_one(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        made(tmp_path, step)
    (tmp_path / "checkpoint-20").mkdir()  # another program's, so it is never deleted
    finish(str(tmp_path), 15, None)
    notes = tidy(str(tmp_path), 5)
    assert len(notes) == 3 and all("is beyond step 5" in note for note in notes)
    assert steps(tmp_path) == [5]
    assert finder.find(str(tmp_path)).complete[0].step == 5
    assert finished_step(str(tmp_path)) is None
    assert (tmp_path / "tmp-superseded-checkpoint-10" / MARKER).exists()
    tidy(str(tmp_path), 5)
    made(tmp_path, 7)
    discard_superseded(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-5",
        "checkpoint-7",
        "tmp-superseded-checkpoint-20",
    ]


def test_finish(tmp_path: Path) -> None:
    done = tmp_path / "done here"
    assert finished_step(str(tmp_path)) is None
    finish(str(tmp_path), 30, str(done))
    assert finished_step(str(tmp_path)) == 30
    assert json.loads(done.read_text()) == {"step": 30}
    (tmp_path / "finished.json").write_text("{")
    assert finished_step(str(tmp_path)) is None


def test_write_atomically_leaves_the_old_content_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(str(path), b"old")
    with pytest.raises(TypeError):
        write_atomically(str(path), "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


CRASHER = """
import os, sys
from gpuspool.trainer import checkpointing
folder, limit, count = sys.argv[1], int(sys.argv[2]), 0

def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.scandir", "os.listdir"):
        count += 1
        if count > limit:
            os._exit(9)

os.makedirs(folder + "/tmp-saving/checkpoint-20")
with open(folder + "/tmp-saving/checkpoint-20/weights", "wb") as file:
    file.write(b"w" * 20)
sys.addaudithook(hook)
checkpointing.publish(folder + "/tmp-saving/checkpoint-20", folder + "/checkpoint-20", 20, {})
checkpointing.prune(folder, 1)
checkpointing.discard_superseded(folder)
"""


@pytest.mark.slow
def test_killed_anywhere_there_is_a_complete_checkpoint(tmp_path: Path) -> None:
    """A real process that dies at the n-th file operation of a save, for every n."""
    seen = set()
    for limit in range(200):
        output = tmp_path / str(limit)
        for step in (5, 10):
            made(output, step)
        (output / "checkpoint-20").mkdir()  # in the way, as after a rerun
        done = subprocess.run([sys.executable, "-c", CRASHER, str(output), str(limit)])
        newest = finder.find(str(output)).newest
        assert newest is not None and newest.format == "gpuspool"
        assert newest.step == steps(output)[0]
        seen.add((newest.step, len(steps(output))))
        # The next start cleans up, and the same save then succeeds.
        tidy(str(output), newest.step)
        made(output, 20)
        assert prune(str(output), 1) != [] or steps(output) == [20]
        assert steps(output) == [20]
        if done.returncode == 0:
            break
        assert done.returncode == 9
    assert done.returncode == 0 and limit > 10
    assert {(10, 2), (20, 3), (20, 1)} <= seen
