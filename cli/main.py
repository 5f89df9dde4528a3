"""`spool`: the group of commands, each imported only when it is called, and errors turned into exit codes."""

from __future__ import annotations

import importlib
import os
import sys

import click

from ..spool import errors
from .text import safe_lines

#: Command → (module, one line for `spool --help`): kept here so that help imports none of them.
COMMANDS = {
    "submit": ("submit", "Put a job into the queue."),
    "queue": ("queue", "Show the jobs that wait and run."),
    "show": ("show", "Show all of a job, with its timeline."),
    "why": ("why", "Say why a job waits."),
    "logs": ("logs", "Print or follow a job's output."),
    "wait": ("wait", "Wait for jobs to finish; give the job's own exit code."),
    "cancel": ("steer", "Cancel jobs (after a checkpoint; --now without)."),
    "stop": ("steer", "Stop jobs after a checkpoint until 'resume'."),
    "resume": ("steer", "Let stopped or finished jobs go on from their checkpoints."),
    "hold": ("steer", "Keep waiting jobs from starting."),
    "release": ("steer", "Let held jobs start."),
    "requeue": ("steer", "Run jobs again."),
    "preempt": ("steer", "Preempt running jobs: checkpoint, then queued again."),
    "node": ("node", "Show the machines and GPUs."),
    "project": ("project", "Show and set projects and their quota."),
    "config": ("config", "Show and check the configuration."),
    "daemon": ("daemon", "Start, look at or stop the scheduler daemon."),
    "tick": ("tick", "Run one scheduling pass."),
    "db": ("db", "Check or copy the spool's database."),
}
#: What people type who come from elsewhere → what it is called here.
ELSEWHERE = {
    "add": "submit",
    "delete": "cancel",
    "follow": "logs -f",
    "gpus": "node list",
    "info": "show",
    "jobs": "queue",
    "kill": "cancel",
    "list": "queue",
    "log": "logs",
    "ls": "queue",
    "nodes": "node list",
    "output": "logs",
    "pause": "stop",
    "projects": "project list",
    "ps": "queue",
    "rm": "cancel",
    "run": "submit -W",
    "sbatch": "submit",
    "scancel": "cancel",
    "sinfo": "node list",
    "squeue": "queue",
    "status": "queue",
    "tail": "logs -f",
}
EXIT_CODES = (
    (errors.NoSuchJob, 3),
    (errors.BadRequest, 2),
    (errors.ConfigError, 2),
    (errors.DiskFull, 1),
    (errors.UnsafeFolder, 1),
    (errors.StoreUnavailable, 4),
    (errors.GpuspoolError, 1),
)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table: the way of a job."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None for one that there is not."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name in the error."""
        word = args[0]
        if word in COMMANDS or word.startswith("-"):
            return super().resolve_command(ctx, args)
        meant = ELSEWHERE.get(word.lower(), "")
        if not meant:
            import difflib

            meant = next(iter(difflib.get_close_matches(word.lower(), COMMANDS, n=1)), "")
        hint = f" Did you mean 'spool {meant}'?" if meant else ""
        raise click.UsageError(f"There is no command {word!r}.{hint}", ctx)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        # By name: the root hands the public face on, and the layers are told apart by who imports whom.
        root = importlib.import_module("..", __package__)
        click.echo(f"spool {root.__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def spool() -> None:
    """A batch scheduler with a job spooler for people who train on GPUs.

    \b
    spool submit -G 1 -t 8h -- python train.py    a job with one GPU
    spool queue                                   what waits and runs, and why
    spool logs -f last                            its output, as it comes
    spool wait last                               until it has finished
    """


def main() -> None:
    """The console script."""
    _prepare_streams()
    if "_SPOOL_COMPLETE" in os.environ:
        spool.main(prog_name="spool")
    try:
        # Not click's own handling of errors: it would end a broken pipe with 1, and show names raw.
        with spool.make_context("spool", sys.argv[1:]) as ctx:
            spool.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and newer
            _say(error.format_message())
            sys.exit(2)
        _say(f"spool: {error.format_message()}")
        if error.ctx is not None:
            _say(error.ctx.get_usage())
            _say(f"'{error.ctx.command_path} --help' says more.")
        sys.exit(2)
    except click.ClickException as error:
        _say(f"spool: {error.format_message()}")
        sys.exit(error.exit_code)
    except errors.GpuspoolError as error:
        _say(f"spool: {error}")
        sys.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
    except BrokenPipeError:
        # The reader (head, less) has left; point stdout elsewhere, or the interpreter complains while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"spool: {where}{error.strerror or error}")
        _give_stdout_up()
        sys.exit(1)


def _prepare_streams() -> None:
    """Streams that take any text: a letter that the terminal's encoding lacks is shown escaped, not a traceback."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


def _say(text: str) -> None:
    """Talk on standard error, with nothing raw in it that came from elsewhere; nobody listening is no error."""
    try:
        sys.stderr.write(safe_lines(text) + "\n")
    except OSError:
        pass


def _give_stdout_up() -> None:
    """After an error on stdout (a full disk, say) the interpreter would try to flush it once more, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
