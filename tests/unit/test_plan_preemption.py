"""Which victims are chosen, and the room that is kept for the beneficiary."""

from __future__ import annotations

import dataclasses

import pytest
from clusters import (
    NOW,
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

FOUR = machine(gpus=4)
MINE = [project("p", 8)]
RECLAIM = [project("p", 4), project("q", 0)]


def victims(pending, active, projects=MINE, machines=FOUR):
    return preempted(look(cluster(machines, [pending], active, projects))).get(1)


# -- the choice --------------------------------------------------------------------------------------------


def test_only_what_is_needed_is_stopped():
    active = [running(i, [i - 6]) for i in range(6, 10)]
    assert len(victims(job(1, 2, "reserved"), active)) == 2
    assert len(victims(job(1, 2, "reserved"), active[:3])) == 1, "one GPU is free"


@pytest.mark.parametrize(
    ("one", "other"),  # `one` is stopped rather than `other`
    [
        ({"job_class": "idle", "priority": 90}, {"job_class": "spot", "priority": 10}),
        ({"priority": 40}, {"priority": 50}),
        ({"saved": 10}, {"saved": 100}),
        ({"ago": 50}, {"saved": 100}),  # never checkpointed: from its start
        ({"saved": 100}, {"saved": 100, "priority": 51}),
    ],
)
def test_lower_class_then_lower_priority_then_less_lost_work(one, other):
    for first, second in ((0, 1), (1, 0)):
        active = [running(8 + first, [0], **one), running(8 + second, [1], **other)]
        assert victims(job(1, 1, "reserved"), active, machines=machine(gpus=2)) == [8 + first]


def test_lost_work_counts_by_gpu():
    active = [running(8, [0, 1], saved=60), running(9, [2], saved=100)]
    assert victims(job(1, 1, "reserved"), active, machines=machine(gpus=3)) == [9]


def test_who_never_checkpoints_gains_nothing_by_that():
    """Job 9 hides what it would lose; it counts as the median of those that checkpoint."""
    active = [running(5 + i, [i], saved=100 * i + 100) for i in range(3)] + [running(9, [3], ago=90000)]
    assert victims(job(1, 1, "reserved"), active) == [5]
    assert victims(job(1, 2, "reserved"), active) == [5, 6]
    assert victims(job(1, 3, "reserved"), active) == [5, 6, 9]
    assert victims(job(1, 3, "reserved"), [*active[:3], running(9, [3], ago=150)]) == [5, 6, 9]


def test_over_quota_before_in_quota():
    """q is over its quota, p's own spot is not: q's goes, though it is of a higher class and lost more."""
    active = [running(8, [0], "idle", "p"), running(9, [1], "spot", "q", ago=9000)]
    projects = [project("p", 4), project("q", 0)]
    assert victims(job(1, 1, "reserved"), active, projects, machine(gpus=2)) == [9]


def test_a_project_that_would_be_over_its_quota_gives_its_own_first():
    active = [running(8, [0], "spot", "p"), running(9, [1], "idle", "q")]
    projects = [project("p", 1), project("q", 0)]
    assert victims(job(1, 1, "reserved"), active, projects, machine(gpus=2)) == [8]
    protected = [dataclasses.replace(active[0], protected_until=NOW + 1), active[1]]
    assert victims(job(1, 1, "reserved"), protected, projects, machine(gpus=2)) == [9]


def test_reclaiming_stops_where_a_project_is_down_to_its_quota():
    active = [running(i, [i - 6], project="q") for i in range(6, 10)]
    assert len(victims(job(1, 2, "reserved"), active, [project("p", 4), project("q", 2)])) == 2
    assert victims(job(1, 3, "reserved"), active, [project("p", 4), project("q", 2)]) is None


def test_what_stops_already_brings_its_project_down_to_quota():
    """q holds four of two, but two of them are stopping for somebody else: nothing more is taken from it."""
    pending = [job(1, 2, "reserved", "p"), job(2, 2, "reserved", "r")]
    active = [stopping(7, [0, 1], project="q"), running(8, [2], project="q"), running(9, [3], project="q")]
    projects = [project("p", 2), project("q", 2), project("r", 2)]
    state = cluster(FOUR, pending, active, projects, rooms=[room_for(1, [0, 1])])
    decided = look(state)
    assert not decided.preemptions and code(decided, 2) == "Resources"


def test_a_small_victim_does_not_save_the_large_one_that_is_needed():
    active = [running(8, [0], project="q", saved=1), running(9, [1, 2, 3], project="q")]
    assert victims(job(1, 3, "reserved"), active, [project("p", 3), project("q", 3)]) == [9]


def test_who_gives_nothing_that_is_missing_is_left_alone():
    mixed = machine(types=["a100", "a100", "h100", "h100"])
    active = [running(8, [0, 1], project="q", saved=1), running(9, [2, 3], project="q", saved=500)]
    pending = job(1, 2, "reserved", gpu_type="h100")
    assert victims(pending, active, [project("p", 2), project("q", 2)], mixed) == [9]
    active = [running(8, saved=1), running(9, [0, 1, 2, 3], saved=500)]
    assert victims(job(1, 1, "reserved"), active) == [9]


def test_who_gives_nothing_does_not_use_up_what_its_project_may_give():
    """q may give one more GPU: job 7, which would be first, has none that is wanted, and job 9 loses more than job 8."""
    mixed = machine(types=["a100", "h100", "h100", "h100"])
    active = [
        running(7, [0], project="q", saved=1),
        running(8, [1], project="q", saved=100),
        running(9, [2, 3], project="q", saved=200),
    ]
    pending = job(1, 1, "reserved", gpu_type="h100")
    assert victims(pending, active, [project("p", 1), project("q", 3)], mixed) == [8]


def test_its_own_spot_counts_for_a_spot_job_and_not_for_a_firm_one():
    active = [running(8, [0, 1], protected_until=NOW + 9), running(9, [2, 3], "spot", "q")]
    projects = [project("p", 2), project("q", 0)]
    assert victims(job(1, 2, "spot"), active, projects) is None
    assert victims(job(1, 2, "reserved"), active, projects) == [9]


def test_no_set_no_preemption():
    active = [running(7, [0]), running(8, [1]), running(9, [2, 3], "reserved")]
    assert victims(job(1, 3, "reserved"), active) is None
    assert victims(job(1, 2, "reserved", cpus=64), active) is None
    memory = [running(8, [0, 1, 2, 3]), running(9, [], "reserved", memory_mib=60000)]
    assert victims(job(1, 1, "reserved", memory_mib=6000), memory) is None


def test_cpus_and_memory_are_preempted_for_too():
    active = [running(8, cpus=60, memory_mib=100), running(9, cpus=4, memory_mib=60000)]
    assert victims(job(1, cpus=10, job_class="reserved"), active) == [8]
    assert victims(job(1, job_class="reserved", memory_mib=50000), active[1:]) == [9]
    assert victims(job(1, 1, "reserved", cpus=61), [running(8, [0, 1, 2, 3])]) == [8]


def test_the_machine_with_the_least_regrettable_victims_is_taken():
    machines = [machine("n1", 2), machine("n2", 2), machine("n3", 2)]
    active = [
        running(6, [0, 1], on="n1", priority=60),
        running(7, [0], on="n2", saved=10),
        running(8, [1], on="n2", saved=10),
        running(9, [0, 1], on="n3", saved=30),
    ]
    assert victims(job(1, 2, "reserved"), active, machines=machines) == [7, 8]
    assert victims(job(1, 2, "reserved"), [active[0], active[3]], machines=machines[::2]) == [9]


def test_a_drained_machine_is_not_preempted_on():
    active = [running(9, [0, 1, 2, 3])]
    assert victims(job(1, 1, "reserved"), active, machines=[machine("n1", 4, usable=False)]) is None
    assert victims(job(1, 2, "reserved"), active, machines=[machine("n1", 4, broken=[0, 1, 2])]) is None


def test_one_pass_uses_what_a_gang_leaves_over_before_it_stops_more():
    """The victim of four leaves one GPU over, which is enough for the second job."""
    pending = [job(1, 3, "reserved"), job(2, 1, "reserved")]
    active = [running(8, [0, 1, 2, 3]), running(9, [4])]
    decided = look(
        cluster(machine(gpus=5), pending, [active[0], dataclasses.replace(active[1], priority=60)], MINE)
    )
    assert preempted(decided) == {1: [8]}
    assert decided.reasons[2].text == "room is coming on n1: job 8 is stopping"


def test_no_victim_is_stopped_for_two():
    pending = [job(1, 2, "reserved"), job(2, 2, "reserved"), job(3, 2, "reserved")]
    decided = look(cluster(FOUR, pending, [running(8, [0, 1]), running(9, [2, 3])], MINE))
    assert sorted(victim for chosen in preempted(decided).values() for victim in chosen) == [8, 9]
    assert code(decided, 3) == "Resources"


def test_room_that_would_come_after_the_last_start_in_a_window_is_not_made():
    seven_am = NOW + 19 * 3600
    pending = job(1, 1, "offpeak", priority=60)
    state = cluster(machine(gpus=1), [pending], [running(9, [0])], MINE, term_to_kill_s=10)
    # Grace and kill of the victim take 70 s, and 15 minutes must be left after that.
    assert preempted(look(state, seven_am - 900 - 70)) == {1: [9]}
    assert not look(state, seven_am - 900 - 69).preemptions


# -- the room ----------------------------------------------------------------------------------------------


def test_the_room_holds_what_is_free_and_what_the_victims_give():
    active = [running(8, [1, 2, 3], grace_s=120), running(9, [], "reserved")]
    state = cluster(machine(gpus=4, cpus=16), [job(1, 2, "reserved")], active, MINE)
    room = look(state).preemptions[0].room
    assert (room.job, room.node, room.gpu_uuids, room.cpus) == (1, "n1", ("n1-0", "n1-1"), 8)
    assert room.until == NOW + 120 + 10 + 60


def test_kept_room_is_given_to_nobody_else_and_the_reason_stays_the_same():
    state = cluster(FOUR, [job(1, 2, "reserved")], [running(8, [1, 2, 3])], [*MINE, project("z")])
    decided = look(state)
    assert decided.reasons[1].text == "room is being made on n1: job 8 is stopping"
    after = carried_out(state, decided)
    after.pending += [job(2, 1, "reserved"), job(3, 1, "spot", "z", priority=1000)]
    again = look(after)
    assert not again.starts and not again.preemptions and not again.released
    assert again.reasons[1] == decided.reasons[1]
    assert look(after, NOW + 5).reasons[1] == decided.reasons[1]
    done = look(carried_out(after, again, ended=True))
    assert done.starts[0].job.id == 1 and done.starts[0].gpu_uuids == decided.preemptions[0].room.gpu_uuids
    assert started(done) == [1, 2, 3]


def test_the_victim_does_not_go_back_into_the_room_that_it_left():
    state = cluster(
        FOUR, [job(1, 4, "reserved")], [running(7, [0, 1]), running(8, [2, 3], grace_s=300)], MINE
    )
    after = carried_out(state, look(state))
    # Job 7 ends first and is queued again; job 8 takes its time.
    after.active = [entry for entry in after.active if entry.id == 8]
    after.pending.append(job(7, 2))
    decided = look(after)
    assert not decided.starts and code(decided, 7) == "Resources"
    assert decided.reasons[1].text == "room is being made on n1: job 8 is stopping"


def test_a_free_rest_can_be_used_while_room_is_made():
    """The room takes three CPUs of those that job 9 gives back: the free one is nobody's."""
    state = cluster(machine(cpus=5), [job(1, cpus=3, job_class="reserved")], [running(9, cpus=4)], MINE)
    after = carried_out(state, look(state))
    after.pending.append(job(2))
    decided = look(after)
    assert started(decided) == [2]
    assert started(look(carried_out(after, decided, ended=True)))[0] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"hold": "user"},
        {"begin_at": NOW + 60},
        {"not_before": NOW + 60},
        {"job_class": "gone"},
        {"project": "nobody"},
        None,  # cancelled
    ],
)
def test_room_is_released_when_its_beneficiary_does_not_want_it_any_more(change):
    pending = [job(1, 2, "reserved"), job(2, 2)]
    state = cluster(FOUR, pending, [running(9, [2, 3], "reserved")], MINE, rooms=[room_for(1, [0, 1])])
    if change is None:
        state.pending = pending[1:]
    else:
        state.pending = [dataclasses.replace(pending[0], **change), pending[1]]
    decided = look(state)
    assert decided.released == [1]
    assert started(decided) == [2]


