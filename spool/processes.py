"""Naming a process so that nobody else can be meant: host, boot id, pid and raw start time, in that order."""

from __future__ import annotations

import json
import os

from .values import dataclass

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def host_name() -> str:
    """This machine's node name, as the kernel (or the UTS namespace) has it."""
    return os.uname().nodename


def boot_id() -> str:
    """The kernel's id of this boot; '' where it cannot be read."""
    try:
        with open(BOOT_ID_FILE) as file:
            return file.read().strip()
    except OSError:
        return ""


def start_time(pid: int) -> int:
    """Field 22 of /proc/pid/stat in clock ticks since boot; 0 when there is no such process or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return 0
    # The command name may hold anything, a closing parenthesis included: count from the last one.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return 0
    return int(fields[19])


@dataclass(frozen=True, slots=True)
class ProcessName:
    """One process of one boot of one host."""

    host: str
    boot_id: str
    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> ProcessName:
        """The name of process `pid` of this machine, as it is now."""
        return cls(host_name(), boot_id(), pid, start_time(pid))

    @classmethod
    def parse(cls, text: str) -> ProcessName | None:
        """Back from `text`; None when it is not a process name."""
        try:
            host, boot, pid, start = json.loads(text)
            return cls(str(host), str(boot), int(pid), int(start))
        except (ValueError, TypeError, OverflowError):
            return None

    def text(self) -> str:
        """As stored in rows and files."""
        return json.dumps([self.host, self.boot_id, self.pid, self.start])

    def here(self) -> bool:
        """Whether it is of this boot of this machine; only then can its pid be looked at."""
        return self.host == host_name() and self.boot_id == boot_id()

    def alive(self) -> bool:
        """Whether it certainly runs on this machine now: same boot, same pid, same start time."""
        return self.here() and self.start != 0 and start_time(self.pid) == self.start


def user_name() -> str:
    """Who this process is, for the record: the login name, the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
