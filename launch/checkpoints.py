"""Which checkpoints of a run are whole, and which of them is the newest.

The last checkpoint of a job that was killed is often half written (transformers#35782, mmdetection#4835,
airllm#93), and a job that is started again from it fails at once. So a checkpoint counts only when its own
format proves that it is complete; anything else is skipped with a reason and the one before it is used. The
newest is the highest step as a number: string order resumes the oldest (transformers#9822), mtime order deletes
the newest (#37260).

This runs in a short-lived child of the supervisor, on files that a user's program may be writing, moving or
deleting at the same moment. Hence: the standard library only, nothing is ever unpickled, only headers and tails
are read, nothing but regular files is opened, and no content makes it raise. One look costs O(entries) for
the listing plus a few reads for each checkpoint that is verified.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from ..spool.values import dataclass
from .fileformats import (
    BadCheckpoint,
    Reader,
    Vanished,
    check_safetensors,
    check_torch,
    is_count,
    lightning_step,
)

FORMATS = ("auto", "gpuspool", "hf", "lightning", "torch", "safetensors")

MARKER = "gpuspool_complete.json"
"""The file that makes a folder a checkpoint of ours: {"format": 1, "step": N, "files": {relative name: bytes}}."""

LIMIT = 50
"""How many complete checkpoints `find` proves by default; the older ones beyond them are not opened."""

_STATE = "trainer_state.json"
_TORCH_SUFFIXES = (".pt", ".pth", ".pt.tar", ".pth.tar")
_MIB = 1 << 20
_JSON_LIMIT = 64 * _MIB  # an index of a million tensors
_STATE_LIMIT = 2 * _MIB  # a trainer_state.json beyond this (a long log) is read at both ends only
_FILES_LIMIT = 50_000
_VERSIONS_LIMIT = 1_000
_LOOKS = 3

_TEMPORARY = re.compile(
    r"^[.]|^_?te?mp[._-]|^tmp[a-z0-9_]{8}(?:[.]|$)|[._-]tmp(?:[._-]|$)|[.](?:temp|part)$"
    r"|[._-](?:partial|incomplete)(?:[._-]|$)|~$",
    re.I,
)
_STEP = re.compile(r"(?:^|[^a-z])(?:global[-_]?)?(?:steps?|iter(?:ation)?)[-_=]?(\d{1,15})(?![\d.]*\d)", re.I)
_CHECKPOINT = re.compile(r"(?:^|[^a-z])(?:checkpoint|ckpt|chkpt)[-_=]?(\d{1,15})(?![\d.]*\d)", re.I)
_ORDINAL = re.compile(r"(?:epoch[-_=]?|[-_=])(\d{1,15})$", re.I)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=[.])")
_PARTS = re.compile(r"^(?:optim(?:izer)?|scheduler|scaler|rng_state.*|random_states.*)[.]p", re.I)
_HF_WEIGHTS = re.compile(r"^(?:adapter_|pytorch_)?model(?:[.-].*)?[.](?:safetensors|bin)$")
_HF_STATE = re.compile(r"^(?:(?:pytorch_|adapter_)?model.*|training_args|optimizer)[.]bin$")
_HF_FOLDER = re.compile(r"^checkpoint-\d+", re.I)
_GLOBAL_STEP = re.compile(rb'^\s{0,8}"global_step"\s*:\s*(\d{1,15})\s*[,}\r\n]', re.M)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint.

    `step` is the optimiser step that it holds, None where neither the format nor the name tells. `mtime` is UTC
    seconds, the newest of its files. `identity` changes with the names, sizes or mtimes of its files, so that new
    content is seen where there is no step.
    """

    path: str
    step: int | None
    format: str
    mtime: float
    identity: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that looks like a checkpoint and must not be resumed from; `reason` is a clause for the user."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at a folder found: `complete` has the highest step first, `newest` is its first."""

    newest: Checkpoint | None
    complete: tuple[Checkpoint, ...]
    broken: tuple[Broken, ...]


# --- finding -----------------------------------------------------------------------------------------------


