"""The story in one command: a fine-tuning job waits, starts under torchrun, is preempted, goes on and ends.

Run it with `make demo`. Everything is real: the queue, torchrun with two ranks, a tiny transformers model that is
built on the spot, the stop signal, the checkpoint. What is printed comes from the store and from the runs' files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 60
PREEMPT_AT = 25
SPOOL = str(Path(sys.executable).parent / "spool")


def main() -> int:
    """Tell the story; 0 when the resumed run equals the uninterrupted one."""
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="spool-demo-"))
    os.environ |= {
        "GPUSPOOL_CFG_STATE_DIR": str(root / "spool"),
        "GPUSPOOL_CFG_LOCAL_CPUS": "2",
        "GPUSPOOL_CFG_SUPERVISOR_HEARTBEAT": "2",
        "GPUSPOOL_CFG_FREE_SPACE_MIB": "100",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    try:
        return story(root, began)
    finally:
        spool("daemon", "stop", quiet=True)
        shutil.rmtree(root, ignore_errors=True)


def story(root: Path, began: float) -> int:
    """The story itself."""
    say("A tiny model with random weights and some text to fine-tune it on")
    run([sys.executable, "-m", "gpuspool.trainer.tiny", str(root / "tiny"), "--rows", "256"])
    train = [
        "-m",
        "gpuspool.trainer",
        "--model",
        str(root / "tiny/model"),
        "--data",
        str(root / "tiny/data.jsonl"),
    ]
    train += ["--max-steps", str(STEPS), "--batch-size", "2", "--save-steps", "20", "--logging-steps", "1"]
    torchrun = ["--torchrun", "-m", "--nproc", "2", "-c", "2"]

    say("Job 1 is the uninterrupted run; job 2, the same training as a preemptible job, has to wait for it")
    reference = submit("-J", "reference", *torchrun, "--", *train[1:])
    tuning = submit(
        "-J", "finetune", "--class", "spot", *torchrun, "--", *train[1:], "--step-delay-s", "0.1", "{resume}"
    )
    watch = Watch()
    watch.until(lambda: job(reference)["state"] == "running")
    spool("why", str(tuning))
    watch.until(lambda: final(reference) and job(tuning)["state"] == "running")

    say(f"Job 2 trains; at step {PREEMPT_AT} somebody more entitled needs the machine")
    watch.until(lambda: last_step(tuning) >= PREEMPT_AT or final(tuning))
    entitled = submit("-J", "entitled", "--class", "reserved", "-c", "2", "--", "sleep", "3")
    watch.until(lambda: job(entitled)["state"] == "running")
    trained = last_step(tuning)
    watch.until(lambda: final(tuning) and final(entitled))

    say("What the spool remembers of job 2")
    spool("show", str(tuning))
    say("and of the job that needed the room")
    spool("show", str(entitled))
    return verdict(reference, tuning, trained, began)


def verdict(reference: int, tuning: int, trained: int, began: float) -> int:
    """Compare the two runs and print the figures."""
    found = job(tuning)
    starts = [event["data"] for event in found["events"] if event["kind"] == "started"]
    resumed = starts[-1]["resume_step"]
    one, other = curve(reference), curve(tuning)
    differing = sum(one.get(step) != other.get(step) for step in one.keys() | other.keys())
    weights = [digest(reference), digest(tuning)]
    say("Figures")
    print(
        f"attempts of job {tuning}:             {len(found['attempts'])} ({', '.join(a['end_reason'] for a in found['attempts'])})"
    )
    print(f"steps trained before the stop:  {trained}")
    print(f"resumed from step:              {resumed}")
    print(f"steps lost:                     {trained - resumed if resumed is not None else trained}")
    print(
        f"loss curve, {len(one)} steps:          {'identical, bit for bit' if not differing else f'{differing} steps differ'}"
    )
    print(
        f"final weights:                  {'identical (sha256 ' + weights[0][:16] + '…)' if weights[0] == weights[1] else 'differ'}"
    )
    print(f"time, all in all:               {time.monotonic() - began:.0f} s")
    fine = (
        len(starts) > 1
        and resumed is not None
        and not differing
        and weights[0] == weights[1]
        and len(one) == STEPS
    )
    print("\nIt went on as if nothing had happened." if fine else "\nTHIS IS NOT AS IT SHOULD BE.")
    return 0 if fine else 1


class Watch:
    """Prints the queue whenever it has changed."""

    def __init__(self) -> None:
        self.seen = ""

    def until(self, done: Any, seconds: float = 150.0) -> None:
        """Look until `done()`."""
        give_up = time.monotonic() + seconds
        while True:
            jobs = json.loads(run([SPOOL, "queue", "--all", "--json"]))["jobs"]
            state = json.dumps(
                [
                    (entry["state"], entry["attempt"], entry["checkpoint_step"], entry["reason"])
                    for entry in jobs
                ]
            )
            if state != self.seen:
                self.seen = state
                spool("queue", "--all", echo="")
            if done():
                return
            if time.monotonic() > give_up:
                raise SystemExit("the demo waits in vain; 'spool queue' above shows for what")
            time.sleep(0.2)


def say(text: str) -> None:
    """A heading."""
    print(f"\n== {text}", flush=True)


def run(command: list[str]) -> str:
    """What a command prints; its own complaint when it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def spool(*words: str, quiet: bool = False, echo: str = "$ ") -> None:
    """Run a spool command as a user would, and show it."""
    if not quiet and echo:
        print(f"{echo}spool {' '.join(words)}", flush=True)
    subprocess.run([SPOOL, *words], stdout=subprocess.DEVNULL if quiet else None)
    if not quiet:
        print(flush=True)


def submit(*words: str) -> int:
    """Submit a job and show the command; its number."""
    print(f"$ spool submit {' '.join(words)}", flush=True)
    number = int(run([SPOOL, "submit", "--parsable", *words]))
    print(f"job {number}", flush=True)
    return number


def job(number: int) -> dict[str, Any]:
    """What the store knows of a job."""
    found: dict[str, Any] = json.loads(run([SPOOL, "show", "--json", str(number)]))["job"]
    return found


def final(number: int) -> bool:
    """Whether it has ended."""
    found = job(number)
    if found["state"] in ("failed", "cancelled"):
        raise SystemExit(
            f"job {number} {found['state']}: {found['end_text']}\n{run([SPOOL, 'logs', str(number)])}"
        )
    return bool(found["state"] == "succeeded")


def checkpoints(number: int) -> Path:
    """Its checkpoint folder."""
    return Path(os.environ["GPUSPOOL_CFG_STATE_DIR"]) / "jobs" / str(number) / "checkpoints"


def curve(number: int) -> dict[int, str]:
    """Loss by step, as written, every digit of it."""
    try:
        lines = (checkpoints(number) / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return {}
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["step"]: repr(row["loss"]) for row in rows if "loss" in row}


def last_step(number: int) -> int:
    """The last step that was trained."""
    return max(curve(number), default=0)


def digest(number: int) -> str:
    """The final weights in one figure."""
    folder = checkpoints(number) / f"checkpoint-{STEPS}"
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
