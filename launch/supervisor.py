"""The supervisor's entry: one attempt's recorder, in a session of its own, from claim to a durable end.

Run by the daemon's forkserver (already warm) or as `python -m gpuspool.launch.supervisor FOLDER`.
"""

from __future__ import annotations

import os
import sys

from ..spool.durable import claim
from ..spool.processes import ProcessName
from .guardian import hold
from .plan import PlanUnreadable, read_plan
from .processes import reset_signals, set_title
from .recorder import Recorder, _given_up, _ignore_signals, prepare, withdraw


def supervise(folder: str, incarnation: int = 0, rank: int = 0) -> int:
    """Run one rank of the attempt in `folder`; the exit status of this process, which nobody relies on."""
    reset_signals()
    _ignore_signals()
    set_title("spool-recorder")
    try:
        plan = read_plan(folder)
    except PlanUnreadable:
        return 1
    recorder = Recorder(folder, plan, incarnation, rank)
    me = ProcessName.of(os.getpid())
    # No claim, no run: whoever finds the name taken, by a scheduler that gave the attempt up or by a twin, ends.
    if not claim(recorder.path("claim"), {"by": "supervisor", "process": me.text(), "token": plan.token}):
        return 0
    recorder.lock = hold(os.path.join(folder, f"lock-{rank}"), 10.0)
    if _given_up(folder):
        withdraw(recorder, "revoked")
        return 0
    try:
        started = prepare(recorder)
    except OSError as error:
        withdraw(recorder, f"could not be started: {error.strerror or error}")
        return 0
    if not started:
        withdraw(recorder, "revoked")
        return 0
    recorder.run()
    return 0


def detach() -> None:
    """A session of our own, nothing of the starter's open, standard streams at /dev/null."""
    os.setsid()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 65536)


def main() -> None:
    """`python -m gpuspool.launch.supervisor FOLDER [INCARNATION RANK]`."""
    detach()
    numbers = [int(word) for word in sys.argv[2:4]]
    os._exit(supervise(sys.argv[1], *numbers))


if __name__ == "__main__":
    main()
