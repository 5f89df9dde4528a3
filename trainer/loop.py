"""The training itself: transformers' Trainer, made to stop at any step and to go on bit for bit.

Importing this module takes seconds (torch, transformers). What Trainer does not restore by itself is the loss summed
up since the last logged step, so it is saved here, rank by rank; what it saves is not atomic, so it is pointed at a
staging folder, and `checkpointing` makes the result a checkpoint.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

from . import checkpointing, stopping
from .arguments import Arguments, BadInput
from .checkpointing import CheckpointError, Choice
from .data import Rows, Tokenised, collator
from .metrics import History
from .train import say, world


def train(arguments: Arguments, rows: Rows, choice: Choice) -> int:
    """Train from `choice` on; returns 0 when all steps are made, 75 when stopped. All ranks call it.

    Raises BadInput for a model or data that cannot be used, CheckpointError when a checkpoint cannot be written.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    settings = _settings(arguments)
    _assert_parallel(settings)
    agreement = stopping.Agreement()
    if agreement.stop():
        say(f"stopped by {stopping.requested() or 'another rank'} before the first step: nothing to save")
        return stopping.STOPPED

    # The folder may look different to each rank, and changes from here on: the first rank's choice counts.
    choice = agreement.gather(choice)[0]
    start = choice.resume.step if choice.resume is not None else 0
    history = None
    if settings.process_index == 0:
        for note in checkpointing.tidy(arguments.output_dir, start):
            say(note)
        history = History(arguments.output_dir, arguments.attempt)
        history.cut(start)
    agreement.barrier()

    transformers.set_seed(arguments.seed)
    model, tokenizer = _load(arguments)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    trainer = SafeTrainer(
        model=model,
        args=settings,
        train_dataset=Tokenised(rows, tokenizer, arguments.max_length),
        data_collator=collator(0 if pad_id is None else pad_id),
        processing_class=tokenizer,
    )
    trainer.prepare_saving(agreement, arguments.save_total_limit, history)
    spine = Spine(arguments, agreement, trainer, history, choice)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(spine)
    _assert_distributed(trainer)

    try:
        trainer.train(resume_from_checkpoint=choice.resume.path if choice.resume is not None else None)
    except NothingToTrain:
        pass
    agreement.barrier()  # nobody leaves, and takes its connections along, while another still saves
    if spine.stopped:
        where = f"checkpoint-{trainer.state.global_step} is complete" if spine.trained else "nothing to save"
        say(
            f"stopped by {stopping.requested() or 'another rank'} at step {trainer.state.global_step}: {where}"
        )
        return stopping.STOPPED
    if settings.process_index == 0:
        checkpointing.finish(arguments.output_dir, trainer.state.global_step, arguments.done_file)
    say(f"finished: {trainer.state.global_step} steps, {arguments.output_dir}")
    return 0


class NothingToTrain(Exception):
    """All ranks found, before the first step, that they are to stop or that all steps are made."""


class SafeTrainer(Trainer):  # type: ignore[misc]  # torch and transformers are not followed by the type check
    """Trainer whose checkpoints are staged, synced, marked complete and renamed, and hold the unlogged loss."""

    _saving = False

    def prepare_saving(self, agreement: stopping.Agreement, keep: int, history: History | None) -> None:
        """Hand over what saving needs; `history` is the first rank's."""
        self._agreement = agreement
        self._keep = keep
        self._history = history

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return os.path.join(folder, checkpointing.STAGING) if self._saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        output_dir = super()._get_output_dir(trial)
        step = self.state.global_step
        name = f"checkpoint-{step}"
        staging = os.path.join(output_dir, checkpointing.STAGING)
        target = os.path.join(output_dir, name)
        rank = self.args.process_index
        try:
            # 1. An empty staging folder, before any rank writes into it.
            if rank == 0:
                checkpointing.remove(staging)
                os.makedirs(os.path.join(staging, name))
            self._agreement.barrier()

            # 2. Everybody writes its part, and puts it on disk where it wrote it.
            self._saving = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saving = False
            self._write_unlogged_loss(os.path.join(staging, name))
            mine = (
                {} if rank == 0 else checkpointing.sync_files(os.path.join(staging, name), only=f"_{rank}.")
            )
            written = self._agreement.gather(mine)

            # 3. The first rank makes it a checkpoint, and then lets go of older ones.
            if rank == 0:
                if self._history is not None:
                    self._history.sync()
                promised = {file: size for part in written for file, size in part.items()}
                checkpointing.publish(os.path.join(staging, name), target, step, promised)
                checkpointing.prune(output_dir, self._keep)
                checkpointing.discard_superseded(output_dir)
            self._agreement.barrier()
        except CheckpointError:
            raise
        except Exception as error:  # torch and safetensors have their own for a full disk
            raise CheckpointError(f"{target} could not be written: {error}") from error

    def _write_unlogged_loss(self, folder: str) -> None:
        state = {
            "loss": self._tr_loss.item(),  # float32, so that JSON's float64 gives it back exactly
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "world_size": self.args.world_size,
        }
        with open(os.path.join(folder, f"gpuspool_rank_{self.args.process_index}.json"), "w") as file:
            json.dump(state, file)

    def restore_unlogged_loss(self, checkpoint: str) -> int | None:
        """Take up the sum of losses since the last logged step; returns the world size that wrote it, if known."""
        try:
            with open(os.path.join(checkpoint, f"gpuspool_rank_{self.args.process_index}.json")) as file:
                state = json.load(file)
        except FileNotFoundError:
            return None  # another program's checkpoint, or fewer ranks
        self._tr_loss.fill_(state["loss"])
        self._total_loss_scalar = state["total_loss"]
        self._globalstep_last_logged = state["last_logged"]
        return int(state["world_size"])


