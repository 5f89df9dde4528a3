"""The stop signal of the trainer, in real processes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gpuspool.trainer.stopping import STOPPED, Agreement, requested, signal_named

PROGRAM = """
import os, signal, sys
from gpuspool.trainer import stopping
stopping.install()
print(stopping.requested())
for name in sys.argv[1:]:
    os.kill(os.getpid(), signal.Signals[name])
    print(stopping.requested())
"""


def run(*signals: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *signals], capture_output=True, text=True, env=environ
    )


@pytest.mark.parametrize("name", ["USR2", "SIGUSR2", "usr2", "12", " USR2 "])
def test_names(name: str) -> None:
    assert signal_named(name) is signal.SIGUSR2


@pytest.mark.parametrize("name", ["", "SIG", "FOO", "999", "USR2 USR1", "KILL", "SIGSTOP", "²"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="USR2, USR1 or TERM"):
        signal_named(name)


def test_a_signal_only_sets_a_flag_and_the_first_one_counts() -> None:
    done = run("SIGUSR2", "SIGTERM")
    assert (done.returncode, done.stdout) == (0, "None\nSIGUSR2\nSIGUSR2\n")


def test_another_signal_can_be_chosen() -> None:
    assert run("SIGUSR1", GPUSPOOL_STOP_SIGNAL="USR1").stdout == "None\nSIGUSR1\n"
    # What was not chosen keeps its default, so that the spool sees which one the program waits for.
    assert run("SIGUSR2", GPUSPOOL_STOP_SIGNAL="USR1").returncode == -signal.SIGUSR2
    assert run("SIGUSR2", GPUSPOOL_STOP_SIGNAL="nonsense").stdout == "None\nSIGUSR2\n"


@pytest.mark.torch
def test_alone_the_agreement_is_ones_own() -> None:
    pytest.importorskip("torch")
    agreement = Agreement()
    assert requested() is None
    assert agreement.stop() is False
    assert agreement.gather("x") == ["x"]
    agreement.barrier()
    assert STOPPED == 75