def find(folder: str, fmt: str = "auto", *, limit: int = LIMIT) -> Found:
    """Look for checkpoints in `folder`: itself, its children, `checkpoints/` and Lightning's `version_*` below it.

    `fmt` is one of FORMATS; other than `auto` it shuts the other formats out. At most `limit` checkpoints with a
    step in their name, and as many without, are proved complete, the most recent ones first; broken ones do not
    count. A folder that does not exist has none. Raises ValueError for an unknown `fmt`, and nothing else.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown checkpoint format {fmt!r}: choose one of {', '.join(FORMATS)}")
    for _ in range(_LOOKS):
        found, vanished = _look(folder, fmt, limit)
        if found.newest is not None or not vanished:
            break  # else rotation overtook us: all that was listed is gone, and there is something newer
    return found


def _look(folder: str, fmt: str, limit: int) -> tuple[Found, bool]:
    """Look once; also tell whether something that was listed had vanished when it was its turn."""
    numbered, others, broken = _candidates(folder, fmt)
    complete: list[tuple[Checkpoint, int]] = []
    vanished = False
    for group in (numbered, others):
        proved = 0
        for candidate in group:
            if proved >= limit:
                break
            result = _examine(candidate.path, fmt, candidate.hint)
            if isinstance(result, Checkpoint):
                complete.append((result, candidate.ordinal))
                proved += 1
            elif result is None:
                vanished = True
            else:
                broken.append(result)

    def order(item: tuple[Checkpoint, int]) -> tuple[int, int, bool, float, str]:
        checkpoint, ordinal = item
        step = -1 if checkpoint.step is None else checkpoint.step
        # At the same step a child beats the folder itself, which often holds final weights without an optimiser.
        return (step, ordinal, checkpoint.path != folder, checkpoint.mtime, checkpoint.path)

    ranked = tuple(checkpoint for checkpoint, _ in sorted(complete, key=order, reverse=True))
    return Found(ranked[0] if ranked else None, ranked, tuple(broken)), vanished


def verify(path: str) -> Checkpoint | Broken:
    """Tell whether `path`, a file or a folder, is a complete checkpoint, and if not, why. Raises nothing."""
    if _TEMPORARY.search(os.path.basename(os.path.normpath(path))):
        return Broken(path, "has a temporary name: it was never finished")
    result = _examine(path, "auto", _step_of(path))
    return Broken(path, "does not exist") if result is None else result


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    hint: int | None  # the step in its name
    ordinal: int  # an epoch or another number at the end of its name, -1 without one
    mtime: float  # only where neither is known


def _candidates(folder: str, fmt: str) -> tuple[list[_Candidate], list[_Candidate], list[Broken]]:
    """List what may be checkpoints, most recent first: those with a step in the name, those without, the broken."""
    found: dict[str, _Candidate] = {}
    links: list[tuple[str, str]] = []
    broken: list[Broken] = []

    def add(path: str, target: str) -> None:
        name = os.path.basename(os.path.normpath(path))
        hint, ordinal = _step_of(name), _ordinal_of(name)
        if hint is None and ordinal < 0 and target != path:
            hint, ordinal = _step_of(target), _ordinal_of(target)
        mtime = 0.0
        if hint is None:
            try:
                mtime = os.stat(path).st_mtime
            except (OSError, ValueError):
                pass  # the examination will say what is wrong with it
        found.setdefault(os.path.realpath(target), _Candidate(path, hint, ordinal, mtime))

    for place in _places(folder):
        try:
            with os.scandir(place) as scan:
                entries = list(scan)
        except (FileNotFoundError, NotADirectoryError):
            if place == folder and os.path.lexists(folder) and not os.path.isdir(folder):
                add(folder, folder)  # the user named one file
            continue
        except (OSError, ValueError) as error:
            broken.append(Broken(place, f"cannot be listed: {_why(error)}"))
            continue
        names = {entry.name for entry in entries}
        itself = bool(names & {MARKER, _STATE})
        if itself:
            add(place, place)
        for entry in entries:
            if not _looks_like_one(entry, names, itself, fmt):
                continue
            try:
                if entry.is_symlink():
                    links.append((entry.path, os.path.realpath(entry.path)))
                    continue
            except OSError:
                pass
            add(entry.path, entry.path)
    for path, target in links:
        if target not in found:  # `last.ckpt` is often a link to a checkpoint that was listed itself
            add(path, target)

    numbered = [each for each in found.values() if each.hint is not None]
    others = [each for each in found.values() if each.hint is None]
    numbered.sort(key=lambda each: (each.hint or 0, each.path), reverse=True)
    others.sort(key=lambda each: (each.ordinal, each.mtime, each.path), reverse=True)
    return numbered, others, broken


def _places(folder: str) -> Iterator[str]:
    """Yield the folders whose children may be checkpoints."""
    yield folder
    yield os.path.join(folder, "checkpoints")
    logs = folder
    if os.path.basename(os.path.normpath(folder)) != "lightning_logs":
        logs = os.path.join(folder, "lightning_logs")
    try:
        versions = [name for name in os.listdir(logs) if re.fullmatch(r"version_\d{1,9}", name)]
    except (OSError, ValueError):
        return
    versions.sort(key=lambda name: int(name[8:]), reverse=True)
    for version in versions[:_VERSIONS_LIMIT]:
        yield os.path.join(logs, version, "checkpoints")


def _looks_like_one(entry: os.DirEntry[str], names: set[str], itself: bool, fmt: str) -> bool:
    """Tell by name and kind whether an entry is worth opening."""
    name = entry.name
    if _TEMPORARY.search(name):
        return False
    try:
        folder = entry.is_dir()
    except OSError:
        folder = False
    if folder:
        if fmt in ("lightning", "torch"):
            return False
        if _step_of(name) is not None:
            return True
        return any(os.path.lexists(os.path.join(entry.path, each)) for each in (MARKER, _STATE))
    kind = _format_of(name)
    if kind is None or itself or fmt not in ("auto", kind):
        return False
    if _SHARD.search(name) or _PARTS.match(name):
        return False
    # Weights beside a config.json are an exported model; a program that resumes wants more than that.
    exported = fmt == "auto" and _HF_WEIGHTS.match(name) and names & {"config.json", "adapter_config.json"}
    return not exported


def _format_of(name: str) -> str | None:
    """Return the format of a checkpoint that is one file, by its suffix."""
    lower = name.lower()
    if lower.endswith(".ckpt"):
        return "lightning"
    if lower.endswith(_TORCH_SUFFIXES):
        return "torch"
    return "safetensors" if lower.endswith(".safetensors") else None


def _stem(path: str) -> str:
    name = os.path.basename(os.path.normpath(path))
    for suffix in (".tar", ".ckpt", ".pt", ".pth", ".safetensors"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name


def _step_of(path: str) -> int | None:
    """Return the step that a name gives: checkpoint-120, step_120, epoch=3-step=120-v1.ckpt, global_step120."""
    stem = _stem(path)
    matches = _STEP.findall(stem) or _CHECKPOINT.findall(stem)
    return int(matches[-1]) if matches else None


def _ordinal_of(path: str) -> int:
    match = _ORDINAL.search(_stem(path))
    return int(match[1]) if match else -1


# --- examining one -----------------------------------------------------------------------------------------


def _examine(path: str, fmt: str, hint: int | None) -> Checkpoint | Broken | None:
    """Prove one candidate complete; None when it has vanished."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return _examine_folder(path, fmt, hint)
        if not stat.S_ISREG(status.st_mode):
            raise BadCheckpoint("is not a regular file")
        return _examine_file(path, hint)
    except BadCheckpoint as error:
        return Broken(path, str(error)) if os.path.lexists(path) else None
    except Vanished:
        return None
    except FileNotFoundError:
        return Broken(path, "is a link to nothing") if os.path.islink(path) else None
    except OSError as error:
        return Broken(path, f"cannot be read: {_why(error)}")
    except (ValueError, RecursionError, MemoryError, OverflowError, struct.error) as error:
        # Every format check below raises BadCheckpoint for what it foresees; the supervisor must survive the rest.
        return Broken(path, f"cannot be understood: {error!r}"[:300])


