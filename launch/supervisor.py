"""The supervisor's entry: one attempt's recorder, in a session of its own, from claim to a durable end.

Run by the daemon's forkserver (already warm) or as `python -m gpuspool.launch.supervisor FOLDER`.
"""

from __future__ import annotations

import os
import sys
import time

from ..spool.durable import claim, write_json
from ..spool.processes import ProcessName
from . import scratch
from .command import expand
from .guard import boottime
from .guardian import hold
from .inspection import Inspection
from .plan import PlanUnreadable, read_control, read_plan
from .processes import ignore_signals, reset_signals, set_title
from .recorder import CONTROL_EVERY_S, RETRY_S, Recorder
from .waking import wake
from .wire import ChildWatch, wait


def supervise(folder: str, incarnation: int = 0, rank: int = 0) -> int:
    """Run one rank of the attempt in `folder`; the exit status of this process, which nobody relies on."""
    reset_signals()
    ignore_signals()
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


def prepare(recorder: Recorder) -> bool:
    """Claim, lock, look for the checkpoint to go on from, start. False when the attempt was given up meanwhile.

    The claim comes before everything, then the look for `revoked`, then control.json: see "No claim, no run".
    """
    plan, folder = recorder.plan, recorder.folder
    recorder.watch = ChildWatch()
    newest = None
    if recorder.worth_looking():
        inspection = Inspection(plan.checkpoint_dir, plan.checkpoint_format)
        told = False
        since = boottime()
        while (answer := inspection.poll()) is None:
            wait([inspection.fd], CONTROL_EVERY_S)
            if _given_up(folder) or read_control(folder) is not None:
                inspection.abandon()
                return False
            if not told and boottime() - since > 10:
                told = True
                recorder.note("waiting", text="the checkpoint folder does not answer")
        newest = answer.get("newest")
        for path, reason in answer.get("broken", []):
            recorder.note("checkpoint_broken", path=path, text=reason)
    recorder.resume = recorder.newest = newest
    argv, env = expand(plan, (newest or {}).get("path", ""))
    if _given_up(folder) or read_control(folder) is not None:
        return False
    recorder.begin(argv, env)
    return True


def _given_up(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "revoked"))


def withdraw(recorder: Recorder, reason: str) -> None:
    """End an attempt whose command was never started: durable, and tried again until it is."""
    record = {
        "v": 1,
        "at": time.time(),
        "token": recorder.plan.token,
        "not_run": reason,
        "stop": "",
        "delivered": False,
    }
    while True:
        try:
            write_json(recorder.path("ended", ".json"), record)
            break
        except OSError:
            wait([], RETRY_S)
    if recorder.plan.scratch:
        scratch.remove(recorder.plan.scratch)
    wake(recorder.plan, run=True)


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
