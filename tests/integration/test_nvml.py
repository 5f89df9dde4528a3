"""The real pynvml, loaded with the fake library in a process of its own, as `launch.nvml` uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml

from gpuspool.launch.nvml import Gpu, GpuFault, short_type, visible

ASKER = """
import json, sys
from dataclasses import asdict
from gpuspool.launch.nvml import Nvml
with Nvml() as nvml:
    for line in sys.stdin:
        method, arguments = json.loads(line)
        values = getattr(nvml, method)(*arguments)
        print(json.dumps([{"class": type(value).__name__, **asdict(value)} for value in values]), flush=True)
"""

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(fake_nvml: FakeNvml) -> Iterator[Ask]:
    """Calls methods of one `Nvml` in a process that lives as long as the test."""
    process: subprocess.Popen[str] | None = None

    def asking(method: str, *arguments: object) -> list[dict[str, Any]]:
        nonlocal process
        process = process or subprocess.Popen(
            [sys.executable, "-c", ASKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **fake_nvml.env},
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([method, arguments]) + "\n")
        process.stdin.flush()
        answer: list[dict[str, Any]] = json.loads(process.stdout.readline())
        return answer

    yield asking
    if process is not None:
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0


def run_main(fake: FakeNvml, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-E", "-P", "-m", "gpuspool.launch.nvml"],
        capture_output=True,
        check=True,
        env={**os.environ, **fake.env, **environ},
        timeout=60,
    )
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def errors(samples: list[dict[str, Any]]) -> list[str | None]:
    return [sample["error"] for sample in samples]


class TestDevices:
    def test_what_a_healthy_machine_has(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.set([FakeGpu(name="NVIDIA A100-SXM4-40GB", memory_total_mib=40960, pci="00000000:41:00.0")])
        assert ask("devices") == [
            {
                "class": "Gpu",
                "uuid": fake_nvml.gpu(0).uuid,
                "index": 0,
                "name": "NVIDIA A100-SXM4-40GB",
                "type": "a100",
                "memory_mib": 40960,
                "pci_bus_id": "00000000:41:00.0",
            }
        ]

    def test_a_bad_gpu_hides_no_other(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.set([FakeGpu(), None, FakeGpu(), FakeGpu(), FakeGpu()])
        fake_nvml.gpu(2).error("*", "GPU_IS_LOST")
        fake_nvml.gpu(3).error("nvmlDeviceGetMemoryInfo", "UNKNOWN")
        found = ask("devices")
        assert [(one["class"], one["index"]) for one in found] == [
            ("Gpu", 0),
            ("GpuFault", 1),
            ("GpuFault", 2),
            ("GpuFault", 3),
            ("Gpu", 4),
        ]
        assert [(one["uuid"], one["error"]) for one in found[1:4]] == [
            (None, "the device: Not Found"),
            (None, "the device: GPU is lost"),
            (fake_nvml.gpu(3).uuid, "its memory: Unknown Error"),
        ]

    def test_no_gpus_at_all(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.set([])
        assert ask("devices") == [] and ask("sample") == []

    def test_a_chip_without_memory_of_its_own_has_the_hosts(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.set([FakeGpu(name="NVIDIA GB10", memory_total_mib=None)])
        [gpu] = ask("devices")
        host_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
        assert gpu["type"] == "gb10" and gpu["memory_mib"] == pytest.approx(host_mib, rel=0.01)

    def test_one_that_recovers_is_back(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.gpu(1).error("nvmlDevice*", "RESET_REQUIRED")
        assert [one["class"] for one in ask("devices")] == ["Gpu", "GpuFault"]
        fake_nvml.gpu(1).heal()
        assert [one["class"] for one in ask("devices")] == ["Gpu", "Gpu"]


class TestSamples:
    def test_follow_the_state_while_it_changes(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        gpu = fake_nvml.gpu(1)
        gpu.add_process(4711, 2000)
        gpu.memory_used_mib, gpu.utilisation_pct, gpu.power_mw, gpu.temperature_c = 2000, 97, 650_500, 71
        idle, busy = ask("sample")
        assert idle["utilisation_pct"] == 0 and idle["processes"] == [] and idle["memory_used_mib"] == 0
        assert busy == {
            "class": "GpuSample",
            "uuid": gpu.uuid,
            "utilisation_pct": 97,
            "memory_used_mib": 2000,
            "memory_total_mib": 81559,
            "temperature_c": 71,
            "power_w": 650.5,
            "processes": [{"pid": 4711, "used_mib": 2000}],
            "error": None,
        }
        for used_mib in range(50):  # each change is seen, however fast they follow
            gpu.memory_used_mib = used_mib
            assert ask("sample", [gpu.uuid])[0]["memory_used_mib"] == used_mib

    def test_what_is_not_available_is_none(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.set(
            [
                FakeGpu(
                    memory_total_mib=None,
                    memory_used_mib=None,
                    utilisation_pct=None,
                    temperature_c=None,
                    power_mw=None,
                )
            ]
        )
        fake_nvml.gpu(0).error("nvmlDeviceGetComputeRunningProcesses", "NO_PERMISSION")
        [sample] = ask("sample")
        assert set(sample) - {key for key, value in sample.items() if value is None} == {"class", "uuid"}

    def test_a_lost_gpu_says_so_and_the_others_are_read(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        first, second = (fake_nvml.gpu(index).uuid for index in (0, 1))
        fake_nvml.gpu(0).error("nvmlDeviceGetUtilizationRates", "GPU_IS_LOST")
        # After a lost GPU nothing more is asked of it: this call would never return.
        fake_nvml.gpu(0).hang("nvmlDeviceGetPowerUsage")
        samples = ask("sample", [first, "GPU-of-another-machine", second])
        assert [sample["uuid"] for sample in samples] == [first, "GPU-of-another-machine", second]
        assert errors(samples) == ["utilisation: GPU is lost", "device: Not Found", None]
        assert samples[0]["utilisation_pct"] is None and samples[2]["utilisation_pct"] == 0
        fake_nvml.gpu(0).heal()
        fake_nvml.gpu(0).error("*", "GPU_IS_LOST")
        assert [(sample["uuid"], sample["error"]) for sample in ask("sample")] == [
            ("", "device: GPU is lost"),
            (second, None),
        ]

    def test_one_value_that_fails_leaves_the_rest(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.gpu(0).error("nvmlDeviceGetPowerUsage", "UNKNOWN")
        sample = ask("sample")[0]
        assert sample["error"] == "power: Unknown Error" and sample["power_w"] is None
        assert sample["temperature_c"] == 35 and sample["processes"] == []

    def test_processes_are_listed_once(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        gpu = fake_nvml.gpu(0)
        gpu.add_process(10, 100)
        gpu.add_process(10, 100, "graphics")
        gpu.add_process(11, None)
        gpu.add_process(12, 50, "graphics")
        gpu.add_process(13, 30, instances=(1, 0))
        gpu.add_process(13, 40, instances=(2, 0))
        found = {one["pid"]: one["used_mib"] for one in ask("sample")[0]["processes"]}
        assert found == {10: 100, 11: None, 12: 50, 13: 70}
        gpu.error("nvmlDeviceGetGraphicsRunningProcesses", "NOT_SUPPORTED")
        assert [one["pid"] for one in ask("sample")[0]["processes"]] == [10, 11, 13]

    @pytest.mark.skipif(
        not hasattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2"),
        reason="this pynvml has no older calls",
    )
    def test_an_old_driver_has_only_the_older_calls(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.gpu(0).add_process(10, 100)
        fake_nvml.gpu(0).memory_used_mib = 100
        for function in ("*RunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"):
            fake_nvml.error(function, "FUNCTION_NOT_FOUND")
        sample = ask("sample")[0]
        assert sample["error"] is None and sample["processes"] == [{"pid": 10, "used_mib": 100}]
        assert sample["memory_used_mib"] == 600  # the old call counts the 500 reserved as used
        fake_nvml.error("*RunningProcesses", "FUNCTION_NOT_FOUND")
        assert ask("sample")[0]["processes"] is None

    @pytest.mark.skipif(
        not hasattr(pynvml, "nvmlDeviceGetTemperatureV"), reason="this pynvml has no newer call"
    )
    def test_a_new_driver_without_the_old_temperature_call(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        fake_nvml.error("nvmlDeviceGetTemperature", "FUNCTION_NOT_FOUND")
        assert ask("sample")[0]["temperature_c"] == 35
        fake_nvml.error("nvmlDeviceGetTemperatureV", "FUNCTION_NOT_FOUND")
        assert ask("sample")[0]["temperature_c"] is None

    def test_a_driver_that_goes_away_and_comes_back(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        uuid = fake_nvml.gpu(0).uuid
        assert errors(ask("sample", [uuid])) == [None]
        fake_nvml.unload_driver()
        assert errors(ask("sample", [uuid])) == ["device: GPU is lost"]
        fake_nvml.write()
        assert errors(ask("sample", [uuid])) == [None]


class TestUnavailable:
    @pytest.mark.parametrize(
        ("code", "number", "says"),
        [
            ("DRIVER_NOT_LOADED", 9, "driver is not loaded"),
            ("LIB_RM_VERSION_MISMATCH", 18, "of different versions"),
            ("NO_PERMISSION", 4, "may not open"),
            ("FUNCTION_NOT_FOUND", 13, "too old for pynvml"),
            ("UNKNOWN", 999, "NVML says: Unknown Error"),
        ],
    )
    def test_why_the_library_does_not_start(
        self, fake_nvml: FakeNvml, code: str, number: int, says: str
    ) -> None:
        fake_nvml.error("nvmlInit*", code)
        answer = run_main(fake_nvml)
        assert answer["code"] == number and says in answer["error"]
        assert answer["gpus"] == [] and answer["faults"] == []

    def test_a_number_of_gpus_that_is_not_told(self, fake_nvml: FakeNvml) -> None:
        fake_nvml.error("nvmlDeviceGetCount", "UNKNOWN")
        assert run_main(fake_nvml)["error"] is not None

    def test_no_library(self, fake_nvml: FakeNvml) -> None:
        if os.path.exists("/dev/nvidiactl"):
            pytest.skip("this machine has the real library")
        answer = run_main(fake_nvml, LD_LIBRARY_PATH="")
        assert answer["code"] == 12 and "libnvidia-ml.so.1 cannot be loaded" in answer["error"]

    def test_the_program_gives_gpus_and_faults(self, fake_nvml: FakeNvml) -> None:
        fake_nvml.gpu(0).error("nvmlDeviceGetName", "GPU_IS_LOST")
        answer = run_main(fake_nvml)
        assert answer["schema"] == 1 and answer["error"] is None
        assert [gpu["index"] for gpu in answer["gpus"]] == [1]
        assert answer["faults"] == [
            {"index": 0, "uuid": fake_nvml.gpu(0).uuid, "error": "its name: GPU is lost"}
        ]

    def test_the_program_ends_by_itself_behind_a_driver_that_hangs(self, fake_nvml: FakeNvml) -> None:
        fake_nvml.hang("nvmlDeviceGetCount*")
        # What a parent has blocked must not keep the alarm away.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        try:
            done = subprocess.run(
                [sys.executable, "-E", "-P", "-m", "gpuspool.launch.nvml", "1"],
                env={**os.environ, **fake_nvml.env},
                timeout=60,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert done.returncode == -signal.SIGALRM


class TestFakeItself:
    def test_a_typo_in_the_state_is_loud(self, fake_nvml: FakeNvml) -> None:
        fake_nvml.state.write_text("gpu 0\nmemory_totl_mib 5\n")
        done = subprocess.run(
            [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
            env={**os.environ, **fake_nvml.env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 70 and "line 2" in done.stderr and "memory_totl_mib 5" in done.stderr

    def test_a_call_before_init_is_refused(self, fake_nvml: FakeNvml) -> None:
        code = (
            "import pynvml\npynvml.nvmlInit(); pynvml.nvmlShutdown()\n"
            "try: pynvml.nvmlDeviceGetCount()\nexcept pynvml.NVMLError_Uninitialized: print('refused')"
        )
        env = {**os.environ, **fake_nvml.env}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60)
        assert done.stdout == b"refused\n"

    def test_a_reader_sees_whole_states(self, fake_nvml: FakeNvml, ask: Ask) -> None:
        gpu = fake_nvml.gpu(0)
        stop = threading.Event()

        def edit() -> None:
            while not stop.is_set():
                for processes in ((), tuple(gpu_processes)):
                    gpu.processes = processes

        gpu.add_process(1, 1)
        gpu.add_process(2, 2)
        gpu_processes = gpu.processes
        editor = threading.Thread(target=edit)
        editor.start()
        try:
            for _ in range(200):
                assert len(ask("sample")[0]["processes"]) in (0, 2)
        finally:
            stop.set()
            editor.join()


@pytest.mark.parametrize(
    ("product", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100-1g.10gb"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("GRID A100-10C", "a100"),
        ("NVIDIA A40-48Q", "a40"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A2", "a2"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla T4", "t4"),
        ("Tesla K80", "k80"),
        ("Quadro RTX 8000", "rtx8000"),
        ("Quadro GV100", "gv100"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "rtx4000ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "rtx3080laptop"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "rtx2080"),
        ("GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA GeForce GTX 1060 6GB", "gtx1060"),
        ("NVIDIA TITAN RTX", "titanrtx"),
        ("NVIDIA TITAN V", "titanv"),
        ("NVIDIA Graphics Device", "gpu"),
    ],
)
def test_short_type(product: str, short: str) -> None:
    assert short_type(product) == short


def gpu(index: int, uuid: str) -> Gpu:
    return Gpu(uuid, index, "NVIDIA H100 PCIe", "h100", 81559, f"00000000:{index:02X}:00.0")


FOUR = [gpu(0, "GPU-aaaa-1"), gpu(1, "GPU-aabb-2"), gpu(2, "GPU-bbbb-3"), gpu(3, "GPU-cccc-4")]


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("0,,1", [0]),
        ("0,x,1", [0]),
        ("1,1", []),
        ("GPU-bbbb-3,GPU-aaaa-1", [2, 0]),
        ("GPU-b", [2]),
        ("GPU-cccc,GPU-aab", [3, 1]),
        ("GPU-bbbb,GPU-aa,GPU-cccc", [2]),  # ambiguous
        ("GPU-bbbb,GPU-zzzz,GPU-cccc", [2]),
        ("GPU-bbbb,0", [2]),
        ("0,GPU-bbbb", [0]),
        ("GPU-bbbb,GPU-b", []),
        ("MIG-aaaa", []),
    ],
)
def test_visible(mask: str | None, indices: list[int]) -> None:
    assert [one.index for one in visible(FOUR, mask)] == indices


@pytest.mark.parametrize(
    ("mask", "indices"),
    [(None, [0, 2]), ("1,2", [2]), ("GPU-lost,GPU-aaaa", [0]), ("GPU-dddd,GPU-bbbb", [2]), ("3,1,0", [0])],
)
def test_visible_passes_over_faults(mask: str | None, indices: list[int]) -> None:
    machine: list[Gpu | GpuFault] = [
        FOUR[0],
        GpuFault(1, None, "lost"),
        FOUR[2],
        GpuFault(3, "GPU-lost", "lost"),
    ]
    assert [one.index for one in visible(machine, mask)] == indices
