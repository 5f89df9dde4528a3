"""Writes docs/reference.md from the program itself: `python docs/generate.py`, or with --check only compares.

A test runs the comparison, so the page cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpuspool.cli.main import COMMANDS, EXIT_CODES, spool
from gpuspool.sbatch.environment import RUNTIME_VARIABLES
from gpuspool.spool.config import BUILT_IN_CLASSES, PRIORITIES, SETTINGS, SYSTEM_FILE
from gpuspool.spool.model import FINAL, SLURM_CODE, State
from gpuspool.spool.quantities import show_duration
from gpuspool.spool.states import ALLOWED

TARGET = Path(__file__).with_name("reference.md")
COLUMNS = 78  # click leaves two of 80 free

MEANING = {
    State.QUEUED: "waits; why stands in `spool queue` and `spool why`",
    State.INITIALIZING: "handed to a supervisor that is being started",
    State.RUNNING: "its command runs",
    State.STOPPING: "was asked to save a checkpoint and stop",
    State.SUCCEEDED: "finished with exit 0",
    State.FAILED: "failed for good",
    State.CANCELLED: "cancelled by a user; its checkpoints stay",
}
CODES = {
    0: "done",
    1: "refused, or failed",
    2: "wrong usage: an option, a value, the configuration",
    3: "no such job",
    4: "the store or the daemon cannot be used",
    124: "a wait ran out of time",
    130: "interrupted with Ctrl-C",
    141: "the reader of a pipe has left",
}
CONFIG_TABLES = """\
```toml
[windows.nights]                # when an off-peak class may run, in local time
zone = "Europe/Berlin"          # default: this machine's
open = ["mon-fri 20:00-07:00", "sat,sun 00:00-24:00"]
holidays = ["2030-12-25"]       # open all day

[classes.offpeak]               # a built-in class, changed ...
window = "nights"

[classes.cheap]                 # ... or one of your own
like = "spot"
rank = 5                        # higher ranks go first within a project, and may preempt lower ones
preemptible = true

[projects.research]
quota = 32

[projects.vision]
quota = 8                       # GPUs deserved
limit = 16                      # GPUs at most
weight = 2.0                    # for sharing what is left over
parent = "research"
```"""


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, groups before what is in them."""
    context = click.Context(spool)
    for name in COMMANDS:
        command = spool.get_command(context, name)
        assert command is not None
        yield f"spool {name}", command
        if isinstance(command, click.Group):
            for child, inner in command.commands.items():
                yield f"spool {name} {child}", inner


def help_of(name: str, command: click.Command) -> str:
    """What `NAME --help` prints on a terminal of 80 columns."""
    settings = {
        "help_option_names": ["-h", "--help"],
        "terminal_width": COLUMNS,
        "max_content_width": COLUMNS,
    }
    return command.get_help(click.Context(command, info_name=name, **settings))  # type: ignore[arg-type]


def table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in row) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def settings() -> Iterator[tuple[str, ...]]:
    """The rows of the table of settings."""
    for setting in SETTINGS:
        timed = "_seconds" in setting.read.__qualname__
        value = show_duration(setting.default) if timed and setting.default else str(setting.default).lower()
        yield f"`{setting.name}`", f"`{setting.variable}`", f"`{value}`" if value else "", setting.doc


def reference() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "Generated from the program by `make docs`; do not edit.",
        "## Commands",
        (
            "Data goes to standard output, talk to standard error. `--json` prints exactly one JSON value with a `schema`"
            " number, times in ISO 8601 UTC, durations in seconds, memory in MiB. Jobs are named `12`, `s12`, `12_3`"
            " (element 3 of array 12), `1-5,9` and `last`. Durations are written `90s`, `10m`, `2h`, `1d12h`, or as in Slurm."
        ),
        f"```text\n{help_of('spool', spool)}\n```",
    ]
    for name, command in all_commands():
        parts.append(f"### {name}\n\n```text\n{help_of(name, command)}\n```")
    parts += [
        "## Exit codes",
        table(("code", "meaning"), [(str(code), text) for code, text in CODES.items()]),
        (
            "`spool wait` and `spool submit --wait` give the job's own exit code, 128 + signal when it was killed, 130 when"
            " it was cancelled before it ran, and of several jobs the highest."
        ),
        "Errors by their class, for programs that use `gpuspool.Client`:",
        table(("error", "code"), [(f"`{kind.__name__}`", str(code)) for kind, code in EXIT_CODES]),
        "## States",
        table(
            ("state", "Slurm's letters", "meaning", "may become"),
            [
                (
                    f"`{state}`",
                    SLURM_CODE[state],
                    MEANING[state],
                    ", ".join(ALLOWED[state]) + (" (by `resume` or `requeue`)" if state in FINAL else ""),
                )
                for state in State
            ],
        ),
        "## Classes",
        table(
            ("class", "preemptible", "only within quota", "rank", "window"),
            [
                (
                    f"`{item.name}`",
                    "yes" if item.preemptible else "no",
                    "yes" if item.quota_bound else "no",
                    str(item.rank),
                    "must be configured" if item.needs_window else "",
                )
                for item in BUILT_IN_CLASSES.values()
            ],
        ),
        "Priorities: "
        + ", ".join(f"`{name}` {number}" for name, number in PRIORITIES.items())
        + ", or a number from 0"
        " to 1000.",
        "## Settings",
        (
            "A setting comes from the first of these that has it: an option of the command, its variable, the user's file"
            f" (`$XDG_CONFIG_HOME/gpuspool/config.toml`, or the one that `GPUSPOOL_CFG_FILE` names), `{SYSTEM_FILE}`, the"
            " default. `spool config show` prints what is in force and where it comes from."
        ),
        table(("setting", "variable", "default", "what it is"), settings()),
        "Windows, classes and projects are tables of the file:",
        CONFIG_TABLES,
        "## What a job sees",
        "Its own environment from the submission, `CUDA_VISIBLE_DEVICES`, and "
        + ", ".join(f"`{name}`" for name in sorted(RUNTIME_VARIABLES - {"GPUSPOOL_TOKEN"}))
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    text = reference()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is not up to date: run python docs/generate.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
