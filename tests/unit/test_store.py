"""The store on real SQLite: what users' verbs do to jobs that wait, reservations, the cluster, copies and trouble."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spools import (
    answers,
    claim_of,
    finish,
    folder_words,
    live_of,
    make_folders,
    python,
    start,
    submission,
    tell,
)

from gpuspool.spool.check import check_database
from gpuspool.spool.endrules import EndFacts
from gpuspool.spool.errors import (
    BadRequest,
    IllegalTransition,
    NoSuchJob,
    NoSuchProject,
    StaleClaim,
    StoreUnavailable,
)
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import Room
from gpuspool.spool.model import GpuRow, JobSpec, Node, Project, Reservation, State, Stop
from gpuspool.spool.session import move, storable
from gpuspool.spool.store import Store, open_store, refuse_without_space


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


@pytest.fixture
def store(folders: Folders) -> Iterator[Store]:
    """A store; whatever a test did to it, `db check` finds nothing wrong afterwards."""
    made = open_store(folders)
    yield made
    made.close()
    found = check_database(folders)
    assert found.faults == []


def kinds(store: Store, job: int) -> list[str]:
    """The kinds of a job's events, in order."""
    return [event.kind for event in store.show(job).events]


def one(store: Store, **changes: Any) -> int:
    """A job that waits."""
    return store.submit([submission(**changes)], 100.0)[0]


# -- submit, list, show ----------------------------------------------------------------------------------


def test_a_submitted_job_is_there_as_it_was_submitted(store: Store) -> None:
    spec = JobSpec(["python", "a b'c\"d\né$x;"], "/home/é", {"A": "1", "B": "\udcff"}, max_gpu_hours=2.5)
    [job] = store.submit(
        [
            submission(
                spec=spec,
                name="n",
                gpus=2,
                gpu_type="a100,h100",
                memory_mib=100,
                walltime_s=60,
                begin_at=500.0,
            )
        ],
        100.0,
    )
    view = store.show(job)
    assert view.spec == spec
    found = view.job
    assert (found.id, found.state, found.gpus, found.gpu_type, found.memory_mib, found.walltime_s) == (
        1,
        "queued",
        2,
        "a100,h100",
        100,
        60,
    )
    assert (found.submitted_at, found.state_since, found.begin_at, found.reason) == (
        100.0,
        100.0,
        500.0,
        "BeginTime",
    )
    assert (found.attempt, found.counted, found.failures, found.version, found.ended_at) == (0, 0, 0, 1, None)
    assert [(event.kind, event.actor, event.at) for event in view.events] == [("submitted", "ann", 100.0)]
    assert view.attempts == []


def test_jobs_of_one_spec_share_it_and_numbers_follow_each_other(store: Store) -> None:
    spec = JobSpec(["true"], "/")
    first = store.submit([submission(spec=spec) for _ in range(1000)], 1.0)
    second = store.submit([submission(), submission()], 2.0)
    assert first + second == list(range(1, 1003))
    assert store.rows("SELECT count(*) FROM specs")[0][0] == 3
    assert store.submit([], 3.0) == []


def test_all_or_none_are_submitted(store: Store) -> None:
    bad = submission(gpus=2**70)
    with pytest.raises(OverflowError):
        store.submit([submission(), bad], 1.0)
    assert store.list() == []
    assert one(store) == 1


def test_names_that_are_no_utf_8_are_kept_readable(store: Store) -> None:
    job = one(store, name=os.fsdecode(b"a\xffb"), user=os.fsdecode(b"\xe9"))
    assert store.job(job).name == "a\\xffb"
    assert store.list(name=os.fsdecode(b"a\xffb")) != []
    for text in ("", "plain", "é", "\ud800", "\udcc3\udca9", "\udcff"):
        storable(text).encode()
    assert storable("é\n") == "é\n"


def test_list_finds_what_is_asked_for(store: Store) -> None:
    one(store, name="a", user="ann")
    one(store, name="b", user="bob", project="lab")
    one(store, name="c", user="ann", hold="user")
    store.cancel((1,), 2.0, "ann")

    def ids(**wanted: Any) -> list[int]:
        return [job.id for job in store.list(**wanted)]

    assert ids() == [2, 3]
    assert ids(finished=True) == [1, 2, 3]
    assert ids(finished=True, limit=2) == [2, 3], "the newest, oldest first"
    assert ids(user="ann") == [3]
    assert ids(user="ann", finished=True) == [1, 3]
    assert ids(project="lab") == ids(name="b") == [2]
    assert ids(states=("cancelled",)) == [1]
    assert ids(jobs=(1, 3, 99)) == [1, 3]
    assert ids(jobs=tuple(range(1, 50_000))) == [1, 2, 3], "more than SQLite takes as parameters"
    assert ids(name="zz") == []
    assert (store.last_job(), store.last_job("bob")) == (3, 2)