class Spine(TrainerCallback):  # type: ignore[misc]
    """Decides at each step boundary about logging, saving and stopping; all ranks decide the same."""

    def __init__(
        self,
        arguments: Arguments,
        agreement: stopping.Agreement,
        trainer: SafeTrainer,
        history: History | None,
        choice: Choice,
    ) -> None:
        self._arguments = arguments
        self._agreement = agreement
        self._trainer = trainer
        self._history = history
        self._resume = choice.resume
        self.stopped = False
        self.trained = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take up the unlogged loss, and leave at once if there is nothing to train."""
        if self._resume is not None:
            wrote = self._trainer.restore_unlogged_loss(self._resume.path)
            if wrote is not None and wrote != args.world_size:
                say(
                    f"{self._resume.path} was written by {wrote} processes, this run has {args.world_size}: it goes on, not bit for bit"
                )
        if state.global_step >= state.max_steps:
            raise NothingToTrain
        if self._agreement.stop():
            self.stopped = True
            raise NothingToTrain
        where = (
            f"goes on at step {state.global_step} from {self._resume.path}"
            if self._resume
            else "starts afresh"
        )
        processes = f"{args.world_size} processes" if args.world_size > 1 else "one process"
        say(f"{state.max_steps} steps with {processes} on {args.device.type}; {where}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set what Trainer does next."""
        self.trained = True
        self._pause()
        step, last = state.global_step, state.global_step >= state.max_steps
        if step % self._arguments.logging_steps == 0 or last:
            control.should_log = True
        if last or (self._arguments.save_steps and step % self._arguments.save_steps == 0):
            control.should_save = True
        if self._agreement.stop() and not last:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        """Add a line to the history."""
        if "loss" not in logs:
            return  # the summary at the end
        values = {key: logs.get(key) for key in ("loss", "learning_rate", "grad_norm", "epoch")}
        if self._history is not None:
            try:
                self._history.append(state.global_step, values)
            except OSError as error:
                raise CheckpointError(
                    f"{self._history.path} could not be written: {error.strerror}"
                ) from error
        shown = "  ".join(f"{key} {value:.6g}" for key, value in values.items() if value is not None)
        say(f"step {state.global_step}/{state.max_steps}  {shown}")

    def _pause(self) -> None:
        # In short pieces: Python goes on sleeping after a handler that only sets a flag.
        end = time.monotonic() + self._arguments.step_delay_s
        while not stopping.requested() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))


def _settings(arguments: Arguments) -> Any:
    cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=arguments.output_dir,
        max_steps=arguments.max_steps or -1,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=arguments.batch_size,
        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        learning_rate=arguments.learning_rate,
        warmup_steps=arguments.warmup_steps,
        weight_decay=arguments.weight_decay,
        max_grad_norm=arguments.max_grad_norm,
        seed=arguments.seed,
        bf16=arguments.bf16,
        # Without it torchrun on CPU silently trains independent copies.
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and world() > 1 else None,
        ddp_find_unused_parameters=False,
        # The Spine decides when to log and save; Trainer would go by the numbers stored in the checkpoint.
        logging_strategy="no",
        save_strategy="no",
        logging_nan_inf_filter=False,  # a loss that is not a number is to be seen
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )


def _assert_parallel(settings: Any) -> None:
    if settings.world_size != world():
        raise RuntimeError(
            f"torchrun started {world()} processes, but the trainer sees {settings.world_size}"
        )
    if settings.n_gpu > 1:
        raise BadInput(
            f"{settings.n_gpu} GPUs are visible to one process: start one process for each with torchrun, or set CUDA_VISIBLE_DEVICES"
        )


def _assert_distributed(trainer: Any) -> None:
    """Make sure that several processes train one model, not each its own."""
    if world() == 1:
        return
    kind = trainer.accelerator.distributed_type.name
    if kind not in ("MULTI_CPU", "MULTI_GPU") or dist.get_world_size() != world():
        raise RuntimeError(f"torchrun started {world()} processes, but they would train apart ({kind})")


def _load(arguments: Arguments) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(arguments.model, local_files_only=True)
        # Weights in float32 whatever they were saved in: an optimiser step is lost in bfloat16's 8 bits.
        model = AutoModelForCausalLM.from_pretrained(
            arguments.model, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(
            f"--model {arguments.model} cannot be loaded: {' '.join(str(error).split())}"
        ) from error
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise BadInput(
            f"--model {arguments.model}: its tokenizer has more tokens than the model has embeddings"
        )
    return model, tokenizer
