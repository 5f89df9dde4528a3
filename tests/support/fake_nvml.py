"""Fake NVIDIA GPUs: a small C library that the real pynvml calls, and the text file that it answers from.

Programs started with `fake_nvml.env` see the GPUs described here and nothing else of NVIDIA's; what a test changes
is seen by their next call. The file's format, with its faults, stands at the head of `fake_nvml/nvml.c`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parent / "fake_nvml" / "nvml.c"
LIBRARY = "libnvidia-ml.so.1"

# The nvmlReturn_t values that a test may name instead of giving the number.
CODES = {
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "FUNCTION_NOT_FOUND": 13,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "NO_DATA": 21,
    "UNKNOWN": 999,
}


def build_library(folder: str | Path) -> Path:
    """Compile the library into `folder` unless it is there; safe when several processes do so at once."""
    target = Path(folder) / LIBRARY
    if target.exists():
        return target
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.fail("the fake GPUs need a C compiler: install gcc")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{LIBRARY}.{os.getpid()}")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(draft), "-lpthread"], check=True)
    draft.rename(target)
    return target


@dataclass(frozen=True)
class FakeProcess:
    """A process on a GPU; `used_mib` None is "not available", `instances` the GPU and compute instance under MIG."""

    pid: int
    used_mib: int | None = 0
    kind: str = "compute"
    instances: tuple[int, int] | None = None

    def line(self) -> str:
        text = f"process {self.kind} {self.pid} {_number(self.used_mib)}"
        return text + (" {} {}".format(*self.instances) if self.instances else "")


class _Rules:
    """Faults by function name: a shell pattern that may leave the version suffix out, so `nvmlDevice*` is all."""

    rules: tuple[str, ...]

    def error(self, pattern: str, code: str | int) -> None:
        """Let the calls return `code`: a number or a name of `CODES`."""
        self.rules = (*self.rules, f"error {pattern} {CODES[code] if isinstance(code, str) else code}")

    def delay(self, pattern: str, milliseconds: int) -> None:
        self.rules = (*self.rules, f"delay {pattern} {milliseconds}")

    def hang(self, pattern: str) -> None:
        """Let the calls never return; a SIGKILL still ends them."""
        self.delay(pattern, -1)

    def crash(self, pattern: str) -> None:
        """Let the calls end the process by SIGSEGV."""
        self.rules = (*self.rules, f"crash {pattern}")

    def heal(self) -> None:
        """Take all faults away that were added here."""
        self.rules = ()


@dataclass
class FakeGpu(_Rules):
    """One GPU; setting an attribute writes the state file at once. None is "not supported" for the numbers."""

    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = ""  # default: made from the index
    pci: str = ""
    memory_total_mib: int | None = 81559
    memory_reserved_mib: int | None = 500
    memory_used_mib: int | None = 0
    utilisation_pct: int | None = 0
    memory_utilisation_pct: int | None = 0
    temperature_c: int | None = 35
    power_mw: int | None = 70_000
    processes: tuple[FakeProcess, ...] = ()
    rules: tuple[str, ...] = ()
    owner: FakeNvml | None = field(default=None, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (owner := getattr(self, "owner", None)) is not None:
            owner.write()

    def add_process(
        self,
        pid: int,
        used_mib: int | None = 0,
        kind: str = "compute",
        instances: tuple[int, int] | None = None,
    ) -> None:
        self.processes = (*self.processes, FakeProcess(pid, used_mib, kind, instances))

    def lines(self, index: int) -> list[str]:
        texts = [f"gpu {index}"]
        for item in fields(self):
            if item.name not in ("processes", "rules", "owner"):
                value = getattr(self, item.name)
                texts.append(f"{item.name} {value if isinstance(value, str) else _number(value)}")
        return texts + [process.line() for process in self.processes] + list(self.rules)


class FakeNvml(_Rules):
    """The GPUs of a pretended machine. `env` is what a program needs to see them."""

    def __init__(self, library: Path, state: Path, environ: dict[str, str] | None = None) -> None:
        self.state = state
        before = (os.environ if environ is None else environ).get("LD_LIBRARY_PATH")
        self.env = {
            "LD_LIBRARY_PATH": f"{library.parent}:{before}" if before else str(library.parent),
            "FAKE_NVML_STATE": str(state),
        }
        self.gpus: list[FakeGpu | None] = []
        self.driver = "550.54.15"
        self.rules = ()
        self._written_ns = 0
        self.write()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("driver", "rules") and hasattr(self, "_written_ns"):
            self.write()

    def set(self, gpus: Sequence[FakeGpu | None] | int) -> list[FakeGpu]:
        """Replace all GPUs; a number gives that many H100s, None is a hole in the numbering. Gives the real ones."""
        for old in self.gpus:
            if old is not None:
                old.owner = None
        self.gpus = [FakeGpu() for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
        for index, gpu in enumerate(self.gpus):
            if gpu is not None:
                gpu.uuid = gpu.uuid or f"GPU-{index:08x}-5ca1-ab1e-cafe-0123456789ab"
                gpu.pci = gpu.pci or f"00000000:{0x1B + 0x10 * index:02X}:00.0"
                gpu.owner = self
        self.write()
        return [gpu for gpu in self.gpus if gpu is not None]

    def gpu(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        assert gpu is not None, f"GPU {index} is a hole"
        return gpu

    def unload_driver(self) -> None:
        """Take the state file away: nvmlInit says that the driver is not loaded, until the next change here."""
        self.state.unlink(missing_ok=True)

    def write(self) -> None:
        lines = [f"driver {self.driver}", f"count {len(self.gpus)}", *self.rules]
        for index, gpu in enumerate(self.gpus):
            lines += gpu.lines(index) if gpu is not None else []
        draft = self.state.with_name(f"{self.state.name}.{os.getpid()}")
        draft.write_text("\n".join(lines) + "\n")
        # A kernel's clock tick is coarser than two writes; the library must see each of them as a change.
        self._written_ns = max(self._written_ns + 1, draft.stat().st_mtime_ns)
        os.utime(draft, ns=(self._written_ns, self._written_ns))
        draft.replace(self.state)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library, one for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return build_library(folder / "fake-nvml")


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> FakeNvml:
    """A machine with two idle H100s, described in a file of this test alone."""
    fake = FakeNvml(fake_nvml_library, tmp_path / "fake-nvml.state")
    fake.set(2)
    return fake
