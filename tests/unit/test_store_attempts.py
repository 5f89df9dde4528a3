"""Attempts in the store, on real SQLite: claimed by one, recorded and settled once, stopped by the strongest wish."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spools import (
    answers,
    claim_of,
    ending_of,
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
    StoreUnavailable,
)
from gpuspool.spool.eventlog import Line
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import StreamUpdate
from gpuspool.spool.model import Stop
from gpuspool.spool.store import Store, open_store


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


# -- a run -----------------------------------------------------------------------------------------------


def test_a_run_from_claim_to_success(store: Store) -> None:
    job = one(store, gpus=2, cpus=4, walltime_s=600)
    live = start(store, job, 110.0, "GPU-a", "GPU-b", running=False)
    assert (live.job.state, live.job.attempt, live.job.counted, live.job.failures) == (
        "initializing",
        1,
        1,
        1,
    )
    attempt = live.attempt
    assert (attempt.number, attempt.node, json.loads(attempt.gpu_uuids), attempt.gpus) == (
        1,
        "node1",
        ["GPU-a", "GPU-b"],
        2,
    )
    assert (attempt.folder, attempt.walltime_s, attempt.created_at, attempt.ended_at) == (
        f"/jobs/{job}/1",
        600,
        110.0,
        None,
    )
    store.note_handles([(job, 1, "first"), (job, 1, "second")])
    assert live_of(store, job).attempt.handle == "first"

    tell(store, live, "started", 111.0, supervisor="named by itself", resume_from="/c/0")
    live = live_of(store, job)
    assert (live.job.state, live.job.started_at, live.job.state_since) == ("running", 111.0, 111.0)
    assert (live.attempt.started_at, live.attempt.handle, live.attempt.resume_from) == (
        111.0,
        "named by itself",
        "/c/0",
    )
    tell(store, live, "checkpoint", 120.0, path="/c/5", step=5)
    found = store.job(job)
    assert (found.checkpoint, found.checkpoint_step, found.checkpoint_at) == ("/c/5", 5, 120.0)
    assert live_of(store, job).streams == {(0, 0): (200, 3)}

    after = finish(
        store,
        job,
        EndFacts(exit_code=0),
        130.0,
        checkpoint="/c/9",
        checkpoint_step=9,
        gpu_seconds=40.0,
        cpu_seconds=3.0,
    )
    assert (after.state, after.failures, after.exit_code, after.ended_at) == ("succeeded", 0, 0, 130.0)
    assert (after.progress_step, after.checkpoint, after.gpu_seconds) == (9, "/c/9", 40.0)
    assert store.live() == []
    assert kinds(store, job) == ["submitted", "claimed", "started", "checkpoint", "ended"]
    assert store.usage() == [("1970-01-01", "ann", "default", "ondemand", 1, 40.0, 3.0)]
    assert store.attempts_of((job,)) == {job: ("node1", '["GPU-a", "GPU-b"]')}


def test_attempts_go_on_and_add_up(store: Store) -> None:
    job = one(store)
    for number, step in ((1, 10), (2, 5), (3, None)):
        live = start(store, job, 100.0 * number)
        assert live.attempt.number == number
        found = finish(
            store,
            job,
            EndFacts(signal=15, stop=Stop.PREEMPT),
            100.0 * number + 50,
            checkpoint="/c",
            checkpoint_step=step,
            gpu_seconds=1.5,
        )
        assert (found.state, found.failures, found.counted) == ("queued", 0, number)
    assert found.progress_step == 10, "the highest there ever was"
    assert found.gpu_seconds == 4.5
    assert [attempt.end_reason for attempt in store.show(job).attempts] == ["preempted"] * 3


def test_a_job_that_nothing_was_read_of_while_it_ran(store: Store) -> None:
    """Running and final in one transaction."""
    job = one(store)
    start(store, job, 110.0, running=False)
    found = finish(store, job, EndFacts(exit_code=0), 110.5)
    assert (found.state, found.started_at, found.ended_at) == ("succeeded", 110.0, 110.5)


def test_a_time_of_end_that_makes_no_sense(store: Store) -> None:
    for ended_at, stored in ((math.nan, 130.0), (math.inf, 130.0), (50.0, 110.0)):
        job = one(store)
        start(store, job, 110.0)
        [live] = store.live()
        store.settle([ending_of(store, live, EndFacts(exit_code=0), 130.0, ended_at=ended_at)], 130.0)
        assert store.job(job).ended_at == stored
        assert store.show(job).attempts[0].ended_at == stored


def test_what_a_supervisor_writes_is_stored_as_far_as_it_can_be(store: Store) -> None:
    """A damaged or hostile event file is no reason for the tick to fail for ever."""
    job = one(store)
    live = start(store, job, 110.0, running=False)
    tell(store, live, "started", 111.0, supervisor=["no", "text"], resume_from={"a": 1}, text=None)
    tell(store, live, "checkpoint", 112.0, path=os.fsdecode(b"/c/\xff"), step=2**70)
    tell(store, live, "checkpoint", 113.0, path=None, step="9")
    tell(store, live, os.fsdecode(b"\xff"), 114.0, text=os.fsdecode(b"\xfe"), deep=[[[{}]]])
    tell(store, live, "stopping", 115.0, stop="earthquake")
    found = live_of(store, job)
    assert (found.job.state, found.attempt.stop_kind) == ("stopping", "preempt")
    assert (found.attempt.checkpoint, found.attempt.checkpoint_step) == ("", None)
    facts = EndFacts(exit_code=2**70, signal=2**70, cause=os.fsdecode(b"\xff"), stop=Stop.PREEMPT)
    store.settle(
        [
            ending_of(
                store,
                found,
                facts,
                120.0,
                cause_text=os.fsdecode(b"\xff"),
                checkpoint=os.fsdecode(b"/\xff"),
                checkpoint_step=2**70,
                checkpoint_identity="\udcff",
            )
        ],
        120.0,
    )
    after = store.job(job)
    assert (after.state, after.exit_code, after.signal, after.checkpoint) == ("queued", None, None, "/\\xff")


# -- claims ----------------------------------------------------------------------------------------------


def test_a_claim_is_compare_and_set(store: Store) -> None:
    job = one(store)
    seen = store.job(job)
    store.hold((job,), 101.0, "ann")
    store.release((job,), 102.0, "ann")
    assert store.claim([claim_of(seen)], 110.0, "", lambda j, n: "") == [], "it has changed since"
    fresh = store.job(job)
    [live] = store.claim([claim_of(fresh), claim_of(fresh)], 110.0, "", lambda j, n: "")
    assert live.attempt.number == 1
    assert store.claim([claim_of(fresh)], 110.0, "", lambda j, n: "") == []
    assert store.claim([claim_of(store.job(job))], 110.0, "", lambda j, n: "") == [], (
        "it is not queued any more"
    )


def test_a_claim_of_many_takes_those_that_are_as_they_were_seen(store: Store) -> None:
    jobs = store.submit([submission() for _ in range(4)], 1.0)
    seen = [store.job(job) for job in jobs]
    store.cancel((2,), 2.0, "ann")
    store.hold((3,), 2.0, "ann")
    won = store.claim([claim_of(job) for job in seen], 3.0, "me", lambda j, n: f"/{j}/{n}")
    assert [live.job.id for live in won] == [1, 4]
    assert [live.attempt.launcher for live in won] == ["me", "me"]


def test_a_gpu_is_given_to_one(store: Store) -> None:
    """Whoever planned it: two schedulers on two hosts, or one with an old snapshot."""
    first, second, third = (
        store.job(job) for job in store.submit([submission(gpus=1) for _ in range(3)], 1.0)
    )
    won = store.claim(
        [claim_of(first, "GPU-a"), claim_of(second, "GPU-a"), claim_of(third, "GPU-b")],
        2.0,
        "",
        lambda j, n: "",
    )
    assert [live.job.id for live in won] == [1, 3]
    assert store.claim([claim_of(second, "GPU-b", "GPU-c")], 3.0, "", lambda j, n: "") == []
    finish(store, 3, EndFacts(revoked=True), 4.0)
    assert [
        live.job.id for live in store.claim([claim_of(second, "GPU-b", "GPU-c")], 5.0, "", lambda j, n: "")
    ] == [2]


def test_two_attempts_never_share_a_token(store: Store) -> None:
    one(store)
    one(store)
    claims = [claim_of(store.job(job), token="same") for job in (1, 2)]
    with pytest.raises(StoreUnavailable, match="UNIQUE"):
        store.claim(claims, 2.0, "", lambda j, n: "")
    assert {job.state for job in store.list()} == {"queued"}, "none of them"


CLAIMER = """
import json, sys, time
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import Claim
from gpuspool.spool.store import open_store
store = open_store(Folders(*sys.argv[1:4]))
me, begin = sys.argv[4], float(sys.argv[5])
seen = store.list()
while time.time() < begin:
    pass
