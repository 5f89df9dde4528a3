"""The store: the one `Spool` on SQLite, by its verbs."""

from __future__ import annotations

import os
import sqlite3

from .cluster import ClusterVerbs
from .errors import DiskFull, StoreUnavailable
from .folders import Folders, short_of_space
from .lifecycle import LifecycleVerbs
from .queue import QueueVerbs


class Store(QueueVerbs, LifecycleVerbs, ClusterVerbs):
    """Jobs, attempts, events, projects, nodes, GPUs, reservations and usage of one spool."""

    def backup(self, target: str) -> None:
        """A consistent copy of the database at `target` (which must not exist), by SQLite's backup API, 0600.

        Raises StoreUnavailable when it cannot be made; what was begun is removed then.
        """
        self.rows("SELECT 1")
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise StoreUnavailable(
                path=target, why="it exists already", remedy="Choose another name."
            ) from None
        except OSError as error:
            why = f"it cannot be made: {error.strerror}"
            raise StoreUnavailable(path=target, why=why, remedy="Choose another folder.") from None
        copy = sqlite3.connect(target)
        try:
            self.db.backup(copy)
            copy.close()
        except BaseException as error:
            copy.close()
            os.unlink(target)
            if not isinstance(error, sqlite3.Error):
                raise
            raise StoreUnavailable(path=target, why=str(error), remedy="Free some space there.") from None


def open_store(folders: Folders, *, role: str = "command") -> Store:
    """The store of a spool. Raises NewerDatabase, DiskFull or StoreUnavailable."""
    return Store(folders, role=role)


def refuse_without_space(folders: Folders, reserve_mib: int) -> None:
    """Raise DiskFull when the run folder's disk has less room than the reserve."""
    why = short_of_space(folders.run, reserve_mib)
    if why:
        raise DiskFull(path=folders.run, why=why, setting="GPUSPOOL_CFG_RUN_DIR (or free_space_mib)")
