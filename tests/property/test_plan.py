"""What holds of every plan, whatever the cluster: found by trying to break it."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from clusters import NOW, carried_out, check, cluster, job, machine, project, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuspool.scheduler.plan import plan
from gpuspool.scheduler.state import Active, ClusterState, Machine, Never, Pending, Plan

TEN_PM = NOW + 10 * 3600  # inside the window of offpeak
CLASSES = ("reserved", "ondemand", "spot", "offpeak", "idle")
PROJECTS = ("p", "q", "r")
TRIES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

kinds = st.sampled_from(CLASSES)
owners = st.sampled_from(PROJECTS)
priorities = st.sampled_from([25, 50, 75])
effective = st.sampled_from([None, None, None, True, False])
types = st.sampled_from(["", "", "", "a100", "h100"])


def overridden(preemptible: bool | None) -> dict[str, Any]:
    return {} if preemptible is None else {"preemptible": preemptible}


@st.composite
def waiting(draw: st.DrawFn, number: int) -> Pending:
    gpus = draw(st.sampled_from([2, 0, 1, 1, 2, 3, 4]))
    more = {
        "priority": draw(priorities),
        "cpus": draw(st.sampled_from([0, 1, 3] if gpus else [1, 2, 5])),
        "memory_mib": draw(st.sampled_from([0, 0, 100, 600, 5000])),
        "gpu_type": draw(types) if gpus else "",
        "nodes": draw(st.sampled_from([1] * 19 + [2])),
        "hold": draw(st.sampled_from([""] * 9 + ["user"])),
        "begin_at": draw(st.sampled_from([0.0] * 9 + [TEN_PM + 60])),
        "waiting_since": TEN_PM - draw(st.sampled_from([10, 5000])),
        **overridden(draw(effective)),
    }
    return job(number, gpus, draw(kinds), draw(owners), **more)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterState:
    machines = []
    for index in range(draw(st.integers(1, 3))):
        row = draw(
            st.lists(st.sampled_from(["a100", "a100", "h100"]), min_size=0 if index else 2, max_size=4)
        )
        broken = draw(st.sets(st.integers(0, 3), max_size=1))
        cpus, usable = draw(st.sampled_from([8, 3, 12])), draw(st.sampled_from([True] * 7 + [False]))
        machines.append(
            machine(f"n{index}", types=row, cpus=cpus, memory_mib=1000, broken=broken, usable=usable)
        )
    free = {entry.name: [list(range(len(entry.gpus))), entry.cpus, 1000] for entry in machines}
    active = []
    for number in range(100, 100 + draw(st.integers(2, 9))):
        name = draw(st.sampled_from([entry.name for entry in machines]))
        count, cpus, memory = (
            draw(st.sampled_from([1, 0, 1, 2])),
            draw(st.sampled_from([1, 1, 3])),
            draw(st.sampled_from([0, 200])),
        )
        more = {
            "priority": draw(priorities),
            "saved": draw(st.sampled_from([None, 10, 400])),
            "protected_until": draw(st.sampled_from([0.0, 0.0, TEN_PM + 30])),
            "ends_at": draw(st.sampled_from([float("inf"), TEN_PM + 900])),
            **overridden(draw(effective)),
        }
        kind = draw(st.sampled_from(["spot", "idle", "offpeak", "spot", "ondemand", "reserved"]))
        owner, stops = draw(owners), draw(st.sampled_from([False, False, False, True]))
        gpus, left, memory_left = free[name]
        if count <= len(gpus) and cpus <= left and memory <= memory_left:
            free[name] = [gpus[count:], left - cpus, memory_left - memory]
            more |= {"cpus": cpus, "memory_mib": memory}
            if stops:
                more |= {"stopping": True, "state": "stopping", "ends_at": TEN_PM + 70}
            active.append(running(number, gpus[:count], kind, owner, on=name, **more))
    pending = [draw(waiting(number)) for number in range(1, 1 + draw(st.integers(2, 9)))]
    quotas = st.sampled_from([None, 0, 1, 2, 2.5, 4, 8])
    projects = [
        project(
            name, draw(quotas), draw(st.sampled_from([None, None, 2, 5])), draw(st.sampled_from([1.0, 3.0]))
        )
        for name in PROJECTS
    ]
    return cluster(machines, pending, active, projects)


def in_order(state: ClusterState) -> ClusterState:
    """The same with every quota set and nothing broken.

    Without quota `reserved` is unlimited and may take what others' quotas claim; what is firm on a broken GPU gives
    its project's claim back when it ends. Either may bar an on-demand job that room is being made for already.
    """
    projects = {
        name: dataclasses.replace(entry, quota=2 if entry.quota is None else entry.quota)
        for name, entry in state.projects.items()
    }
    return dataclasses.replace(state, projects=projects, machines=repaired(state))


def repaired(state: ClusterState) -> list[Machine]:
    """The machines, with nothing broken."""
    return [
        dataclasses.replace(
            entry, usable=True, gpus=tuple(dataclasses.replace(gpu, usable=True) for gpu in entry.gpus)
        )
        for entry in state.machines
    ]


def held(state: ClusterState, name: str, *, firm: bool = False) -> int:
    """GPUs that a project holds, or holds firmly."""
    return sum(
        len(entry.gpu_uuids)
        for entry in state.active
        if entry.project == name and not (firm and entry.preemptible)
    )


def look(state: ClusterState, now: float = TEN_PM) -> Plan:
    """One pass, with everything that holds of a single plan."""
    before = copy.deepcopy(state)
    decided = plan(state, now)
    assert state == before, "a plan changes nothing"
    assert plan(copy.deepcopy(state), now) == decided, "equal input gives an equal plan"
    check(state, decided)
    quotas(state, decided)
    preemptions(state, decided, now)
    rooms(state, decided)
    return decided


def quotas(state: ClusterState, decided: Plan) -> None:
    after = carried_out(state, decided, TEN_PM)
    grown = {start.job.project for start in decided.starts if start.job.gpus}
    unlimited = False
    for name in grown:
        entry = state.projects[name]
        if entry.limit_gpus is not None:
            assert held(after, name) <= entry.limit_gpus
        firmly = [
            start.job for start in decided.starts if start.job.project == name and not start.job.preemptible
        ]
        bound = [entry for entry in firmly if entry.gpus and state.classes[entry.job_class].quota_bound]
        unlimited |= bool(bound) and entry.quota is None
        if bound and entry.quota is not None and len(bound) == len([entry for entry in firmly if entry.gpus]):
            assert held(after, name, firm=True) <= entry.quota, "reserved never over quota"
    # On demand either within its own quota, or everybody's quota can still be had.
    claimed = sum(
        max(held(after, name, firm=True), entry.quota or 0) for name, entry in state.projects.items()
    )
    usable = {gpu.uuid for entry in state.machines if entry.usable for gpu in entry.gpus if gpu.usable}
    lost = sum(
        uuid not in usable for entry in after.active if not entry.preemptible for uuid in entry.gpu_uuids
    )
    for start in decided.starts:
        entry = state.projects[start.job.project]
        free_of_quota = start.job.preemptible or state.classes[start.job.job_class].quota_bound
        if (
            start.job.gpus
            and not free_of_quota
            and not unlimited
            and any(p.quota for p in state.projects.values())
        ):
            within = held(after, entry.name, firm=True) <= (entry.quota or 0)
            assert within or claimed <= len(usable) + lost + 1e-6


def preemptions(state: ClusterState, decided: Plan, now: float) -> None:
    running_now = {entry.id: entry for entry in state.active}
    after = carried_out(state, decided, TEN_PM)
    owner = {entry.id: entry.project for entry in state.pending}
    chosen: list[int] = []
    for entry in decided.preemptions:
        assert entry.victims and entry.beneficiary.id in decided.reasons
        assert entry.room.job == entry.beneficiary.id and len(entry.room.gpu_uuids) == entry.beneficiary.gpus
        for victim in entry.victims:
            assert victim == running_now[victim.id]
            assert victim.preemptible and not victim.stopping and victim.protected_until <= now
            assert victim.node == entry.room.node
            chosen.append(victim.id)
            if victim.project != entry.beneficiary.project:
                # With what it starts and what it is promised, the victim's project holds more than its quota.
                promised = sum(len(r.gpu_uuids) for r in after.rooms if owner[r.job] == victim.project)
                assert held(after, victim.project) + promised > (state.projects[victim.project].quota or 0)
                assert entry.beneficiary.gpus and victim.gpu_uuids
    assert len(chosen) == len(set(chosen)), "nobody is preempted twice"


def rooms(state: ClusterState, decided: Plan) -> None:
    """Kept room is coming: what does not stop, what starts and what is kept is there together."""
    after = carried_out(state, decided, TEN_PM)
    staying = [entry for entry in after.active if not entry.stopping]
    for entry in after.machines:
        kept = [room for room in after.rooms if room.node == entry.name]
        if not kept:
            continue
        here = [other for other in staying if other.node == entry.name]
        assert sum(other.cpus for other in here) + sum(room.cpus for room in kept) <= entry.cpus
        assert (
            sum(other.memory_mib for other in here) + sum(room.memory_mib for room in kept)
            <= entry.memory_mib
        )
        uuids = [uuid for other in here for uuid in other.gpu_uuids] + [
            uuid for room in kept for uuid in room.gpu_uuids
        ]
        assert len(uuids) == len(set(uuids))


@TRIES
@given(clusters())
def test_every_plan_is_sound(state: ClusterState) -> None:
    look(state)


@TRIES
@given(clusters().map(in_order))
def test_nothing_is_preempted_unless_the_beneficiary_then_starts_in_its_room(state: ClusterState) -> None:
    decided = look(state)
    after = look(carried_out(state, decided, TEN_PM, ended=True))
    starts = {start.job.id: start for start in after.starts}
    for entry in decided.preemptions:
        start = starts[entry.beneficiary.id]
        assert (start.node, start.gpu_uuids) == (entry.room.node, entry.room.gpu_uuids)
        assert start.cpus == entry.room.cpus


def some_end(state: ClusterState, ended: set[int]) -> ClusterState:
    """Those of `ended` that are stopping have ended and are queued again."""
    back = [entry for entry in state.active if entry.stopping and entry.id in ended]
    again = [
        job(
            e.id,
            len(e.gpu_uuids),
            e.job_class,
            e.project,
            priority=e.priority,
            preemptible=e.preemptible,
            cpus=e.cpus,
        )
        for e in back
    ]
    active = [entry for entry in state.active if entry not in back]
    return dataclasses.replace(state, active=active, pending=state.pending + again)


@TRIES
@given(st.data())
def test_pass_after_pass(data: st.DataObject) -> None:
    """Victims end one by one, new jobs come: whoever was promised room gets it, and nobody is stopped for it again."""
    state = in_order(data.draw(clusters()))
    promised: set[int] = set()
    for step in range(4):
        decided = look(state)
        gone = {start.job.id for start in decided.starts}
        anew = {entry.beneficiary.id for entry in decided.preemptions}
        assert not anew & promised, "room that is coming is not made twice"
        assert not set(decided.released) & promised
        promised = (promised | anew) - gone
        state = carried_out(state, decided, TEN_PM)
        assert {room.job for room in state.rooms} == promised
        running_now = sorted(entry.id for entry in state.active)
        state = some_end(state, data.draw(st.sets(st.sampled_from(running_now or [0]))))
        state.pending.append(data.draw(waiting(50 + step)))
    everybody = {entry.id for entry in state.active}
    after = look(some_end(state, everybody))
    assert promised <= {start.job.id for start in after.starts}


@TRIES
@given(clusters())
def test_never_and_wait_mean_what_they_say(state: ClusterState) -> None:
    """Alone on an empty cluster that is in order, what can never start does not; what waits for others does."""
    decided = look(state)
    machines = repaired(state)
    for entry in state.pending:
        reason = decided.reasons.get(entry.id)
        if reason is None or reason.code in ("Held", "BeginTime"):
            continue
        alone = dataclasses.replace(state, pending=[entry], active=[], machines=machines)
        assert bool(look(alone).starts) is not isinstance(reason, Never), reason


@TRIES
@given(clusters())
def test_it_comes_to_rest_and_then_says_the_same_again(state: ClusterState) -> None:
    """Without arrivals and ends nothing goes round in circles, and no sentence changes by the clock alone."""
    for _ in range(60):
        decided = look(state)
        if not decided.starts and not decided.preemptions:
            break
        state = carried_out(state, decided, TEN_PM, ended=True)
    else:
        pytest.fail("it preempts for ever")
    state = dataclasses.replace(
        state, rooms=[room for room in state.rooms if room.job not in decided.released]
    )
    assert look(state).reasons == look(state, TEN_PM + 0.5).reasons


@TRIES
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_rows_were_read_does_not_matter(state: ClusterState, random: Any) -> None:
    mixed = copy.deepcopy(state)
    random.shuffle(mixed.pending)
    random.shuffle(mixed.active)
    one, other = plan(state, TEN_PM), plan(mixed, TEN_PM)
    assert (one.starts, one.reasons, one.released) == (other.starts, other.reasons, other.released)
    assert [sorted(v.id for v in e.victims) for e in one.preemptions] == [
        sorted(v.id for v in e.victims) for e in other.preemptions
    ]


def test_the_strategy_reaches_what_it_is_for() -> None:
    """Otherwise the properties above would hold of nothing."""
    seen: set[str] = set()

    @settings(
        max_examples=500,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(clusters())
    def collect(state: ClusterState) -> None:
        decided = plan(state, TEN_PM)
        seen.update(("Never" if isinstance(r, Never) else "") + r.code for r in decided.reasons.values())
        seen.update("start" for _ in decided.starts)
        for entry in decided.preemptions:
            across = any(victim.project != entry.beneficiary.project for victim in entry.victims)
            seen.add("reclaim" if across else "own")
            if len(entry.victims) > 1:
                seen.add("several")

    collect()
    wanted = {"start", "own", "reclaim", "Preempting", "Resources", "Drained", "Limit", "Quota"}
    wanted |= {"QuotaClaims", "Held", "BeginTime", "NeverGPUs", "NeverNodes", "NeverQuota", "NeverLimit"}
    assert wanted <= seen


def test_active_is_part_of_the_state() -> None:
    """`dataclasses.replace` makes real copies: a shared list would let one pass leak into the next."""
    state = cluster(machine(), [job(1)], [running(9)])
    after = carried_out(state, plan(state, NOW))
    assert isinstance(after.active[0], Active) and len(state.active) == 1
