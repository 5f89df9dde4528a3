"""Files that must survive: claims have one winner, a kill leaves the old file or the new one."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from spools import answers, python

from gpuspool.spool import durable

SUPPORT = Path(__file__).parent.parent / "support"
WEIRD = [b"plain", "a b'c\"d\né$x;".encode(), b"\xff\xfe not utf-8", b"-rf", b"{resume}"]


@pytest.fixture(params=WEIRD, ids=["plain", "quotes", "not UTF-8", "option", "braces"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with all that people put into names."""
    path = os.path.join(str(tmp_path), os.fsdecode(request.param))
    os.mkdir(path)
    return path


# -- claims ----------------------------------------------------------------------------------------------

RACE = """
import json, os, sys, time
sys.path.insert(0, {support!r})
from gpuspool.spool import durable
folder, me, begin, how = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
take = durable.claim if how == "link" else lambda path, value: durable._claim_exclusively(path, json.dumps(value).encode())
while time.time() < begin:
    pass
print(json.dumps([n for n in range(150) if take(os.path.join(folder, f"claim-{{n}}"), {{"by": me}})]))
"""


@pytest.mark.parametrize("how", ["link", "O_EXCL"])
def test_of_many_processes_exactly_one_wins(tmp_path: Path, how: str) -> None:
    begin = time.time() + 1.0
    script = RACE.format(support=str(SUPPORT))
    won = answers(*(python(script, tmp_path, me, begin, how) for me in range(6)))
    assert sorted(number for numbers in won for number in numbers) == list(range(150))
    for me, numbers in enumerate(won):
        for number in numbers:
            assert durable.read_json(str(tmp_path / f"claim-{number}")) == {"by": me}
    assert len(os.listdir(tmp_path)) == 150, "no temp file stays"


def test_a_claim_is_won_once(folder: str) -> None:
    path = os.path.join(folder, "claim-0-0")
    assert durable.claim(path, {"by": "a"})
    assert not durable.claim(path, {"by": "b"})
    assert durable.read_json(path) == {"by": "a"}
    assert os.listdir(folder) == ["claim-0-0"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_claim_in_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.claim(str(tmp_path / "gone" / "claim"), {})


KILLED_CLAIM = """
import json, os, sys
sys.path.insert(0, {support!r})
from gpuspool.spool import durable
from killing import each_line
root = sys.argv[1]
seen = {{"absent": 0, "there": 0, "double": 0}}


def take():
    folder = os.path.join(root, str(len(os.listdir(root)) + 1))
    os.mkdir(folder)
    durable.claim(os.path.join(folder, "claim"), {{"by": "killed"}})


for number in each_line(take, durable.__file__):
    folder = os.path.join(root, str(number))
    path = os.path.join(folder, "claim")
    there = os.path.exists(path)
    if there:
        assert durable.read_json(path) == {{"by": "killed"}}, "a claim is complete as soon as it has its name"
        seen["double"] += os.stat(path).st_nlink == 2
    for name in os.listdir(folder):
        assert name == "claim" or name.startswith("."), name
    # Whoever comes next wins exactly when the killed one had not.
    assert durable.claim(path, {{"by": "next"}}) is not there
    assert durable.read_json(path) == {{"by": "killed" if there else "next"}}
    assert not durable.claim(path, {{"by": "third"}})
    seen["there" if there else "absent"] += 1
print(json.dumps(seen))
"""


def test_a_claim_that_was_killed_at_any_line_is_nobodys_or_its_own(tmp_path: Path) -> None:
    """Also between link and unlink, where the left temp file *is* the claim under a second name."""
    [seen] = answers(python(KILLED_CLAIM.format(support=str(SUPPORT)), tmp_path))
    assert seen["absent"] > 5
    assert seen["there"] > 2
    assert seen["double"] > 0


# -- whole files -----------------------------------------------------------------------------------------

KILLED_WRITE = """
import json, os, sys
sys.path.insert(0, {support!r})
from gpuspool.spool import durable
from killing import each_line
path, how = os.path.join(sys.argv[1], "file.json"), sys.argv[2]
write = durable.write_file if how == "durable" else durable.write_passing
old, new = b"old" * 1000, b"new" * 5000
seen = {{"old": 0, "new": 0}}
write(path, old)
for number in each_line(lambda: write(path, new), durable.__file__):
    with open(path, "rb") as file:
        found = file.read()
    assert found in (old, new), len(found)
    seen["old" if found == old else "new"] += 1
    assert all(name == "file.json" or name.startswith(".") for name in os.listdir(sys.argv[1]))
    write(path, old)
print(json.dumps(seen))
"""


@pytest.mark.parametrize("how", ["durable", "passing"])
def test_a_write_that_was_killed_at_any_line_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, how: str
) -> None:
    [seen] = answers(python(KILLED_WRITE.format(support=str(SUPPORT)), tmp_path, how))
    assert seen["old"] > 5
    assert seen["new"] > 0


