"""The stop signal: a handler that only sets a flag, and the agreement of all ranks on it.

Saving inside a signal handler hangs or never happens (pytorch-lightning#21406), and a rank that stops alone leaves
the others waiting in a collective. So the handler notes the signal, and the ranks agree at a step boundary.

This module is imported before everything else and imports nothing heavy itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import FrameType
from typing import TypeVar

STOPPED = 75
"""The exit code of a run that was stopped and wants to be continued: EX_TEMPFAIL."""

DEFAULT_SIGNAL = signal.SIGUSR2

T = TypeVar("T")

_received: list[int] = []


def signal_named(name: str) -> signal.Signals:
    """Return the signal called "USR2", "SIGUSR2" or "12"; raises ValueError with a sentence for any other name."""
    text = name.strip().upper()
    try:
        number = (
            int(text) if text.isdigit() else signal.Signals[text if text.startswith("SIG") else f"SIG{text}"]
        )
        found = signal.Signals(number)
    except (KeyError, ValueError):
        raise ValueError(
            f"{name!r} is not the name of a signal: use USR2, USR1 or TERM, for example"
        ) from None
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{found.name} cannot be caught: use USR2, USR1 or TERM, for example")
    return found


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Catch SIGTERM and the stop signal, which GPUSPOOL_STOP_SIGNAL names (default USR2).

    A name that is no signal leaves the default; `arguments.parse` is where the user hears of it.
    """
    try:
        chosen = signal_named(environ.get("GPUSPOOL_STOP_SIGNAL") or DEFAULT_SIGNAL.name)
    except ValueError:
        chosen = DEFAULT_SIGNAL
    for number in {chosen, signal.SIGTERM}:
        signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    _received.append(number)


def requested() -> str | None:
    """Return the name of the first stop signal that this process received, None before it."""
    return signal.Signals(_received[0]).name if _received else None


class Agreement:
    """Whether any rank was asked to stop: all ranks must call it at the same point, and all get the same answer.

    Speaks over a gloo group of its own, so that on GPUs no step waits for the device, and so that the message never
    stands between those of the training. Without a process group it answers for this process alone.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self._group = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo")

    def stop(self) -> bool:
        """Return whether a stop was requested anywhere; one all-reduce of one number."""
        mine = requested() is not None
        if self._group is None:
            return mine
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(mine)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self._group is not None:
            import torch.distributed as dist

            dist.barrier(group=self._group)

    def gather(self, value: T) -> list[T]:
        """Return what each rank passed, by rank, on all of them; the value must be picklable."""
        if self._group is None:
            return [value]
        import torch.distributed as dist

        values: list[T] = [value] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values
