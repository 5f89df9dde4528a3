"""One run of the trainer from its arguments to its exit code: everything that can be decided without torch.

Importing transformers' Trainer takes seconds, so bad input, a finished run and a stop that came early are dealt with
before it; the training itself is in `loop`.
"""

from __future__ import annotations

import json
import math
import os
import sys

from . import checkpointing, stopping
from .arguments import Arguments, BadInput
from .checkpointing import CheckpointError, Choice
from .data import rows_of


def run(arguments: Arguments) -> int:
    """Train, or find that there is nothing to train; returns the exit code.

    0: the run is finished; 75: it was stopped, with a checkpoint if anything was trained. Raises BadInput and
    CheckpointError, with a sentence for the user.
    """
    # 1. Look at the data and at what there is to go on from.
    rows = rows_of(arguments)
    world_size = world()
    planned = planned_steps(len(rows), world_size, arguments)
    recorded = (
        checkpointing.finished_step(arguments.output_dir) if arguments.resume in (None, "auto") else None
    )
    if _finished(arguments, recorded, planned):
        return 0
    choice = _choice(arguments)
    if choice.resume is not None:
        if _finished(arguments, choice.resume.step, planned):
            return 0
        check_same_model(arguments.model, choice.resume.path)
    try:
        os.makedirs(arguments.output_dir, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--output-dir {arguments.output_dir} cannot be made: {error.strerror}") from None

    # 2. Import what is heavy. A single process that is asked to stop leaves now; several first have to meet.
    alone = world_size == 1
    if alone and stopping.requested():
        return _stopped_early()
    from . import loop

    if alone and stopping.requested():
        return _stopped_early()

    # 3. Train.
    return loop.train(arguments, rows, choice)


def world() -> int:
    """Return the number of processes that torchrun started, 1 without it."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"WORLD_SIZE is {text!r}, not the number of processes")
    return int(text)


def planned_steps(rows: int, world_size: int, arguments: Arguments) -> int:
    """Return the number of optimiser steps of a whole run, as transformers' Trainer counts them."""
    if arguments.max_steps:
        return arguments.max_steps
    batches = math.ceil(math.ceil(rows / arguments.batch_size) / world_size)
    return math.ceil(arguments.epochs * max(1, math.ceil(batches / arguments.gradient_accumulation_steps)))


def say(text: str) -> None:
    """Tell the user something, from the first rank only."""
    if os.environ.get("RANK", "0") == "0":
        print(f"gpuspool.trainer: {text}", flush=True)


def _choice(arguments: Arguments) -> Choice:
    try:
        choice = checkpointing.choose(arguments.output_dir, arguments.resume, asked=arguments.resume_asked)
    except CheckpointError as error:
        # Here, before anything was trained, it is what the user typed that does not fit.
        raise BadInput(str(error)) from None
    if os.environ.get("RANK", "0") == "0":
        for note in choice.notes:
            print(f"gpuspool.trainer: {note}", file=sys.stderr, flush=True)
    return choice


def _finished(arguments: Arguments, step: int | None, planned: int) -> bool:
    """Say so, and tell the spool, when all steps were made before."""
    if step is None or step < planned:
        return False
    say(f"this run is finished: {step} of {planned} steps are in {arguments.output_dir}; nothing to do")
    if arguments.done_file and os.environ.get("RANK", "0") == "0":
        checkpointing.tell_done(arguments.done_file, step)
    return True


def _stopped_early() -> int:
    say(f"stopped by {stopping.requested()} before the first step: nothing to save")
    return stopping.STOPPED


def check_same_model(model: str, checkpoint: str) -> None:
    """Raise BadInput when a checkpoint is of another architecture or size than the model."""
    ours, theirs = _config(model), _config(checkpoint)
    shape = (
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "n_embd",
        "n_layer",
        "intermediate_size",
    )
    for key in shape:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            raise BadInput(
                f"{checkpoint} is a checkpoint of another model: its {key} is {theirs[key]}, that of {model} is {ours[key]}"
            )


def _config(folder: str) -> dict[str, object]:
    try:
        with open(os.path.join(folder, "config.json"), "rb") as file:
            config = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}  # an adapter has none; what is wrong with a model's own is reported when it is loaded
    return config if isinstance(config, dict) else {}
