"""What this machine has for attempts: CPUs, memory and GPUs.

The GPUs are read by a short-lived process of its own (`python -m gpuspool.launch.nvml`). A driver that hangs leaves
its callers in uninterruptible sleep, where SIGKILL does not reach them; such a reader is left behind, never waited
for. On a machine that shows no trace of NVIDIA no process is started at all.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from ..spool.processes import boot_id, host_name
from ..spool.values import dataclass
from .nvml import Gpu, GpuFault, host_memory_mib

if TYPE_CHECKING:
    from subprocess import Popen

_LIBRARY = "libnvidia-ml.so.1"
_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")  # the last is WSL's
_DRIVER_NOT_LOADED = 9  # nvmlReturn_t
_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")  # PCI vendor; VGA and 3D controllers

# Readers that outlived their SIGKILL. Kept so that they are reaped some day, and because while the driver hangs
# another one would only hang beside them.
_left_behind: list[Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Inventory:
    """What this process may use of this machine; `gpus` is not cut down by CUDA_VISIBLE_DEVICES (see `nvml.visible`).

    `gpu_error` says why the GPUs could not be read; None with no GPUs means that there are none.
    """

    host: str
    boot_id: str
    cpus: int  # at least 1
    memory_mib: int
    gpus: tuple[Gpu, ...]
    faults: tuple[GpuFault, ...]
    gpu_error: str | None


def local_inventory(timeout_s: float = 10.0) -> Inventory:
    """Look at this machine: about a millisecond without NVIDIA, a Python start more with it.

    Whatever the driver does, the answer is there soon after `timeout_s` seconds. Raises nothing on account of GPUs.
    """
    quota, limit_mib = cgroup_limits()
    cpus, memory_mib = len(os.sched_getaffinity(0)), host_memory_mib()
    if quota is not None:  # rounded down: a slot that gets half a CPU is none
        cpus = max(1, min(cpus, int(quota)))
    if limit_mib is not None:
        memory_mib = min(memory_mib, limit_mib)
    gpus, faults, error = _read_gpus(timeout_s) if nvidia_present() else ((), (), None)
    return Inventory(host_name(), boot_id(), cpus, memory_mib, gpus, faults, error)


# ---- GPUs ----


def nvidia_present() -> bool:
    """Whether NVIDIA's driver, or the library that a program started from here would load, can be found.

    Decided by looking at files: loading the library would map it into a process that runs for weeks, and would go by
    the LD_LIBRARY_PATH that this process was started with instead of the one that it hands on.
    """
    if any(map(os.path.exists, _DRIVER_FILES)):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            if _LIBRARY.encode() in file.read():
                return True
    except OSError:
        pass  # a system without glibc's cache: the folders below
    folders = [folder for folder in re.split("[:;]", os.environ.get("LD_LIBRARY_PATH", "")) if folder]
    folders += ["/lib64", "/usr/lib64", "/lib", "/usr/lib", f"/usr/lib/{os.uname().machine}-linux-gnu"]
    return any(os.path.exists(os.path.join(folder, _LIBRARY)) for folder in folders)


def nvidia_hardware(folder: str = "/sys/bus/pci/devices") -> bool:
    """Whether a graphics device of NVIDIA's stands on the PCI bus, with a driver or without."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(
        _text(os.path.join(folder, name, "vendor")) == _NVIDIA
        and (_text(os.path.join(folder, name, "class")) or "").startswith(_DISPLAY_CLASSES)
        for name in names
    )


def _read_gpus(timeout_s: float) -> tuple[tuple[Gpu, ...], tuple[GpuFault, ...], str | None]:
    _left_behind[:] = [process for process in _left_behind if process.poll() is None]
    if _left_behind:
        pid = _left_behind[0].pid
        return (
            (),
            (),
            f"NVIDIA's driver hangs: process {pid}, which asked it, cannot be ended. Reboot this machine.",
        )
    answer = _ask(timeout_s)
    if isinstance(answer, str):
        return (), (), answer
    error = answer["error"]
    if answer["code"] == _DRIVER_NOT_LOADED and not nvidia_hardware():
        # Login nodes have the library because Slurm wants it. Without hardware that is no fault.
        error = None
    gpus = tuple(Gpu(**fields) for fields in answer["gpus"])
    faults = tuple(GpuFault(**fields) for fields in answer["faults"])
    return gpus, faults, error