won = []
for job in seen:
    claim = Claim(job.id, job.version, f"{me}-{job.id}", "local", "n", (), 1, 0, 0, 60, None)
    won += [live.job.id for live in store.claim([claim], 2.0, me, lambda j, n: me)]
print(json.dumps(won))
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_of_many_processes_one_claims_each_job(store: Store, folders: Folders, journal: str) -> None:
    """With a write-ahead log and with the rollback journal that network file systems get."""
    store.rows(f"PRAGMA journal_mode = {journal}")
    store.submit([submission() for _ in range(60)], 1.0)
    begin = time.time() + 2.0
    won = answers(*(python(CLAIMER, *folder_words(folders), f"p{n}", begin) for n in range(4)))
    assert sorted(job for jobs in won for job in jobs) == list(range(1, 61))
    for live in store.live():
        assert live.attempt.number == 1
        assert live.job.id in won[int(live.attempt.launcher[1:])]


# -- record ----------------------------------------------------------------------------------------------


def lines(*numbers: int, kind: str = "note", **data: Any) -> list[Line]:
    """Events with these numbers."""
    return [Line(number, 110.0 + number, kind, data) for number in numbers]


def test_reading_a_line_twice_changes_nothing(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0, running=False)
    story = [
        Line(1, 111.0, "started", {"supervisor": "s"}),
        Line(2, 112.0, "checkpoint", {"path": "/c/1", "step": 1}),
        Line(3, 113.0, "heartbeat", {}),
        Line(4, 114.0, "checkpoint", {"path": "/c/2", "step": 2}),
        Line(5, 115.0, "signalled", {}),
    ]
    store.record([StreamUpdate(job, 1, 0, 0, story, 500, 6)])
    before = store.show(job), live_of(store, job)
    for again in (story, story[:2], story[1:4], story[4:]):
        last = again[-1].number
        store.record([StreamUpdate(job, 1, 0, 0, again, last * 100, last + 1)])
        store.record([StreamUpdate(job, 1, 0, 0, again, last * 100, last + 1)] * 2)
        assert (store.show(job), live_of(store, job)) == before
    assert before[0].job.checkpoint_step == 2
    assert [event.number for event in before[0].events if event.number] == [1, 2, 4, 5], (
        "heartbeats leave no event"
    )
    # One that overlaps: only what is new counts.
    store.record([StreamUpdate(job, 1, 0, 0, [*story[3:], *lines(6, 7)], 700, 8)])
    assert live_of(store, job).streams == {(0, 0): (700, 8)}
    assert [event.number for event in store.show(job).events if event.number] == [1, 2, 4, 5, 6, 7]


