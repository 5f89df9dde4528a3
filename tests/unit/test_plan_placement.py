"""Where jobs start: best fit, types, CPU shares, what is broken, and the sentences of those that find no room."""

from __future__ import annotations

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
    room_for,
    running,
    started,
    stopping,
)


def text(decided, number):
    return decided.reasons[number].text


def test_gpus_are_given_by_index_with_their_share_of_the_cpus():
    decided = look(cluster(machine(gpus=4, cpus=32), [job(1, 1), job(2, 2)], [running(9, [1])]))
    one, two = decided.starts
    assert (one.gpu_uuids, one.cpus) == (("n1-0",), 8)
    assert (two.gpu_uuids, two.cpus) == (("n1-2", "n1-3"), 16)


def test_the_fullest_machine_that_has_room_is_taken():
    machines = [machine("n1", 8), machine("n2", 8), machine("n3", 8)]
    active = [running(8, range(3), on="n2"), running(9, range(6), on="n3")]
    decided = look(cluster(machines, [job(1, 2), job(2, 4), job(3, 8)], active))
    assert [(start.job.id, start.node) for start in decided.starts] == [(1, "n3"), (2, "n2"), (3, "n1")]


def test_jobs_without_gpus_keep_away_from_free_gpus():
    decided = look(cluster([machine("n1", 4, cpus=8), machine("n2", cpus=64)], [job(1), job(2, cpus=40)]))
    assert [start.node for start in decided.starts] == ["n2", "n2"]


def test_many_equal_jobs_fill_machine_after_machine():
    """The shortcut for equal requests chooses as a fresh look would."""
    machines = [machine(f"n{i}", 4, cpus=8) for i in range(3)]
    decided = look(cluster(machines, [job(i, 1 + (i == 6)) for i in range(1, 14)]))
    by_node = [[start.job.id for start in decided.starts if start.node == f"n{i}"] for i in range(3)]
    assert by_node == [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]]
    assert code(decided, 12) == code(decided, 13) == "Resources"


@pytest.mark.parametrize(
    ("gpu_type", "expected"), [("", ("n1-0",)), ("h100", ("n1-2",)), ("a100", ("n1-0",)), ("l40s", None)]
)
def test_types(gpu_type, expected):
    decided = look(cluster(machine(types=["a100", "a100", "h100"]), [job(1, 1, gpu_type=gpu_type)]))
    if expected:
        assert decided.starts[0].gpu_uuids == expected
    else:
        assert code(decided, 1) == "NeverGPUs"
        assert text(decided, 1) == (
            "asks for 1 GPU of type 'l40s' on one machine, the most that one has is 0 (types: a100, h100)"
        )


def test_a_share_of_the_cpus_shrinks_to_what_others_left_but_not_below_one_a_gpu():
    others = [running(9, cpus=11)]
    decided = look(cluster(machine(gpus=4, cpus=16), [job(1, 4)], others))
    assert decided.starts[0].cpus == 5
    others = [running(9, cpus=13)]
    decided = look(cluster(machine(gpus=4, cpus=16), [job(1, 4)], others))
    assert text(decided, 1) == "needs 1 more CPU (3 free)"
    decided = look(cluster(machine(gpus=4, cpus=16), [job(1, 4, cpus=8)], [running(9, cpus=11)]))
    assert text(decided, 1) == "needs 3 more CPUs (5 free)", "what was asked for does not shrink"


def test_broken_gpus_and_machines_are_not_used():
    decided = look(cluster(machine(gpus=4, broken=[0, 2]), [job(1, 2), job(2, 1)]))
    assert decided.starts[0].gpu_uuids == ("n1-1", "n1-3") and started(decided) == [1]
    decided = look(cluster([machine("n1", 4, usable=False), machine("n2", 2)], [job(1, 4), job(2, 2)]))
    assert started(decided) == [2]
    assert (code(decided, 1), text(decided, 1)) == (
        "Drained",
        "all that could hold it is drained, lost or down now",
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"gpus": 5}, ("NeverGPUs", "asks for 5 GPUs on one machine, the most that one has is 4")),
        ({"cpus": 33}, ("NeverCPUs", "asks for 33 CPUs on one machine, the most that one has is 32")),
        (
            {"memory_mib": 1025},
            ("NeverMemory", "asks for 1025 MiB on one machine, the most that one has is 1024"),
        ),
        ({"nodes": 2, "gpus": 8}, ("NeverNodes", "asks for 2 nodes, a job of this spool runs on one")),
        (
            {"gpus": 2, "cpus": 16},
            ("NeverResources", "asks for GPUs, CPUs and memory that no single machine has together"),
        ),
    ],
)
def test_never_is_said_of_what_an_empty_cluster_could_not_run(request_, expected):
    machines = [machine("n1", 4, cpus=8, memory_mib=1024), machine("n2", 0, cpus=32, memory_mib=512)]
    decided = look(cluster(machines, [job(1, **request_)], [running(9, [0, 1, 2, 3])]))
    assert (code(decided, 1), text(decided, 1)) == expected


