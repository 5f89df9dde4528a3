"""Opening spool.db: pragmas, journal mode by file system, transactions, and SQLite's errors in plain words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import DiskFull, GpuspoolError, StoreUnavailable
from .folders import wal_works
from .migrations import VERSION, found_version, migrate

BUSY_S = 40.0


def open_database(path: str, *, busy_s: float = BUSY_S, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the spool's database, migrated, in autocommit mode.

    Raises NewerDatabase, DiskFull or StoreUnavailable. Only the store opens the database, once a process: a second
    open and close in one process would drop SQLite's POSIX locks.
    """
    fresh = not os.path.exists(path)
    if fresh and read_only:
        raise StoreUnavailable(path=path, why="there is no database", remedy="'spool submit' makes one.")
    if fresh:
        # Made with the right mode from the beginning: SQLite's own files inherit it.
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        except OSError as error:
            raise _unavailable(path, error.strerror or str(error)) from None
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, cached_statements=256)
        with translated(path):
            if found_version(connection) != VERSION:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete" and wal_works(path):
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                migrate(connection, path)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA cache_size = -16384")
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise _unavailable(path, str(error)) from None
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def _unavailable(path: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(path=path, why=why, remedy="'spool db check' says more.")


@contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors as ours: a full disk is named, a lock says who to look for, damage names the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(path, error) from error


def explain(path: str, error: sqlite3.Error) -> GpuspoolError:
    """What `error` means for the user.

    SQLite often hides the errno of a full disk behind IOERR_WRITE or IOERR_FSYNC, so the folder is probed with a
    small write of our own.
    """
    name = str(getattr(error, "sqlite_errorname", ""))
    if name == "SQLITE_FULL" or name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):
        why = _probe(os.path.dirname(path))
        if why:
            return DiskFull(path=os.path.dirname(path), why=why, setting="GPUSPOOL_CFG_STATE_DIR")
        if name == "SQLITE_FULL":
            return DiskFull(
                path=os.path.dirname(path),
                why="SQLite says that the disk is full",
                setting="GPUSPOOL_CFG_STATE_DIR",
            )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            path=path,
            why=f"another program has held it locked for {BUSY_S:.0f} s",
            remedy="Look for programs that have spool.db open: fuser -v " + path,
        )
    if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
        return StoreUnavailable(
            path=path,
            why=f"the database is damaged ({error})",
            remedy="Type 'spool db check'; restore a backup made with 'spool db backup'.",
        )
    if name.startswith("SQLITE_READONLY"):
        return StoreUnavailable(
            path=path,
            why="it is read-only",
            remedy="Make the folder writable, or set GPUSPOOL_CFG_STATE_DIR.",
        )
    return StoreUnavailable(
        path=path, why=f"{error} ({name or 'sqlite3'})", remedy="'spool db check' says more."
    )


def _probe(folder: str) -> str:
    """Why nothing can be written to `folder`: the system's own words, or '' when it can."""
    path = os.path.join(folder, f".probe.{os.getpid()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, b"\0" * 65536) < 65536:
                return "No space left on device"
            os.fsync(fd)
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""
