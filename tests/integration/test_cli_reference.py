"""The reference page is what the program says, every command and option explains itself, and help fits 80 columns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

GENERATOR = Path(__file__).resolve().parents[2] / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate_reference", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(GENERATOR), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_command_and_option_explains_itself_in_80_columns(generator: ModuleType) -> None:
    seen = 0
    for name, command in generator.all_commands():
        seen += 1
        assert command.help, name
        assert not command.help.endswith(","), name
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help and param.help.endswith((".", ")")), f"{name} {param.opts}"
        for line in generator.help_of(name, command).splitlines():
            assert len(line) <= 80, f"{name}: {line}"
    assert seen > 25


def test_help_is_what_the_command_prints(generator: ModuleType) -> None:
    for name, command in generator.all_commands():
        if name in ("spool submit", "spool node list", "spool cancel"):
            words = name.split()[1:]
            done = subprocess.run(
                [sys.executable, "-m", "gpuspool.cli.main", *words, "--help"],
                capture_output=True,
                text=True,
                env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
                check=True,
            )
            assert done.stdout == generator.help_of(name, command) + "\n"


def test_all_states_codes_and_settings_are_told(generator: ModuleType) -> None:
    from gpuspool.cli.main import EXIT_CODES
    from gpuspool.spool.config import SETTINGS
    from gpuspool.spool.model import State

    text = generator.reference()
    assert set(generator.MEANING) == set(State)
    assert {code for _, code in EXIT_CODES} <= set(generator.CODES)
    for setting in SETTINGS:
        assert f"`{setting.name}`" in text and setting.doc


def test_the_example_configuration_is_right(generator: ModuleType, tmp_path: Path) -> None:
    from gpuspool.spool.config import load

    path = tmp_path / "config.toml"
    example = generator.CONFIG_TABLES.strip("`").removeprefix("toml")
    path.write_text(example)
    found = load({"GPUSPOOL_CFG_FILE": str(path)})
    assert found.classes["cheap"].rank == 5
    assert found.job_class("offpeak").window == "nights"
    assert set(tomllib.loads(example)) == {"windows", "classes", "projects"}
