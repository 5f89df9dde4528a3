"""`spool`: the group of commands, each imported only when it is called, and errors turned into exit codes."""

from __future__ import annotations

import importlib
import sys

import click

from ..spool import errors

#: Command → (module, one line for `spool --help`): kept here so that help imports none of them.
COMMANDS = {
    "submit": ("submit", "Put a job into the queue."),
    "queue": ("queue", "Show the jobs that wait and run."),
    "show": ("show", "Show all of a job, with its timeline."),
    "why": ("why", "Say why a job waits."),
    "logs": ("logs", "Print or follow a job's output."),
    "wait": ("wait", "Wait for jobs to finish; gives a job's own exit code."),
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
        """The command, imported; None (and click's own suggestion) for one that there is not."""
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
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if close:
                error.message += f" Did you mean '{close[0]}'?"
            raise


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"spool {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def spool() -> None:
    """A batch scheduler with a job spooler for people who train on GPUs.

    First job:  spool submit -G 1 -- python train.py     then:  spool queue, spool logs -f last, spool wait last
    """


def main() -> None:
    """The console script."""
    try:
        spool.main(prog_name="spool", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except errors.GpuspoolError as error:
        sys.stderr.write(f"spool: {error}\n")
        sys.exit(next(code for kind, code in EXIT_CODES if isinstance(error, kind)))
    except BrokenPipeError:
        # The reader (head, less) has left; point stdout elsewhere, or the interpreter complains while it ends.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
