"""One host owns a spool at a time: the epoch decides, in each transaction, and a kill anywhere leaves it decidable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from spools import answers, folder_words, make_folders, python, quick_folder, submission

from gpuspool.spool import ownership
from gpuspool.spool.durable import read_json, write_json
from gpuspool.spool.errors import GpuspoolError, NotOwner, StoreGone, StoreUnavailable
from gpuspool.spool.folders import Folders
from gpuspool.spool.ownership import Owner, read_owner
from gpuspool.spool.processes import ProcessName
from gpuspool.spool.store import Store, open_store

SUPPORT = Path(__file__).parent.parent / "support"
OTHER_HOST = {"host": "login-far-away", "boot_id": "another-boot", "pid": 4242, "start": 7, "beat": 0}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


def epoch(store: Store) -> int:
    """The database's."""
    return int(store.meta("epoch"))


def other_host_takes(folders: Folders, role: str, epoch: int) -> None:
    """What a process of another host leaves behind that took the spool: a raised epoch and its record."""
    script = """
import json, sqlite3, sys
from gpuspool.spool.durable import write_json
database, owner, record = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
db = sqlite3.connect(database, isolation_level=None)
db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(record["epoch"]),))
write_json(owner, record)
print("null")
"""
    record = json.dumps({**OTHER_HOST, "role": role, "epoch": epoch})
    answers(python(script, folders.database, folders.owner, record))


# -- taking it -------------------------------------------------------------------------------------------


def test_the_first_write_owns_the_spool_and_reads_do_not(folders: Folders) -> None:
    store = open_store(folders)
    assert store.list() == []
    assert epoch(store) == 0
    assert store.owner() is None
    store.submit([submission()], 1.0)
    owner = store.owner()
    assert owner is not None
    assert owner.here()
    assert (owner.epoch, owner.role, owner.process) == (1, "command", ProcessName.of(os.getpid()))
    assert epoch(store) == 1
    assert os.stat(folders.owner).st_mode & 0o777 == 0o600


def test_processes_of_one_host_all_write_under_one_epoch(folders: Folders) -> None:
    script = """
import json, sys, time
from gpuspool.spool.folders import Folders
from gpuspool.spool.store import open_store
from gpuspool.spool.model import JobSpec, Submission
begin = float(sys.argv[4])
while time.time() < begin:
    pass
store = open_store(Folders(*sys.argv[1:4]))
ids = []
for n in range(20):
    ids += store.submit([Submission(JobSpec(["true"], "/"), "n", "u", 0)], 1.0)
print(json.dumps([ids, store.meta("epoch")]))
"""
    begin = time.time() + 1.5
    found = answers(*(python(script, *folder_words(folders), begin) for _ in range(4)))
    assert sorted(job for ids, _ in found for job in ids) == list(range(1, 81))
    assert {epoch for _, epoch in found} == {"1"}


def test_a_missing_or_damaged_record_is_made_anew(folders: Folders) -> None:
    store = open_store(folders)
    store.submit([submission()], 1.0)
    for damage in (lambda: os.unlink(folders.owner), lambda: Path(folders.owner).write_bytes(b"\0" * 20)):
        damage()
        before = epoch(store)
        other = open_store(folders)
        other.submit([submission()], 1.0)
        other.close()
        owner = read_owner(folders.owner)
        assert owner is not None
        assert owner.epoch == epoch(store) == before + 1


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"host": "h"},
        {**OTHER_HOST, "epoch": "x", "role": "r"},
        {**OTHER_HOST, "epoch": None, "role": "r"},
        {**OTHER_HOST, "epoch": float("inf"), "role": "r"},
    ],
    ids=range(7),
)
def test_records_that_are_none(tmp_path: Path, value: Any) -> None:
    path = str(tmp_path / "owner.json")
    assert read_owner(path) is None
    write_json(path, value)
    assert read_owner(path) is None


# -- losing it -------------------------------------------------------------------------------------------


