"""The configuration: precedence, where each value came from, and every fault at once with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuspool.spool import config as configuration
from gpuspool.spool.config import SETTINGS, Config
from gpuspool.spool.errors import BadRequest, ConfigError


class Site:
    """A system file, a user's file and an environment, all of them empty at first."""

    def __init__(self, root: Path) -> None:
        self.system, self.user = root / "system.toml", root / "config ü.toml"
        self.env: dict[str, str] = {"HOME": str(root), "GPUSPOOL_CFG_FILE": str(self.user)}

    def load(self, **flags: Any) -> Config:
        """What is in force."""
        return configuration.load(self.env, flags, system_file=str(self.system))

    def faults(self, text: str) -> list[str]:
        """The faults of a user's file, without its own name in front of the line."""
        self.user.write_text(text)
        with pytest.raises(ConfigError) as caught:
            self.load()
        return [fault.replace(f"{self.user}:", "line ") for fault in caught.value.faults]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- precedence ------------------------------------------------------------------------------------------


def test_flag_over_variable_over_user_over_site_over_default(site: Site) -> None:
    name, seen = "defaults.grace", []

    def note(**flags: Any) -> None:
        found = site.load(**flags)
        seen.append((found[name], found.origins[name]))

    note()
    site.system.write_text("[defaults]\ngrace = '50s'\n")
    note()
    site.user.write_text("[defaults]\ngrace = 40\n")
    note()
    site.env["GPUSPOOL_CFG_DEFAULTS_GRACE"] = "30s"
    note()
    note(**{name: "20s"})
    note(**{name: None})  # a flag that was not given
    assert seen == [
        (60, "default"),
        (50, str(site.system)),
        (40, str(site.user)),
        (30, "GPUSPOOL_CFG_DEFAULTS_GRACE"),
        (20, "flag"),
        (30, "GPUSPOOL_CFG_DEFAULTS_GRACE"),
    ]


def test_each_setting_goes_its_own_way(site: Site) -> None:
    site.system.write_text("[defaults]\ngrace = 50\nbackoff_limit = 7\n")
    site.user.write_text("[defaults]\ngrace = 40\n")
    found = site.load()
    assert (found["defaults.grace"], found["defaults.backoff_limit"]) == (40, 7)
    assert found.files == [str(site.system), str(site.user)]
    assert found.origins["defaults.backoff_limit"] == str(site.system)
    assert found.origins["defaults.max_attempts"] == "default"


def test_every_setting_has_a_default_that_it_takes_itself_and_a_variable_of_its_own(site: Site) -> None:
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        if setting.default != -1:  # "as detected": spelt by leaving it out
            assert setting.read(setting.default, setting.name) == setting.default, setting.name
        assert setting.doc
    assert site.load()["spool.free_space_mib"] == -1


def test_variables_of_jobs_configure_nothing(site: Site) -> None:
    """Only GPUSPOOL_CFG_* counts: a job's own GPUSPOOL_GRACE_S never reaches a nested call."""
    site.env |= {"GPUSPOOL_GRACE_S": "1", "GPUSPOOL_JOB_ID": "7"}
    assert site.load()["defaults.grace"] == 60


def test_the_users_file_is_found_by_variable_xdg_and_home(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert configuration.user_file(home) == f"{tmp_path}/.config/gpuspool/config.toml"
    xdg = home | {"XDG_CONFIG_HOME": "/x"}
    assert configuration.user_file(xdg) == "/x/gpuspool/config.toml"
    assert configuration.user_file(xdg | {"GPUSPOOL_CFG_FILE": "/y.toml"}) == "/y.toml"


def test_folders_know_tilde_and_variables(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("FAST", "/fast")
    site.user.write_text("[spool]\nstate_dir = '~/spool'\nrun_dir = '$FAST/run'\n")
    found = site.load()
    assert (found["spool.state_dir"], found["spool.run_dir"]) == ("/home/ann/spool", "/fast/run")


# -- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("[defaults]\nwalltime = 90", "defaults.walltime", 5400),  # minutes, as in Slurm
        ("[defaults]\nwalltime = '2-12'", "defaults.walltime", 216000),
        ("[defaults]\ngrace = 90", "defaults.grace", 90),  # seconds
        ("[defaults]\ngrace = '2m'", "defaults.grace", 120),
        ("[defaults]\ngrace = 0", "defaults.grace", 0),
        ("[defaults]\npriority = 'High'", "defaults.priority", "high"),
        ("[defaults]\npriority = 60", "defaults.priority", "60"),
        ("[local]\nmemory = '20G'", "local.memory", 20480),
        ("[local]\nmemory = 0", "local.memory", 0),
        ("[local]\ngpus = 0", "local.gpus", 0),
        ("[local]\ncgroup = 'off'", "local.cgroup", "off"),
        ("[daemon]\nauto = false", "daemon.auto", False),
        ("[daemon]\nauto = 'no'", "daemon.auto", False),
        ("[spool]\nfree_space_mib = 100", "spool.free_space_mib", 100),
        ("defaults.grace = 5", "defaults.grace", 5),
        ("defaults = { grace = 6 }", "defaults.grace", 6),
    ],
)
def test_values(site: Site, line: str, name: str, value: Any) -> None:
    site.user.write_text(line + "\n")
    assert site.load()[name] == value


