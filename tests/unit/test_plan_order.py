"""Who comes first: holds and times, class, priority and age in a project, quota between projects."""

from __future__ import annotations

import datetime as dt

import pytest
from clusters import CLASSES, NOW, cluster, code, job, look, machine, preempted, project, running, started


def clock(at):
    return dt.datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def test_within_a_project_class_then_priority_then_age():
    pending = [
        job(1, job_class="idle", priority=100),
        job(2, job_class="spot", priority=25),
        job(3, job_class="spot", priority=75),
        job(4, job_class="ondemand"),
        job(5, job_class="reserved", priority=0),
        job(6, job_class="spot", priority=75),
        job(7, job_class="spot", priority=75, submitted_at=NOW - 9000),
    ]
    assert started(look(cluster(machine(), pending))) == [5, 4, 7, 3, 6, 2, 1]


def test_a_small_job_goes_past_one_that_does_not_fit():
    assert started(look(cluster(machine(gpus=4), [job(1, 4), job(2, 1)], [running(9, [0])]))) == [2]


def test_projects_below_quota_go_first_by_the_share_that_they_use():
    projects = [project("a", 4), project("b", 4), project("c")]
    active = [running(7, [0, 1], project="a"), running(8, [2], project="b")]
    pending = [job(i, 1, project=name) for i, name in enumerate("ccaabb", 1)]
    # b uses 1/4, then 2/4 as a does, …; c, without quota, comes when nobody is below theirs.
    decided = look(cluster(machine(gpus=7), pending, active, projects))
    assert started(decided) == [5, 3, 6, 4]


def test_beyond_quota_the_weight_decides():
    projects = [project("a", weight=1), project("b", weight=3)]
    pending = [job(i, 1, project="a") for i in range(1, 9)] + [job(i, 1, project="b") for i in range(11, 19)]
    decided = look(cluster(machine(gpus=8), pending, projects=projects))
    assert sum(number > 10 for number in started(decided)) == 6


def test_without_gpus_the_cpus_count():
    projects = [project("a"), project("b")]
    pending = [job(i, project="a") for i in range(1, 9)] + [job(i, project="b") for i in range(11, 19)]
    decided = look(cluster(machine(cpus=8), pending, projects=projects))
    assert sum(number > 10 for number in started(decided)) == 4


def test_what_would_be_reclaimed_at_once_does_not_start():
    """c would come first by name and has nothing yet; a deserves the GPUs."""
    projects = [project("a", 4), project("c", 0)]
    pending = [job(1, 2, project="c"), job(2, 4, project="a")]
    decided = look(cluster(machine(gpus=4), pending, [], projects))
    assert started(decided) == [2]


def test_idle_comes_after_everybody_else():
    projects = [project("a", 4), project("b", 0)]
    pending = [job(1, 2, "idle", "a"), job(2, 4, "spot", "b")]
    assert started(look(cluster(machine(gpus=4), pending, [], projects))) == [2]


def test_equal_projects_take_turns():
    projects = [project("a", 2), project("b", 2)]
    pending = [job(1, 1, project="a"), job(2, 1, project="a"), job(3, 1, project="b"), job(4, 1, project="b")]
    assert started(look(cluster(machine(gpus=4), pending, [], projects))) == [1, 3, 2, 4]


def test_ten_thousand_of_one_do_not_keep_out_the_other():
    pending = [job(i, 1, project="a") for i in range(1, 2001)] + [job(5000, 1, project="b")]
    assert 5000 in started(look(cluster(machine(gpus=4), pending)))


@pytest.mark.parametrize(
    ("fields", "expected", "until"),
    [
        ({"hold": "user"}, ("Held", "held; 'spool release' lets it go"), None),
        ({"hold": "stop"}, ("Held", "stopped by the user; 'spool resume' lets it go on"), None),
        (
            {"hold": "thrashing"},
            (
                "Thrashing",
                "preempted ten times in a row without progress; 'spool resume' lets it try again",
            ),
            None,
        ),
        ({"begin_at": NOW + 60}, ("BeginTime", f"begins at {clock(NOW + 60)}"), NOW + 60),
        ({"not_before": NOW + 20}, ("BackOff", f"backs off until {clock(NOW + 20)}"), NOW + 20),
        (
            {"not_before": NOW + 20, "end_reason": "supervisor_lost"},
            ("BackOff", f"backs off until {clock(NOW + 20)}; its last attempt: supervisor lost"),
            NOW + 20,
        ),
        ({"job_class": "gone"}, ("BadClass", "its class 'gone' is not configured any more"), None),
    ],
)
def test_not_now(fields, expected, until):
    state = cluster(machine(), [job(1, **fields)])
    decided = look(state)
    assert not decided.starts
    assert (decided.reasons[1].code, decided.reasons[1].text) == expected
    assert decided.reasons[1].until == decided.wake_at == until
    if until:
        assert not look(state, until - 0.01).starts
        assert started(look(state, until)) == [1]


def test_the_first_moment_that_changes_something_is_the_one_to_wake_at():
    pending = [job(1, begin_at=NOW + 50), job(2, not_before=NOW + 30), job(3, begin_at=NOW + 90)]
    assert look(cluster(machine(), pending)).wake_at == NOW + 30