def test_a_gap_is_not_recorded(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0, running=False)
    store.record([StreamUpdate(job, 1, 0, 0, lines(2), 200, 3)])
    assert live_of(store, job).streams == {}
    store.record([StreamUpdate(job, 1, 0, 0, lines(1, 2), 200, 3)])
    store.record([StreamUpdate(job, 1, 0, 0, lines(4), 400, 5)])
    assert live_of(store, job).streams == {(0, 0): (200, 3)}


def test_ranks_and_incarnations_are_streams_of_their_own(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0, running=False)
    keys = [(0, 0), (0, 1), (1, 0)]
    store.record([StreamUpdate(job, 1, inc, rank, lines(1), 100 + rank, 2) for inc, rank in keys])
    assert live_of(store, job).streams == {(0, 0): (100, 2), (0, 1): (101, 2), (1, 0): (100, 2)}
    assert len([event for event in store.show(job).events if event.number == 1]) == 3


def test_a_late_event_of_an_older_attempt_moves_nothing(store: Store) -> None:
    job = one(store)
    first = start(store, job, 110.0, running=False)
    finish(store, job, EndFacts(revoked=True), 120.0)
    tell(store, first, "started", 121.0)
    assert store.job(job).state == "queued"
    start(store, job, 130.0, running=False)
    tell(store, first, "checkpoint", 131.0, path="/old", step=1)
    tell(store, first, "stopping", 132.0, stop="walltime")
    found = store.job(job)
    assert (found.state, found.checkpoint, found.attempt) == ("initializing", "", 2)


