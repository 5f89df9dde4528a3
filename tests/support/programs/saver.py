"""A training stand-in without torch: counts steps, saves in a format, reacts to signals as told by its options.

--format hf|lightning|torch|safetensors   what its checkpoints look like
--on USR2|TERM|none                       which signal it catches
--exit CODE                               what it leaves with after saving on a signal
--every N                                 a checkpoint every N steps (0: only on the signal)
--save-s S                                how long saving takes
"""

import argparse
import json
import os
import signal
import struct
import sys
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--format", default="hf")
parser.add_argument("--on", default="USR2")
parser.add_argument("--exit", type=int, default=75)
parser.add_argument("--every", type=int, default=0)
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--save-s", type=float, default=0.0)
parser.add_argument("--resume_from_checkpoint", default="")
parser.add_argument("--dir", default=os.environ.get("GPUSPOOL_CHECKPOINT_DIR", "."))
options = parser.parse_args()

asked = False


def ask(number, frame):
    global asked
    asked = True


if options.on != "none":
    signal.signal(getattr(signal, "SIG" + options.on), ask)


def safetensors(path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"\0" * 8)


def archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 10)


def save(step):
    time.sleep(options.save_s)
    folder = options.dir
    if options.format == "hf":
        temp, final = f"{folder}/tmp-{step}", f"{folder}/checkpoint-{step}"
        os.makedirs(temp, exist_ok=True)
        safetensors(f"{temp}/model.safetensors")
        with open(f"{temp}/trainer_state.json", "w") as file:
            json.dump({"global_step": step}, file)
        os.rename(temp, final)
    elif options.format == "lightning":
        archive(f"{folder}/.new")
        os.rename(f"{folder}/.new", f"{folder}/epoch=0-step={step}.ckpt")
    elif options.format == "torch":
        archive(f"{folder}/.new")
        os.rename(f"{folder}/.new", f"{folder}/step_{step}.pt")
    print(f"saved {step}", flush=True)


step = 0
origin = options.resume_from_checkpoint or os.environ.get("GPUSPOOL_RESUME_FROM", "")
if origin:
    digits = "".join(char if char.isdigit() else " " for char in os.path.basename(origin)).split()
    step = int(digits[-1])
print(f"from {step}", flush=True)
while step < options.steps:
    time.sleep(options.step_s)
    step += 1
    if options.every and step % options.every == 0:
        save(step)
    if asked:
        save(step)
        print(f"stopped at {step}", flush=True)
        sys.exit(options.exit)
print(f"done at {step}", flush=True)
if os.environ.get("GPUSPOOL_DONE"):
    open(os.environ["GPUSPOOL_DONE"], "w").close()