@pytest.mark.parametrize(
    "text",
    [
        "grace = '301s'",
        "grace = -1",
        "grace = true",
        "grace = []",
        "backoff_limit = 101",
        "backoff_limit = 1.5",
        "backoff_limit = true",
        "backoff_limit = inf",
        "backoff_limit = nan",
        "backoff_limit = 'many'",
        "backoff_limit = {a = 1}",
        "max_attempts = 0",
        "walltime = '11000d'",
        "walltime = 1979-05-27",
        "class = 5",
        "priority = 'hihg'",
        "priority = 1001",
        "priority = -1",
        "priority = true",
        "priority = '٥'",
    ],
)
def test_a_value_that_makes_no_sense_is_one_fault_with_its_line(site: Site, text: str) -> None:
    [fault] = site.faults(f"# a comment\n[defaults]\n\n{text}\n")
    assert fault.startswith("line 4: ")
    assert f"defaults.{text.partition(' ')[0]}" in fault


# -- faults ----------------------------------------------------------------------------------------------


def test_every_fault_is_told_at_once_with_line_and_nearest_name(site: Site) -> None:
    site.env |= {"GPUSPOOL_CFG_DEFAULT_GRACE": "5", "GPUSPOOL_CFG_DAEMON_IDLE": "soon"}
    faults = site.faults(
        "[defaults]\n"  # 1
        "grase = 5\n"  # 2
        "walltime = 'x'\n"  # 3
        "class = 'spto'\n"  # 4
        "\n"
        "[polcy]\n"  # 6
        "\n"
        "[windows.nights]\n"  # 8
        "zone = 'Europe/Berln'\n"  # 9
        "open = ['daily 20:00-07:00']\n"
        "\n"
        "[windows.days]\n"  # 12
        "opne = ['daily 07:00-20:00']\n"  # 13
        "\n"
        "[classes.cheap]\n"  # 15
        "like = 'sopt'\n"  # 16
        "\n"
        "[classes.late]\n"  # 18
        "like = 'spot'\n"
        "window = 'night'\n"  # 20
        "\n"
        "[projects.vision]\n"  # 22
        "quota = -1\n"  # 23
    )
    for line, part in [
        ("line 2: ", "there is no setting 'grase' in [defaults]; did you mean 'grace'?"),
        ("line 3: ", "defaults.walltime 'x' is not usable: it is no duration"),
        ("line 4: ", "there is no class 'spto'; did you mean 'spot'?"),
        ("line 6: ", "there is no section [polcy]; did you mean 'policy'?"),
        ("line 9: ", "the time zone of window 'nights' 'Europe/Berln'"),
        ("line 13: ", "there is no setting 'opne' in [windows.days]; did you mean 'open'?"),
        ("line 16: ", "there is no class 'sopt'; did you mean 'spot'?"),
        ("line 20: ", "there is no window 'night'"),
        ("line 23: ", "quota -1 is not usable"),
        (
            "GPUSPOOL_CFG_DEFAULT_GRACE: ",
            "there is no such setting; did you mean 'GPUSPOOL_CFG_DEFAULTS_GRACE'?",
        ),
        ("GPUSPOOL_CFG_DAEMON_IDLE: ", "daemon.idle 'soon'"),
    ]:
        hits = [fault for fault in faults if fault.startswith(line) and part in fault]
        assert len(hits) == 1, f"{line}{part}\nnot once in\n" + "\n".join(faults)
    assert len(faults) == 11


def test_the_error_counts_and_lists_them(site: Site) -> None:
    site.user.write_text("[defaults]\na = 1\nb = 2\n")
    with pytest.raises(ConfigError, match=r"^2 problem\(s\) in the configuration:\n") as caught:
        site.load()
    assert str(caught.value).count("\n") == 2