def test_what_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(NoSuchJob, match="no job 'last'"):
        store.last_job()
    for use in (
        store.job,
        store.show,
        lambda job: store.cancel((job,), 1.0, "ann"),
        lambda job: store.hold((job,), 1.0, "ann"),
    ):
        with pytest.raises(NoSuchJob, match="no job 7"):
            use(7)


def test_an_idle_look_does_not_read_finished_jobs(store: Store) -> None:
    """By the query plans: the budget of an idle pass does not grow with what is finished."""
    for sql in (
        "SELECT id FROM jobs WHERE state = 'queued' ORDER BY id",
        "SELECT id FROM jobs WHERE state IN ('queued', 'initializing', 'running', 'stopping') ORDER BY id",
        "SELECT id FROM jobs WHERE state IN ('initializing', 'running', 'stopping')",
    ):
        plan = " ".join(row[3] for row in store.rows(f"EXPLAIN QUERY PLAN {sql}"))
        assert "SEARCH jobs USING" in plan, plan
    start(store, one(store), 110.0)
    asked: list[str] = []
    store.db.set_trace_callback(asked.append)
    store.live()
    store.db.set_trace_callback(None)
    assert len(asked) == 2
    for sql in asked:
        plan = [row[3] for row in store.rows(f"EXPLAIN QUERY PLAN {sql}")]
        assert [step for step in plan if step.startswith("SCAN")] == ["SCAN a USING INDEX attempts_live"], (
            plan
        )


# -- wishes on jobs that wait ----------------------------------------------------------------------------


def test_cancel_of_a_job_that_waits(store: Store) -> None:
    job = one(store, hold="user")
    [outcome] = store.cancel((job,), 200.0, "bob")
    assert (outcome.done, outcome.text) == (True, "cancelled")
    found = store.job(job)
    assert (found.state, found.ended_at, found.end_reason, found.hold, found.reason) == (
        "cancelled",
        200.0,
        "cancelled",
        "",
        "",
    )
    assert [(event.kind, event.actor) for event in store.show(job).events][1:] == [("cancelled", "bob")]
    [again] = store.cancel((job,), 300.0, "bob")
    assert not again.done
    assert "cancelled already" in again.text
    assert store.job(job) == found


def test_hold_and_release(store: Store) -> None:
    job = one(store)
    assert store.hold((job,), 200.0, "ann")[0].done
    assert (store.job(job).hold, store.job(job).reason) == ("user", "Held")
    assert not store.hold((job,), 200.0, "ann")[0].done
    assert store.claim([claim_of(store.job(job))], 201.0, "", lambda j, n: "") == [], (
        "not even if somebody planned it"
    )
    assert store.release((job,), 210.0, "ann")[0].done
    assert store.job(job).hold == ""
    assert not store.release((job,), 210.0, "ann")[0].done
    assert kinds(store, job) == ["submitted", "held", "released"]


def test_stop_of_a_job_that_waits_and_resume(store: Store) -> None:
    job = one(store)
    assert store.stop((job,), 200.0, "ann")[0].done
    assert store.job(job).hold == "stop"
    assert store.resume((job,), 210.0, "ann")[0].done
    assert (store.job(job).hold, store.job(job).state) == ("", "queued")
    assert not store.resume((job,), 210.0, "ann")[0].done
    assert not store.preempt((job,), 210.0, "ann")[0].done
    assert not store.requeue((job,), 210.0, "ann")[0].done


def test_release_ends_a_delay(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0)
    assert finish(store, job, EndFacts(exit_code=1), 120.0).not_before == 130.0
    assert store.release((job,), 121.0, "ann")[0].done
    assert store.job(job).not_before == 0.0


def test_several_jobs_are_one_transaction(store: Store) -> None:
    jobs = store.submit([submission() for _ in range(3)], 1.0)
    with pytest.raises(NoSuchJob):
        store.cancel((*jobs, 99), 2.0, "ann")
    assert {job.state for job in store.list()} == {"queued"}
    assert [outcome.done for outcome in store.cancel(tuple(jobs), 2.0, "ann")] == [True] * 3


# -- moving ----------------------------------------------------------------------------------------------


