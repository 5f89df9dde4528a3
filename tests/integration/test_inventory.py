"""What this machine has: real processes read fake GPUs, and real control groups where the kernel lets us make some."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeGpu, FakeNvml

from gpuspool.launch import inventory
from gpuspool.launch.inventory import cgroup_limits, local_inventory, nvidia_hardware, nvidia_present

INVENTORY = """
import json, sys
from dataclasses import asdict
from gpuspool.launch.inventory import local_inventory
for line in sys.stdin:
    print(json.dumps(asdict(local_inventory(float(line)))), flush=True)
"""


@pytest.fixture
def machine(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The fake GPUs, for programs that this test process starts."""
    for name, value in fake_nvml.env.items():
        monkeypatch.setenv(name, value)
    return fake_nvml


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def eventually(what: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """The first true value of `what`; a failure when there is none in time."""
    deadline = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return value


class TestLocalInventory:
    def test_what_there_is(self, machine: FakeNvml) -> None:
        machine.set([FakeGpu(), FakeGpu(name="NVIDIA L40S", memory_total_mib=46068)])
        found = local_inventory()
        assert (found.host, found.gpu_error, found.faults) == (platform.node(), None, ())
        assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert 1 <= found.cpus <= len(os.sched_getaffinity(0))
        physical_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        assert 0 < found.memory_mib <= physical_mib
        assert [(gpu.index, gpu.uuid, gpu.type, gpu.memory_mib) for gpu in found.gpus] == [
            (0, machine.gpu(0).uuid, "h100", 81559),
            (1, machine.gpu(1).uuid, "l40s", 46068),
        ]

    def test_an_affinity_mask_counts(self) -> None:
        code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        code += "from gpuspool.launch.inventory import local_inventory\nprint(local_inventory().cpus)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
        assert done.stdout == b"1\n"

    def test_a_bad_gpu_is_a_fault_beside_the_others(self, machine: FakeNvml) -> None:
        machine.gpu(0).error("*", "GPU_IS_LOST")
        found = local_inventory()
        assert [gpu.index for gpu in found.gpus] == [1] and found.gpu_error is None
        assert [(fault.index, fault.error) for fault in found.faults] == [(0, "the device: GPU is lost")]

    def test_an_error_is_told_apart_from_no_gpus(self, machine: FakeNvml) -> None:
        machine.set([])
        assert local_inventory().gpu_error is None
        machine.error("nvmlInit*", "LIB_RM_VERSION_MISMATCH")
        assert "of different versions" in str(local_inventory().gpu_error)

    def test_a_library_without_driver_or_hardware_is_no_error(self, machine: FakeNvml) -> None:
        machine.unload_driver()
        found = local_inventory()
        assert found.gpus == () and (found.gpu_error is not None) == nvidia_hardware()

    def test_a_reader_that_crashes_is_told(self, machine: FakeNvml) -> None:
        machine.crash("nvmlDeviceGetName")
        assert local_inventory().gpu_error == "the program that reads the GPUs ended with signal 11"

    def test_a_reader_that_fails_says_its_last_words(self, machine: FakeNvml) -> None:
        machine.state.write_text("no such key\n")
        error = str(local_inventory().gpu_error)
        assert "exit code 70" in error and "no such key" in error

    def test_a_driver_that_hangs_costs_the_timeout_and_leaves_no_process(self, machine: FakeNvml) -> None:
        machine.hang("nvmlDeviceGetCount*")
        before = children(os.getpid())
        found = local_inventory(0.5)
        assert "no answer within 0.5 s" in str(found.gpu_error) and found.gpus == ()
        assert children(os.getpid()) == before and inventory._left_behind == []
        machine.heal()
        assert len(local_inventory().gpus) == 2

    def test_a_users_python_settings_do_not_reach_the_reader(
        self, machine: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pynvml.py").write_text("raise SystemExit('the wrong module')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert len(local_inventory().gpus) == 2


# ptrace(2)
SEIZE, DETACH, TRACE_EXIT = 0x4206, 17, 0x40
PTRACE_EVENT_EXIT = 6


def ptrace(request: int, pid: int, data: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, pid, None, data) == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def test_a_reader_that_cannot_be_killed_is_left_behind(machine: FakeNvml) -> None:
    """A tracer that keeps it at its exit makes a process that SIGKILL does not end, as a hanging driver does."""
    machine.hang("nvmlDeviceGetCount*")
    scheduler = subprocess.Popen(
        [sys.executable, "-c", INVENTORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert scheduler.stdin is not None and scheduler.stdout is not None

    def ask(timeout_s: float) -> None:
        assert scheduler.stdin is not None
        scheduler.stdin.write(f"{timeout_s}\n")
        scheduler.stdin.flush()

    def answer() -> dict[str, Any]:
        assert scheduler.stdout is not None
        value: dict[str, Any] = json.loads(scheduler.stdout.readline())
        return value

    reader = 0
    try:
        ask(3.0)
        [reader] = eventually(lambda: children(scheduler.pid))
        try:
            ptrace(SEIZE, reader, TRACE_EXIT)
        except PermissionError:
            pytest.skip("this machine forbids ptrace")
        assert "no answer within 3 s" in answer()["gpu_error"]
        _pid, status = os.waitpid(reader, 0x40000000)  # __WALL
        assert status >> 8 == signal.SIGTRAP | PTRACE_EVENT_EXIT << 8  # killed, and still not gone

        machine.heal()
        ask(3.0)  # while it is there nobody else is sent to hang beside it
        assert f"driver hangs: process {reader}," in answer()["gpu_error"]
        assert children(scheduler.pid) == [reader]

        ptrace(DETACH, reader)
        reader = 0

        def recovered() -> bool:
            ask(30.0)
            found = answer()
            return found["gpu_error"] is None and len(found["gpus"]) == 2

        eventually(recovered)
        assert children(scheduler.pid) == []
    finally:
        if reader:
            with suppress(OSError):
                ptrace(DETACH, reader)
        scheduler.stdin.close()
        scheduler.stdout.close()
        scheduler.wait(timeout=60)


class TestPresence:
    def test_the_fake_is_found_by_the_path_that_is_handed_on(self, machine: FakeNvml) -> None:
        assert nvidia_present()

    def test_nothing_is_started_where_there_is_no_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
        if nvidia_present():
            pytest.skip("this machine has NVIDIA's library")
        # A reader could not even be started from here: there would be an error.
        monkeypatch.setattr(sys, "executable", "/does/not/exist")
        assert local_inventory().gpu_error is None
        monkeypatch.setattr(inventory, "_DRIVER_FILES", ("/proc/self",))
        assert "could not be started" in str(local_inventory().gpu_error)

    def test_a_driver_without_the_library_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
        if nvidia_present():
            pytest.skip("this machine has NVIDIA's library")
        monkeypatch.setattr(inventory, "_DRIVER_FILES", ("/proc/self",))
        assert "cannot be loaded" in str(local_inventory().gpu_error)

    @pytest.mark.parametrize(
        ("vendor", "kind", "present"),
        [
            ("0x10de", "0x030200", True),
            ("0x10de", "0x030000", True),
            ("0x10de", "0x040300", False),  # the sound device of a graphics card
            ("0x1002", "0x030000", False),
        ],
    )
    def test_hardware_on_the_bus(self, tmp_path: Path, vendor: str, kind: str, present: bool) -> None:
        for name, (one_vendor, one_kind) in {
            "0000:00:00.0": ("0x8086", "0x060000"),
            "0000:3b:00.0": (vendor, kind),
        }.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "vendor").write_text(f"{one_vendor}\n")
            (tmp_path / name / "class").write_text(f"{one_kind}\n")
        (tmp_path / "0000:af:00.0").mkdir()  # one that is just going away
        assert nvidia_hardware(str(tmp_path)) is present

    def test_no_bus(self, tmp_path: Path) -> None:
        assert not nvidia_hardware(str(tmp_path / "none"))


class Tree:
    """Control groups as files: a process's folder in /proc and the mounted hierarchies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / "proc"
        self.proc.mkdir(parents=True)
        self.mounts: list[str] = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw"]
        self.groups: list[str] = []

    def mount(self, kind: str, options: str, root: str = "/", name: str = "") -> Path:
        point = self.folder / (name or options or "unified")
        point.mkdir()
        escaped = str(point).replace("\\", "\\134").replace(" ", "\\040")
        self.mounts.append(
            f"{30 + len(self.mounts)} 22 0:30 {root} {escaped} rw shared:9 - {kind} {kind} rw,{options}"
        )
        return point

    def limits(self) -> tuple[float | None, int | None]:
        (self.proc / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        (self.proc / "cgroup").write_text("\n".join(self.groups) + "\n")
        return cgroup_limits(str(self.proc))


def fill(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name.replace("__", ".")).write_text(content + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "with a blank")


class TestCgroupLimits:
    def test_none_at_all(self, tree: Tree) -> None:
        assert tree.limits() == (None, None)

    def test_version_2_takes_the_tightest_on_the_way_up(self, tree: Tree) -> None:
        top = tree.mount("cgroup2", "nsdelegate")
        tree.groups = ["0::/user.slice/job.scope"]
        fill(top / "user.slice", cpu__max="300000 100000", memory__max=str(8 << 30))
        fill(top / "user.slice" / "job.scope", cpu__max="max 100000", memory__max="max")
        fill(top / "user.slice" / "other.scope", cpu__max="1000 100000", memory__max="1")
        assert tree.limits() == (3.0, 8192)
        fill(top / "user.slice" / "job.scope", cpu__max="150000 100000", memory__max=str(1 << 30))
        assert tree.limits() == (1.5, 1024)

    def test_version_1(self, tree: Tree) -> None:
        cpu = tree.mount("cgroup", "cpu,cpuacct")
        memory = tree.mount("cgroup", "memory")
        tree.groups = ["5:cpu,cpuacct:/a/b", "4:memory:/a", "1:name=systemd:/x", "0::/"]
        fill(cpu / "a" / "b", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
        fill(memory / "a", memory__limit_in_bytes="9223372036854771712")
        assert tree.limits() == (None, 9223372036854771712 >> 20)
        fill(cpu / "a", cpu__cfs_quota_us="250000", cpu__cfs_period_us="50000")
        fill(memory, memory__limit_in_bytes=str(3 << 30))
        assert tree.limits() == (5.0, 3072)

    def test_a_container_sees_a_part_of_the_hierarchy(self, tree: Tree) -> None:
        memory = tree.mount("cgroup", "memory", root="/docker/abc")
        tree.groups = ["4:memory:/docker/abc/inner"]
        fill(memory, memory__limit_in_bytes=str(2 << 30))
        fill(memory / "inner", memory__limit_in_bytes=str(4 << 30))
        assert tree.limits() == (None, 2048)
        tree.groups = ["4:memory:/elsewhere"]  # joined from outside
        assert tree.limits() == (None, 2048)

    def test_the_real_files_of_this_process_are_understood(self) -> None:
        quota, limit_mib = cgroup_limits()
        assert quota is None or quota > 0
        assert limit_mib is None or limit_mib > 0


@pytest.fixture
def limited_group() -> Iterator[list[Path]]:
    """The folders of a real group with 1.5 CPUs and 1 GiB, where one can be made."""
    v1 = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")]
    name = f"gpuspool-test-{os.getpid()}"
    settings = {
        v1[0] / name: {"cpu.cfs_quota_us": "150000"},
        v1[1] / name: {"memory.limit_in_bytes": str(1 << 30)},
    }
    if not all(folder.is_dir() for folder in v1):
        settings = {
            Path("/sys/fs/cgroup") / name: {"cpu.max": "150000 100000", "memory.max": str(1 << 30)},
        }
    made: list[Path] = []
    try:
        try:
            for folder, contents in settings.items():
                folder.mkdir()
                made.append(folder)
                for file, content in contents.items():
                    (folder / file).write_text(content)
        except OSError as error:
            pytest.skip(f"needs root and control groups that can be made: {error}")
        yield made
    finally:
        for folder in made:
            folder.rmdir()


@pytest.mark.root
def test_a_real_control_group_bounds_what_is_there(limited_group: list[Path]) -> None:
    code = (
        "import json, os, sys\nfor folder in sys.argv[1:]: open(folder + '/cgroup.procs', 'w').write('0')\n"
    )
    code += (
        "from gpuspool.launch.inventory import cgroup_limits, local_inventory\nfound = local_inventory()\n"
    )
    code += "print(json.dumps([*cgroup_limits(), found.cpus, found.memory_mib]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, limited_group)], capture_output=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == [1.5, 1024, 1, 1024]  # CPUs rounded down
