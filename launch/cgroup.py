"""A cgroup an attempt, where one is to be had: everything that the command starts stays in it, whatever it does."""

from __future__ import annotations

import os

from .processes import Process, look


def find_parent() -> str:
    """A cgroup folder in which we may make children: version 2 if our own is delegated, else version 1's `pids` or
    `freezer`; '' when there is none. Any failure means "none": containment is then by descent, session and marker."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    candidates = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        names = controllers.split(",")
        if controllers == "":
            candidates.append((0, "/sys/fs/cgroup" + path))
            candidates.append((3, "/sys/fs/cgroup/unified" + path))
        elif "pids" in names:
            candidates.append((1, "/sys/fs/cgroup/pids" + path))
        elif "freezer" in names:
            candidates.append((2, "/sys/fs/cgroup/freezer" + path))
    for _, folder in sorted(candidates):
        if os.access(folder, os.W_OK) and os.access(os.path.join(folder, "cgroup.procs"), os.W_OK):
            return folder
    return ""


def make(parent: str, token: str) -> str:
    """A cgroup for the attempt `token` below `parent`; '' when it cannot be made."""
    if not parent:
        return ""
    path = os.path.join(parent, f"gpuspool-{token}")
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        pass
    except OSError:
        return ""
    return path


def find(parent: str, token: str) -> str:
    """The cgroup of the attempt `token` below `parent`, as `make` made it; '' where there is none."""
    path = os.path.join(parent, f"gpuspool-{token}")
    return path if parent and os.path.isdir(path) else ""


def enter(path: str) -> bool:
    """Move this process into the cgroup; called in the forked child before exec."""
    try:
        fd = os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"0")
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def members(path: str) -> list[Process]:
    """The living processes in the cgroup; [] when it is gone."""
    if not path:
        return []
    try:
        with open(os.path.join(path, "cgroup.procs")) as file:
            pids = [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []
    return [process for pid in pids if pid > 0 and (process := look(pid))]


def remove(path: str) -> None:
    """Remove the empty cgroup; one that still has members stays, and is found by the next look."""
    if path:
        try:
            os.rmdir(path)
        except OSError:
            pass
