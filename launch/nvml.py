"""The GPUs of this machine as NVIDIA's management library (NVML) tells them.

One GPU that is broken, lost or forbidden never hides the others, and what the driver does not tell is None, never 0.
A driver that hangs takes its caller with it, past SIGKILL: a process that must go on asks through
`inventory.local_inventory`, which runs this module as a program.

pynvml is imported in functions only, because its 10 ms would be paid by every command otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ..spool.errors import GpuspoolError
from ..spool.values import dataclass

_T = TypeVar("_T")
_MIB = 1 << 20


class NvmlUnavailable(GpuspoolError):
    """The GPUs of this machine cannot be read: {why}. {remedy}"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that answers. `index` is NVML's: it shifts when a GPU vanishes; `uuid` does not."""

    uuid: str
    index: int
    name: str
    type: str  # short: "h100", "a100", "rtx4090"
    memory_mib: int
    pci_bus_id: str  # "00000000:1B:00.0"; empty where the driver has none


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU. `pid` is of the driver's namespace and may be gone; `used_mib` None: not told."""

    pid: int
    used_mib: int | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading. `error` names the first thing that went wrong; what could still be read is there all the same."""

    uuid: str  # empty for a GPU so broken that not even its UUID can be read
    utilisation_pct: int | None
    memory_used_mib: int | None  # without what the driver reserves for itself
    memory_total_mib: int | None
    temperature_c: int | None
    power_w: float | None
    processes: tuple[GpuProcess, ...] | None
    error: str | None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A GPU that is there but cannot be used, and why."""

    index: int
    uuid: str | None
    error: str


class Nvml:
    """The library, loaded and initialised inside a `with` block. Blocks may be nested; not for use across a fork."""

    def __init__(self) -> None:
        self._pynvml: Any = None

    def __enter__(self) -> Nvml:
        """Raises `NvmlUnavailable`, with NVML's number as `values["code"]` (None without pynvml)."""
        try:
            import pynvml
        except ImportError as error:
            raise NvmlUnavailable(
                why=f"Python's module pynvml cannot be imported ({error})",
                remedy="Install it: pip install nvidia-ml-py.",
                code=None,
            ) from error
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise _unavailable(error) from error
        self._pynvml = pynvml
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._pynvml.nvmlShutdown()
        except self._pynvml.NVMLError:
            pass  # nothing is lost: the driver forgets a process when it ends

    def devices(self) -> list[Gpu | GpuFault]:
        """All GPUs in NVML's order, one entry an index. Raises `NvmlUnavailable` when not even their number is told."""
        return [self._device(index) for index in range(self._count())]

    def sample(self, uuids: Sequence[str] | None = None) -> list[GpuSample]:
        """Read the GPUs named by full UUID (default: all), one sample each in that order.

        Raises `NvmlUnavailable` only for all GPUs, when not even their number is told.
        """
        if uuids is not None:
            return [
                self._sample(uuid, lambda uuid=uuid: self._pynvml.nvmlDeviceGetHandleByUUID(uuid))  # type: ignore[misc]
                for uuid in uuids
            ]
        return [
            self._sample(None, lambda index=index: self._pynvml.nvmlDeviceGetHandleByIndex(index))  # type: ignore[misc]
            for index in range(self._count())
        ]

    def _count(self) -> int:
        try:
            return int(self._pynvml.nvmlDeviceGetCount())
        except self._pynvml.NVMLError as error:
            raise _unavailable(error) from error

    def _device(self, index: int) -> Gpu | GpuFault:
        nv = self._pynvml
        uuid: str | None = None
        step = "the device"
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            step = "its UUID"
            uuid = nv.nvmlDeviceGetUUID(handle)
            step = "its name"
            name = nv.nvmlDeviceGetName(handle)
            step = "its memory"
            try:
                memory_mib = self._memory(handle).total // _MIB
            except nv.NVMLError_NotSupported:
                # GB10 and other chips without memory of their own use the host's (dra-driver-nvidia-gpu#1073).
                memory_mib = host_memory_mib()
            step = "its PCI address"
            try:
                pci_bus_id = nv.nvmlDeviceGetPciInfo_v3(handle).busId
            except nv.NVMLError_NotSupported:
                pci_bus_id = ""
        except nv.NVMLError as error:
            return GpuFault(index, uuid, f"{step}: {error}")
        return Gpu(str(uuid), index, name, short_type(name), int(memory_mib), pci_bus_id)

    def _sample(self, uuid: str | None, open_device: Callable[[], Any]) -> GpuSample:
        nv = self._pynvml
        reader = _Reader(nv)
        handle = reader.read("device", open_device, silent=False)
        if handle is not None and uuid is None:
            uuid = reader.read("UUID", lambda: nv.nvmlDeviceGetUUID(handle), silent=False)
        if handle is None or uuid is None:
            return GpuSample(uuid or "", None, None, None, None, None, None, reader.error)
        utilisation = reader.read("utilisation", lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu)
        memory = reader.read("memory", lambda: self._memory(handle))
        temperature = reader.read("temperature", lambda: self._temperature(handle))
        milliwatts = reader.read("power", lambda: nv.nvmlDeviceGetPowerUsage(handle))
        compute = reader.read("processes", lambda: self._processes("Compute", handle))
        graphics = reader.read("graphics processes", lambda: self._processes("Graphics", handle))
        unknown = nv.NVML_VALUE_NOT_AVAILABLE_uint.value
        return GpuSample(
            uuid=uuid,
            utilisation_pct=None if utilisation == unknown else utilisation,
            memory_used_mib=None if memory is None else memory.used // _MIB,
            memory_total_mib=None if memory is None else memory.total // _MIB,
            temperature_c=temperature,
            power_w=None if milliwatts in (None, unknown) else milliwatts / 1000,
            # Without the compute list "no process" would be a guess; the graphics list is often not supported.
            processes=None if compute is None else _merge(compute, graphics or []),
            error=reader.error,
        )

    def _memory(self, handle: Any) -> Any:
        """The second version counts what the driver reserves (hundreds of MiB) apart from what programs use."""
        nv = self._pynvml
        try:
            return nv.nvmlDeviceGetMemoryInfo(handle, version=nv.nvmlMemory_v2)
        except (nv.NVMLError_FunctionNotFound, nv.NVMLError_ArgumentVersionMismatch):
            return nv.nvmlDeviceGetMemoryInfo(handle)  # drivers before 510

    def _temperature(self, handle: Any) -> int:
        nv = self._pynvml
        try:
            return int(nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU))
        except nv.NVMLError_FunctionNotFound:
            newer = getattr(nv, "nvmlDeviceGetTemperatureV", None)  # the old call goes away with CUDA 14
            if newer is None:
                raise
            return int(newer(handle, nv.NVML_TEMPERATURE_GPU))

    def _processes(self, kind: str, handle: Any) -> list[Any]:
        """By versioned names: on an old driver the unversioned one raises what is no NVMLError."""
        nv = self._pynvml
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        for retry in (True, True, False):
            try:
                try:
                    return list(getattr(nv, f"{name}_v3")(handle))
                except nv.NVMLError_FunctionNotFound:
                    older = getattr(nv, f"{name}_v2", None)  # drivers before 510
                    if older is None:  # releases 12.535 of pynvml have none
                        raise
                    return list(older(handle))
            except nv.NVMLError_InsufficientSize:  # more processes started between pynvml's two calls
                if not retry:
                    raise
        raise AssertionError("unreachable")