def test_room_is_released_when_it_is_out_of_date_and_then_made_anew():
    active = [running(9, [0, 1, 2, 3])]
    state = cluster(FOUR, [job(1, 2, "reserved")], active, MINE, rooms=[room_for(1, [0, 1], until=NOW)])
    decided = look(state)
    assert preempted(decided) == {1: [9]}
    assert decided.released == [], "the new room must not be dropped with the old one"


def test_room_that_is_not_coming_is_released():
    """Its victim was never stopped (it had changed just then), or the GPU was lost."""
    pending = [job(1, 2, "reserved")]
    rooms = [room_for(1, [0, 1])]
    decided = look(cluster(FOUR, pending, [running(9, [0, 1], "reserved")], MINE, rooms=rooms))
    assert started(decided) == [1] and decided.starts[0].gpu_uuids == ("n1-2", "n1-3")
    decided = look(cluster(machine(gpus=4, broken=[0]), pending, [running(9, [2, 3])], MINE, rooms=rooms))
    assert preempted(decided) == {1: [9]} and decided.released == []
    decided = look(cluster(machine(gpus=4, usable=False), pending, [], MINE, rooms=rooms))
    assert decided.released == [1] and code(decided, 1) == "Drained"


def test_a_beneficiary_starts_elsewhere_when_that_comes_free_sooner():
    rooms = [room_for(1, [0, 1])]
    active = [stopping(8, [1]), running(9, [3], "reserved")]
    state = cluster(FOUR, [job(1, 2, "reserved")], active, MINE, rooms=rooms)
    decided = look(state)
    # GPU 0 of its own room and the free GPU 2 make two.
    assert decided.starts[0].gpu_uuids == ("n1-0", "n1-2")


