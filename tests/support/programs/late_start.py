"""A controller that is "killed" between the claim (and plan) of the first queued job and its supervisor's start.

Prints the attempt's folder, so that a test can start the supervisor itself, late.
"""

import os
import time

from gpuspool.launch.local import LocalBackend
from gpuspool.scheduler.controller import Controller
from gpuspool.spool.config import load
from gpuspool.spool.folders import resolve
from gpuspool.spool.store import open_store

config = load()
folders = resolve(config)
store = open_store(folders)


class Unborn(LocalBackend):
    def start(self, attempts):
        print(attempts[0].attempt.folder, flush=True)
        os._exit(0)


Controller(store, folders, config, Unborn(folders, config), time.time).tick()