class _Reader:
    """Reads values of one GPU one by one and keeps the first error."""

    def __init__(self, pynvml: Any) -> None:
        self.error: str | None = None
        self._base = pynvml.NVMLError
        # What this GPU, driver or user just does not have. No error: the value is None.
        self._absent = (
            pynvml.NVMLError_NotSupported,
            pynvml.NVMLError_NoPermission,
            pynvml.NVMLError_FunctionNotFound,
            pynvml.NVMLError_NoData,
        )
        # After one of these every further call fails too, each perhaps after a time-out of its own.
        self._fatal = (
            pynvml.NVMLError_GpuIsLost,
            pynvml.NVMLError_Timeout,
            pynvml.NVMLError_ResetRequired,
            pynvml.NVMLError_Uninitialized,
        )
        self._dead = False

    def read(self, what: str, call: Callable[[], _T], *, silent: bool = True) -> _T | None:
        if self._dead:
            return None
        try:
            return call()
        except self._base as error:
            if not (silent and isinstance(error, self._absent)):
                self.error = self.error or f"{what}: {error}"
                self._dead = isinstance(error, self._fatal)
            return None


def _merge(compute: list[Any], graphics: list[Any]) -> tuple[GpuProcess, ...]:
    """One entry a pid. A process with both kinds of context stands in both lists with all of its memory; under MIG it
    stands in one list once for each instance."""
    totals: list[dict[int, int | None]] = []
    for listed in (compute, graphics):
        total: dict[int, int | None] = {}
        for entry in listed:
            before, used = total.get(entry.pid), entry.usedGpuMemory
            total[entry.pid] = before if used is None else used + (before or 0)
        totals.append(total)
    merged: dict[int, int | None] = {}
    for total in totals:
        for pid, used in total.items():
            known = [value for value in (merged.get(pid), used) if value is not None]
            merged[pid] = max(known, default=None)
    return tuple(GpuProcess(pid, None if used is None else used // _MIB) for pid, used in merged.items())


def _unavailable(error: Any) -> NvmlUnavailable:
    import pynvml

    known = {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
            "the library libnvidia-ml.so.1 cannot be loaded",
            "It comes with NVIDIA's driver; in a container the runtime must hand it in.",
        ),
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
            "NVIDIA's driver is not loaded",
            "'nvidia-smi' and 'dmesg' say more; loading it is the administrator's.",
        ),
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
            "NVIDIA's library and the loaded driver are of different versions",
            "The driver was updated under the running kernel: reload it or reboot.",
        ),
        pynvml.NVML_ERROR_NO_PERMISSION: (
            "this user may not open the GPU devices",
            "Look at the owner and mode of /dev/nvidia*.",
        ),
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (
            "NVIDIA's library is too old for pynvml",
            "Update the driver, or install an nvidia-ml-py of the driver's version.",
        ),
    }
    why, remedy = known.get(error.value, (f"NVML says: {error}", "'nvidia-smi' may say more."))
    return NvmlUnavailable(why=why, remedy=remedy, code=error.value)