def test_an_old_owner_commits_nothing(folders: Folders) -> None:
    """It wakes up in the middle of its work, and the spool has passed to another host."""
    store = open_store(folders)
    store.submit([submission()], 1.0)
    other_host_takes(folders, "daemon", 2)
    with pytest.raises(
        NotOwner, match=r"owned by the daemon 4242 on login-far-away \(epoch 2\) now; nothing was written"
    ):
        store.submit([submission()], 2.0)
    assert [job.id for job in store.list()] == [1]
    assert not store.db.in_transaction


def test_an_old_owner_commits_nothing_though_its_host_owns_the_spool_again(folders: Folders) -> None:
    """What it decided before is void: others have written since. What it decides anew is not."""
    store = open_store(folders)
    store.submit([submission()], 1.0)
    other_host_takes(folders, "command", 2)
    successor = open_store(folders)
    successor.submit([submission()], 2.0)  # this host again, epoch 3
    successor.close()
    with pytest.raises(NotOwner):
        store.cancel((1,), 3.0, "ann")
    assert store.job(1).state == "queued"
    store.cancel((1,), 3.0, "ann")
    assert store.job(1).state == "cancelled"
    assert epoch(store) == 3


def test_an_epoch_that_changes_during_the_transaction_cannot_be(folders: Folders) -> None:
    """BEGIN IMMEDIATE: who wants to raise it waits until the writer is through."""
    store = open_store(folders)
    store.submit([submission()], 1.0)
    script = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0.2)
try:
    db.execute("BEGIN IMMEDIATE")
    print('"in"')
except sqlite3.OperationalError as error:
    print('"' + error.sqlite_errorname + '"')
"""
    with store.write():
        assert answers(python(script, folders.database)) == ["SQLITE_BUSY"]
    assert answers(python(script, folders.database)) == ["in"]


def test_a_command_of_another_host_owns_only_while_it_works(folders: Folders) -> None:
    """Without a daemon login2 works as login1 did: the next command just takes it."""
    store = open_store(folders)
    other_host_takes(folders, "command", 5)
    store.submit([submission()], 1.0)
    assert epoch(store) == 6


def test_the_daemon_of_another_host_is_left_alone_until_it_is_silent(folders: Folders) -> None:
    open_store(folders).close()
    other_host_takes(folders, "daemon", 5)
    memo = os.path.join(folders.runtime, "other-owner.json")
    for _ in range(2):
        store = open_store(folders)
        with pytest.raises(NotOwner, match="wait until that owner has been silent for 60 s"):
            store.submit([submission()], 1.0)
        assert epoch(store) == 5
        store.close()
    # By this host's own clock the record has now stood unchanged for a minute.
    seen = read_json(memo)
    assert isinstance(seen, dict)
    write_json(memo, {**seen, "since": seen["since"] - 59.0})
    store = open_store(folders)
    with pytest.raises(NotOwner):
        store.submit([submission()], 1.0)
    write_json(memo, {**seen, "since": seen["since"] - 60.5})
    store.submit([submission()], 1.0)
    assert epoch(store) == 6


TWO_HOSTS = """
import json, sys
from gpuspool.spool.errors import NotOwner
from gpuspool.spool.folders import Folders
from gpuspool.spool.model import JobSpec, Submission
from gpuspool.spool.store import open_store
store = open_store(Folders(*sys.argv[1:4]))
try:
    print(json.dumps(store.submit([Submission(JobSpec(["true"], "/"), "n", "u", 0)], 1.0)))