RECORDER = """
import json, sys, time
from gpuspool.spool.eventlog import Line
from gpuspool.spool.folders import Folders
from gpuspool.spool.lifecycle import StreamUpdate
from gpuspool.spool.store import open_store
store = open_store(Folders(*sys.argv[1:4]))
begin = float(sys.argv[4])
while time.time() < begin:
    pass
for n in range(1, 40):
    store.record([StreamUpdate(1, 1, 0, 0, [Line(n, float(n), "checkpoint", {"path": f"/{n}", "step": n})], n, n + 1)])
print("null")
"""


def test_two_processes_that_record_the_same_file(store: Store, folders: Folders) -> None:
    job = one(store)
    start(store, job, 0.0, running=False)
    begin = time.time() + 1.5
    answers(*(python(RECORDER, *folder_words(folders), begin) for _ in range(3)))
    assert [event.number for event in store.show(job).events if event.number] == list(range(1, 40))
    assert store.job(job).checkpoint_step == 39


# -- stops -----------------------------------------------------------------------------------------------


def test_cancel_of_a_running_job(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0)
    [outcome] = store.cancel((job,), 120.0, "ann")
    assert (outcome.done, outcome.text) == (True, "is being cancelled")
    live = live_of(store, job)
    assert (live.job.state, live.job.wish) == ("stopping", "cancel")
    assert (
        live.attempt.stop_kind,
        live.attempt.stop_at,
        live.attempt.stop_grace_s,
        live.attempt.stop_written,
    ) == ("cancel", 120.0, None, 0)
    store.note_stops_written([(job, 1, "preempt")])
    assert live_of(store, job).attempt.stop_written == 0, "another request is written there"
    store.note_stops_written([(job, 1, "cancel")])
    assert live_of(store, job).attempt.stop_written == 1
    assert not store.cancel((job,), 121.0, "ann")[0].done
    tell(store, live, "signalled", 122.0)
    assert live_of(store, job).attempt.stop_delivered == 1
    assert finish(store, job, EndFacts(exit_code=75, stop=Stop.CANCEL), 130.0).state == "cancelled"


def test_now_shortens_a_cancel_that_is_under_way(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0)
    store.cancel((job,), 120.0, "ann")
    store.note_stops_written([(job, 1, "cancel")])
    assert store.cancel((job,), 121.0, "ann", at_once=True)[0].done
    attempt = live_of(store, job).attempt
    assert (attempt.stop_grace_s, attempt.stop_at, attempt.stop_written) == (0, 120.0, 0), (
        "to be written once more"
    )
    assert not store.cancel((job,), 122.0, "ann", at_once=True)[0].done