FULL = """
import json, os, resource, signal, sys
from gpuspool.spool import durable
path = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
before = len(os.listdir("/proc/self/fd"))
errors = []
for write in (durable.write_file, durable.write_passing, lambda path, data: durable.claim(path + "-claim", data.decode())):
    try:
        write(path, b"x" * 10000)
    except OSError as error:
        errors.append(error.errno)
print(json.dumps([errors, len(os.listdir("/proc/self/fd")) - before]))
"""


def test_no_room_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A write that is cut short (here by a limit on file sizes, which cannot be told from a quota)."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    [[errors, left_open]] = answers(python(FULL, path))
    assert len(errors) == 3
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    assert left_open == 0


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        durable.write_file(str(tmp_path / "a"), b"")
        durable.write_passing(str(tmp_path / "b"), b"")
        durable.write_json(str(tmp_path / "c"), {})
        durable.claim(str(tmp_path / "d"), {})
        durable.write_file(str(tmp_path / "e"), b"", mode=0o644)
        durable.make_private(str(tmp_path / "f" / "g" / "h"))
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a", "b", "c", "d", "e")}
    assert modes == {"a": 0o600, "b": 0o600, "c": 0o600, "d": 0o600, "e": 0o644}
    for name in ("f", "f/g", "f/g/h"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o700, "parents that had to be made, too"


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    durable.make_private(str(tmp_path))
    durable.make_private(f"{tmp_path}/")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        durable.make_private(str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError):
        durable.make_private(str(tmp_path / "file" / "below"))


def test_json_there_and_back(folder: str) -> None:
    path = os.path.join(folder, "x.json")
    value = {"path": folder, "n": 2**60, "none": None, "list": [1, "é\n\0"]}
    durable.write_json(path, value)
    assert durable.read_json(path) == value
    durable.write_json(path, [])
    assert durable.read_json(path) == []


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"a": 1', b"\xff", b"\0\0\0\0", b"[" * 100000, b"1" * 5000, b'"\\ud800"x'],
    ids=range(8),
)
def test_what_is_not_whole_reads_as_nothing(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(raw)
    assert durable.read_json(str(path)) is None


def test_what_is_not_there_reads_as_nothing(tmp_path: Path) -> None:
    assert durable.read_json(str(tmp_path / "x")) is None
    (tmp_path / "x").touch()
    assert durable.read_json(str(tmp_path / "x" / "y")) is None
    with pytest.raises(IsADirectoryError):
        durable.read_json(str(tmp_path))


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "file").symlink_to("secret")
    durable.write_file(str(tmp_path / "file"), b"new")
    assert (tmp_path / "secret").read_text() == "kept"
    assert not (tmp_path / "file").is_symlink()
    (tmp_path / "claim").symlink_to("nowhere")
    assert not durable.claim(str(tmp_path / "claim"), {}), "a dangling link is a name that is taken"


def test_the_json_of_a_claim_is_one_line(tmp_path: Path) -> None:
    durable.claim(str(tmp_path / "c"), {"text": "two\nlines"})
    raw = (tmp_path / "c").read_bytes()
    assert raw.count(b"\n") == 1
    assert json.loads(raw) == {"text": "two\nlines"}