def _examine_file(path: str, hint: int | None) -> Checkpoint:
    kind = _format_of(path) or _format_of(os.path.realpath(path))
    if kind is None:
        raise BadCheckpoint("is of no known checkpoint format")
    with Reader(path) as file:
        if kind == "safetensors":
            check_safetensors(file)
        else:
            offset, length = check_torch(file)
            if hint is None and kind == "lightning":
                hint = lightning_step(file, offset, length)
        file.check_unchanged()
        fingerprint = [(os.path.basename(path), file.status)]
        return Checkpoint(path, hint, kind, file.status.st_mtime, _identity(fingerprint))


def _examine_folder(path: str, fmt: str, hint: int | None) -> Checkpoint:
    files = _listing(path)
    if fmt in ("auto", "gpuspool") and MARKER in files:
        return _examine_ours(path, files)
    if fmt == "gpuspool":
        raise BadCheckpoint(f"has no {MARKER}")
    if fmt in ("auto", "hf") and (
        _STATE in files or "training_args.bin" in files or _HF_FOLDER.match(_stem(path))
    ):
        step = _check_hf(path, files)
        return _folder_checkpoint(path, step, "hf", files)
    if fmt == "hf":
        raise BadCheckpoint(f"has no {_STATE}")
    if fmt == "auto":
        _refuse_unproven(files)
    if not any(name.endswith(".safetensors") and "/" not in name for name in files):
        raise BadCheckpoint("holds no weights of a known format")
    _check_shards(path, files)
    _check_whole(path, (name for name in files if name.endswith(".safetensors")), files)
    return _folder_checkpoint(path, hint, "safetensors", files)


