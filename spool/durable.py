"""Writing what must survive: whole files by temp file, fsync and rename; claims by link.

After a SIGKILL between any two lines here a reader sees the old file or the new one, never half of one; what can
be left behind is a temp file whose name begins with a dot.
"""

from __future__ import annotations

import json
import os
from typing import Any


def fsync_folder(folder: str) -> None:
    """Make the names in `folder` durable. Raises OSError."""
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_temp(path: str, mode: int) -> tuple[str, int]:
    """A new file beside `path`, open for writing.

    Its name is nobody else's: a pid alone is shared with other hosts and with the dead, and a temp file that was left
    behind right after link() *is* the claim under its second name.
    """
    folder, name = os.path.split(path)
    temp = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(6).hex()}.tmp")
    return temp, os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_temp(path: str, data: bytes, mode: int) -> str:
    temp, fd = _make_temp(path, mode)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    except BaseException:
        os.close(fd)
        _unlink(temp)
        raise
    os.close(fd)
    return temp


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # a leftover temp file is harmless, the error that led here is not


def write_file(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `data`, whole or not at all, and durably. Raises OSError."""
    temp = _write_temp(path, data, mode)
    try:
        os.rename(temp, path)
    except BaseException:
        _unlink(temp)
        raise
    fsync_folder(os.path.dirname(path))


def write_json(path: str, value: Any, *, mode: int = 0o600) -> None:
    """`write_file` of one JSON value and a newline."""
    write_file(path, json.dumps(value, separators=(",", ":")).encode() + b"\n", mode=mode)


def write_passing(path: str, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` whole or not at all, but only for as long as this boot lasts: no fsync.

    For what a loss of power makes void anyway (a local attempt of another boot is lost). Raises OSError.
    """
    temp, fd = _make_temp(path, mode)
    try:
        _write_all(fd, data)
        os.rename(temp, path)
    except BaseException:
        _unlink(temp)
        raise
    finally:
        os.close(fd)


def read_json(path: str) -> Any | None:
    """The JSON value in `path`; None when it is missing or not (yet) whole, as on a network file system."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def claim(path: str, value: Any) -> bool:
    """Give a complete file the name `path` if nobody has it yet; True for the one caller that got it.

    The name is given by link(2). On a network file system the call may report an error although it worked, so the
    link count decides. Where links do not exist O_EXCL takes their place. Raises OSError.
    """
    data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    temp = _write_temp(path, data, 0o600)
    try:
        try:
            os.link(temp, path)
            won = True
        except FileExistsError:
            won = os.stat(temp).st_nlink == 2
        except OSError as error:
            if os.stat(temp).st_nlink == 2:
                won = True
            elif error.errno in _NO_LINKS:
                won = _claim_exclusively(path, data)
            else:
                raise
    finally:
        _unlink(temp)
    if won:
        fsync_folder(os.path.dirname(path))
    return won


def _claim_exclusively(path: str, data: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        _write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _no_links() -> frozenset[int]:
    import errno

    return frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})


_NO_LINKS = _no_links()


def make_private(path: str) -> None:
    """Make the folder `path` and its missing parents, all of them 0700. Raises OSError.

    A folder that is there already keeps its mode.
    """
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        parent = os.path.dirname(path.rstrip("/"))
        if parent == path:
            raise
        make_private(parent)
        make_private(path)
    except OSError:  # there already, or in a folder that is only mounted: not every file system says EEXIST
        if not os.path.isdir(path):
            raise
