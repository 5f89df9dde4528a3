"""One rank of a training job, without torch: it does what its argument says and writes down what happens to it.

    elastic_rank.py FOLDER ACTIONS_OF_RANK_0 ACTIONS_OF_RANK_1 …      (the last ones also for all higher ranks)

ACTIONS are joined by commas: `deaf` (no handlers until `listen`), `listen`, `wait` (for the first signal), `save:SECONDS`,
`until:NAME` (a file of FOLDER exists), `touch:NAME`, `connect` (to the store of the job), `traceback` (as torch's
@record writes one), `again:N` (exit N, unless the launcher has started this group anew), `kill:N`, `exit:N`.

Files in FOLDER: `ready-RANK` (JSON: pid, argv, path, environ), `signals-RANK` (a name a line), `saved-RANK`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from types import FrameType

FOLDER = sys.argv[1]
RANK = os.environ["RANK"]
caught = 0


def path(name: str) -> str:
    return os.path.join(FOLDER, name)


def note(number: int, frame: FrameType | None) -> None:
    global caught
    caught += 1
    with open(path(f"signals-{RANK}"), "a") as file:
        file.write(signal.Signals(number).name + "\n")


def listen() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, note)


def ready() -> None:
    with open(path(f"ready-{RANK}.tmp"), "w") as file:
        json.dump({"pid": os.getpid(), "argv": sys.argv, "path": sys.path, "environ": dict(os.environ)}, file)
    os.rename(path(f"ready-{RANK}.tmp"), path(f"ready-{RANK}"))


def nap(seconds: float) -> None:
    """All of it, whatever signals come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(max(0.0, min(0.05, end - time.monotonic())))


def act(action: str, value: str) -> None:
    if action == "listen":
        listen()
    elif action == "wait":
        while not caught:
            nap(0.02)
    elif action == "save":
        nap(float(value))
        with open(path(f"saved-{RANK}"), "w"):
            pass
    elif action == "until":
        while not os.path.exists(path(value)):
            nap(0.02)
    elif action == "touch":
        with open(path(value), "w"):
            pass
    elif action == "connect":
        socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5).close()
    elif action == "traceback":
        told = {"message": {"message": "Boom", "extraInfo": {"py_callstack": "line 7", "timestamp": "1"}}}
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump(told, file)
    elif action == "again":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(int(value))
    elif action == "kill":
        os.kill(os.getpid(), int(value))
    elif action == "exit":
        os._exit(int(value))
    elif action != "deaf":
        raise ValueError(action)


plans = sys.argv[2:]
plan = plans[min(int(RANK), len(plans) - 1)].split(",")
if plan[0] != "deaf":
    listen()
ready()
for step in plan:
    act(*step.partition(":")[::2])