def _refuse_unproven(files: dict[str, os.stat_result]) -> None:
    """Refuse folders whose layout cannot prove that the last of their files was written."""
    if "latest" in files or any(name.endswith(("_model_states.pt", "_optim_states.pt")) for name in files):
        raise BadCheckpoint("is DeepSpeed's, which cannot be told complete yet")
    if ".metadata" in files or any(name.endswith(".distcp") for name in files):
        raise BadCheckpoint("is a torch distributed checkpoint, which cannot be told complete yet")
    if any(name.endswith((".bin", ".pkl", *_TORCH_SUFFIXES)) for name in files):
        raise BadCheckpoint(
            f"is a folder of files that do not say which is the last: have it write {MARKER} last"
        )


def _folder_checkpoint(
    path: str, step: int | None, kind: str, files: dict[str, os.stat_result]
) -> Checkpoint:
    mtime = max((status.st_mtime for status in files.values()), default=0.0)
    return Checkpoint(path, step, kind, mtime, _identity(files.items()))


def _examine_ours(path: str, files: dict[str, os.stat_result]) -> Checkpoint:
    """Check a folder against its marker, which was written last and names every file with its size in bytes."""
    marker = _read_json(os.path.join(path, MARKER), _JSON_LIMIT)
    step = marker.get("step")
    promised = marker.get("files")
    if marker.get("format") != 1 or not is_count(step) or not isinstance(promised, dict) or not promised:
        raise BadCheckpoint(f"has a {MARKER} that is not of format 1")
    named = {MARKER: files[MARKER]}
    for name, size in promised.items():
        if not _is_inside(name) or not is_count(size):
            raise BadCheckpoint(f"has a {MARKER} with an unusable entry {name!r}")
        try:
            named[name] = os.stat(os.path.join(path, name))
        except FileNotFoundError:
            raise BadCheckpoint(f"lacks {name}, which {MARKER} names") from None
        if not stat.S_ISREG(named[name].st_mode) or named[name].st_size != size:
            raise BadCheckpoint(f"has {name} with {named[name].st_size} bytes where {MARKER} says {size}")
    return _folder_checkpoint(path, step, "gpuspool", named)


def _check_hf(path: str, files: dict[str, os.stat_result]) -> int:
    """Check a folder of `transformers.Trainer` and return its global_step."""
    if _STATE not in files:
        raise BadCheckpoint(f"has no {_STATE}: it was not written to its end")
    step = _global_step(os.path.join(path, _STATE))
    weights = [name for name in files if _HF_WEIGHTS.match(name.rpartition("/")[2])]
    if not any("/" not in name or "adapter_" in name for name in weights):
        if any(name.endswith((".distcp", "_model_states.pt")) for name in files):
            raise BadCheckpoint("holds only DeepSpeed or FSDP shards, which cannot be told complete yet")
        raise BadCheckpoint("has no weights")
    for name in weights:
        folder, _, base = name.rpartition("/")
        config = f"{folder}/adapter_config.json" if folder else "adapter_config.json"
        if base.startswith("adapter_") and config not in files:
            raise BadCheckpoint(f"has {name} without its adapter_config.json")
    _check_shards(path, files)
    _check_whole(
        path,
        (
            name
            for name in files
            if name.endswith((".safetensors", ".pt", ".pth")) or _HF_STATE.match(name.rpartition("/")[2])
        ),
        files,
    )
    return step


