"""Bad input: a clear sentence with value, reason and remedy, the right exit code, and nothing half-made."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPOOL = [sys.executable, "-m", "gpuspool.cli.main"]


@pytest.fixture
def gpus(box: Any, fake_nvml: Any) -> Any:
    """A spool on a machine with two H100s and four CPUs, in which nothing is scheduled."""
    box.env.update(fake_nvml.env)
    box.set(DAEMON_AUTO="no", LOCAL_MEMORY="8G")
    return box


def nothing_made(box: Any) -> None:
    """No job in the queue, no folder of a job, no stray file."""
    assert json.loads(box.run("queue", "-a", "--json").stdout)["jobs"] == []
    assert not (box.state / "jobs").exists()
    left = {path.name for path in box.state.iterdir()}
    assert left <= {"spool.db", "spool.db-wal", "spool.db-shm", "owner.json", "daemon.log"}, left


def refused(box: Any, *words: str, code: int, says: tuple[str, ...], **more: Any) -> str:
    """The command is refused with that code and sentence; what it said."""
    found = box.run(*words, check=False, **more)
    assert found.returncode == code, found.stdout + found.stderr
    assert found.stdout == ""
    assert found.stderr.startswith("spool: ")
    for text in says:
        assert text in found.stderr, found.stderr
    assert "Traceback" not in found.stderr
    return str(found.stderr)


#: Options → exit code and what the message holds: the value, the reason, the remedy.
CASES = {
    "unknown project": (("-A", "visoin"), 1, ("'visoin'", "default", "spool project set")),
    "more GPUs than there are": (("-G", "3"), 1, ("never", "3 GPUs", "2", "nothing was submitted")),
    "more GPUs a node": (("--gpus-per-node", "8"), 1, ("never", "8 GPUs", "is 2")),
    "a type that there is not": (("-G", "1", "--gpu-type", "b200"), 1, ("never", "b200", "spool node list")),
    "more CPUs": (("-c", "5"), 1, ("never", "5 CPUs", "is 4")),
    "more memory": (("--mem", "9G"), 1, ("never", "9216 MiB", "8192")),
    "more nodes": (("-N", "2"), 1, ("never", "2 nodes")),
    "a lot of everything": (("-c", "9" * 30), 1, ("never",)),
    "negative GPUs": (("-G", "-1"), 2, ("-G", "-1", "negative", "0 or more")),
    "negative GPUs a node": (("--gpus-per-node", "-1"), 2, ("--gpus-per-node", "-1")),
    "no nodes": (("-N", "0"), 2, ("-N", "0", "1 or more")),
    "negative nodes": (("-N", "-2"), 2, ("-2", "1 or more")),
    "no CPUs": (("-c", "0"), 2, ("-c", "0", "1 or more")),
    "negative CPUs": (("-c", "-3"), 2, ("-3", "1 or more")),
    "GPUs that nodes cannot share": (("-N", "2", "-G", "3"), 2, ("3", "2 nodes", "multiple of 2")),
    "GPUs said twice": (("-G", "3", "--gpus-per-node", "2"), 2, ("3", "2", "Leave one")),
    "a type without GPUs": (("--gpu-type", "h100"), 2, ("h100", "no GPU", "-G")),
    "walltime 0": (("-t", "0"), 2, ("walltime (-t)", "'0'", "no time", "at least one second")),
    "walltime 00:00:00": (("-t", "00:00:00"), 2, ("00:00:00", "no time")),
    "negative walltime": (("-t", "-5"), 2, ("'-5'", "no duration", "90s, 10m, 2h")),
    "a word for a walltime": (("-t", "soon"), 2, ("'soon'", "no duration")),
    "a walltime of ages": (("-t", "99999d"), 2, ("ten years",)),
    "too much grace": (("--grace", "301"), 2, ("301", "300 s", "at most 5m")),
    "negative grace": (("--grace", "-1"), 2, ("-1",)),
    "negative memory": (("--mem", "-1G"), 2, ("-1G", "500M, 20G")),
    "no memory": (("--mem", "0"), 2, ("'0'", "500M")),
    "a priority of its own": (("--priority", "asap"), 2, ("'asap'", "low, normal, high, urgent")),
    "a priority off the scale": (("--priority", "1001"), 2, ("1001", "0 to 1000")),
    "an unknown class": (("--class", "cheap"), 2, ("'cheap'", "reserved, ondemand, spot")),
    "a begin that is none": (("--begin", "yesterdayish"), 2, ("yesterdayish", "now+2h")),
    "a signal that cannot be caught": (("--stop-signal", "KILL"), 2, ("'KILL'", "USR1, USR2, TERM")),
    "too many failures": (("--backoff-limit", "101"), 2, ("101", "0 to 100")),
    "negative failures": (("--backoff-limit", "-1"), 2, ("-1", "0 to 100")),
    "no attempts": (("--max-attempts", "0"), 2, ("--max-attempts", "0")),
    "no GPU hours": (("--max-gpu-hours", "0"), 2, ("--max-gpu-hours", "0")),
    "GPU hours that are no number": (("--max-gpu-hours", "nan"), 2, ("nan",)),
    "no such folder": (("-D", "/nowhere/at/all"), 2, ("/nowhere/at/all", "no such folder", "-D")),
    "output into no folder": (
        ("-o", "no/such/out.log"),
        2,
        ("no/such/out.log", "there is no folder", "mkdir"),
    ),
    "output onto a folder": (("-o", "."), 2, ("-o", "it is a folder", "%j.out")),
    "errors into no folder": (("-e", "no/such/err.log"), 2, ("(-e)", "there is no folder")),
    "nproc without torchrun": (("--nproc", "2"), 2, ("--nproc", "--torchrun")),
    "no workers": (("--torchrun", "--nproc", "0"), 2, ("--nproc", "0")),
    "a Python that is none": (("--torchrun", "--python", "/no/python"), 2, ("/no/python", "--python")),
    "an unknown format": (("--checkpoint-format", "zip"), 2, ("zip", "lightning")),
    "an endless name": (("-J", "n" * 256), 2, ("255",)),
    "no number": (("-G", "two"), 2, ("two",)),
    "off-peak without a window": (
        ("--class", "offpeak"),
        2,
        (
            "'offpeak'",
            "no window",
            "[windows.nights]",
            "[classes.offpeak]",
            'window = "nights"',
            "config.toml",
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_request_that_cannot_be_met_is_refused(gpus: Any, case: str) -> None:
    options, code, says = CASES[case]
    refused(gpus, "submit", *options, "--", "true", code=code, says=says)
    nothing_made(gpus)


def test_the_lines_for_a_window_can_be_pasted(gpus: Any) -> None:
    text = refused(gpus, "submit", "--class", "offpeak", "--", "true", code=2, says=())
    gpus.config_file.write_text("\n".join(line.strip() for line in text.split("\n")[1:]))
    assert gpus.run("config", "check").stdout.startswith("ok: ")
    job = gpus.submit("--class", "offpeak", "--", "true")
    assert gpus.show(job)["class"] == "offpeak"


def test_what_is_too_much_for_now_is_no_never(gpus: Any, fake_nvml: Any) -> None:
    gpus.submit("-G", "2", "--", "true")
    gpus.submit("-G", "2", "--", "true")
    fake_nvml.set(4)
    assert gpus.submit("-G", "2", "--", "true") == 3


def test_a_driver_that_does_not_answer_is_named(gpus: Any, fake_nvml: Any) -> None:
    fake_nvml.error("nvmlInit*", "LIB_RM_VERSION_MISMATCH")
    fake_nvml.write()
    text = refused(gpus, "submit", "-G", "1", "--", "true", code=1, says=("never", "1 GPU"))
    assert "driver" in text.lower(), text


@pytest.mark.parametrize("quota", [("--limit", "1"), ("--quota", "1")])
def test_more_than_a_project_may_ever_hold(gpus: Any, quota: tuple[str, str]) -> None:
    gpus.run("project", "set", "small", *quota)
    refused(
        gpus,
        "submit",
        "-A",
        "small",
        "--class",
        "reserved",
        "-G",
        "2",
        "--",
        "true",
        code=1,
        says=("never", "'small'", "1"),
    )
    assert json.loads(gpus.run("queue", "--json").stdout)["jobs"] == []


# -- commands ------------------------------------------------------------------------------------------------


def test_an_argument_that_linux_does_not_take() -> None:
    """The kernel refuses it to the shell already; a program that uses the client hears it from us."""
    from gpuspool.scheduler.intake import Request, build
    from gpuspool.spool.config import Config, load
    from gpuspool.spool.errors import BadRequest

    config: Config = load({"GPUSPOOL_CFG_FILE": "/nonexistent"})
    with pytest.raises(BadRequest, match=r"204800 bytes.*131071.*file"):
        build(Request(command=["sh", "-c", "x" * 204800]), config, 0.0)
    with pytest.raises(BadRequest, match="NUL"):
        build(Request(command=["sh", "-c", "a\0b"]), config, 0.0)
    with pytest.raises(BadRequest, match="arguments and environment together"):
        build(Request(command=["x" * 100] * 20000), config, 0.0)


def test_a_command_of_200_kib_runs_whole(box: Any) -> None:
    words = [f"{number:0255d}" for number in range(800)]
    code = "import sys, hashlib; print(len(sys.argv), hashlib.sha256(' '.join(sys.argv[1:]).encode()).hexdigest())"
    job = box.submit("--", sys.executable, "-c", code, *words)
    assert box.wait(job)["state"] == "succeeded"
    import hashlib

    assert box.output(job) == f"801 {hashlib.sha256(' '.join(words).encode()).hexdigest()}\n"
    # It does not flood the screen either.
    assert len(box.run("queue", "-a").stdout) < 1000


@pytest.mark.parametrize(
    "name",
    [
        "new\nline",
        "quote\"'s",
        "größe 模型",
        "\x1b[31mred",
        "a/b/../c",
        "%j %x",
        "-dash",
        " ",
        "stray \udcff",
    ],
)
def test_odd_names_are_taken_and_found_again(box: Any, name: str) -> None:
    box.env["JOB_NAME"] = name
    job = box.submit("-J", name, "-o", "%x.log", "--", "printenv", "JOB_NAME")
    assert box.wait(job)["state"] == "succeeded"
    assert box.run("logs", str(job), errors="surrogateescape").stdout == name + "\n"
    found = json.loads(box.run("queue", "-a", "--json", "-n", name).stdout)["jobs"]
    assert [item["id"] for item in found] == [job]
    # The name in a file's name never leaves the folder.
    logs = [path for path in box.work.iterdir() if path.name.endswith(".log")]
    assert len(logs) == 1


def test_a_working_folder_that_is_gone(gpus: Any) -> None:
    gone = gpus.root / "gone"
    gone.mkdir()
    line = f"cd '{gone}' && rmdir '{gone}' && exec {' '.join(SPOOL)} submit -- true"
    done = subprocess.run(["bash", "-c", line], env=gpus.env, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert str(gone) in done.stderr and "is gone" in done.stderr and "-D" in done.stderr
    assert "Traceback" not in done.stderr
    nothing_made(gpus)
    done = subprocess.run(
        ["bash", "-c", line.replace("submit", "submit --parsable -D /")],
        env=gpus.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0  # the folder was made by nobody in between


REMARKS = {
    "not on PATH": (("no-such-program-here",), "there is no program 'no-such-program-here'"),
    "a file without ./": (("train.py",), "write python train.py"),
    "a script without ./": (("job.sh",), "write bash job.sh"),
    "not executable": (("./job.sh",), "chmod +x"),
    "quotes around it all": (("python train.py --lr 1",), "leave the quotes out"),
    "{resume} in a text": (("sh", "-c", "python train.py {resume}"), "{resume} is filled in only"),
}


@pytest.mark.parametrize("case", REMARKS)
def test_what_is_hardly_meant_is_remarked_on(gpus: Any, case: str) -> None:
    command, says = REMARKS[case]
    for name in ("train.py", "job.sh"):
        (gpus.work / name).write_text("")
    found = gpus.run("submit", "--", *command)
    assert found.stdout.startswith("Submitted job 1 ")
    assert f"note: {says}" in found.stderr or says in found.stderr
    for good in (("true",), ("sh", "./job.sh"), ("python", "train.py", "{resume}"), ("/bin/true",)):
        assert "note:" not in gpus.run("submit", "--", *good).stderr


# -- the spool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o770])
def test_a_state_folder_that_others_can_write_to_is_refused(box: Any, mode: int) -> None:
    box.state.chmod(mode)
    refused(
        box, "submit", "--", "true", code=1, says=(str(box.state), "others can write to it", "chmod go-w")
    )
    assert list(box.state.iterdir()) == []
    assert stat.S_IMODE(box.state.stat().st_mode) == mode  # not mended behind the owner's back
    box.state.chmod(0o700)
    assert box.submit("--", "true") == 1


@pytest.mark.root
def test_a_state_folder_of_somebody_else_is_refused(box: Any) -> None:
    if os.geteuid() != 0:
        pytest.fail("needs root to give a folder away; deselect with -m 'not root'")
    os.chown(box.state, 12345, 12345)
    refused(box, "submit", "--", "true", code=1, says=(str(box.state), "12345"))
    os.chown(box.state, 0, 0)


def test_a_state_folder_that_is_a_file(box: Any) -> None:
    path = box.root / "file"
    path.write_text("")
    box.set(STATE_DIR=str(path))
    refused(box, "submit", "--", "true", code=4, says=(str(path), "GPUSPOOL_CFG_STATE_DIR"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[defaults]\nwalltme = 3\n", (":2:", "'walltme'", "did you mean 'walltime'")),
        ("\n\n[defalts]\ngrace = 3\n", (":3:", "[defalts]", "did you mean 'defaults'")),
        ("[defaults]\ngrace = 1000\n", (":2:", "1000", "0s to 5m")),
        ("[defaults]\nclass = 'spto'\n", ("spto", "did you mean 'spot'")),
        ("[defaults\n", ("line 1",)),
        (
            "[windows.nights]\nzone = 'Mars/Base'\nopen = ['daily 20:00-07:00']\n",
            (":2:", "Mars/Base", "Europe/Berlin"),
        ),
        ("[windows.nights]\nopen = ['dayly 20:00-07:00']\n", ("dayly", "daily 22:00-06:00")),
        (
            "[classes.night]\nlike = 'spot'\nwindow = 'nigths'\n[windows.nights]\nopen = ['daily 20:00-07:00']\n",
            (":3:", "did you mean 'nights'"),
        ),
        ("[projects.a]\nquota = -1\n", (":2:", "-1")),
        ("[projects.a]\nquotas = 1\n", (":2:", "'quotas'", "did you mean 'quota'")),
    ],
    ids=range(10),
)
def test_a_typo_in_the_configuration(box: Any, text: str, says: tuple[str, ...]) -> None:
    box.config_file.write_text(text)
    for words in (("submit", "--", "true"), ("config", "check"), ("queue",)):
        refused(box, *words, code=2, says=(str(box.config_file), *says))
    assert list(box.state.iterdir()) == []
    found = box.run("config", "path", check=False)
    assert str(box.config_file) in found.stdout  # whoever looks for the file still finds it


def test_all_faults_at_once(box: Any) -> None:
    box.config_file.write_text("[defaults]\ngrce = 3\nwalltime = 'x'\n[lokal]\n")
    box.set(DEAMON_AUTO="no")
    text = refused(box, "config", "check", code=2, says=("4 problem(s)",))
    for part in ("'grace'", "'x'", "'local'", "GPUSPOOL_CFG_DAEMON_AUTO"):
        assert part in text


# -- full disks ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if os.geteuid() != 0:
        pytest.fail("needs root to mount a tmpfs; deselect with -m 'not root'")
    folder = tmp_path / "disk"
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Every last byte of the disk under `folder`."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


@pytest.mark.root
@pytest.mark.parametrize("used_before", [False, True])
def test_a_full_disk_at_submission(box: Any, small_disk: Path, used_before: bool) -> None:
    box.state = small_disk / "state"
    box.state.mkdir(mode=0o700)
    box.set(STATE_DIR=str(box.state), RUN_DIR=str(box.root / "run"), DAEMON_AUTO="no")
    if used_before:
        box.run("queue")
    filler = fill(small_disk)
    refused(
        box,
        "submit",
        "--",
        "sh",
        "-c",
        "x" * 60000,
        code=1,
        says=("No room left", str(box.state), "GPUSPOOL_CFG_STATE_DIR"),
    )
    filler.unlink()
    nothing_made(box)
    assert box.submit("--", "true") == 1


@pytest.mark.root
def test_a_run_folder_below_its_reserve(box: Any, small_disk: Path) -> None:
    box.set(RUN_DIR=str(small_disk / "run"), FREE_SPACE_MIB="3", DAEMON_AUTO="no")
    refused(
        box,
        "submit",
        "--",
        "true",
        code=1,
        says=("No room left", str(small_disk), "3 MiB are kept in reserve", "free_space_mib"),
    )
    nothing_made(box)
    box.set(FREE_SPACE_MIB="1")
    assert box.submit("--", "true") == 1


def test_a_quota_of_the_file_system_at_submission(box: Any) -> None:
    """RLIMIT_FSIZE fails as a quota does, and needs no root."""
    box.set(DAEMON_AUTO="no")
    box.run("queue")
    size = (box.state / "spool.db").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        [*SPOOL, "submit", "--", "sh", "-c", "x" * 120000, *["y" * 120000] * 4],
        env=box.env,
        cwd=box.work,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode in (1, 4), done.stderr
    assert str(box.state) in done.stderr and "Traceback" not in done.stderr
    nothing_made(box)
    assert box.submit("--", "true") == 1
