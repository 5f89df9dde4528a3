"""The command line of the trainer, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from . import stopping


class BadInput(Exception):
    """The command line, the environment or the data are unusable; the message is one sentence, the exit code 2."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What to train, on what, and how; sizes are per process, lengths in tokens.

    `resume` is None (a fresh start), "auto" (the newest complete checkpoint in `output_dir`, or a fresh start) or a
    path. `resume_asked` tells a fresh start that somebody decided on from one where nobody said anything.
    """

    model: str
    data: str
    output_dir: str
    resume: str | None
    resume_asked: bool
    max_steps: int
    epochs: float
    batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    max_length: int
    seed: int
    save_steps: int
    save_total_limit: int
    logging_steps: int
    text_field: str
    prompt_field: str
    completion_field: str
    bf16: bool
    step_delay_s: float
    done_file: str | None
    attempt: int | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (--help lists the options)")


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Arguments:
    """Return the arguments of a command line and of the spool's environment variables; raises BadInput.

    Without --output-dir it is GPUSPOOL_CHECKPOINT_DIR; without --resume_from_checkpoint it is GPUSPOOL_RESUME_FROM,
    where an empty value is the spool's word for a fresh start.
    """
    parser = _parser()
    options = parser.parse_args(list(argv))
    try:
        stopping.signal_named(environ.get("GPUSPOOL_STOP_SIGNAL") or stopping.DEFAULT_SIGNAL.name)
    except ValueError as error:
        raise BadInput(f"GPUSPOOL_STOP_SIGNAL: {error}") from None
    output_dir = options.output_dir or environ.get("GPUSPOOL_CHECKPOINT_DIR")
    if not output_dir:
        raise BadInput("no place for checkpoints: give --output-dir, or set GPUSPOOL_CHECKPOINT_DIR")
    resume = options.resume_from_checkpoint
    if resume is None:
        resume = environ.get("GPUSPOOL_RESUME_FROM")
    attempt = environ.get("GPUSPOOL_ATTEMPT", "")
    _check_model(options.model)
    window = _window(options.model)
    if window is not None and options.max_length > window:
        raise BadInput(f"--max-length {options.max_length} is beyond the model's window of {window} tokens")
    return Arguments(
        model=options.model,
        data=options.data,
        output_dir=os.path.abspath(output_dir),
        resume=(resume if resume == "auto" else os.path.abspath(resume)) if resume else None,
        resume_asked=resume is not None,
        max_steps=options.max_steps,
        epochs=options.epochs,
        batch_size=options.batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        max_length=options.max_length or min(1024, window or 1024),
        seed=options.seed,
        save_steps=options.save_steps,
        save_total_limit=options.save_total_limit,
        logging_steps=options.logging_steps,
        text_field=options.text_field,
        prompt_field=options.prompt_field,
        completion_field=options.completion_field,
        bf16=options.bf16,
        step_delay_s=options.step_delay_s,
        done_file=environ.get("GPUSPOOL_DONE") or None,
        attempt=int(attempt) if attempt.isdecimal() else None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m gpuspool.trainer",
        description="Fine-tune a causal language model so that a stop at any step loses nothing.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="model and tokenizer, as save_pretrained() writes them")
    add("--data", required=True, metavar="FILE", help="JSON lines with `text`, or `prompt` and `completion`")
    add(
        "--output-dir",
        metavar="DIR",
        help="checkpoints and metrics.jsonl (default: $GPUSPOOL_CHECKPOINT_DIR)",
    )
    add(
        "--resume_from_checkpoint",
        "--resume-from-checkpoint",
        metavar="PATH|auto",
        help="a checkpoint, or auto: the newest complete one, if any (default: $GPUSPOOL_RESUME_FROM)",
    )
    add(
        "--max-steps",
        type=_natural,
        default=0,
        metavar="N",
        help="optimiser steps; 0: as many as --epochs makes",
    )
    add("--epochs", type=_positive, default=3.0, metavar="X", help="passes over the data (default: 3)")
    add("--batch-size", type=_count, default=8, metavar="N", help="rows a process and step (default: 8)")
    add(
        "--gradient-accumulation-steps",
        type=_count,
        default=1,
        metavar="N",
        help="batches a step (default: 1)",
    )
    add(
        "--learning-rate",
        type=_positive,
        default=5e-5,
        metavar="X",
        help="peak, then linear to 0 (default: 5e-5)",
    )
    add(
        "--warmup-steps",
        type=_natural,
        default=0,
        metavar="N",
        help="steps of rising learning rate (default: 0)",
    )
    add("--weight-decay", type=_not_negative, default=0.0, metavar="X", help="of AdamW (default: 0)")
    add("--max-grad-norm", type=_not_negative, default=1.0, metavar="X", help="0: no clipping (default: 1)")
    add(
        "--max-length",
        type=_length,
        default=0,
        metavar="N",
        help="tokens a row at most (default: the model's window, at most 1024)",
    )
    add(
        "--seed",
        type=_natural,
        default=42,
        metavar="N",
        help="of data order, dropout and new weights (default: 42)",
    )
    add(
        "--save-steps",
        type=_natural,
        default=100,
        metavar="N",
        help="steps between checkpoints; 0: stop and end only",
    )
    add(
        "--save-total-limit",
        type=_natural,
        default=3,
        metavar="N",
        help="checkpoints kept; 0: all (default: 3)",
    )
    add(
        "--logging-steps",
        type=_count,
        default=10,
        metavar="N",
        help="steps between lines of metrics (default: 10)",
    )
    add("--text-field", default="text", metavar="NAME", help="key of whole texts (default: text)")
    add(
        "--prompt-field",
        default="prompt",
        metavar="NAME",
        help="key of what is not trained on (default: prompt)",
    )
    add(
        "--completion-field",
        default="completion",
        metavar="NAME",
        help="key of the answer (default: completion)",
    )
    add("--bf16", action="store_true", help="compute in bfloat16, with weights kept in float32")
    add(
        "--step-delay-s",
        type=_not_negative,
        default=0.0,
        metavar="X",
        help="pause after each step, for demonstrations",
    )
    return parser


def _check_model(path: str) -> None:
    if not os.path.isdir(path):
        what = "is not a folder" if os.path.exists(path) else "does not exist"
        raise BadInput(f"--model {path} {what}: give a local folder with config.json, weights and tokenizer")
    try:
        names = set(os.listdir(path))
    except OSError as error:
        raise BadInput(f"--model {path} cannot be read: {error.strerror}") from None
    if "config.json" not in names:
        raise BadInput(f"--model {path} has no config.json: it is not a model saved by save_pretrained()")
    if not any(name.endswith((".safetensors", ".safetensors.index.json", ".bin")) for name in names):
        raise BadInput(f"--model {path} has no weights (*.safetensors)")
    if not names & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise BadInput(f"--model {path} has no tokenizer (tokenizer.json)")


def _window(model: str) -> int | None:
    """Return how many tokens the model can look at, None where its config does not say."""
    path = os.path.join(model, "config.json")
    try:
        with open(path, "rb") as file:
            config = json.loads(file.read())
    except OSError as error:
        raise BadInput(f"--model {model}: config.json cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadInput(f"--model {model}: config.json is not JSON") from None
    if not isinstance(config, dict):
        raise BadInput(f"--model {model}: config.json is not a JSON object")
    window = config.get("max_position_embeddings", config.get("n_positions"))
    return window if isinstance(window, int) and window >= 2 else None


def _natural(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return value


def _count(text: str) -> int:
    return _at_least(text, 1)


def _length(text: str) -> int:
    return _at_least(text, 2)  # one token has nothing to predict


def _at_least(text: str, least: int) -> int:
    value = _natural(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is less than {least}")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value