def test_move_is_the_one_way_and_holds_to_the_table(store: Store) -> None:
    job = one(store)
    with pytest.raises(IllegalTransition), store.write() as db:
        move(db, job, State.RUNNING, now=1.0, actor="x", kind="y")
    with pytest.raises(StaleClaim), store.write() as db:
        move(db, job, State.CANCELLED, now=1.0, actor="x", kind="y", version=99)
    with pytest.raises(NoSuchJob), store.write() as db:
        move(db, 99, State.CANCELLED, now=1.0, actor="x", kind="y")
    assert kinds(store, job) == ["submitted"]


def test_every_change_of_state_raises_the_version(store: Store) -> None:
    job = one(store)
    seen = [store.job(job).version]

    def note() -> None:
        seen.append(store.job(job).version)

    live = start(store, job, 110.0, running=False)
    note()
    tell(store, live, "started", 111.0)
    note()
    store.preempt((job,), 112.0, "ann")
    note()
    finish(store, job, EndFacts(exit_code=75, stop=Stop.PREEMPT), 120.0)
    note()
    store.hold((job,), 130.0, "ann")
    note()
    store.release((job,), 131.0, "ann")
    note()
    store.cancel((job,), 132.0, "ann")
    note()
    assert seen == sorted(set(seen))


# -- reservations ----------------------------------------------------------------------------------------


def room(job: int, *gpus: str) -> Room:
    """Room on node1 until 1000."""
    return Room(job, "node1", gpus, 1, 0, 1000.0)


def test_victims_and_their_room_are_one_transaction(store: Store) -> None:
    victim, heir = one(store), one(store)
    start(store, victim, 110.0, "GPU-a")
    store.request_stops(
        [(store.job(victim), Stop.PREEMPT, "preempted for job 2")], [room(heir, "GPU-a")], 120.0
    )
    live = live_of(store, victim)
    assert (live.job.state, live.job.wish, live.attempt.stop_kind, live.attempt.stop_at) == (
        "stopping",
        "",
        "preempt",
        120.0,
    )
    assert store.reservations() == [Reservation(heir, "node1", '["GPU-a"]', 1, 0, 120.0, 1000.0)]
    assert store.show(victim).events[-1].text == "preempted for job 2"
    finish(store, victim, EndFacts(exit_code=75, stop=Stop.PREEMPT), 130.0)
    start(store, heir, 131.0, "GPU-a")
    assert store.reservations() == [], "its claim has used it up"


@pytest.mark.parametrize("verb", ["cancel", "hold", "stop"])
def test_an_heir_that_waits_no_more_releases_its_room(store: Store, verb: str) -> None:
    heir = one(store)
    store.request_stops([], [room(heir)], 120.0)
    assert len(store.reservations()) == 1
    getattr(store, verb)((heir,), 121.0, "ann")
    assert store.reservations() == []


def test_an_heir_that_failed_releases_its_room(store: Store) -> None:
    heir = one(store)
    store.request_stops([], [room(heir)], 120.0)
    assert store.fail(heir, store.job(heir).version, 121.0, "never", "x")
    assert store.reservations() == []


def test_nobody_is_preempted_for_an_heir_that_has_just_been_cancelled(store: Store) -> None:
    victim, heir = one(store), one(store)
    start(store, victim, 110.0)
    seen = store.job(victim)
    store.cancel((heir,), 119.0, "ann")
    store.request_stops([(seen, Stop.PREEMPT, "")], [room(heir)], 120.0)
    assert store.reservations() == []
    assert store.job(victim).state == "running"
    store.request_stops([(seen, Stop.WINDOW, "")], [room(heir)], 120.0)
    assert store.job(victim).state == "stopping", "its window closes all the same"


def test_a_victim_that_changed_is_passed_over(store: Store) -> None:
    victim = one(store)
    seen = start(store, victim, 110.0, running=False).job
    tell(store, live_of(store, victim), "started", 111.0)
    store.request_stops([(seen, Stop.PREEMPT, "")], [], 120.0)
    assert store.job(victim).state == "running"


def test_rooms_are_replaced_and_dropped(store: Store) -> None:
    heir = one(store)
    store.request_stops([], [room(heir, "GPU-a")], 120.0)
    store.request_stops([], [room(heir, "GPU-b")], 130.0)
    assert [row.gpu_uuids for row in store.reservations()] == ['["GPU-b"]']
    store.drop_reservations([heir, 99])
    assert store.reservations() == []


# -- the cluster -----------------------------------------------------------------------------------------


