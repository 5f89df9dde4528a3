"""A two-rank training stand-in under torchrun: agrees on a stop by all-reduce, saves a .pt, leaves with 75."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--fail-code", type=int, default=1)
parser.add_argument("--save-s", type=float, default=0.0)
options = parser.parse_args()
asked = False


def ask(number, frame):
    global asked
    asked = True


signal.signal(signal.SIGUSR2, ask)
dist.init_process_group("gloo", timeout=__import__("datetime").timedelta(seconds=120))
rank = dist.get_rank()
folder = os.environ["GPUSPOOL_CHECKPOINT_DIR"]
step = 0
origin = os.environ["GPUSPOOL_RESUME_FROM"]
if origin:
    step = int(torch.load(origin, weights_only=True)["step"])
    if rank == 0:
        print(f"resumed from {step}", flush=True)


def leave(code):
    dist.barrier()
    sys.stdout.flush()
    os._exit(code)


while step < options.steps:
    time.sleep(0.02)
    step += 1
    if rank == options.fail_rank:
        os._exit(options.fail_code)
    flag = torch.tensor([int(asked)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if rank == 0 and step % 5 == 0:
        print(f"step {step}", flush=True)
    if flag.item():
        if rank == 0:
            time.sleep(options.save_s)
            torch.save({"step": step, "w": torch.zeros(4)}, f"{folder}/tmp-new.pt")
            os.rename(f"{folder}/tmp-new.pt", f"{folder}/step_{step}.pt")
            print(f"stopped at {step}", flush=True)
        leave(75)
leave(0)
