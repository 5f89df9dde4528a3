"""Admission by quota and limit."""

from __future__ import annotations

import pytest
from clusters import (
    carried_out,
    cluster,
    code,
    job,
    look,
    machine,
    preempted,
    project,
    room_for,
    running,
    started,
    stopping,
)


@pytest.mark.parametrize(
    ("quota", "firm", "spot", "starts"),
    [
        (4, 0, 0, True),
        (4, 2, 0, True),
        (4, 3, 0, False),
        (4, 2, 4, True),  # its own spot never blocks it
        (2, 0, 4, True),
        (None, 4, 4, True),  # unset: unlimited
        (2.5, 0, 0, True),
        (2.5, 1, 0, False),
    ],
)
def test_reserved_stays_within_quota_by_what_is_not_preemptible(quota, firm, spot, starts):
    active = [running(8, range(firm), "ondemand"), running(9, range(4, 4 + spot), "spot")]
    decided = look(cluster(machine(gpus=12), [job(1, 2, "reserved")], active, [project("p", quota)]))
    assert (started(decided) == [1]) is starts
    if not starts:
        assert code(decided, 1) == "Quota"


def test_the_sentence_says_how_much_is_missing():
    active = [running(9, [0, 1, 2], "reserved")]
    decided = look(cluster(machine(gpus=8), [job(1, 2, "reserved")], active, [project("p", 4)]))
    assert decided.reasons[1].text == "needs 1 more GPU of quota: project 'p' holds 3 of 4 firmly"
    decided = look(cluster(machine(gpus=8), [job(1, 2, "reserved")], [], [project("p", 1)]))
    assert (code(decided, 1), decided.reasons[1].text) == (
        "NeverQuota",
        "asks for 2 GPUs, the quota of project 'p' is 1",
    )


@pytest.mark.parametrize(
    ("quotas", "firm", "gpus", "expected"),
    [
        # 8 GPUs; quotas and firm holdings of p and q; p asks for so many on demand.
        ((None, None), (0, 0), 8, True),
        ((None, None), (4, 4), 1, "Resources"),  # no quota claims anything: the room decides
        ((None, 6), (0, 0), 2, True),
        ((None, 6), (0, 0), 3, "NeverQuotaClaims"),
        ((None, 6), (1, 0), 1, True),
        ((None, 6), (1, 0), 2, "QuotaClaims"),
        ((None, 6), (0, 5), 2, True),  # q claims one more only
        ((2, 6), (0, 0), 2, True),  # its own quota
        ((2, 6), (0, 0), 3, "NeverQuotaClaims"),
        ((2, 6), (2, 0), 1, "QuotaClaims"),
        ((2, 4), (0, 0), 4, True),
        ((2, 4), (0, 0), 5, "NeverQuotaClaims"),
        ((2, 4), (1, 0), 4, "QuotaClaims"),
        ((2, 4), (1, 6), 1, True),  # q holds more than its quota; p takes what its own claims
        ((2, 4), (1, 6), 2, "QuotaClaims"),
        ((8, 8), (0, 0), 4, True),  # more quota than GPUs: each draws on its own
        ((8, 8), (0, 0), 9, "NeverGPUs"),
        ((0, 4), (0, 0), 4, True),
        ((0, 4), (0, 0), 5, "NeverQuotaClaims"),
    ],
)
def test_ondemand_draws_on_what_no_quota_claims(quotas, firm, gpus, expected):
    active = [
        running(8, range(firm[0]), "ondemand", "p"),
        running(9, range(firm[0], sum(firm)), "reserved", "q"),
    ]
    projects = [project("p", quotas[0]), project("q", quotas[1])]
    if expected == "NeverGPUs":
        # Its own quota would allow it.
        projects = [project("p", 9), project("q", quotas[1])]
    decided = look(cluster(machine(gpus=8), [job(1, gpus, "ondemand")], active, projects))
    assert (started(decided) == [1]) if expected is True else code(decided, 1) == expected


def test_ondemand_says_what_is_unclaimed():
    active = [running(9, [0], "ondemand")]
    decided = look(cluster(machine(gpus=8), [job(1, 2, "ondemand")], active, [project("q", 6)]))
    assert decided.reasons[1].text == "needs 1 more GPU that no project's quota claims (1 unclaimed)"
    decided = look(cluster(machine(gpus=8), [job(1, 4, "ondemand")], [], [project("q", 6)]))
    assert decided.reasons[1].text == (
        "asks for 4 GPUs beyond its quota, all quotas together leave 2; a preemptible class may borrow"
    )


def test_preemptible_capacity_counts_as_free_for_ondemand():
    active = [running(9, range(8), "spot", "q")]
    decided = look(
        cluster(machine(gpus=8), [job(1, 2, "ondemand")], active, [project("p", 2), project("q", 4)])
    )
    assert preempted(decided) == {1: [9]}, (
        "a gang is stopped as a whole, even if q then has less than its quota"
    )
    active = [running(8, range(4), "spot", "q"), running(9, range(4, 8), "spot", "q")]
    decided = look(
        cluster(machine(gpus=8), [job(1, 2, "ondemand")], active, [project("p", 2), project("q", 4)])
    )
    assert preempted(decided) == {1: [8]}