def _check_shards(path: str, files: dict[str, os.stat_result]) -> None:
    """Check that all shards are there: those that an index names, and those that the shards' own names count."""
    for name in files:
        if name.endswith(".index.json"):
            index = _read_json(os.path.join(path, name), _JSON_LIMIT)
            weight_map = index.get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise BadCheckpoint(f"has {name} without a weight_map")
            folder = name.rpartition("/")[0]
            for shard in sorted({str(each) for each in weight_map.values()}):
                if (f"{folder}/{shard}" if folder else shard) not in files:
                    raise BadCheckpoint(f"lacks the shard {shard}, which {name} names")
    counted = {
        (name[: match.start()], match[2], name[match.end() :])
        for name in files
        if (match := _SHARD.search(name))
    }
    for before, total, after in sorted(counted):
        # Nearly all writers count from 1; one that counts from 0 has no last one.
        first = 0 if f"{before}-00000-of-{total}{after}" in files else 1
        for number in range(first, first + int(total)):
            if (shard := f"{before}-{number:05}-of-{total}{after}") not in files:
                raise BadCheckpoint(f"lacks the shard {shard}")


def _check_whole(path: str, names: Iterable[str], files: dict[str, os.stat_result]) -> None:
    """Check each named file of a folder by its own format, and that none changed since it was listed."""
    for name in names:
        try:
            with Reader(os.path.join(path, name)) as file:
                if name.endswith(".safetensors"):
                    check_safetensors(file)
                else:
                    check_torch(file)
                file.check_unchanged(files[name])
        except BadCheckpoint as error:
            raise BadCheckpoint(f"{name} {error}") from None


def _global_step(path: str) -> int:
    """Return global_step of a trainer_state.json, whose log may have grown to hundreds of MiB."""
    with Reader(path) as file:
        if file.size > _STATE_LIMIT:
            # The keys are sorted, so global_step stands before log_history, indented as a key of the whole.
            match = _GLOBAL_STEP.search(file.at(0, 64 * 1024))
            if match is None or not file.at(file.size - 64, 64).rstrip().endswith(b"}"):
                raise BadCheckpoint(f"has a {_STATE} that is cut short")
            return int(match[1])
    step = _read_json(path, _STATE_LIMIT).get("global_step")
    if not isinstance(step, int) or not is_count(step):
        raise BadCheckpoint(f"has a {_STATE} without a global_step")
    return step


# --- small things ------------------------------------------------------------------------------------------


def _listing(folder: str) -> dict[str, os.stat_result]:
    """Return the regular files of a folder and of the folders in it, by relative name, temporary ones left out."""
    files: dict[str, os.stat_result] = {}
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.path.join(folder, prefix)) as scan:
                for entry in scan:
                    if _TEMPORARY.search(entry.name) and entry.name != ".metadata":
                        continue
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # deleted meanwhile, or a link to nothing: if it was needed it will be missed
                    if stat.S_ISREG(status.st_mode):
                        files[prefix + entry.name] = status
                    elif stat.S_ISDIR(status.st_mode) and not prefix:
                        pending.append(entry.name + "/")
                    if len(files) > _FILES_LIMIT:
                        raise BadCheckpoint(f"holds more than {_FILES_LIMIT} files")
        except FileNotFoundError:
            if not prefix:
                raise Vanished from None
    return files


def _read_json(path: str, limit: int) -> dict[str, Any]:
    """Return the JSON object in a file of at most `limit` bytes."""
    name = os.path.basename(path)
    with Reader(path) as file:
        if file.size > limit:
            raise BadCheckpoint(f"has a {name} of {file.size} bytes")
        raw = file.at(0, file.size)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadCheckpoint(f"has a {name} that is not whole JSON") from None
    if not isinstance(value, dict):
        raise BadCheckpoint(f"has a {name} that holds no object")
    return value


def _is_inside(name: str) -> bool:
    """Tell whether a relative name stays below its folder."""
    return bool(name) and not name.startswith("/") and "\0" not in name and ".." not in name.split("/")


def _identity(files: Iterable[tuple[str, os.stat_result]]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for name, status in sorted(files):
        digest.update(os.fsencode(name) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _why(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