def test_both_files_are_read_to_the_end(site: Site) -> None:
    site.system.write_text("[defaults]\na = 1\n")
    faults = site.faults("[defaults]\nb = 2\n")
    assert faults[0].startswith(f"{site.system}:2: ")
    assert faults[1].startswith("line 2: ")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"[defaults\n", "at line 1"),
        (b"[defaults]\ngrace = 5\ngrace = 6\n", "at line 3"),
        (b"\xff\xfe", "it is not UTF-8 text (byte 0)"),
        (b"a = " + b"[" * 100000, "nested too deeply"),
        (b"defaults = 5\n", "defaults is a section: write [defaults]"),
        (b"windows = 5\n", "windows is a section: write [windows]"),
        (b"[windows]\nnights = 5\n", "write [windows.nights] and below it zone, open, holidays"),
        (b"[windows.n]\nopen = 'daily 1:00-2:00'\n", "it is no list of texts"),
        (b"[windows.n]\nopen = [5]\n", "it is no list of texts"),
        (b"[windows.n]\nzone = 5\nopen = ['daily 1:00-2:00']\n", "it is no text"),
        (b"[windows.n]\nopen = []\n", "it never opens"),
        (
            b"[classes.mine]\npreemptible = true\n",
            "a class of your own needs like = one of reserved, ondemand",
        ),
        (b"[classes.mine]\nlike = 'spot'\nwindow = ['a']\n", "there is no window ['a']"),
        (b"[classes.spot]\nwindow = 5\n", "there is no window 5"),
        (b"[classes.spot]\npreemptible = 'perhaps'\n", "neither yes nor no"),
        (b"[classes.spot]\nrank = 1001\n", "whole number from 0 to 1000"),
        (b"[projects.a]\nquota = true\n", "it is no number of 0 or more"),
        (b"[projects.a]\nparent = 5\n", "it is no text"),
        (b"[projects.a]\nparent = 'a'\n", "circle"),
    ],
)
def test_files_that_cannot_be_read(site: Site, text: bytes, part: str) -> None:
    site.user.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        site.load()
    [fault] = caught.value.faults
    assert part in fault


def test_a_folder_in_the_place_of_the_file_is_told(site: Site) -> None:
    site.user.mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        site.load()


def test_a_relative_folder_is_refused(site: Site) -> None:
    [fault] = site.faults("[spool]\nstate_dir = 'here'\n")
    assert "line 2: " in fault
    assert "no absolute path" in fault


# -- windows, classes, projects --------------------------------------------------------------------------

NIGHTS = "[classes.offpeak]\nwindow = 'nights'\n[windows.nights]\nzone = 'Europe/Berlin'\nopen = ['daily 20:00-07:00']\nholidays = ['2030-12-25']\n"


def test_a_class_names_a_window_that_stands_below_it(site: Site) -> None:
    site.user.write_text(NIGHTS)
    found = site.load()
    assert found.job_class("offpeak").window == "nights"
    assert found.windows["nights"].zone == "Europe/Berlin"


def test_a_class_of_the_site_is_built_on_another(site: Site) -> None:
    site.user.write_text(
        "[classes.night]\nlike = 'offpeak'\nrank = 15\n"
        + NIGHTS.replace("classes.offpeak", "classes.cheap]\nlike = 'spot'\n[classes.offpeak")
    )
    found = site.load()
    assert found.job_class("cheap") == configuration.JobClass(
        "cheap", preemptible=True, quota_bound=False, rank=20, backfills=True
    )
    assert found.classes["night"].rank == 15
    assert found.classes["night"].needs_window


def test_offpeak_without_a_window_says_what_to_write(site: Site) -> None:
    with pytest.raises(BadRequest, match=r"\[windows\.nights\]") as caught:
        site.load().job_class("offpeak")
    assert 'open = ["mon-fri 20:00-07:00", "sat,sun 00:00-24:00"]' in str(caught.value)
    with pytest.raises(BadRequest, match="Choose one of reserved, ondemand, spot, offpeak, idle"):
        site.load().job_class("cheap")


def test_what_offpeak_says_to_write_works(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with pytest.raises(BadRequest) as caught:
        site.load().job_class("offpeak")
    site.user.write_text(str(caught.value).partition("config.toml:\n")[2])
    assert site.load().job_class("offpeak").window == "nights"


def test_a_default_class_may_be_one_of_the_site(site: Site) -> None:
    site.user.write_text("[defaults]\nclass = 'mine'\n[classes.mine]\nlike = 'idle'\n")
    assert site.load()["defaults.class"] == "mine"


def test_projects(site: Site) -> None:
    site.user.write_text("[projects.a]\nquota = 4\nlimit = 8\nparent = 'lab'\n[projects.lab]\nweight = 0\n")
    found = site.load().projects
    assert (found["a"].quota, found["a"].limit_gpus, found["a"].weight, found["a"].parent) == (
        4.0,
        8.0,
        1.0,
        "lab",
    )
    assert (found["lab"].quota, found["lab"].weight) == (None, 0.0)


def test_parents_that_make_a_circle_are_each_told(site: Site) -> None:
    faults = site.faults(
        "[projects.a]\nparent = 'b'\n[projects.b]\nparent = 'c'\n[projects.c]\nparent = 'a'\n[projects.d]\nparent = 'a'\n"
    )
    assert faults == [
        "projects.a: its parents make a circle: a → b → c → a",
        "projects.b: its parents make a circle: b → c → a → b",
        "projects.c: its parents make a circle: c → a → b → c",
    ]


@pytest.mark.parametrize(
    ("zone", "name"), [(":Europe/Berlin", "Europe/Berlin"), ("America/New_York", "America/New_York")]
)
def test_the_machines_zone(zone: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    assert configuration.local_zone() == name
