"""From a request to a submission: defaults, every bad value refused with value, reason and remedy."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

import pytest
from clusters import NOW

from gpuspool.scheduler.intake import (
    CHECKPOINT_FORMATS,
    MAX_ARGUMENT,
    Request,
    build,
    priority,
    put,
    refuse_never,
)
from gpuspool.spool.config import Config, load
from gpuspool.spool.errors import BadRequest, NeverRunnable, NoSuchProject
from gpuspool.spool.folders import Folders
from gpuspool.spool.model import GpuRow, Node, Project, Submission
from gpuspool.spool.store import open_store

WEIRD = "a b'c\"d\né$x;"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(
        '[windows.nights]\nzone = "UTC"\nopen = ["daily 20:00-07:00"]\n'
        '[classes.nightly]\nlike = "offpeak"\nwindow = "nights"\n'
        '[classes.gentle]\nlike = "ondemand"\npreemptible = true\n'
    )
    return load({"GPUSPOOL_CFG_FILE": str(file), "HOME": str(tmp_path)})


@pytest.fixture
def made(config: Config, tmp_path: Path):
    def make(*command: str, **asked) -> Submission:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        return build(
            Request(list(command) or ["true"], **{"cwd": str(tmp_path), "env": env} | asked), config, NOW
        )

    return make


# -- defaults ----------------------------------------------------------------------------------------------


def test_what_is_not_said_has_a_default(made, tmp_path):
    found = made("./train.sh")
    assert (found.name, found.project, found.job_class, found.preemptible) == (
        "train.sh",
        "default",
        "ondemand",
        False,
    )
    assert (found.nodes, found.gpus, found.cpus, found.memory_mib, found.gpu_type) == (1, 0, 1, 0, "")
    assert (found.priority, found.walltime_s, found.grace_s, found.min_runtime_s) == (50, 0, 60, 0)
    assert (found.hold, found.begin_at) == ("", 0.0)
    spec = found.spec
    assert (spec.cwd, spec.launcher, spec.python, spec.nproc) == (str(tmp_path), "plain", "", 0)
    assert (spec.stop_signal, spec.resume_arg) == ("USR2", "--resume_from_checkpoint")
    assert (spec.backoff_limit, spec.backoff_reset, spec.max_attempts, spec.max_gpu_hours) == (
        3,
        "never",
        100,
        0.0,
    )
    assert (spec.on_timeout, spec.stopped_exit_0) == ("", "requeue")
    mask = os.umask(0)
    os.umask(mask)
    assert spec.umask == mask


def test_what_is_said(made):
    found = made(
        "true",
        job_class="spot",
        priority="high",
        gpus=2,
        gpu_type="H100",
        cpus=6,
        memory="20G",
        walltime="2h",
        grace="90",
        min_runtime="10m",
        begin="now+1h",
        hold=True,
        stop_signal="sigusr1",
        resume_arg="--from=",
        max_gpu_hours=24.5,
    )
    assert (found.job_class, found.preemptible, found.priority) == ("spot", True, 75)
    assert (found.gpus, found.gpu_type, found.cpus, found.memory_mib) == (2, "h100", 6, 20480)
    assert (found.walltime_s, found.grace_s, found.min_runtime_s) == (7200, 90, 600)
    assert (found.begin_at, found.hold) == (NOW + 3600, "user")
    assert (found.spec.stop_signal, found.spec.resume_arg, found.spec.max_gpu_hours) == (
        "USR1",
        "--from=",
        24.5,
    )


def test_defaults_come_from_the_configuration(tmp_path):
    (tmp_path / "none.toml").touch()
    env = {
        "GPUSPOOL_CFG_FILE": str(tmp_path / "none.toml"),
        "GPUSPOOL_CFG_DEFAULTS_CLASS": "idle",
        "GPUSPOOL_CFG_DEFAULTS_GRACE": "5s",
        "GPUSPOOL_CFG_DEFAULTS_WALLTIME": "1h",
        "GPUSPOOL_CFG_DEFAULTS_BACKOFF_LIMIT": "7",
        "GPUSPOOL_CFG_DEFAULTS_PRIORITY": "low",
    }
    found = build(Request(["true"], cwd=str(tmp_path)), load(env), NOW)
    assert (found.job_class, found.preemptible, found.priority) == ("idle", True, 25)
    assert (found.grace_s, found.walltime_s, found.spec.backoff_limit) == (5, 3600, 7)


@pytest.mark.parametrize(
    ("job_class", "said", "expected"),
    [
        ("spot", None, True),
        ("spot", False, False),
        ("reserved", None, False),
        ("reserved", True, True),
        ("gentle", None, True),
        ("gentle", False, False),
        ("nightly", None, True),
    ],
)
def test_the_effective_value_of_preemptible(made, job_class, said, expected):
    assert made(job_class=job_class, preemptible=said).preemptible is expected


@pytest.mark.parametrize(
    ("asked", "gpus", "per_node", "cpus"),
    [
        ({"gpus": 4}, 4, 4, 0),
        ({"gpus": 4, "nodes": 2}, 4, 2, 0),
        ({"gpus_per_node": 4}, 4, 4, 0),
        ({"gpus_per_node": 4, "nodes": 2}, 8, 4, 0),
        ({"gpus": 8, "gpus_per_node": 4, "nodes": 2}, 8, 4, 0),
        ({"gpus": 0}, 0, 0, 1),
        ({"gpus": 4, "cpus": 3}, 4, 4, 3),
        ({"nodes": 3}, 0, 0, 1),
    ],
)
def test_gpus_are_a_total_as_in_slurm(made, asked, gpus, per_node, cpus):
    found = made(**asked)
    assert (found.gpus, found.spec.gpus_per_node, found.cpus) == (gpus, per_node, cpus)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train.py"),
        (["/opt/x/bin/python3.12", "/home/me/train.py"], "train.py"),
        (["python", "-m", "package"], "python"),
        (["sh", "-c", "echo"], "sh"),
        (["bash", "run.sh"], "run.sh"),
        (["./shuffle.py", "data.csv"], "shuffle.py"),
        (["pythonic", "x"], "pythonic"),
        (["/"], "job"),
    ],
)
def test_a_job_without_a_name_gets_its_programs(made, command, name):
    assert made(*command).name == name


def test_names_may_hold_anything_that_a_file_name_may(made, tmp_path):
    folder = tmp_path / WEIRD
    folder.mkdir()
    found = made("true", WEIRD, "\udcff", name=WEIRD, cwd=str(folder), output=f"{WEIRD}-%j.log")
    assert found.name == WEIRD and found.spec.cwd == str(folder)
    assert found.spec.command == ["true", WEIRD, "\udcff"]
    found = made(name="caf\udce9 \ud800")
    assert found.name.encode(), "what is no text is spelt out: the database takes nothing else"
    assert "caf" in found.name


def test_the_environment_is_the_submitters_without_what_describes_another_job(made):
    env = {"A": "1", "GPUSPOOL_JOB_ID": "7", "SLURM_JOB_ID": "8", "SLURM_CONF": "/etc/s", "": "odd"}
    assert made(env=env).spec.env == {"A": "1", "SLURM_CONF": "/etc/s"}


# -- bad values --------------------------------------------------------------------------------------------

BAD = {
    "a class": {"job_class": "spott"},
    "a class without window": {"job_class": "offpeak"},
    "a priority": {"priority": "asap"},
    "a negative priority": {"priority": "-1"},
    "a priority off the scale": {"priority": "1001"},
    "a priority with an underscore": {"priority": "1_0"},
    "nodes": {"nodes": 0},
    "gpus": {"gpus": -1},
    "gpus a node": {"gpus_per_node": -1},
    "gpus that nodes cannot share": {"gpus": 3, "nodes": 2},
    "gpus said twice": {"gpus": 4, "gpus_per_node": 3},
    "a type without gpus": {"gpu_type": "h100"},
    "a type with a line break": {"gpu_type": "h\n", "gpus": 1},
    "a type that is no text": {"gpu_type": "h\udcff", "gpus": 1},
    "cpus": {"cpus": 0},
    "memory": {"memory": "lots"},
    "no memory": {"memory": "0"},
    "a walltime": {"walltime": "soon"},
    "no walltime": {"walltime": "0"},
    "a grace": {"grace": "x"},
    "too much grace": {"grace": "301"},
    "a minimum runtime": {"min_runtime": "-1"},
    "a begin": {"begin": "someday"},
    "a folder": {"cwd": "/no/such/folder"},
    "a file as folder": {"cwd": "/etc/passwd"},
    "a folder with NUL": {"cwd": "/tmp\0"},
    "an output folder": {"output": "/no/such/folder/x.log"},
    "an output that is a folder": {"output": "/tmp"},
    "an output with NUL": {"output": "a\0b"},
    "an error file": {"error": "no-such-folder/x.log"},
    "a signal": {"stop_signal": "KILL"},
    "a signal's number": {"stop_signal": "10"},
    "a resume argument": {"resume_arg": ""},
    "a checkpoint folder": {"checkpoint_dir": "a\0b"},
    "a format": {"checkpoint_format": "pickle"},
    "a backoff limit": {"backoff_limit": 101},
    "a negative backoff limit": {"backoff_limit": -1},
    "what clears it": {"backoff_reset": "always"},
    "attempts": {"max_attempts": 0},
    "gpu hours": {"max_gpu_hours": 0.0},
    "gpu hours that are none": {"max_gpu_hours": float("nan")},
    "on timeout": {"on_timeout": "explode"},
    "stopped exit 0": {"stopped_exit_0": "maybe"},
    "a name": {"name": "x" * 256},
    "python without torchrun": {"python": "/usr/bin/python3"},
    "module without torchrun": {"module": True},
    "nproc without torchrun": {"nproc": 2},
    "no workers": {"nproc": 0, "torchrun": True},
    "a python": {"python": "/no/such/python", "torchrun": True},
    "a python not on PATH": {"python": "python9", "torchrun": True},
    "a folder as python": {"python": "/usr", "torchrun": True},
    "a variable": {"env": {"A=B": "x"}},
    "a variable with NUL": {"env": {"A": "x\0y"}},
    "a large variable": {"env": {"A": "x" * 200 * 1024}},
}


@pytest.mark.parametrize("asked", BAD.values(), ids=BAD)
def test_bad_values_are_refused_with_value_reason_and_remedy(made, asked):
    with pytest.raises(BadRequest) as caught:
        made(**asked)
    values = caught.value.values
    assert set(values) == {"what", "value", "why", "remedy"} and values["what"] and values["why"]
    assert re.fullmatch(r"[^\0]+ is not usable: [^\0]+\. [^\0]+", str(caught.value)), str(caught.value)
    assert str(values["remedy"]).strip()


@pytest.mark.parametrize("command", [[], [""], ["true", "a\0b"], ["true", "x" * 200 * 1024]])
def test_bad_commands(made, config, command):
    with pytest.raises(BadRequest, match="is not usable"):
        build(Request(command), config, NOW)


def test_one_argument_may_be_as_long_as_linux_takes(made):
    made("true", "x" * MAX_ARGUMENT)
    with pytest.raises(BadRequest, match="131072 bytes"):
        made("true", "x" * (MAX_ARGUMENT + 1))
    with pytest.raises(BadRequest, match="131072 bytes"):
        made("true", "é" * (MAX_ARGUMENT // 2 + 1))


def test_arguments_and_environment_together(made):
    limit = os.sysconf("SC_ARG_MAX")
    with pytest.raises(BadRequest, match="arguments and environment together"):
        made("true", *["x" * 100_000] * (limit // 100_000 + 1))
    with pytest.raises(BadRequest, match="arguments and environment together"):
        made("true", env={f"A{i}": "x" * 100_000 for i in range(limit // 100_000 + 1)})


def test_the_largest_command_that_is_taken_does_start(made):
    """What is checked here is what the kernel checks: it is run."""
    room = os.sysconf("SC_ARG_MAX") - 8192 - 4096
    words = ["x" * 100_000] * (room // 100_009)
    found = made("true", *words)
    pid = os.posix_spawn("/bin/true", found.spec.command, found.spec.env)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- folders and programs ----------------------------------------------------------------------------------


def test_paths_are_made_absolute_without_losing_symbolic_links(made, tmp_path, monkeypatch):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/deep")
    assert made(cwd=str(tmp_path / "link")).spec.cwd == str(tmp_path / "link")
    assert made(cwd=str(tmp_path / "link" / "..")).spec.cwd == str(tmp_path / "real"), "as cd -P does"
    monkeypatch.chdir(tmp_path)
    assert made(cwd="link/.").spec.cwd == str(tmp_path / "link")
    assert made(cwd="").spec.cwd == str(tmp_path)
    assert made(checkpoint_dir="out/./x").spec.checkpoint_dir == str(tmp_path / "out" / "x")
    assert made(checkpoint_dir="link/../x").spec.checkpoint_dir == str(tmp_path / "real" / "x")
    assert made(checkpoint_dir="/abs/x").spec.checkpoint_dir == "/abs/x"


def test_a_tilde_is_the_home(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made(checkpoint_dir="~/c").spec.checkpoint_dir == str(tmp_path / "c")
    assert made(cwd="~").spec.cwd == str(tmp_path)
    assert made(output="~/x.log").spec.output == str(tmp_path / "x.log")


def test_a_working_folder_that_is_gone(made, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadRequest, match="it is gone"):
        made(cwd="")
    assert made(cwd=str(tmp_path)).spec.cwd == str(tmp_path)
    with pytest.raises(BadRequest, match="not on PATH"):
        made("x.py", torchrun=True, python="./python")
    monkeypatch.chdir(tmp_path)


def test_a_folder_that_may_not_be_entered_or_written(made):
    """Root may enter and write everywhere: it looks with somebody else's eyes."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        closed, full = os.path.join(folder, "closed"), os.path.join(folder, "full")
        os.mkdir(closed, 0o000)
        os.mkdir(full, 0o555)
        pid = os.fork()
        if pid == 0:
            said = ["", "", ""]
            try:
                if os.geteuid() == 0:
                    os.setresuid(65534, 65534, 65534)
                for index, asked in enumerate(({"cwd": closed}, {"cwd": full, "output": f"{full}/x.log"})):
                    try:
                        made(**asked)
                    except BadRequest as error:
                        said[index] = str(error.values["why"])
                made(cwd=full)
                said[2] = "fine"
            finally:
                os._exit(0 if said == ["you may not enter it", "you may not write there", "fine"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        os.chmod(closed, 0o700)


def test_outputs(made, tmp_path):
    (tmp_path / "logs").mkdir()
    assert made(output="logs/%j.log", error="logs/%x.err").spec.output == "logs/%j.log"
    assert made(output="%x/%j.log").spec.output == "%x/%j.log", "a folder that is known only at the start"
    with pytest.raises(BadRequest, match="mkdir -p"):
        made(output="log/%j.log")
    with pytest.raises(BadRequest, match=r"logs/%j\.out"):
        made(output="logs")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_python_of_torchrun_is_the_submitters(made, tmp_path, monkeypatch):
    first, second = executable(tmp_path / "one" / "python3"), executable(tmp_path / "two" / "python")
    path = f"{first.parent}:{second.parent}"
    assert made("x.py", torchrun=True, env={"PATH": path}).spec.python == str(second), "python before python3"
    assert made("x.py", torchrun=True, env={"PATH": str(first.parent)}).spec.python == str(first)
    assert made("x.py", torchrun=True, env={"PATH": path}, python="python3").spec.python == str(first)
    assert made("x.py", torchrun=True, env={}, python=str(first)).spec.python == str(first)
    plain = tmp_path / "two" / "plain"
    plain.touch()
    with pytest.raises(BadRequest, match="cannot be run"):
        made("x.py", torchrun=True, env={"PATH": path}, python=str(plain))
    with pytest.raises(BadRequest, match="--python /path/to/python"):
        made("x.py", torchrun=True, env={"PATH": str(tmp_path)})
    # As the shell completed it, whatever -D says.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    found = made("x.py", torchrun=True, env={}, python="two/python", cwd=str(tmp_path / "elsewhere"))
    assert found.spec.python == str(second)


def test_a_virtual_environments_python_stays_a_link(made, tmp_path):
    """Resolved, it would be the base interpreter, without the environment's packages."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(executable(tmp_path / "base" / "python3"))
    found = made("x.py", torchrun=True, env={"PATH": str(tmp_path / "venv")})
    assert found.spec.python == str(tmp_path / "venv" / "python")
    assert (found.spec.launcher, found.spec.command) == ("torchrun", ["x.py"])


@pytest.mark.parametrize(
    ("text", "number"),
    [("low", 25), ("normal", 50), ("high", 75), ("urgent", 100), ("0", 0), ("1000", 1000), ("77", 77)],
)
def test_priorities(text, number):
    assert priority(text) == number


def test_the_formats_are_those_of_the_checkpoint_finder():
    from gpuspool.launch.checkpoints import FORMATS

    assert set(CHECKPOINT_FORMATS) == set(FORMATS)


# -- what can never run ------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    places = Folders(*(str(tmp_path / name) for name in ("state", "run", "runtime")))
    for place in (places.state, places.run, places.runtime):
        os.mkdir(place, 0o700)
    opened = open_store(places)
    gpus = [GpuRow(f"GPU-{i}", "box", i, "A100", "a100", 81920, "up", "") for i in range(4)]
    opened.note_node(Node("box", "box", "boot", 16, 65536, "up", "", NOW), gpus)
    opened.set_project(Project("small", 2.0, 3.0, 1.0, ""))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"gpus": 5}, "it asks for 5 GPUs on one machine, the most that one has is 4"),
        ({"gpus": 1, "gpu_type": "h100"}, "it asks for 1 GPU of type 'h100'"),
        ({"cpus": 17}, "it asks for 17 CPUs"),
        ({"cpus": 10**30}, "CPUs"),
        ({"gpus": 10**30}, "GPUs"),
        ({"nodes": 10**30}, "nodes"),
        ({"memory": "65G"}, "it asks for 66560 MiB"),
        ({"nodes": 2, "gpus": 2}, "it asks for 2 nodes"),
        ({"gpus": 4, "project": "small", "job_class": "spot"}, "may hold at most 3"),
        ({"gpus": 3, "project": "small", "job_class": "reserved"}, "the quota of project 'small' is 2"),
        (
            {"gpus": 3, "job_class": "ondemand"},
            "it asks for 3 GPUs beyond its quota, all quotas together leave 2",
        ),
    ],
)
def test_what_can_never_run_is_refused_and_nothing_is_made(made, store, config, asked, why):
    with pytest.raises(NeverRunnable, match="nothing was submitted") as caught:
        refuse_never(store, config, made(**asked), NOW)
    assert why in str(caught.value)
    request = Request(["true"], cwd="/", **asked)
    with pytest.raises(NeverRunnable):
        put(store, config, request, NOW)
    assert store.rows("SELECT count(*) FROM jobs") == [(0,)]


def test_what_only_has_to_wait_is_taken(made, store, config):
    store.set_gpu_state("GPU-0", "drained", "fan")
    for asked in (
        {"gpus": 4, "job_class": "spot"},
        {"gpus": 2},
        {"cpus": 16, "memory": "64G"},
        {"hold": True},
    ):
        refuse_never(store, config, made(**asked), NOW)
    number, submission = put(store, config, Request(["true"], cwd="/", name=WEIRD, gpus=2), NOW)
    assert store.job(number).name == submission.name == WEIRD


def test_an_unknown_project(made, store, config):
    with pytest.raises(NoSuchProject, match="default, small"):
        refuse_never(store, config, made(project="smal"), NOW)
    with pytest.raises(NoSuchProject):
        refuse_never(store, config, made(project="\udcff"), NOW)
