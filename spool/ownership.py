"""One host owns a spool at a time: a record of host, boot id, pid, start time and epoch.

The epoch stands in the record and in the database; each write transaction compares the two, so an old owner that
wakes up commits nothing. Within one host any number of processes write (SQLite orders them); the record names the
host's daemon where there is one. Whether an owner on *another* host is alive is judged by change of the record's
content and by the reader's own clock, never by comparing two clocks.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from .durable import read_json, write_json
from .processes import ProcessName, boot_id, host_name
from .values import dataclass

SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns the spool. `beat` changes at each renewal; `role` is "command" or "daemon"."""

    host: str
    boot_id: str
    pid: int
    start: int
    epoch: int
    role: str
    beat: int = 0

    @property
    def process(self) -> ProcessName:
        """The owning process by name."""
        return ProcessName(self.host, self.boot_id, self.pid, self.start)

    def here(self) -> bool:
        """Whether it is this boot of this host, whose processes may all write."""
        return self.host == host_name() and self.boot_id == boot_id()

    def same_host(self) -> bool:
        """Whether it is this host, of this boot or of one that has ended."""
        return self.host == host_name()

    def describe(self) -> str:
        """For messages."""
        what = "the daemon" if self.role == "daemon" else "process"
        return f"{what} {self.pid} on {self.host} (epoch {self.epoch})"

    def record(self) -> dict[str, Any]:
        """As written to owner.json."""
        return asdict(self)


def read_owner(path: str) -> Owner | None:
    """The owner by the record at `path`; None when there is none or it is damaged."""
    value = read_json(path)
    if not isinstance(value, dict):
        return None
    try:
        return Owner(
            str(value["host"]),
            str(value["boot_id"]),
            int(value["pid"]),
            int(value["start"]),
            int(value["epoch"]),
            str(value["role"]),
            int(value.get("beat", 0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def silent_for(owner: Owner, memo: str) -> float:
    """For how many seconds the record of an owner on another host has not changed, as far as this host knows.

    What was seen, and when, is kept in the file `memo` of this host and boot; the first look gives 0. Raises OSError
    when the memo cannot be written.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    seen = read_json(memo)
    if isinstance(seen, dict) and seen.get("boot") == boot_id() and seen.get("owner") == owner.record():
        since = seen.get("since")
        if isinstance(since, int | float) and 0 <= since <= now:
            return now - since
    write_json(memo, {"boot": boot_id(), "owner": owner.record(), "since": now})
    return 0.0


def this_process(epoch: int, role: str, beat: int = 0) -> Owner:
    """This process as an owner."""
    import os

    name = ProcessName.of(os.getpid())
    return Owner(name.host, name.boot_id, name.pid, name.start, epoch, role, beat)
