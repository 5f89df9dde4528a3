"""Text for terminals: nothing raw, aligned columns, nothing wider than the terminal."""

from __future__ import annotations

import re

import pytest

from gpuspool.cli.text import count, iso, safe, safe_lines, shorten, table, width


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("größe 模型", "größe 模型"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x9b31m", "\\x9b31m"),  # the one-byte form of ESC [
        ("\u202egnp.exe", "\\u202egnp.exe"),  # right-to-left override
        ("\u2028next", "\\u2028next"),
        ("stray \udcff byte", "stray \\xff byte"),
        ("half \ud83d of a pair", "half \\ud83d of a pair"),
        ("", ""),
    ],
)
def test_what_users_wrote_is_shown_escaped(raw: str, shown: str) -> None:
    assert safe(raw) == shown
    assert safe(raw).isprintable()


def test_messages_keep_their_line_feeds_and_nothing_else() -> None:
    assert safe_lines("one\ntwo \x1b[2J\rthree") == "one\ntwo \\x1b[2J\\rthree"


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("模型", 4), ("e\u0301", 1), ("…", 1), ("", 0), ("a模b", 4)]
)
def test_width_is_that_of_a_terminal(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("text", ["a rather long one", "模型模型模型模型", "short"])
def test_shortened_text_fits_and_says_so(text: str, limit: int) -> None:
    found = shorten(text, limit)
    assert width(found) <= limit
    assert found == text or found.endswith("…")


def test_columns_without_anything_are_not_shown() -> None:
    text = table(["JOB", "NAME", "STEP"], [["1", "a", ""], ["22", "b", ""]], right=frozenset({"JOB"}))
    assert text == "JOB  NAME\n  1  a\n 22  b"


def test_wide_letters_keep_the_columns_straight() -> None:
    lines = table(["NAME", "STATE"], [["模型", "running"], ["abc", "queued"]]).splitlines()
    assert [width(line[: re.search("STATE|running|queued", line).start()]) for line in lines] == [6, 6, 6]  # type: ignore[union-attr]


def test_only_the_last_column_is_cut_to_the_terminal() -> None:
    rows = [["1", "x" * 20, "because " * 20], ["2", "y", "short"]]
    for line in table(["JOB", "NAME", "WHY"], rows, columns=60).splitlines():
        assert width(line) <= 60
    assert table(["JOB", "NAME", "WHY"], rows, columns=60).splitlines()[1].endswith("…")
    # A terminal too narrow for the rest still shows the beginning of the reason.
    assert "because" in table(["JOB", "NAME", "WHY"], rows, columns=20)


def test_colour_changes_no_alignment() -> None:
    rows = [["1", "running", "n1"], ["2", "queued", "n2"]]
    plain = table(["JOB", "STATE", "WHERE"], rows)
    painted = table(["JOB", "STATE", "WHERE"], rows, paint={"STATE": lambda text: f"\033[32m{text}\033[0m"})
    assert painted != plain
    assert re.sub(r"\033\[\d+m", "", painted) == plain
    assert "\033" not in painted.splitlines()[0]


def test_small_things() -> None:
    assert (count(1, "GPU"), count(2, "GPU"), count(0, "CPU")) == ("1 GPU", "2 GPUs", "0 CPUs")
    assert iso(None) is None
    assert iso(1700000000.25) == "2023-11-14T22:13:20.250Z"
