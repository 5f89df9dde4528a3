"""Opening spool.db: pragmas, journal mode by file system, transactions, and SQLite's errors in plain words."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import DiskFull, GpuspoolError, NewerDatabase, StoreUnavailable
from .folders import wal_works
from .migrations import VERSION, found_version, migrate

BUSY_S = 40.0


def open_database(path: str, *, busy_s: float = BUSY_S, mend_journal: bool = False) -> sqlite3.Connection:
    """A connection to the spool's database, migrated, in autocommit mode.

    `mend_journal` gives up a write-ahead log on a file system where it does not work (a state folder that was moved
    to a network file system), if nobody else has the database open. Raises NewerDatabase (and leaves the file as it
    is), DiskFull or StoreUnavailable. Only the store opens the database, once a process.
    """
    fresh = not os.path.exists(path)
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
            connection.execute("PRAGMA synchronous = FULL")
            found = found_version(connection)
            if found > VERSION:
                raise NewerDatabase(path=path, found=found, known=VERSION)
            if found < VERSION:
                if journal_mode(connection) == "delete" and wal_works(path):
                    _switch_journal(connection, "wal", busy_s)
                migrate(connection, path)
            elif mend_journal and journal_mode(connection) == "wal" and not wal_works(path):
                _switch_journal(connection, "delete", 0.0)
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


def journal_mode(connection: sqlite3.Connection) -> str:
    """ "wal" or "delete", as the file says."""
    return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def _switch_journal(connection: sqlite3.Connection, mode: str, patience_s: float) -> None:
    """Change the journal, or leave it to the process that does it now.

    The switch needs the file for itself, and SQLite does not wait for that: of several processes that meet a new
    database at once all but one would fail. Whoever still cannot have it after `patience_s` goes on without.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            if journal_mode(connection) == mode:
                return
            connection.execute(f"PRAGMA journal_mode = {mode}")
            return
        except sqlite3.OperationalError as error:
            if not str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            if time.monotonic() > give_up:
                return
        time.sleep(0.005)


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
        number = _probe(os.path.dirname(path))
        if number in (errno.ENOSPC, errno.EDQUOT) or name == "SQLITE_FULL":
            why = os.strerror(number) if number else "SQLite says that the disk is full"
            return DiskFull(path=os.path.dirname(path), why=why, setting="GPUSPOOL_CFG_STATE_DIR")
        if number:
            return StoreUnavailable(
                path=path,
                why=f"nothing can be written beside it: {os.strerror(number)}",
                remedy="Make the folder writable, or set GPUSPOOL_CFG_STATE_DIR.",
            )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            path=path,
            why=f"another program has held it locked for too long ({BUSY_S:.0f} s)",
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


def _probe(folder: str) -> int:
    """Why nothing can be written to `folder`: the system's error number, or 0 when it can."""
    path = os.path.join(folder, f".probe.{os.getpid()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, b"\0" * 65536) < 65536:
                return errno.ENOSPC
            os.fsync(fd)
        finally:
            os.close(fd)
            os.unlink(path)
    except OSError as error:
        return error.errno or errno.EIO
    return 0