def test_a_project_that_is_gone():
    state = cluster(machine(gpus=2), [job(1, 1), job(2), job(3, 1, project="q")], [running(9, [0])])
    del state.projects["p"]
    decided = look(state)
    assert started(decided) == [3]
    assert code(decided, 1) == code(decided, 2) == "NoProject"
    assert decided.reasons[1].text == "its project 'p' does not exist (any more)"


def test_a_running_job_of_a_class_that_is_gone_can_still_be_preempted():
    decided = look(cluster(machine(gpus=1), [job(1, 1, "idle")], [running(9, [0], "removed")]))
    assert preempted(decided) == {1: [9]}


def test_without_a_class_called_idle_nothing_is_idle():
    classes = {name: entry for name, entry in CLASSES.items() if name != "idle"}
    decided = look(cluster(machine(gpus=1), [job(1, 1), job(2, 1, "idle")], classes=classes))
    assert started(decided) == [1] and code(decided, 2) == "BadClass"


# -- windows: nights, daily 20:00-07:00 UTC; NOW is 12:00 --------------------------------------------------

EIGHT_PM = NOW + 8 * 3600
SEVEN_AM = NOW + 19 * 3600


def test_an_offpeak_job_starts_inside_its_window_only_and_knows_its_end():
    state = cluster(machine(), [job(1, job_class="offpeak")])
    decided = look(state)
    assert (decided.reasons[1].code, decided.wake_at) == ("Window", EIGHT_PM)
    assert decided.reasons[1].text == f"outside window 'nights', which opens at {clock(EIGHT_PM)}"
    assert not look(state, EIGHT_PM - 0.01).starts
    assert look(state, EIGHT_PM).starts[0].ends_by == SEVEN_AM
    assert look(cluster(machine(), [job(1)])).starts[0].ends_by is None


@pytest.mark.parametrize(
    ("grace_s", "left_s", "starts"),
    [(60, 900, True), (60, 899, False), (300, 900, True)],
)
def test_a_rest_of_a_window_is_used_only_if_it_is_worth_it(grace_s, left_s, starts):
    state = cluster(machine(), [job(1, job_class="offpeak", grace_s=grace_s)])
    decided = look(state, SEVEN_AM - left_s)
    assert bool(decided.starts) is starts
    if not starts:
        again = clock(EIGHT_PM + 86400)
        assert decided.reasons[1].text == (
            f"needs 15m of window 'nights', which closes at {clock(SEVEN_AM)} and opens again at {again}"
        )
        assert look(state, SEVEN_AM - left_s + 5).reasons[1] == decided.reasons[1]
        assert decided.wake_at == EIGHT_PM + 86400


def test_a_slice_holds_grace_and_kill_at_least():
    state = cluster(machine(), [job(1, job_class="offpeak", grace_s=300)], min_slice_s=10)
    assert look(state, SEVEN_AM - 310).starts
    assert not look(state, SEVEN_AM - 309).starts


def test_a_class_whose_window_is_gone():
    decided = look(cluster(machine(), [job(1, job_class="offpeak")], windows={}))
    assert decided.reasons[1].text == "no window is configured for class 'offpeak'"


# -- large jobs do not starve ------------------------------------------------------------------------------


def test_a_job_that_waited_long_lets_its_machine_run_dry():
    large = job(1, 4, waiting_since=NOW - 3600)
    state = cluster(machine(gpus=4), [large, job(2, 1)], [running(9, [0, 1])])
    decided = look(state)
    assert not decided.starts
    assert decided.reasons[1].text == "needs 2 more GPUs (2 free)"
    assert decided.reasons[2].text == "needs 1 more GPU (0 free, 2 kept for job 1)"
    assert started(look(state, NOW - 1)) == [2], "a second before it had not waited long enough"


def test_it_keeps_the_machine_that_is_nearest_and_leaves_the_others():
    large = job(1, 4, waiting_since=NOW - 3600)
    machines = [machine("n1", 4), machine("n2", 4), machine("n3", 2)]
    active = [running(8, [0, 1, 2], on="n1"), running(9, [0], on="n2")]
    decided = look(cluster(machines, [large, job(2, 1), job(3, 2), job(4, 1)], active))
    assert [(start.job.id, start.node) for start in decided.starts] == [(2, "n1"), (3, "n3")]


def test_only_a_few_machines_run_dry_at_a_time():
    pending = [job(i, 4, waiting_since=NOW - 9999) for i in range(1, 7)] + [job(i, 1) for i in range(11, 31)]
    machines = [machine(f"n{i}", 4) for i in range(6)]
    active = [running(100 + i, [0], on=f"n{i}") for i in range(6)]
    assert len(look(cluster(machines, pending, active)).starts) == 2 * 3


def test_what_waits_for_quota_keeps_no_machine():
    waiting = job(1, 4, "reserved", "a", waiting_since=NOW - 9999)
    active = [running(9, [0], "reserved", "a")]
    decided = look(cluster(machine(gpus=4), [waiting, job(2, 1)], active, [project("a", 4)]))
    assert started(decided) == [2]