def test_a_broken_gpu_makes_no_job_impossible():
    decided = look(cluster(machine(gpus=4, broken=[3]), [job(1, 4)]))
    assert code(decided, 1) == "Drained"
    assert code(look(cluster([], [job(1, 4)])), 1) == "Drained", "no machine is known yet"


def test_the_sentence_names_what_is_missing_where_least_is():
    machines = [machine("n1", 4, cpus=8), machine("n2", 4, cpus=8)]
    active = [running(8, [0, 1, 2], on="n1", cpus=8), running(9, [0, 1], on="n2", cpus=2)]
    decided = look(cluster(machines, [job(1, 3, "idle"), job(2, 3, "idle", cpus=8)], active))
    assert text(decided, 1) == "needs 1 more GPU (2 free) on n2"
    assert text(decided, 2) == "needs 1 more GPU (2 free) and 2 more CPUs (6 free) on n2"
    decided = look(cluster(machine(memory_mib=1000), [job(1, memory_mib=800)], [running(9, memory_mib=500)]))
    assert text(decided, 1) == "needs 300 MiB more memory (500 free)"


def test_the_sentence_names_the_next_known_end_and_does_not_change_from_pass_to_pass():
    active = [running(8, [0], ends_at=NOW + 7200), running(9, [1, 2, 3], ends_at=NOW + 3600)]
    state = cluster(machine(gpus=4), [job(1, 2, "idle")], active)
    first = text(look(state), 1)
    assert first.startswith("needs 2 more GPUs (0 free); job 9 ends by 2026-06-01")
    for later in (0.2, 1, 7, 60, 3599):
        assert text(look(state, NOW + later), 1) == first
    assert text(look(state, NOW + 3601), 1).startswith("needs 2 more GPUs (0 free); job 8 ends by 2026-06-01")


def test_an_idle_gpu_is_explained():
    rooms = [room_for(5, [0, 1])]
    pending = [job(1, 1, "idle"), job(5, 2, "reserved")]
    decided = look(cluster(machine(gpus=2), pending, [stopping(9, [1])], rooms=rooms))
    assert text(decided, 1) == "needs 1 more GPU (0 free, 1 kept for job 5)"


def test_a_job_that_fits_when_what_stops_has_ended_waits_and_stops_nobody():
    pending = [job(1, 2, "reserved"), job(2, 1)]
    active = [stopping(8, [0]), running(9, [2, 3])]
    state = cluster(machine(gpus=4), pending, active)
    decided = look(state)
    assert not decided.preemptions and not decided.starts, "the free GPU is not given away meanwhile"
    assert text(decided, 1) == "room is coming on n1: job 8 is stopping"
    after = carried_out(state, decided, ended=True)
    assert started(look(after))[0] == 1


def test_a_job_that_fits_elsewhere_when_what_stops_has_ended_stops_nobody_here():
    active = [running(8, range(4), on="n1"), stopping(9, range(4), on="n2")]
    decided = look(cluster([machine("n1", 4), machine("n2", 4)], [job(1, 4, "reserved")], active))
    assert not decided.preemptions
    assert text(decided, 1) == "room is coming on n2: job 9 is stopping"


def test_a_hung_job_is_not_waited_for():
    active = [stopping(8, [0, 1], ends_at=NOW - 61), running(9, [2, 3])]
    assert preempted(look(cluster(machine(gpus=4), [job(1, 2, "reserved")], active))) == {1: [9]}


def test_a_machine_that_lost_cpus_under_its_jobs_starts_nothing():
    decided = look(cluster(machine(cpus=2), [job(1)], [running(9, cpus=4)]))
    assert text(decided, 1) == "needs 3 more CPUs (0 free)"
