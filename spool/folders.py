"""Where things are: state, run and runtime folders, made private and checked before anything is trusted to them."""

from __future__ import annotations

import os
import re
import stat

from .config import Config
from .durable import make_private
from .errors import StoreUnavailable, UnsafeFolder
from .values import dataclass

#: File systems on which SQLite's write-ahead log works: local ones. Elsewhere a rollback journal is used.
WAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "bcachefs", "f2fs"})
FREE_SPACE_MIB = 5 * 1024
FREE_SPACE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Folders:
    """The three folders of one spool."""

    state: str
    run: str
    runtime: str

    @property
    def database(self) -> str:
        """The SQLite file; nobody but the store opens it."""
        return os.path.join(self.state, "spool.db")

    @property
    def owner(self) -> str:
        """The ownership record."""
        return os.path.join(self.state, "owner.json")

    @property
    def wake(self) -> str:
        """The FIFO that wakes the daemon; it has a reader exactly while a daemon serves."""
        return os.path.join(self.runtime, "wake")

    @property
    def daemon_lock(self) -> str:
        """Held by the one daemon of this host; its text names it."""
        return os.path.join(self.runtime, "daemon.lock")

    @property
    def tick_lock(self) -> str:
        """Held during a pass: the daemon's, a cron tick's or an inline one."""
        return os.path.join(self.runtime, "tick.lock")

    @property
    def daemon_log(self) -> str:
        """What the daemon has to say."""
        return os.path.join(self.state, "daemon.log")

    def job(self, job: int) -> str:
        """jobs/<id> in the run folder."""
        return os.path.join(self.run, "jobs", str(job))

    def attempt(self, job: int, number: int) -> str:
        """jobs/<id>/attempts/<n> in the run folder."""
        return os.path.join(self.run, "jobs", str(job), "attempts", str(number))

    def checkpoints(self, job: int) -> str:
        """The default checkpoint folder, stable over attempts."""
        return os.path.join(self.run, "jobs", str(job), "checkpoints")


def resolve(config: Config, env: dict[str, str] | None = None) -> Folders:
    """The folders of the spool that `config` names; makes and checks the private ones.

    Raises UnsafeFolder when others could write there, StoreUnavailable when one cannot be made.
    """
    env = dict(os.environ) if env is None else env
    home = env.get("HOME") or os.path.expanduser("~")
    base = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        base = os.path.join(home, ".local", "state")
    state = config["spool.state_dir"] or os.path.join(base, "gpuspool")
    _private(state, "GPUSPOOL_CFG_STATE_DIR")
    run = config["spool.run_dir"] or _default_run(env, config["spool.state_dir"]) or state
    if run != state:
        _private(run, "GPUSPOOL_CFG_RUN_DIR")
    return Folders(state, run, runtime_folder(state, env))


def _default_run(env: dict[str, str], state: str) -> str:
    """The run folder on scratch; '' where there is no scratch.

    A spool with a state folder of its own has a run folder of its own: two spools count their jobs from 1 each.
    """
    for name in ("SCRATCH", "WORK"):
        base = env.get(name, "")
        if os.path.isabs(base) and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK):
            if not state:
                return os.path.join(base, "gpuspool")
            import hashlib  # 2 ms of a cold start

            name = hashlib.sha256(os.fsencode(os.path.realpath(state))).hexdigest()[:8]
            return os.path.join(base, f"gpuspool-{name}")
    return ""


def runtime_base(env: dict[str, str] | None = None) -> str:
    """The node-local folder for locks and sockets: $XDG_RUNTIME_DIR/gpuspool, else a 0700 one in the temp folder."""
    env = dict(os.environ) if env is None else env
    base = env.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        path = os.path.join(base, "gpuspool")
    else:
        path = os.path.join(env.get("TMPDIR") or "/tmp", f"gpuspool-{os.getuid()}")
        if os.path.islink(path):  # anybody can make one there
            raise UnsafeFolder(
                path=path,
                why="it is a link",
                remedy="Remove it, or set XDG_RUNTIME_DIR to a folder of your own.",
            )
    _private(path, "XDG_RUNTIME_DIR")
    return path


def runtime_folder(state: str, env: dict[str, str] | None = None) -> str:
    """The runtime folder of the one spool in `state`; two spools of a user never meet."""
    info = os.stat(state)
    path = os.path.join(runtime_base(env), f"{info.st_dev:x}-{info.st_ino:x}")
    _private(path, "XDG_RUNTIME_DIR")
    return path


def _private(path: str, setting: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise StoreUnavailable(
            path=path,
            why="its name is no UTF-8 text, which the database cannot hold",
            remedy=f"Set {setting} to another folder.",
        ) from None
    try:
        make_private(path)
        info = os.stat(path)
    except OSError as error:
        raise StoreUnavailable(
            path=path,
            why=f"it cannot be made: {error.strerror}",
            remedy=f"Set {setting} to a folder that you can write to.",
        ) from None
    if not stat.S_ISDIR(info.st_mode):
        raise StoreUnavailable(path=path, why="it is no folder", remedy=f"Set {setting} to a folder.")
    if info.st_uid != os.getuid():
        raise UnsafeFolder(
            path=path,
            why=f"it belongs to user {info.st_uid}",
            remedy=f"Set {setting} to a folder of your own.",
        )
    if info.st_mode & 0o022:
        raise UnsafeFolder(path=path, why="others can write to it", remedy=f"Type: chmod go-w {path}")


def file_system(path: str) -> str:
    """The type of the file system under `path`; an overlay is judged by its upper layer. '' when unknown."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read().splitlines()
    except OSError:
        return ""
    return file_system_in(os.path.realpath(path), mounts)


def file_system_in(path: str, mounts: list[str], depth: int = 0) -> str:
    """`file_system` of the absolute `path` by the lines of /proc/self/mountinfo (proc(5))."""
    best, kind, options = "", "", ""
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best = point
            kind, _, rest = right.partition(" ")
            options = rest.split(" ")[-1]
    if kind == "overlay" and depth < 4:
        for option in options.split(","):
            if option.startswith("upperdir="):
                return file_system_in(_unescaped(option[9:]), mounts, depth + 1)
    return kind


def _unescaped(text: str) -> str:
    """A path of mountinfo: blanks, tabs, newlines and backslashes stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def wal_works(path: str) -> bool:
    """Whether SQLite's write-ahead log may be used under `path` (it corrupts data on NFS, Lustre and GPFS)."""
    return file_system(path) in WAL_FILE_SYSTEMS


def free_mib(path: str) -> tuple[int, int]:
    """Free space for us and the size of the file system of `path`, MiB."""
    info = os.statvfs(path)
    return info.f_bavail * info.f_frsize >> 20, info.f_blocks * info.f_frsize >> 20


def short_of_space(path: str, reserve_mib: int) -> str:
    """A sentence when `path` has less room than the reserve (-1: the default, 5 GiB or 2 %, the less); else ''."""
    free, size = free_mib(path)
    if reserve_mib < 0:
        reserve_mib = min(FREE_SPACE_MIB, int(size * FREE_SPACE_SHARE))
    return f"{free} MiB are free there, {reserve_mib} MiB are kept in reserve" if free < reserve_mib else ""
