"""An attempt's scratch folder (`$GPUSPOOL_SCRATCH`): node-local, made with its plan, gone with its end."""

from __future__ import annotations

import os
import stat

from ..spool.durable import make_private


def path_of(token: str) -> str:
    """Where the scratch of the attempt with this token is, as this process's environment has it."""
    return os.path.join(_base(), f"scratch-{token}")


def _base() -> str:
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"gpuspool-{os.getuid()}")


def make(token: str) -> str:
    """Make the folder; '' where the place for it is not ours. Raises OSError."""
    base = _base()
    make_private(base)
    info = os.lstat(base)
    if info.st_uid != os.getuid() or not stat.S_ISDIR(info.st_mode) or info.st_mode & 0o022:
        return ""  # somebody else's, or a link laid out for us: better no scratch than theirs
    path = path_of(token)
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def remove(path: str) -> None:
    """Remove the folder and what the job left in it, as far as that goes."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def remove_aside(path: str) -> None:
    """As `remove`, and without waiting for it: for the scheduler, which has others to serve. Raises no OSError."""
    try:
        os.rmdir(path)
        return  # the usual: nothing ever ran there
    except FileNotFoundError:
        return
    except OSError:
        pass
    try:
        pid = os.fork()
    except OSError:
        return
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            os.closerange(3, 65536)  # the scheduler's locks are not held any longer than it holds them
            remove(path)
    finally:
        os._exit(0)