# ---- names ----

# Where the chip's name ends and the board's begins: form factor, memory size or kind, vGPU profile.
_BOARD = re.compile(r"sxm\d*|pcie|nvl\d*|hbm\d\w*|\d+gb?|\d+[abcq]")
_FILLER = frozenset(
    {"nvidia", "tesla", "quadro", "geforce", "grid", "generation", "gpu", "graphics", "device", "edition"}
    | {"server", "workstation", "sff", "blackwell"}
)
_MAX_Q = re.compile(r"\b(with )?max-q( design)?\b")  # the same chip at less power
_MIG_PROFILE = re.compile(r"\bmig (\S+)")


def short_type(product: str) -> str:
    """The name by which people ask for a GPU: "NVIDIA A100-SXM4-80GB" is "a100", "NVIDIA RTX 6000 Ada Generation" is
    "rtx6000ada". Form factor and memory are left out; a MIG instance keeps its profile ("a100-1g.5gb")."""
    lowered = _MAX_Q.sub("", product.lower())
    words: list[str] = []
    for word in re.findall(r"[a-z0-9]+", _MIG_PROFILE.sub("", lowered)):
        if words and _BOARD.fullmatch(word):
            break
        if word not in _FILLER:
            words.append(word)
    if len(words) > 1 and words[0] == "rtx" and re.fullmatch(r"a\d+", words[1]):
        del words[0]  # everybody says "a6000"
    name = "".join(words) or "gpu"
    profile = _MIG_PROFILE.search(lowered)
    return f"{name}-{profile[1]}" if profile else name


# ---- an outer mask ----


def visible(gpus: Sequence[Gpu | GpuFault], mask: str | None) -> list[Gpu]:
    """The GPUs that a CUDA_VISIBLE_DEVICES of `mask` leaves, in the mask's order; None, a variable not set, leaves all.

    As CUDA reads it (CUDA C++ Programming Guide, "CUDA Environment Variables"): the entries are either indices, here
    always in PCI bus order, or UUIDs, of which a beginning that fits one GPU alone is enough; the first entry that is
    neither ends the list, so that "" and "-1" leave none; a GPU named twice leaves none (as torch.cuda reads it).

    Hand in the faults of `Nvml.devices` too: an entry that may mean one of them is passed over and ends nothing.
    """
    if mask is None:
        return [gpu for gpu in gpus if isinstance(gpu, Gpu)]
    entries = [entry.strip() for entry in mask.split(",")]
    by_uuid = entries[0].startswith("GPU-")
    unnamed_fault = any(isinstance(gpu, GpuFault) and gpu.uuid is None for gpu in gpus)
    chosen: list[Gpu | GpuFault] = []
    for entry in entries:
        if by_uuid:
            fits = [gpu for gpu in gpus if entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)]
        else:
            number = re.match(r"\+?\d+", entry)
            fits = [gpu for gpu in gpus if number and gpu.index == int(number[0])]
        if not fits and by_uuid and unnamed_fault and entry.startswith("GPU-"):
            continue
        if len(fits) != 1:
            break
        if fits[0] in chosen:
            return []
        chosen.append(fits[0])
    return [gpu for gpu in chosen if isinstance(gpu, Gpu)]


# ---- the program that `inventory` runs ----


def host_memory_mib() -> int:
    """The machine's memory in MiB (MemTotal), whatever part of it this process may use."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    raise OSError("/proc/meminfo has no MemTotal")


def main(limit_s: int) -> None:
    """Write the GPUs as one JSON value on stdout; the kernel ends this process after `limit_s` seconds, so that it
    does not stay behind a driver that hangs when its parent is killed."""
    import json
    import signal
    from dataclasses import asdict

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(limit_s)
    answer: dict[str, Any] = {"schema": 1, "gpus": [], "faults": [], "error": None, "code": None}
    try:
        with Nvml() as nvml:
            for device in nvml.devices():
                answer["gpus" if isinstance(device, Gpu) else "faults"].append(asdict(device))
    except NvmlUnavailable as error:
        answer.update(error=str(error), code=error.values["code"])
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