def test_what_it_leaves_then_goes_to_the_first_in_the_next_pass():
    machines = [machine("n1", types=["a100", "a100"]), machine("n2", types=["h100", "h100"])]
    rooms = [room_for(2, [0, 1], cpus=2)]
    pending = [
        job(1, 1, "reserved", gpu_type="a100"),
        job(2, 2, "reserved"),
        job(3, 1, "reserved", gpu_type="a100"),
    ]
    state = cluster(machines, pending, [stopping(9, [1])], MINE, rooms=rooms)
    decided = look(state)
    assert [(start.job.id, start.node) for start in decided.starts] == [(2, "n2")]
    assert started(look(carried_out(state, decided))) == [1]


def test_a_beneficiary_does_not_preempt_twice():
    active = [stopping(8, [0, 1]), running(9, [2, 3])]
    state = cluster(FOUR, [job(1, 2, "reserved")], active, MINE, rooms=[room_for(1, [0, 1])])
    assert not look(state).preemptions
    waiting = look(cluster(FOUR, [job(1, 2, "reserved")], active, MINE))
    assert not waiting.preemptions, "even if the room was forgotten: it fits when job 8 has ended"


def test_the_plan_wakes_when_kept_room_runs_out():
    state = cluster(FOUR, [job(1, 2, "reserved")], [running(9, [0, 1, 2, 3])], MINE)
    decided = look(state)
    assert decided.wake_at == decided.preemptions[0].room.until
    assert look(carried_out(state, decided)).wake_at == decided.wake_at


def test_reclaim_ends_in_peace():
    """What was reclaimed is not reclaimed back, whoever comes first."""
    pending = [job(i, 1, "spot", "p") for i in range(1, 5)]
    active = [running(i, [i - 11], "spot", "q") for i in range(11, 15)]
    state = cluster(FOUR, pending, active, [project("p", 2), project("q", 2)])
    stops = 0
    for _ in range(10):
        decided = look(state)
        stops += len(decided.preemptions)
        state = carried_out(state, decided, ended=True)
    assert stops == 2
    held = [entry.project for entry in state.active]
    assert held.count("p") == held.count("q") == 2
