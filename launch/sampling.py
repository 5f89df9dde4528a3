"""What an attempt uses: memory and CPU of its processes by psutil, its GPUs by NVML, sampled by the recorder.

Both libraries are imported at the first sample, long after the command was started. What cannot be read is left
out, never counted as 0.
"""

from __future__ import annotations

from typing import Any

from .processes import Process


class Sampler:
    """Samples one attempt; keeps peaks and means for the end record."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self.gpu_uuids = gpu_uuids
        self.peak_rss_mib = 0.0
        self.gpu_peak_mib: dict[str, int] = {}
        self.gpu_busy: dict[str, list[int]] = {}  # uuid: [samples, sum of per cent]
        self._nvml: Any = None
        self._nvml_failed = not gpu_uuids

    def sample(self, processes: list[Process]) -> dict[str, Any]:
        """One sample as JSON-ready data: `rss_mib`, `processes`, and by GPU what NVML says."""
        import psutil

        rss = 0
        for process in processes:
            try:
                rss += psutil.Process(process.pid).memory_info().rss
            except psutil.Error:
                continue
        self.peak_rss_mib = max(self.peak_rss_mib, rss / 2**20)
        found: dict[str, Any] = {"processes": len(processes), "rss_mib": round(rss / 2**20, 1)}
        if not self._nvml_failed:
            found["gpus"] = self._gpus()
        return found

    def _gpus(self) -> list[dict[str, Any]]:
        from .nvml import Nvml, NvmlUnavailable

        try:
            if self._nvml is None:
                self._nvml = Nvml().__enter__()
            samples = self._nvml.sample(self.gpu_uuids)
        except NvmlUnavailable as error:
            self._nvml = None
            return [{"error": str(error)}]
        rows = []
        for sample in samples:
            row: dict[str, Any] = {"uuid": sample.uuid}
            if sample.error:
                row["error"] = sample.error
            if sample.utilisation_pct is not None:
                row["utilisation_pct"] = sample.utilisation_pct
                busy = self.gpu_busy.setdefault(sample.uuid, [0, 0])
                busy[0] += 1
                busy[1] += sample.utilisation_pct
            if sample.memory_used_mib is not None:
                row["memory_mib"] = sample.memory_used_mib
                peak = max(self.gpu_peak_mib.get(sample.uuid, 0), sample.memory_used_mib)
                self.gpu_peak_mib[sample.uuid] = peak
            if sample.power_w is not None:
                row["power_w"] = sample.power_w
            if sample.temperature_c is not None:
                row["temperature_c"] = sample.temperature_c
            rows.append(row)
        return rows

    def totals(self) -> dict[str, Any]:
        """For the end record: peak memory, and by GPU the peak and the mean utilisation."""
        gpus = {
            uuid: {
                "peak_mib": self.gpu_peak_mib.get(uuid),
                "mean_utilisation_pct": round(busy[1] / busy[0], 1)
                if (busy := self.gpu_busy.get(uuid))
                else None,
            }
            for uuid in self.gpu_uuids
        }
        return {"peak_rss_mib": round(self.peak_rss_mib, 1), **({"gpus": gpus} if gpus else {})}