def _ask(timeout_s: float) -> dict[str, Any] | str:
    """Run the reader. Gives its answer, or a sentence on why there is none."""
    import json
    import subprocess

    limit_s = max(1, round(timeout_s) + 5)
    command = [sys.executable, "-E", "-P", "-m", "gpuspool.launch.nvml", str(limit_s)]
    try:
        reader = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",  # ours may lie on a file system that is gone
            env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
    except OSError as error:
        return f"the program that reads the GPUs could not be started: {error}"
    try:
        out, err = reader.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return (
            f"NVIDIA's driver gave no answer within {timeout_s:g} s. 'nvidia-smi' and 'dmesg' may say more."
        )
    finally:
        _end(reader)
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    said = err.decode(errors="replace").strip().splitlines()
    ended = f"signal {-reader.returncode}" if reader.returncode < 0 else f"exit code {reader.returncode}"
    return f"the program that reads the GPUs ended with {ended}" + (f": {said[-1]}" if said else "")


def _end(reader: Popen[bytes]) -> None:
    """Kill the reader if it still runs, and leave it behind if that does not help."""
    import subprocess

    for pipe in (reader.stdout, reader.stderr):
        if pipe is not None:
            pipe.close()
    if reader.poll() is None:
        reader.kill()
        try:
            reader.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            _left_behind.append(reader)


# ---- cgroups ----


def cgroup_limits(proc: str = "/proc/self") -> tuple[float | None, int | None]:
    """(CPUs, MiB) that the control groups of a process allow, versions 1 and 2; None where there is no limit.

    Limits hold for everything below the group that sets them, so the smallest on the way up to the root counts.
    `proc` is the process's folder in /proc.
    """
    groups = _text(f"{proc}/cgroup") or ""
    mounts = _text(f"{proc}/mountinfo") or ""
    readers = {"": _version2, "cpu": _version1_cpu, "memory": _version1_memory}
    quotas: list[float] = []
    limits: list[int] = []
    for line in groups.splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        for controller in controllers.split(","):  # version 2 names none
            if controller in readers and path:
                for folder in _folders(mounts, controller, path):
                    quota, limit = readers[controller](folder)
                    quotas += [quota] if quota is not None else []
                    limits += [limit] if limit is not None else []
    return min(quotas, default=None), min((limit >> 20 for limit in limits), default=None)


def _folders(mounts: str, controller: str, path: str) -> list[str]:
    """The group's folder and those above it, from mountinfo; '' is version 2. proc_pid_mountinfo(5), cgroups(7)."""
    for line in mounts.splitlines():
        before, _dash, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] != ("cgroup" if controller else "cgroup2"):
            continue
        if controller and controller not in kind[2].split(","):
            continue
        root, top = _unescape(fields[3]), _unescape(fields[4])
        # In a container only a part of the hierarchy is mounted, and the path may begin above it.
        below = os.path.relpath(path, root)
        if below == ".." or below.startswith("../"):
            below = "."
        folder = os.path.normpath(os.path.join(top, below))
        found = [folder]
        while folder != os.path.normpath(top):
            folder = os.path.dirname(folder)
            found.append(folder)
        return found
    return []


def _version2(folder: str) -> tuple[float | None, int | None]:
    words = (_text(f"{folder}/cpu.max") or "max").split()
    limit = _text(f"{folder}/memory.max") or "max"
    quota = None if words[0] == "max" else int(words[0]) / int(words[1])
    return quota, None if limit == "max" else int(limit)


def _version1_cpu(folder: str) -> tuple[float | None, int | None]:
    quota, period = _text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us")
    if not quota or not period or int(quota) <= 0:  # -1: none
        return None, None
    return int(quota) / int(period), None


def _version1_memory(folder: str) -> tuple[float | None, int | None]:
    limit = _text(f"{folder}/memory.limit_in_bytes")  # no limit is a huge number
    return None, int(limit) if limit else None


def _unescape(field: str) -> str:
    """mountinfo writes blanks, tabs, newlines and backslashes as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _text(path: str) -> str | None:
    """A small file's stripped content; None where there is none to read (a GPU's sysfs may vanish under us)."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return None
