"""Checkpoints of ours: written beside their place, complete by a marker that comes last, then renamed into place.

What saves a checkpoint is somebody else's (transformers' Trainer); this makes it one that can be trusted:

1. it is written into `tmp-saving/`, so that a half-written one never has a checkpoint's name;
2. when all ranks have written, every file is fsynced;
3. `gpuspool_complete.json` names every file with its size, and is written by temp file, fsync and rename;
4. the folder is renamed to its place, and only then are older ones removed.

A crash between any two of these leaves the checkpoint before it, whole. Names that begin with `tmp-` are nobody's
checkpoints. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

MARKER = "gpuspool_complete.json"
FORMAT = 1
STAGING = "tmp-saving"
FINISHED = "finished.json"
STATE = "trainer_state.json"

_REMOVED = "tmp-removed-"
_SUPERSEDED = "tmp-superseded-"
_NUMBERED = re.compile(r"checkpoint-(\d{1,15})")


class CheckpointError(Exception):
    """A checkpoint cannot be written, or none can be resumed from; the message is a sentence for the user."""


class Incomplete(Exception):
    """A folder is not a complete checkpoint of ours; the message is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Complete:
    """A checkpoint that may be resumed from; `step` is the number of optimiser steps in it."""

    path: str
    step: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run starts from (None: from the beginning), and sentences about what was passed over, and why."""

    resume: Complete | None
    notes: tuple[str, ...] = ()


# --- reading -----------------------------------------------------------------------------------------------


def read(folder: str) -> Complete:
    """Return the complete checkpoint in a folder; raises Incomplete. The step is the marker's, whatever its name."""
    try:
        with open(os.path.join(folder, MARKER), "rb") as file:
            marker = json.loads(file.read())
    except FileNotFoundError:
        raise Incomplete(f"has no {MARKER}: it was not written to its end") from None
    except OSError as error:
        raise Incomplete(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise Incomplete(f"has a {MARKER} that is not JSON") from None
    step = marker.get("step") if isinstance(marker, dict) else None
    files = marker.get("files") if isinstance(marker, dict) else None
    if not isinstance(step, int) or not isinstance(files, dict) or marker.get("format") != FORMAT:
        raise Incomplete(f"has a {MARKER} that is not of format {FORMAT}")
    for name, size in files.items():
        try:
            found = os.stat(os.path.join(folder, name)).st_size
        except (OSError, ValueError):
            raise Incomplete(f"lacks {name}") from None
        if found != size:
            raise Incomplete(f"has {name} with {found} bytes instead of {size}")
    return Complete(os.path.abspath(folder), step)


def complete_in(output_dir: str) -> tuple[list[Complete], list[str]]:
    """Return the complete checkpoints in a folder, highest step first, and a note for each one that is not."""
    complete, notes = [], []
    for name in _names(output_dir):
        path = os.path.join(output_dir, name)
        if name.startswith("tmp-") or not (
            _NUMBERED.fullmatch(name) or os.path.lexists(os.path.join(path, MARKER))
        ):
            continue
        if os.path.isdir(path):
            try:
                complete.append(read(path))
            except Incomplete as error:
                notes.append(f"{path} is skipped: it {error}")
    complete.sort(key=lambda each: (each.step, each.path), reverse=True)
    return complete, notes


def choose(output_dir: str, resume: str | None, *, asked: bool) -> Choice:
    """Decide what a run starts from: `resume` is None, "auto" or a path.

    "auto" without a complete checkpoint is a fresh start. A path that is not complete gives way to the newest complete
    one beside it, with a note. Raises CheckpointError where a path was given and nothing can be resumed, and where
    nobody asked for a resume (`asked`) or a fresh start, but the folder holds checkpoints already.
    """
    if resume is None:
        held = [name for name in _names(output_dir) if _NUMBERED.fullmatch(name)]
        if held and not asked:
            raise CheckpointError(
                f"{output_dir} already holds {max(held, key=_number)}: add --resume_from_checkpoint auto to go on from "
                "the newest complete checkpoint, or choose another --output-dir"
            )
        return Choice(None)
    if resume == "auto":
        complete, notes = complete_in(output_dir)
        return Choice(complete[0] if complete else None, tuple(notes))
    try:
        return Choice(read(resume))
    except Incomplete as error:
        reason = str(error)
    if not os.path.isdir(resume):
        raise CheckpointError(f"--resume_from_checkpoint {resume} is not a folder")
    if not os.path.lexists(os.path.join(resume, MARKER)):
        foreign = _foreign(resume)
        if foreign is not None:
            note = f"{resume} has no {MARKER}: it was written by another program, and is taken as it is"
            return Choice(foreign, (note,))
    complete, _ = complete_in(os.path.dirname(resume))
    if not complete:
        raise CheckpointError(f"{resume} {reason}, and there is no complete checkpoint beside it")
    return Choice(complete[0], (f"{resume} {reason}; going on from {complete[0].path} instead",))


def _foreign(folder: str) -> Complete | None:
    """Return a checkpoint of transformers' Trainer that this program did not write, if it looks finished."""
    try:
        with open(os.path.join(folder, STATE), "rb") as file:
            step = json.loads(file.read())["global_step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Complete(os.path.abspath(folder), step) if isinstance(step, int) else None


def finished_step(output_dir: str) -> int | None:
    """Return the step at which the run in this folder finished, None when it has not."""
    try:
        with open(os.path.join(output_dir, FINISHED), "rb") as file:
            step = json.loads(file.read())["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None


# --- writing -----------------------------------------------------------------------------------------------


def tidy(output_dir: str, resume_step: int) -> list[str]:
    """Prepare a folder for a run that starts after `resume_step`; returns a note for what was moved aside.

    What crashes left behind is removed. Checkpoints beyond the step belong to a history that is given up: they are
    renamed, so that neither `auto` nor the rotation takes them for the newest, and removed by `discard_superseded`
    once there is a new one.
    """
    os.makedirs(output_dir, exist_ok=True)
    try:
        os.unlink(os.path.join(output_dir, FINISHED))
    except FileNotFoundError:
        pass
    notes = []
    for name in _names(output_dir):
        path = os.path.join(output_dir, name)
        if name == STAGING or name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)
        elif _NUMBERED.fullmatch(name) and _number(name) > resume_step:
            aside = _free_name(output_dir, _SUPERSEDED + name)
            os.rename(path, aside)
            notes.append(
                f"{path} is beyond step {resume_step}, from which this run goes on: it is now {aside}"
            )
    sync_folder(output_dir)
    return notes


def remove(folder: str) -> None:
    """Remove a folder and all below it, if it is there; raises OSError."""
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def discard_superseded(output_dir: str) -> None:
    """Remove what `tidy` moved aside, except what this program did not write."""
    for name in _names(output_dir):
        path = os.path.join(output_dir, name)
        if name.startswith(_SUPERSEDED) and os.path.lexists(os.path.join(path, MARKER)):
            shutil.rmtree(path, ignore_errors=True)


def publish(folder: str, target: str, step: int, promised: Mapping[str, int]) -> Complete:
    """Make a fully written folder the complete checkpoint `target`, a name on the same file system.

    The folder that held it, `tmp-saving/`, goes when nothing else is in it.

    `promised` are files with their sizes in bytes that other ranks wrote: one that cannot be seen from here raises
    CheckpointError, for then the output folder is not shared. Raises OSError when the disk is full.
    """
    for name, size in promised.items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or os.path.getsize(path) != size:
            raise CheckpointError(
                f"{path}, written by another rank, is not here: the output folder must be shared"
            )
    files = sync_files(folder)
    write_atomically(os.path.join(folder, MARKER), _json({"format": FORMAT, "step": step, "files": files}))
    parent = os.path.dirname(target)
    if os.path.lexists(target):
        os.rename(target, _free_name(parent, _REMOVED + os.path.basename(target)))
    os.rename(folder, target)
    sync_folder(parent)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:
        pass  # not a staging folder of ours, or not empty: `tidy` looks after it
    return Complete(target, step)


def prune(output_dir: str, keep: int) -> list[Complete]:
    """Remove all but the `keep` complete checkpoints of the highest steps (0: keep all); returns the removed.

    Only complete ones count, so the newest complete one is never removed. Each is renamed first, so that a crash
    leaves no checkpoint that is half deleted.
    """
    if keep < 1:
        return []
    complete, _ = complete_in(output_dir)
    removed = [each for each in complete[keep:] if _NUMBERED.fullmatch(os.path.basename(each.path))]
    for each in removed:
        aside = _free_name(output_dir, _REMOVED + os.path.basename(each.path))
        os.rename(each.path, aside)
        shutil.rmtree(aside, ignore_errors=True)
    return removed


def finish(output_dir: str, step: int, done_file: str | None) -> None:
    """Record that the run in this folder is finished, for a later start of it and for the spool."""
    write_atomically(os.path.join(output_dir, FINISHED), _json({"format": FORMAT, "step": step}))
    if done_file:
        tell_done(done_file, step)


def tell_done(done_file: str, step: int) -> None:
    """Create the file whose existence tells the spool that nothing is left to do."""
    write_atomically(done_file, _json({"step": step}))


def sync_files(folder: str, only: str | None = None) -> dict[str, int]:
    """Put the files below a folder on disk and return their sizes in bytes by relative name, the marker left out.

    `only` limits it to base names that contain this text.
    """
    files = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if name == MARKER or (only is not None and only not in name):
                continue
            path = os.path.join(place, name)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
                files[os.path.relpath(path, folder)] = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        if only is None:
            sync_folder(place)
    return files


def write_atomically(path: str, content: bytes) -> None:
    """Write a file so that it has its old content or the new one, whatever happens; raises OSError."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f"tmp-{os.getpid()}-{name}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        raise
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror}") from None


def _number(name: str) -> int:
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else -1


def _free_name(folder: str, name: str) -> str:
    path, number = os.path.join(folder, name), 1
    while os.path.lexists(path):
        path, number = os.path.join(folder, f"{name}.{number}"), number + 1
    return path
