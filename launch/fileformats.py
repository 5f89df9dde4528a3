"""Proof that one checkpoint file is whole, for the formats that can prove it: torch.save's zip, and safetensors.

Only headers and tails are read, nothing is ever unpickled, nothing but regular files is opened, and no content
makes a check raise anything but `BadCheckpoint`, or `Vanished` where the file was deleted meanwhile. A file that
cannot be read raises OSError.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from types import TracebackType

_SAFETENSORS_HEADER_LIMIT = 100_000_000  # the format's own bound
_DIRECTORY_LIMIT = 64 << 20  # of a zip: about a million tensors
# The key "global_step" as torch.save pickles it (protocol 2 or 4), what the memo adds, and a small integer.
_PICKLED_STEP = re.compile(
    rb"(?:X\x0b\x00\x00\x00|\x8c\x0b)global_step(?:q.|r....|\x94)?(?:K(.)|M(..)|J(....))", re.S
)


class BadCheckpoint(Exception):
    """The content does not prove that the checkpoint is complete; the message is a clause that says why."""


class Vanished(Exception):
    """It was deleted while we looked: rotation, or a rename. No news to anybody."""


def is_count(value: object) -> bool:
    """Tell whether a value from a JSON file is a non-negative integer that fits a file offset."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


class Reader:
    """A regular file opened for reading at offsets; never waits, even if a fifo took the name meanwhile."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise BadCheckpoint("is not a regular file")  # merely opening a device may do something
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Vanished from None
        self.status = os.fstat(self._fd)
        self.size = self.status.st_size

    def __enter__(self) -> Reader:
        if not stat.S_ISREG(self.status.st_mode):
            os.close(self._fd)
            raise BadCheckpoint("is not a regular file")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`, or as many as the file has when it is shorter than that."""
        if offset < 0 or length < 0:
            raise BadCheckpoint("has an impossible offset in it")
        parts = []
        length = min(length, self.size - offset)  # an absurd number must not make an absurd buffer
        while length > 0:
            part = os.pread(self._fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def check_unchanged(self, before: os.stat_result | None = None) -> None:
        before = before or self.status
        try:
            now = os.stat(self._path)  # by name: a writer that renames is seen, too
        except FileNotFoundError:
            raise Vanished from None
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (before.st_size, before.st_mtime_ns, before.st_ino):
            raise BadCheckpoint("is still being written")


def check_safetensors(file: Reader) -> None:
    """Header length, JSON, and tensors that fill the file to its very end without a gap."""
    if file.size == 0:
        raise BadCheckpoint("is empty")
    head = file.at(0, 9)
    if len(head) < 9:
        raise BadCheckpoint("is cut short within its header")
    (length,) = struct.unpack("<Q", head[:8])
    if length > _SAFETENSORS_HEADER_LIMIT or length < 2 or head[8:] != b"{":
        raise BadCheckpoint("has no safetensors header")
    raw = file.at(8, length)
    if len(raw) < length:
        raise BadCheckpoint("is cut short within its header")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadCheckpoint("has a header that is not JSON") from None
    spans = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
            raise BadCheckpoint("has a header without the offsets of its tensors")
        spans.append((offsets[0], offsets[1]))
    end = 0
    for first, last in sorted(spans):
        if first != end or last < first:
            raise BadCheckpoint("has a header whose tensors overlap or leave a hole")
        end = last
    if 8 + length + end != file.size:
        what = "is cut short" if 8 + length + end > file.size else "is longer than its header says"
        raise BadCheckpoint(f"{what}: {file.size} bytes where its header says {8 + length + end}")


def check_torch(file: Reader) -> tuple[int, int]:
    """Check a file of torch.save: a zip whose central directory is whole and ends the file.

    Returns offset and length in bytes of its pickle, which is only ever searched, not loaded. A zip is written from
    front to back, so a directory that is there and fits proves the rest. Format: PKWARE's APPNOTE 4.3.
    """
    if file.size == 0:
        raise BadCheckpoint("is empty")
    start = file.at(0, 4)
    if start != b"PK\x03\x04":
        if start[:1] == b"\x80":
            raise BadCheckpoint("is in torch's old format (before 1.6), which does not say where it ends")
        raise BadCheckpoint("is not a file that torch.save writes")
    directory, size, count = _zip_directory(file)
    if size > _DIRECTORY_LIMIT:
        raise BadCheckpoint("has a central directory too large to be true")
    raw = file.at(directory, size)
    position, seen, last, pickle = 0, 0, -1, None
    while position < size:
        if len(raw) < position + 46 or raw[position : position + 4] != b"PK\x01\x02":
            raise BadCheckpoint("has a damaged central directory")
        packed, full = struct.unpack_from("<II", raw, position + 20)
        name_length, extra_length, comment_length = struct.unpack_from("<HHH", raw, position + 28)
        (offset,) = struct.unpack_from("<I", raw, position + 42)
        name = raw[position + 46 : position + 46 + name_length]
        extra = raw[position + 46 + name_length : position + 46 + name_length + extra_length]
        packed, offset = _zip64_sizes(extra, full, packed, offset)
        if offset + 30 + packed > directory:
            raise BadCheckpoint("has entries beyond its central directory")
        if name.endswith(b"/data.pkl") or name == b"data.pkl":
            pickle = (offset, packed)
        last = max(last, offset)
        position += 46 + name_length + extra_length + comment_length
        seen += 1
    if position != size or seen != count or seen == 0:
        raise BadCheckpoint("has a damaged central directory")
    if file.at(last, 4) != b"PK\x03\x04":
        raise BadCheckpoint("does not have its last entry where the central directory says")
    if pickle is None:
        raise BadCheckpoint("is a zip, but not one that torch.save writes")
    header = file.at(pickle[0], 30)
    if len(header) < 30:
        raise BadCheckpoint("has a damaged central directory")
    name_length, extra_length = struct.unpack_from("<HH", header, 26)
    return pickle[0] + 30 + name_length + extra_length, pickle[1]


def _zip_directory(file: Reader) -> tuple[int, int, int]:
    """Return offset, size in bytes and number of entries of a zip's central directory."""
    tail_start = max(0, file.size - 22 - 0xFFFF)
    tail = file.at(tail_start, file.size - tail_start)
    at = len(tail)
    while (at := tail.rfind(b"PK\x05\x06", 0, at)) >= 0:
        if at + 22 <= len(tail) and at + 22 + struct.unpack_from("<H", tail, at + 20)[0] == len(tail):
            break
    if at < 0:
        raise BadCheckpoint("is cut short: it has no central directory at its end")
    end = tail_start + at
    count, size, offset = struct.unpack_from("<HII", tail, at + 10)
    locator = file.at(end - 20, 20) if end >= 20 else b""
    if locator[:4] == b"PK\x06\x07":
        (end64,) = struct.unpack_from("<Q", locator, 8)
        record = file.at(end64, 56)
        if (
            len(record) < 56
            or record[:4] != b"PK\x06\x06"
            or end64 + 12 + struct.unpack_from("<Q", record, 4)[0] != end - 20
        ):
            raise BadCheckpoint("has a damaged central directory")
        count, size, offset = struct.unpack_from("<QQQ", record, 32)
        end = end64
    if offset + size != end:
        raise BadCheckpoint("has a central directory that does not fit its place")
    return offset, size, count


def _zip64_sizes(extra: bytes, full: int, packed: int, offset: int) -> tuple[int, int]:
    """Return packed size and offset, taken from the zip64 field where the short ones say so."""
    if 0xFFFFFFFF not in (full, packed, offset):
        return packed, offset
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{min(length, len(extra) - at - 4) // 8}Q", extra, at + 4))
            try:
                if full == 0xFFFFFFFF:
                    next(values)
                packed = next(values) if packed == 0xFFFFFFFF else packed
                offset = next(values) if offset == 0xFFFFFFFF else offset
            except StopIteration:
                break
            return packed, offset
        at += 4 + length
    raise BadCheckpoint("has a damaged central directory")


def lightning_step(file: Reader, offset: int, length: int) -> int | None:
    """Return the global_step of Lightning's `last.ckpt`, whose name has none; None where it is not found.

    Lightning writes epoch and global_step first, so the pickled key stands in the first bytes: it is searched for,
    and nothing is loaded.
    """
    match = _PICKLED_STEP.search(file.at(offset, min(length, 4096)))
    if match is None:
        return None
    raw = next(group for group in match.groups() if group is not None)
    step = int.from_bytes(raw, "little", signed=len(raw) == 4)
    return step if step >= 0 else None