def test_projects(store: Store) -> None:
    assert store.project("default") == Project("default", None, None, 1.0, "")
    store.set_project(Project("lab", 8.0, 16.0, 2.0, ""))
    store.set_project(Project("vision", 4.0, None, 1.0, "lab"))
    store.set_project(Project("vision", 5.0, None, 1.0, "lab"))
    assert store.projects()["vision"].quota == 5.0
    with pytest.raises(NoSuchProject, match="known are default, lab, vision"):
        store.project("nlp")
    with pytest.raises(NoSuchProject, match="no project 'gone'"):
        store.set_project(Project("x", None, None, 1.0, "gone"))
    for parent in ("vision", "lab"):
        with pytest.raises(BadRequest, match="circle"):
            store.set_project(Project("lab", None, None, 1.0, parent))
    assert list(store.projects()) == ["default", "lab", "vision"]


def test_nodes_and_gpus(store: Store) -> None:
    node = Node("n", "h", "b", 8, 1000, "up", "", 100.0)
    gpus = [GpuRow(f"GPU-{i}", "n", i, "NVIDIA A100", "a100", 81920, "up", "") for i in range(3)]
    store.note_node(node, gpus)
    assert (store.nodes(), store.gpus()) == ([node], gpus)
    store.set_gpu_state("GPU-1", "drained", "a process cannot be killed")
    store.note_node(
        node,
        [
            GpuRow("GPU-0", "n", 1, "x", "a100", 1, "up", ""),
            GpuRow("GPU-1", "n", 0, "x", "a100", 1, "up", ""),
        ],
    )
    assert [(gpu.uuid, gpu.state) for gpu in store.gpus()] == [
        ("GPU-1", "drained"),
        ("GPU-0", "up"),
        ("GPU-2", "lost"),
    ]
    store.note_node(node, None)
    assert [gpu.state for gpu in store.gpus()] == ["drained", "up", "lost"], (
        "they could not be read: as they were"
    )
    store.note_node(node, gpus)
    assert [gpu.state for gpu in store.gpus()] == ["up", "drained", "up"]
    store.set_gpu_state("GPU-1", "up", "")
    assert {gpu.state for gpu in store.gpus()} == {"up"}


def test_ticks_are_noted_now_and_then(store: Store) -> None:
    assert store.last_tick() is None
    seen = []
    for now in (100.0, 114.9, 115.0, 129.0, 90.0):
        store.note_tick(now)
        seen.append(store.last_tick())
    assert seen == [100.0, 100.0, 115.0, 115.0, 90.0], "also when the clock was set back"


# -- copies and trouble ----------------------------------------------------------------------------------


def test_a_backup_is_whole_and_private(store: Store, tmp_path: Path) -> None:
    job = one(store)
    target = str(tmp_path / "a b'ü.db")
    store.backup(target)
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o600
    copy = sqlite3.connect(target)
    assert copy.execute("SELECT id FROM jobs").fetchall() == [(job,)]
    assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    copy.close()
    for bad, why in ((target, "it exists already"), (str(tmp_path / "no" / "x.db"), "it cannot be made")):
        with pytest.raises(StoreUnavailable, match=why):
            store.backup(bad)


def test_submission_is_refused_below_the_reserve(folders: Folders) -> None:
    from gpuspool.spool.errors import DiskFull
    from gpuspool.spool.folders import free_mib

    refuse_without_space(folders, 0)
    with pytest.raises(DiskFull, match="are kept in reserve"):
        refuse_without_space(folders, free_mib(folders.run)[1] + 1)


def test_a_writer_waits_for_another_one(store: Store, folders: Folders) -> None:
    """BEGIN IMMEDIATE and a busy timeout: none of them fails, none is lost."""
    script = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("1", flush=True)
time.sleep(0.5)
db.execute("COMMIT")
"""
    other = python(script, folders.database)
    assert other.stdout is not None
    assert other.stdout.readline() == "1\n"
    assert one(store) == 1
    assert other.wait(30) == 0
    other.stdout.close()


FULL = """
import json, resource, signal, sys
from gpuspool.spool.errors import DiskFull, StoreUnavailable
from gpuspool.spool.folders import Folders
from gpuspool.spool.model import JobSpec, Submission
from gpuspool.spool.store import open_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(Folders(*sys.argv[1:4]))
job = Submission(JobSpec(["x" * 20000], "/"), "n", "u", 0)
done = list(store.submit([job], 1.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    while True:
        done += store.submit([job], 1.0)
except StoreUnavailable as error:
    said = type(error).__name__
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
done += store.submit([job], 1.0)
print(json.dumps([said, done]))
"""


def test_no_room_is_an_error_that_passes_with_its_cause(store: Store, folders: Folders) -> None:
    """The session that met it goes on once there is room; nothing that was told to be submitted is missing."""
    [[said, done]] = answers(python(FULL, *folder_words(folders)))
    assert said in ("DiskFull", "StoreUnavailable")
    assert len(done) > 2
    assert [job.id for job in store.list()] == done