except NotOwner as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.root
def test_two_hosts_for_real(folders: Folders) -> None:
    """Another host: a UTS namespace with a name of its own."""
    if os.geteuid() != 0:
        pytest.fail(
            "needs root to make a UTS namespace; run the tests as root or deselect with -m 'not root'"
        )

    def on_login2() -> object:
        words = [
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname login2; exec "$0" "$@"',
            sys.executable,
            "-c",
            TWO_HOSTS,
        ]
        done = subprocess.run(
            [*words, *folder_words(folders)], capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(done.stdout)

    daemon = open_store(folders, role="daemon")
    daemon.renew(0)
    daemon.submit([submission()], 1.0)
    assert f"owned by the daemon {os.getpid()} on {os.uname().nodename} (epoch 1) now" in str(on_login2())
    daemon.submit([submission()], 1.0)
    command = open_store(folders)
    command.submit([submission()], 1.0)
    daemon.close()
    assert on_login2() == [4], "given back: login2 works as login1 did"
    with pytest.raises(NotOwner, match=r"process \d+ on login2 \(epoch 2\)"):
        command.submit([submission()], 2.0)
    assert command.submit([submission()], 2.0) == [5]
    assert epoch(command) == 3


def test_a_beat_of_the_other_host_starts_the_minute_afresh(folders: Folders) -> None:
    memo = os.path.join(folders.runtime, "m")
    first = Owner("far", "b", 1, 2, 3, "daemon", beat=7)
    assert ownership.silent_for(first, memo) == 0.0
    seen = read_json(memo)
    assert isinstance(seen, dict)
    write_json(memo, {**seen, "since": seen["since"] - 100.0})
    assert ownership.silent_for(first, memo) >= 100.0
    assert ownership.silent_for(Owner("far", "b", 1, 2, 3, "daemon", beat=8), memo) == 0.0
    assert ownership.silent_for(Owner("far", "b", 1, 2, 3, "daemon", beat=8), memo) < 50.0


@pytest.mark.parametrize(
    "change", [{"boot": "an earlier boot"}, {"since": "x"}, {"since": -5.0}, {"since": 1e12}, {"owner": None}]
)
def test_a_memo_of_another_time_counts_for_nothing(folders: Folders, change: dict[str, Any]) -> None:
    """The clock began afresh with this boot; a memo from the future or from before it says nothing."""
    memo, owner = os.path.join(folders.runtime, "m"), Owner("far", "b", 1, 2, 3, "daemon")
    ownership.silent_for(owner, memo)
    seen = read_json(memo)
    assert isinstance(seen, dict)
    write_json(memo, {**seen, **change})
    assert ownership.silent_for(owner, memo) == 0.0


def test_this_host_after_a_reboot_takes_it_at_once(folders: Folders) -> None:
    store = open_store(folders)
    store.submit([submission()], 1.0)
    record = read_json(folders.owner)
    assert isinstance(record, dict)
    write_json(folders.owner, {**record, "role": "daemon", "boot_id": "the boot before"})
    later = open_store(folders)
    later.submit([submission()], 1.0)
    assert epoch(later) == 2


def test_a_record_with_another_epoch_does_not_count(folders: Folders) -> None:
    """A process that was killed before its commit: nobody owns by that record, living daemon or not."""
    store = open_store(folders)
    store.submit([submission()], 1.0)
    write_json(folders.owner, {**OTHER_HOST, "role": "daemon", "epoch": 9})
    store.submit([submission()], 1.0)  # epoch 1 is still the database's
    later = open_store(folders)
    later.submit([submission()], 1.0)
    assert epoch(later) == 2


# -- the daemon ------------------------------------------------------------------------------------------


def test_a_daemon_names_itself_and_shows_life(folders: Folders) -> None:
    store = open_store(folders, role="daemon")
    store.renew(0)
    seen = []
    for beat in (1, 2, 3):
        store.renew(beat)
        owner = store.owner()
        assert owner is not None
        assert (owner.role, owner.epoch) == ("daemon", 1)
        seen.append(owner.beat)
    assert seen == [1, 2, 3]
    command = open_store(folders)
    command.submit([submission()], 1.0)
    assert store.owner() == owner, "a command of the same host leaves the daemon's record alone"


def test_a_daemon_that_ends_gives_the_spool_back(folders: Folders) -> None:
    store = open_store(folders, role="daemon")
    store.renew(3)
    store.close()
    owner = read_owner(folders.owner)
    assert owner is not None
    assert owner.role == "command"


def test_a_daemon_that_lost_the_spool_disturbs_its_successor_in_nothing(folders: Folders) -> None:
    store = open_store(folders, role="daemon")
    store.renew(0)
    other_host_takes(folders, "daemon", 2)
    before = Path(folders.owner).read_bytes()
    with pytest.raises(NotOwner):
        store.renew(1)
    with pytest.raises(NotOwner):
        store.submit([submission()], 1.0)
    store.close()
    assert Path(folders.owner).read_bytes() == before


# -- kills -----------------------------------------------------------------------------------------------

KILLED = """
import json, os, shutil, sys
sys.path.insert(0, {support!r})
from gpuspool.spool import durable, ownership, session
from gpuspool.spool.folders import Folders
from gpuspool.spool.model import JobSpec, Submission
from gpuspool.spool.ownership import read_owner
from gpuspool.spool.store import open_store
from killing import each_line

root, begun = sys.argv[1], sys.argv[2]
job = Submission(JobSpec(["true"], "/"), "n", "u", 0)
base = os.path.join(root, "base")
os.mkdir(base, 0o700)
store = open_store(Folders(base, base, base))
if begun == "taken":
    store.submit([job], 1.0)
    store.db.execute("UPDATE meta SET value = '7' WHERE key = 'epoch'")  # as another host would leave it
store.close()
counter = 0


def begin():
    global counter, folders
    counter += 1
    path = os.path.join(root, str(counter))
    shutil.copytree(base, path)
    folders = Folders(path, path, path)


def work():
    open_store(folders).submit([job], 1.0)


begin()
epochs, jobs = [], []
first = 0 if begun == "blank" else 7
for number in each_line(work, session.__file__, durable.__file__, ownership.__file__):
    # A process of another kind goes on: it owns the spool, and one record agrees with the database again.
    after = open_store(folders)
    killed_jobs = len(after.list())
    killed_epoch = int(after.meta("epoch"))
    assert killed_epoch in (first, first + 1), killed_epoch
    [mine] = after.submit([job], 2.0)
    assert mine == killed_jobs + 1, "a number is never used twice, and none is lost"
    owner, epoch = read_owner(folders.owner), int(after.meta("epoch"))
    assert owner is not None and owner.here() and owner.epoch == epoch
    assert epoch in (first + 1, first + 2)
    after.close()
    epochs.append(killed_epoch)
    jobs.append(killed_jobs)
    begin()
print(json.dumps([epochs, jobs]))
"""


@pytest.mark.parametrize("begun", ["blank", "taken"])
def test_a_kill_at_any_line_leaves_it_to_the_next_process(begun: str) -> None:
    """SIGKILL between any two lines of taking ownership, writing the record and committing a job."""
    with quick_folder() as root:
        [[epochs, jobs]] = answers(python(KILLED.format(support=str(SUPPORT)), root, begun))
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 2, "before the commit and after it"
    assert jobs == sorted(jobs)
    assert len(set(jobs)) == 2
    assert len(epochs) > 50


# -- the file itself -------------------------------------------------------------------------------------


def test_a_database_that_was_removed_is_noticed_by_who_has_it_open(folders: Folders) -> None:
    """An open file outlives its name: a daemon must not serve it for ever while commands fill a new one."""
    daemon = open_store(folders, role="daemon")
    daemon.renew(0)
    daemon.submit([submission()], 1.0)
    os.unlink(folders.database)
    for use in (
        lambda: daemon.list(),
        lambda: daemon.submit([submission()], 2.0),
        lambda: daemon.renew(1),
        lambda: daemon.live(),
    ):
        with pytest.raises(
            StoreGone, match="was removed or replaced while it was in use; nothing was written"
        ):
            use()
    daemon.close()
    assert not os.path.exists(folders.database), "nobody makes it again behind the user's back"


def test_a_database_that_was_replaced_is_opened_anew_for_the_next_call(
    folders: Folders, tmp_path: Path
) -> None:
    daemon = open_store(folders, role="daemon")
    daemon.submit([submission(), submission()], 1.0)
    daemon.backup(str(tmp_path / "copy.db"))
    daemon.cancel((1, 2), 2.0, "ann")
    for name in ("spool.db-wal", "spool.db-shm"):
        Path(folders.state, name).unlink(missing_ok=True)
    os.rename(tmp_path / "copy.db", folders.database)
    with pytest.raises(StoreGone):
        daemon.list()
    assert [job.state for job in daemon.list()] == ["queued", "queued"]
    daemon.cancel((1,), 3.0, "ann")
    assert daemon.job(1).state == "cancelled"


def test_numbers_are_not_used_again_after_the_database_was_removed(folders: Folders) -> None:
    """The new job would find the old one's claims and checkpoints in its folder."""
    store = open_store(folders)
    assert store.submit([submission()] * 5, 1.0) == [1, 2, 3, 4, 5]
    store.close()
    for job in (2, 4):  # those that were started have a folder
        os.makedirs(folders.attempt(job, 1))
    for name in ("7_3", "notes", "9x", "²"):
        os.makedirs(os.path.join(folders.run, "jobs", name))
    for name in os.listdir(folders.state):
        os.unlink(os.path.join(folders.state, name))
    store = open_store(folders)
    assert store.submit([submission()] * 2, 2.0) == [8, 9]
    assert store.submit([submission()], 2.0) == [10]
    store.close()


def test_numbers_are_not_used_again_after_an_old_copy_was_put_back(folders: Folders, tmp_path: Path) -> None:
    store = open_store(folders)
    store.submit([submission()] * 3, 1.0)
    store.backup(str(tmp_path / "copy.db"))
    store.submit([submission()] * 40, 1.0)
    os.makedirs(folders.attempt(42, 1))
    store.close()
    os.rename(tmp_path / "copy.db", folders.database)
    store = open_store(folders)
    assert store.submit([submission()] * 50, 2.0)[0] == 43, "40 numbers at once that would meet the folder"


def test_a_missing_epoch_is_told_and_not_a_traceback(folders: Folders) -> None:
    store = open_store(folders)
    store.db.execute("DELETE FROM meta WHERE key = 'epoch'")
    with pytest.raises(StoreUnavailable, match="'epoch' in the table meta is missing or damaged"):
        store.submit([submission()], 1.0)


def test_no_connection_crosses_a_fork(folders: Folders) -> None:
    script = """
import json, os, sys
from gpuspool.spool.errors import GpuspoolError
from gpuspool.spool.folders import Folders
from gpuspool.spool.store import open_store
store = open_store(Folders(*sys.argv[1:4]))
refused = []
pid = os.fork()
if pid == 0:
    for use in (store.list, lambda: store.meta("epoch"), lambda: store.hold((1,), 1.0, "x"), lambda: store.renew(1)):
        try:
            use()
        except GpuspoolError as error:
            refused.append(str(error))
    os._exit(0 if refused == ["a database connection crossed a fork"] * 4 else 1)
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""
    assert answers(python(script, *folder_words(folders))) == [0]


def test_a_write_within_a_write_is_refused_and_harms_nothing(folders: Folders) -> None:
    store = open_store(folders)
    with store.write() as db:
        db.execute("INSERT INTO meta VALUES ('a', '1')")
        with pytest.raises(GpuspoolError, match="within|inside"):
            store.submit([submission()], 1.0)
        db.execute("INSERT INTO meta VALUES ('b', '2')")
    assert (store.meta("a"), store.meta("b")) == ("1", "2")
    with pytest.raises(RuntimeError), store.write() as db:
        db.execute("INSERT INTO meta VALUES ('c', '3')")
        raise RuntimeError
    assert store.meta("c") == ""