@pytest.mark.parametrize(
    ("first", "second", "kept", "wish"),
    [
        ("preempt", "cancel", "cancel", "cancel"),
        ("preempt", "stop", "stop", "stop"),
        ("stop", "cancel", "cancel", "cancel"),
        ("cancel", "stop", "cancel", "cancel"),
        ("cancel", "preempt", "cancel", "cancel"),
        ("stop", "preempt", "stop", "stop"),
        ("stop", "requeue", "stop", "stop"),
        ("requeue", "preempt", "preempt", ""),
    ],
)
def test_of_several_stops_the_strongest_counts(
    store: Store, first: str, second: str, kept: str, wish: str
) -> None:
    job = one(store)
    start(store, job, 110.0)
    assert getattr(store, first)((job,), 120.0, "ann")[0].done
    getattr(store, second)((job,), 121.0, "ann")
    live = live_of(store, job)
    assert (live.attempt.stop_kind, live.job.wish, live.job.state) == (kept, wish, "stopping")


def test_a_job_that_is_asked_to_stop_before_it_started(store: Store) -> None:
    """It keeps its state (the tick revokes it); if it starts all the same, it is stopping at once."""
    job = one(store)
    live = start(store, job, 110.0, running=False)
    assert store.stop((job,), 115.0, "ann")[0].done
    assert store.job(job).state == "initializing"
    tell(store, live, "started", 116.0)
    found = live_of(store, job)
    assert (found.job.state, found.job.started_at, found.attempt.stop_kind) == ("stopping", 116.0, "stop")


def test_a_wish_on_a_job_that_is_revoked(store: Store) -> None:
    for verb, state, hold in (
        ("cancel", "cancelled", ""),
        ("stop", "queued", "stop"),
        ("preempt", "queued", ""),
    ):
        job = one(store)
        start(store, job, 110.0, running=False)
        getattr(store, verb)((job,), 115.0, "ann")
        found = finish(store, job, EndFacts(revoked=True), 120.0)
        assert (found.state, found.hold, found.wish, found.failures, found.counted) == (state, hold, "", 0, 0)


def test_a_supervisors_own_deadline_is_a_stop(store: Store) -> None:
    job = one(store)
    live = start(store, job, 110.0)
    tell(store, live, "stopping", 120.0, stop="walltime")
    found = live_of(store, job)
    assert (found.job.state, found.attempt.stop_kind, found.attempt.stop_at, found.attempt.stop_written) == (
        "stopping",
        "walltime",
        120.0,
        1,
    )
    assert store.cancel((job,), 121.0, "ann")[0].done, "stronger"
    assert live_of(store, job).attempt.stop_written == 0


def test_settle_passes_over_a_job_of_which_the_user_asked_something_meanwhile(store: Store) -> None:
    """It was decided without knowing; the next pass decides anew."""
    for verb, state in (("cancel", "cancelled"), ("stop", "queued")):
        job = one(store)
        live = start(store, job, 110.0)
        decided = ending_of(store, live, EndFacts(exit_code=1), 120.0)
        getattr(store, verb)((job,), 119.0, "ann")
        store.settle([decided], 120.0)
        assert store.job(job).state == "stopping"
        found = finish(store, job, EndFacts(exit_code=1), 121.0)
        assert (found.state, found.hold) == (state, "stop" if verb == "stop" else "")


def test_an_end_is_settled_once(store: Store) -> None:
    job = one(store)
    live = start(store, job, 110.0)
    ending = ending_of(store, live, EndFacts(exit_code=1), 120.0, gpu_seconds=5.0)
    store.settle([ending, ending], 120.0)
    store.settle([ending], 121.0)
    found = store.job(job)
    assert (found.state, found.failures, found.gpu_seconds) == ("queued", 1, 5.0)
    assert kinds(store, job).count("ended") == 1
    assert store.usage()[0][4] == 1
    start(store, job, 140.0)
    store.settle([ending], 141.0)
    assert store.job(job).state == "running", "nor is it the end of the next attempt"


