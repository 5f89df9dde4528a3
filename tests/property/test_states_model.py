"""Any verbs in any order against a real store: after each step `db check` finds nothing, and no job leaves the table."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from spools import claim_of, ending_of, make_folders, quick_folder, submission, tell

from gpuspool.spool import states
from gpuspool.spool.check import check_database
from gpuspool.spool.endrules import EndFacts
from gpuspool.spool.lifecycle import Ending, LiveAttempt, Room
from gpuspool.spool.model import FINAL, Job, JobSpec, State, Stop
from gpuspool.spool.store import open_store

GPUS = ("GPU-a", "GPU-b", "GPU-c")
#: Ends by how they can come about: the attempt ran, nobody saw its end, it never ran.
RAN = st.builds(
    EndFacts,
    exit_code=st.sampled_from([None, 0, 1, 75, 127]),
    signal=st.sampled_from([None, 9]),
    stop=st.sampled_from(["", *Stop]).map(str),
    done_marker=st.booleans(),
    progress=st.booleans(),
    ran_s=st.sampled_from([1.0, 100.0]),
)
UNSEEN = st.builds(
    EndFacts, supervisor_lost=st.just(True), stop=st.sampled_from(["", "node_lost", "cancel", "stop"])
)
NEVER_RAN = st.sampled_from([EndFacts(revoked=True), EndFacts(launch_failed=True), EndFacts(refused=True)])
FEW = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
PICK = st.integers(0, 1000)


def reachable(source: str) -> set[State]:
    """Where one step of ours may take a job: one transition, two where a job starts and ends at once or is asked to stop."""
    first = set(states.ALLOWED[State(source)])
    return first | {after for state in first - set(FINAL) for after in states.ALLOWED[state]}


class Spool(RuleBasedStateMachine):
    """A store, another connection to the same one, and what a slow scheduler remembers of an earlier look."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.folders = make_folders(self.stack.enter_context(quick_folder()))
        self.store, self.other = open_store(self.folders), open_store(self.folders, role="daemon")
        self.now = 1000.0
        self.before: dict[int, Job] = {}
        self.by_user: set[int] = set()
        self.old_jobs: list[Job] = []
        self.old_endings: list[Ending] = []
        self.old_lives: list[LiveAttempt] = []

    def teardown(self) -> None:
        self.store.close()
        self.other.close()
        self.stack.close()

    def tick(self) -> float:
        """Time goes on."""
        self.now += 1.0
        return self.now

    def jobs(self, picks: list[int]) -> tuple[int, ...]:
        """Some of the jobs that there are, each once."""
        ids = [job.id for job in self.store.list(finished=True)]
        return tuple(dict.fromkeys(ids[pick % len(ids)] for pick in picks)) if ids else ()

    def pick(self, things: list[Any], number: int) -> Any:
        """One of some things, None when there are none."""
        return things[number % len(things)] if things else None

    # -- users -------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.store.submit([submission(gpus=1) for _ in range(4)], self.tick())

    @rule(
        count=st.integers(1, 2),
        gpus=st.integers(0, 2),
        hold=st.sampled_from(["", "user"]),
        limit=st.integers(0, 2),
        attempts=st.integers(1, 5),
    )
    def submit(self, count: int, gpus: int, hold: str, limit: int, attempts: int) -> None:
        spec = JobSpec(["{resume}"], "/", backoff_limit=limit, max_attempts=attempts)
        seen = set(self.before)
        new = self.store.submit(
            [submission(spec=spec, gpus=gpus, hold=hold) for _ in range(count)], self.tick()
        )
        assert new == sorted(new)
        assert not seen & set(new), "a number was used twice"
        assert min(new) > max(seen, default=0)

    @rule(
        picks=FEW,
        verb=st.sampled_from(["cancel", "stop", "preempt", "hold", "release", "resume", "requeue"]),
        here=st.booleans(),
    )
    def wish(self, picks: list[int], verb: str, here: bool) -> None:
        jobs = self.jobs(picks)
        if verb in ("resume", "requeue"):
            self.by_user.update(jobs)
        outcomes = getattr(self.store if here else self.other, verb)(jobs, self.tick(), "ann")
        assert [outcome.job for outcome in outcomes] == list(jobs)
        assert all(outcome.text for outcome in outcomes)
        if verb == "cancel":
            for outcome in outcomes:
                found = self.store.job(outcome.job)
                assert found.state in FINAL or found.wish == "cancel"

    @rule(picks=FEW)
    def cancel_now(self, picks: list[int]) -> None:
        self.store.cancel(self.jobs(picks), self.tick(), "ann", at_once=True)

    # -- the tick ----------------------------------------------------------------------------------------

    @rule(number=PICK, gpus=st.lists(st.sampled_from(GPUS), max_size=2, unique=True))
    def claim(self, number: int, gpus: list[str]) -> None:
        job = self.pick(self.store.list(states=("queued",)), number)
        if job is None:
            return
        taken = any(gpu in live.attempt.gpu_uuids for live in self.store.live() for gpu in gpus)
        won = self.store.claim([claim_of(job, *gpus)], self.tick(), "l", lambda j, n: f"/{j}/{n}")
        assert bool(won) is (not job.hold and not taken)
        if won:
            assert won[0].attempt.number == job.attempt + 1
            self.old_lives.append(won[0])

    @precondition(lambda self: self.old_jobs)
    @rule(number=PICK)
    def claim_what_was_seen_long_ago(self, number: int) -> None:
        job = self.pick(self.old_jobs, number)
        fresh = self.store.job(job.id)
        won = self.other.claim([claim_of(job)], self.tick(), "l", lambda j, n: "")
        assert bool(won) is (fresh.state == "queued" and fresh.version == job.version and not fresh.hold)

    @rule(
        number=PICK,
        kind=st.sampled_from(["started", "started", "checkpoint", "signalled", "stopping", "heartbeat"]),
        step=st.integers(0, 50),
    )
    def supervisor_writes(self, number: int, kind: str, step: int) -> None:
        live = self.pick(self.store.live(), number)
        if live is not None:
            # A supervisor says that it started before it says anything else.
            kind = "started" if live.job.state == "initializing" else kind
            tell(self.store, live, kind, self.tick(), path=f"/c/{step}", step=step, stop="walltime")

    @precondition(lambda self: self.old_lives)
    @rule(number=PICK, kind=st.sampled_from(["started", "checkpoint", "stopping"]))
    def a_late_line_of_any_attempt(self, number: int, kind: str) -> None:
        live = self.pick(self.old_lives, number)
        job = self.store.job(live.job.id)
        if kind == "started" or (job.state != "initializing" or job.attempt != live.attempt.number):
            tell(self.other, live, kind, self.tick(), path="/late", step=1, stop="window")

    @rule(number=PICK, ran=RAN, unseen=UNSEEN, never=NEVER_RAN, how=st.integers(0, 5), once=st.booleans())
    def end(
        self, number: int, ran: EndFacts, unseen: EndFacts, never: EndFacts, how: int, once: bool
    ) -> None:
        live = self.pick(self.store.live(), number)
        if live is None:
            return
        started = live.job.state != "initializing"
        facts = unseen if how == 0 else ran if started or how == 1 else never
        now = self.tick()
        ending = ending_of(
            self.store, live, facts, now, gpu_seconds=1.0, checkpoint="/c", checkpoint_step=how
        )
        self.old_endings.append(ending)
        if not once:
            return  # decided, and then the scheduler was slow
        self.store.settle([ending], now)
        after = self.store.job(live.job.id)
        assert (after.state, after.failures, after.counted) == (
            ending.next.state,
            ending.next.failures,
            ending.next.counted,
        )
        assert after.hold == ending.next.hold

    @precondition(lambda self: self.old_endings)
    @rule(number=PICK)
    def settle_what_was_decided_long_ago(self, number: int) -> None:
        ending = self.pick(self.old_endings, number)
        before = self.store.job(ending.job.id)
        valid = before.state not in (State.QUEUED, *FINAL) and (before.attempt, before.wish) == (
            ending.attempt.number,
            ending.job.wish,
        )
        self.other.settle([ending], self.tick())
        after = self.store.job(ending.job.id)
        assert (after == before) is not valid

    @rule(heir=PICK, victim=PICK, until=st.integers(1, 100))
    def preempt_for(self, heir: int, victim: int, until: int) -> None:
        job = self.pick(self.store.list(states=("queued",)) + self.old_jobs, heir)
        live = self.pick(self.store.live(), victim)
        rooms = [Room(job.id, "n", ("GPU-a",), 1, 0, self.now + until)] if job else []
        self.store.request_stops([(live.job, Stop.PREEMPT, "x")] if live else [], rooms, self.tick())

    @rule(picks=FEW)
    def drop(self, picks: list[int]) -> None:
        self.store.drop_reservations(self.jobs(picks))

    @rule(picks=FEW)
    def explain(self, picks: list[int]) -> None:
        self.store.note_reasons(dict.fromkeys(self.jobs(picks), ("Resources", "needs 1 GPU more")))

    @rule(number=PICK)
    def lose(self, number: int) -> None:
        live = self.pick(self.store.live(), number)
        if live is not None:
            self.store.note_lost(live.job.id, live.attempt.number, self.tick(), "gone")
            self.store.note_stops_written([(live.job.id, live.attempt.number, live.attempt.stop_kind)])

    @rule(number=PICK)
    def never_runnable(self, number: int) -> None:
        job = self.pick(self.store.list(states=("queued",)) + self.old_jobs, number)
        if job is not None:
            self.store.fail(job.id, job.version, self.tick(), "never", "x")

    @rule()
    def look(self) -> None:
        """What a slow scheduler goes on with later."""
        self.old_jobs = self.store.list()

    # -- what holds after each of them -------------------------------------------------------------------

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert check_database(self.folders).faults == []

    @invariant()
    def jobs_move_as_they_may(self) -> None:
        found = {job.id: job for job in self.store.list(finished=True)}
        assert found.keys() >= self.before.keys(), "a job was lost"
        for job in found.values():
            old = self.before.get(job.id)
            if old is None:
                continue
            if job.state != old.state:
                if old.state in FINAL:
                    assert job.id in self.by_user, "only the user brings a final job back"
                assert job.state in reachable(old.state), f"{old.state} → {job.state}"
                assert job.version > old.version
            assert job.attempt >= old.attempt
            assert job.attempt - old.attempt <= 1
            assert job.version >= old.version
            assert job.gpu_seconds >= old.gpu_seconds
            assert (job.progress_step or 0) >= (old.progress_step or 0)
        self.before = found
        self.by_user.clear()


Spool.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSpool = Spool.TestCase