def test_a_broken_gpu_is_no_capacity_and_what_runs_on_it_takes_none():
    projects = [project("q", 4)]
    state = cluster(machine(gpus=8, broken=[7]), [job(1, 4, "ondemand")], [], projects)
    assert code(look(state), 1) == "QuotaClaims", "3 of 7 are unclaimed"
    active = [running(9, [7], "ondemand")]
    state = cluster(machine(gpus=8, broken=[7]), [job(1, 3, "ondemand")], active, projects)
    assert started(look(state)) == [1]


def test_spot_goes_over_quota_and_the_effective_value_counts():
    pending = [
        job(1, 1, "spot"),
        job(2, 1, "spot", preemptible=False),
        job(3, 1, "ondemand", preemptible=True),
        job(4, 1, "reserved", preemptible=True),
        job(5, 1, "reserved"),
    ]
    decided = look(cluster(machine(gpus=8), pending, [], [project("p", 0), project("q", 8)]))
    assert sorted(started(decided)) == [1, 3, 4]
    assert code(decided, 2) == "NeverQuotaClaims"
    assert code(decided, 5) == "NeverQuota"


def test_jobs_without_gpus_hold_no_quota():
    pending = [job(1, job_class="reserved"), job(2, job_class="ondemand")]
    assert started(look(cluster(machine(gpus=4), pending, [], [project("p", 0, 0), project("q", 4)]))) == [
        1,
        2,
    ]


@pytest.mark.parametrize("job_class", ["reserved", "ondemand", "spot", "idle"])
def test_nothing_exceeds_the_limit(job_class):
    active = [running(9, [0, 1], "reserved")]
    projects = [project("p", None, 3)]
    decided = look(cluster(machine(gpus=8), [job(1, 2, job_class), job(2, 1, job_class)], active, projects))
    assert started(decided) == [2]
    assert decided.reasons[1].text == "needs 1 more GPU under the limit of project 'p' (2 of 3 held)"
    decided = look(cluster(machine(gpus=8), [job(1, 4, job_class)], active, projects))
    assert code(decided, 1) == "NeverLimit"


def test_the_limit_counts_what_is_still_stopping():
    state = cluster(machine(gpus=8), [job(1, 2)], [stopping(9, [0, 1])], [project("p", None, 3)])
    assert code(look(state), 1) == "Limit"


def test_at_the_limit_a_project_preempts_its_own():
    active = [running(7, [0]), running(8, [1]), running(9, [2], priority=60)]
    projects = [project("p", None, 3)]
    state = cluster(machine(gpus=8), [job(1, 2, "reserved")], active, projects)
    decided = look(state)
    assert preempted(decided) == {1: [7, 8]}
    after = carried_out(state, decided)
    assert code(look(after), 1) == "Preempting" and not look(after).starts
    assert 1 in started(look(carried_out(after, look(after), ended=True)))


def test_at_the_limit_others_victims_do_not_help():
    active = [running(8, [0, 1], "reserved"), running(9, [2, 3], "spot", "q")]
    state = cluster(machine(gpus=4), [job(1, 2, "reserved")], active, [project("p", 8, 3), project("q", 0)])
    decided = look(state)
    assert not decided.preemptions and code(decided, 1) == "Limit"


def test_a_promise_takes_its_part_of_quota_and_limit():
    """Job 2 would fit into free room, but quota (or limit) are promised to job 1, whose room is being made."""
    pending = [job(1, 2, "reserved"), job(2, 2, "reserved")]
    rooms = [room_for(1, [0, 1])]
    active = [stopping(9, [0, 1], "spot", "q")]
    for limits, expected in (((2, None), "Quota"), ((None, 2), "Limit")):
        state = cluster(
            machine(gpus=8), pending, active, [project("p", *limits), project("q", 0)], rooms=rooms
        )
        decided = look(state)
        assert started(decided) == [1], "there is room elsewhere by now"
        assert code(decided, 2) == expected
    blocked = [*active, running(8, range(2, 7), "reserved", "r")]
    state = cluster(
        machine(gpus=8), [pending[0], job(2, 1, "reserved")], blocked, [project("p", 2)], rooms=rooms
    )
    decided = look(state)
    assert code(decided, 1) == "Preempting" and code(decided, 2) == "Quota"


def test_room_is_released_when_quota_was_lowered_meanwhile():
    pending = [job(1, 2, "reserved"), job(2, 2, "spot")]
    active = [running(8, [2, 3], "reserved"), stopping(9, [0], "spot", "q")]
    state = cluster(machine(gpus=4), pending, active, [project("p", 2)], rooms=[room_for(1, [0, 1])])
    decided = look(state)
    assert decided.released == [1] and code(decided, 1) == "Quota"


def test_room_is_released_when_what_is_unlimited_took_what_quotas_claim():
    """p has no quota, so its reserved job 3 starts; its job 2 on demand would take the GPU that r's quota claims."""
    pending = [job(2, 2, "ondemand"), job(3, 1, "reserved")]
    projects = [project("p"), project("r", 1)]
    active = [running(8, [3], "reserved"), stopping(9, [0, 1], "spot", "q")]
    state = cluster(machine(gpus=4), pending[:1], active, projects, rooms=[room_for(2, [0, 1])])
    assert code(look(state), 2) == "Preempting"
    state.pending = pending
    decided = look(state)
    assert started(decided) == [3] and not decided.released
    decided = look(carried_out(state, decided))
    assert decided.released == [2] and code(decided, 2) == "QuotaClaims"