SETTLER = """
import json, sys, time
sys.path.insert(0, sys.argv[5])
from gpuspool.spool.endrules import EndFacts
from gpuspool.spool.folders import Folders
from gpuspool.spool.store import open_store
from spools import ending_of
store = open_store(Folders(*sys.argv[1:4]))
endings = [ending_of(store, live, EndFacts(exit_code=1), 50.0, gpu_seconds=1.0) for live in store.live()]
begin = float(sys.argv[4])
while time.time() < begin:
    pass
for ending in endings:
    store.settle([ending], 50.0)
print("null")
"""


def test_of_many_processes_one_settles_each_end(store: Store, folders: Folders) -> None:
    jobs = store.submit([submission() for _ in range(25)], 1.0)
    for job in jobs:
        start(store, job, 2.0)
    support = Path(__file__).parent.parent / "support"
    begin = time.time() + 2.5
    answers(*(python(SETTLER, *folder_words(folders), begin, support) for _ in range(3)))
    assert {(job.state, job.failures, job.gpu_seconds) for job in store.list()} == {("queued", 1, 1.0)}
    assert store.usage()[0][4] == 25


def test_requeue_and_resume_of_finished_jobs(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0)
    finish(store, job, EndFacts(exit_code=0), 120.0, checkpoint="/c", checkpoint_step=3)
    assert not store.resume((job,), 130.0, "ann")[0].done, "it has succeeded"
    assert store.requeue((job,), 130.0, "ann")[0].done
    found = store.job(job)
    assert (found.state, found.counted, found.failures, found.ended_at, found.exit_code) == (
        "queued",
        0,
        0,
        None,
        None,
    )
    assert (found.attempt, found.checkpoint, found.progress_step) == (1, "/c", 3), "its story stays"
    assert start(store, job, 140.0).attempt.number == 2
    store.cancel((job,), 150.0, "ann")
    finish(store, job, EndFacts(exit_code=0, stop=Stop.CANCEL), 160.0)
    assert store.resume((job,), 170.0, "ann")[0].done
    assert kinds(store, job)[-1] == "resumed"


def test_fail_of_a_job_that_can_never_run(store: Store) -> None:
    job = one(store)
    seen = store.job(job)
    store.hold((job,), 101.0, "ann")
    assert not store.fail(job, seen.version, 110.0, "never", "no such GPU")
    store.release((job,), 102.0, "ann")
    assert store.fail(job, store.job(job).version, 110.0, "never", "no such GPU")
    found = store.job(job)
    assert (found.state, found.end_reason, found.end_text, found.ended_at) == (
        "failed",
        "never",
        "no such GPU",
        110.0,
    )
    assert not store.fail(job, found.version, 110.0, "never", "twice")
    assert not store.fail(99, 1, 110.0, "never", "not there")


def test_a_lost_supervisor_is_noted_once(store: Store) -> None:
    job = one(store)
    start(store, job, 110.0)
    store.note_lost(job, 1, 120.0, "gone")
    store.note_lost(job, 1, 130.0, "gone")
    assert live_of(store, job).attempt.lost_at == 120.0
    assert kinds(store, job).count("supervisor_lost") == 1


def test_reasons_are_for_jobs_that_wait(store: Store) -> None:
    waits, runs = one(store), one(store)
    start(store, runs, 110.0)
    version = store.job(waits).version
    store.note_reasons({waits: ("Resources", "needs 2 GPUs, 1 free"), runs: ("Resources", "x")})
    assert (store.job(waits).reason, store.job(waits).reason_text) == ("Resources", "needs 2 GPUs, 1 free")
    assert store.job(runs).reason == ""
    assert store.job(waits).version == version, "a claim is not lost over a sentence"
