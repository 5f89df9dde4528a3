"""Who preempts whom: beneficiary × victim by class, quota and priority; a test a cell of the table in docs/policy.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from clusters import NOW, carried_out, cluster, job, look, machine, preempted, project, running, started

CLASSES = ("reserved", "ondemand", "spot", "offpeak", "idle")
PREEMPTIBLE = ("spot", "offpeak", "idle")
TEN_PM = NOW + 10 * 3600  # inside the window of offpeak

#: Beneficiary → the victims' classes that it preempts in its own project, at equal priority.
WITHIN = {
    "reserved": {"spot", "offpeak", "idle"},
    "ondemand": {"spot", "offpeak", "idle"},
    "spot": {"idle"},
    "offpeak": {"idle"},
    "idle": set(),
}


def decide(pending, active, projects):
    state = cluster(machine(gpus=4), [pending], [active], projects)
    decided = look(state, TEN_PM)
    if decided.preemptions:
        after = look(carried_out(state, decided, TEN_PM, ended=True), TEN_PM)
        assert started(after)[0] == 1 and after.starts[0].gpu_uuids == decided.preemptions[0].room.gpu_uuids
    return preempted(decided) == {1: [2]}


@pytest.mark.parametrize("victim", CLASSES)
@pytest.mark.parametrize("beneficiary", CLASSES)
@pytest.mark.parametrize("quota", [None, 0, 2, 4, 8])
def test_within_a_project_by_class(beneficiary, victim, quota):
    if quota is not None and beneficiary in ("reserved", "ondemand"):
        quota = 8  # else it is not admitted at all
    active = running(2, range(4), victim)
    assert decide(job(1, 2, beneficiary), active, [project("p", quota)]) is (victim in WITHIN[beneficiary])


@pytest.mark.parametrize("priority", [49, 50, 51, 1000])
@pytest.mark.parametrize("victim", CLASSES)
@pytest.mark.parametrize("beneficiary", CLASSES)
def test_within_a_project_by_priority(beneficiary, victim, priority):
    """A higher class always wins; between equal classes (spot and offpeak are) the higher priority."""
    peers = [{"spot", "offpeak"}, {"idle"}]
    expected = victim in WITHIN[beneficiary] or (
        priority > 50 and any(beneficiary in group and victim in group for group in peers)
    )
    active = running(2, range(4), victim)
    assert decide(job(1, 2, beneficiary, priority=priority), active, [project("p", 8)]) is expected


@pytest.mark.parametrize("over", [True, False], ids=["over-quota", "in-quota"])
@pytest.mark.parametrize("victim", CLASSES)
@pytest.mark.parametrize("within", [True, False], ids=["within", "beyond"])
@pytest.mark.parametrize("beneficiary", CLASSES)
def test_across_projects_only_quota_counts(beneficiary, within, victim, over):
    projects = [project("p", 2 if within else 1), project("q", 3 if over else 4)]
    expected = within and over and beneficiary != "idle" and victim in PREEMPTIBLE
    for mine, theirs in ((50, 50), (1000, 0), (0, 1000)):
        active = running(2, range(4), victim, "q", priority=theirs)
        assert decide(job(1, 2, beneficiary, priority=mine), active, projects) is expected


@pytest.mark.parametrize(
    ("quotas", "beneficiary", "expected"),
    [
        ((None, None), "reserved", True),  # what is bound to quota is unlimited where none is set
        ((None, None), "ondemand", False),
        ((None, None), "spot", False),
        ((None, 3), "reserved", True),
        ((None, 4), "reserved", False),
        ((2, None), "reserved", True),  # without quota nothing is deserved for sure
        ((2, None), "ondemand", True),
        ((2, None), "spot", True),
        ((2, None), "idle", False),
    ],
)
def test_across_projects_without_quota(quotas, beneficiary, expected):
    projects = [project("p", quotas[0]), project("q", quotas[1])]
    assert decide(job(1, 2, beneficiary), running(2, range(4), "spot", "q"), projects) is expected


@pytest.mark.parametrize("other", ["p", "q"])
def test_the_effective_value_counts(other):
    projects = [project("p", 4), project("q", 0)]
    firm_spot = running(2, range(4), "spot", other, preemptible=False)
    assert not decide(job(1, 2, "reserved"), firm_spot, projects)
    soft_ondemand = running(2, range(4), "ondemand", other, preemptible=True)
    assert decide(job(1, 2, "reserved"), soft_ondemand, projects)


@pytest.mark.parametrize("other", ["p", "q"])
def test_none_below_its_minimum_runtime(other):
    projects = [project("p", 4), project("q", 0)]
    active = running(2, range(4), "spot", other, protected_until=TEN_PM + 1)
    state = cluster(machine(gpus=4), [job(1, 2, "reserved")], [active], projects)
    decided = look(state, TEN_PM)
    assert not decided.preemptions
    assert decided.wake_at == TEN_PM + 1, "time alone changes that"
    assert preempted(look(state, TEN_PM + 1)) == {1: [2]}


@pytest.mark.parametrize("other", ["p", "q"])
def test_nothing_is_reclaimed_for_or_from_what_has_no_gpus(other):
    projects = [project("p", 4), project("q", 0)]
    for beneficiary, victim in (
        (job(1, cpus=40, job_class="reserved"), running(2, [0], "spot", other, cpus=40)),
        (job(1, 1, "reserved", cpus=40), running(2, [], "spot", other, cpus=40)),
    ):
        state = cluster(machine(gpus=4), [beneficiary], [victim], projects)
        # Within a project class and priority count, whatever there is to share.
        assert preempted(look(state)) == ({1: [2]} if other == "p" else {})


def test_the_docs_show_this_table():
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    section = page.split("## Who preempts whom")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    own = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell, _ in rows}
    others = {name: set(re.findall(r"`(\w+)`", cell)) for name, _, cell in rows}
    assert own == WITHIN
    assert others == {name: set() if name == "idle" else set(PREEMPTIBLE) for name in CLASSES}
