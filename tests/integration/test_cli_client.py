"""`gpuspool.Client`: the same spool from a program, with the same words and the same refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import gpuspool
from gpuspool.spool.config import load
from gpuspool.spool.errors import BadRequest, ConfigError, NeverRunnable, NoSuchJob, NoSuchProject


@pytest.fixture
def client(box: Any) -> Iterator[gpuspool.Client]:
    """A client of the box's spool, in which nothing is scheduled."""
    box.set(DAEMON_AUTO="no")
    # Folders are resolved by this process's environment; the box's own is put in its place.
    old = dict(os.environ)
    os.environ.clear()
    os.environ.update(box.env)
    try:
        with gpuspool.Client(load(box.env)) as made:
            yield made
    finally:
        os.environ.clear()
        os.environ.update(old)


def test_the_story_of_a_job(box: Any) -> None:
    """In a program of its own, as a user would write it; a daemon comes by itself."""
    program = """
        import gpuspool

        with gpuspool.Client() as client:
            job = client.submit(["sh", "-c", "exit 3"], name="three", cpus=2, walltime="2h", backoff_limit=0)
            print(job, client.wait(job, timeout_s=60))
            view = client.show(job)
            print(view.job.state, view.job.walltime_s, view.job.cpus, len(view.attempts), view.events[0].kind)
            print([outcome.text for outcome in client.requeue(job)], client.wait("last"))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        env=box.env,
        cwd=box.work,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 3\nfailed 7200 2 1 submitted\n['queued again'] 3\n"
    assert done.stderr == ""


def test_it_sees_what_the_command_sees(box: Any, client: gpuspool.Client) -> None:
    one = client.submit(["true"], name="one", hold=True, env={"A": "b"})
    two = box.submit("-J", "two", "--", "true")
    assert [job.name for job in client.list()] == ["one", "two"]
    assert [job.id for job in client.list(name="two")] == [two]
    assert [job["id"] for job in json.loads(box.run("queue", "--json").stdout)["jobs"]] == [one, two]
    assert client.show("last").job.id == two
    assert client.show(one).spec.env == {"A": "b"}
    assert [job.id for job in client.list(jobs="1-2", states="queued")] == [one, two]
    assert client.list(states="failed") == []


def test_it_steers(client: gpuspool.Client) -> None:
    job = client.submit(["true"])
    assert [(item.job, item.done) for item in client.hold(job)] == [(job, True)]
    assert [item.done for item in client.hold(job)] == [False]
    assert client.release(f"s{job}")[0].done
    assert client.stop(job)[0].done
    assert client.resume(job)[0].done
    assert not client.preempt(job)[0].done
    assert client.cancel("1-5", now=True)[0].text == "cancelled"
    assert client.requeue(job)[0].done
    with pytest.raises(TimeoutError, match="not finished within 0 s: 1"):
        client.wait(job, timeout_s=0)


def test_it_refuses_in_the_same_words(client: gpuspool.Client) -> None:
    for error, text, options in (
        (NoSuchProject, "'visoin'", {"project": "visoin"}),
        (NeverRunnable, "never", {"cpus": 500}),
        (BadRequest, "walltime", {"walltime": 0}),
        (BadRequest, "'wallt'.*walltime", {"wallt": 3}),
        (BadRequest, "lightning", {"checkpoint_format": "zip"}),
        (BadRequest, "requeue, fail", {"on_timeout": "maybe"}),
    ):
        with pytest.raises(error, match=text):
            client.submit(["true"], **options)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="one text"):
        client.submit("python train.py")
    with pytest.raises(NoSuchJob):
        client.show(1)
    with pytest.raises(BadRequest, match="none is named"):
        client.cancel()
    assert client.list(finished=True) == []


def test_a_wrong_configuration_is_refused(box: Any) -> None:
    with pytest.raises(ConfigError, match="GPUSPOOL_CFG_DAEMON_AUTO"):
        load({**box.env, "GPUSPOOL_CFG_DEAMON_AUTO": "1"})


def test_its_words_are_documented() -> None:
    for name in (
        "submit",
        "list",
        "show",
        "wait",
        "cancel",
        "stop",
        "resume",
        "hold",
        "release",
        "requeue",
        "preempt",
    ):
        assert getattr(gpuspool.Client, name).__doc__, name
    assert gpuspool.Client is gpuspool.Client
    with pytest.raises(AttributeError, match="nonsense"):
        gpuspool.nonsense  # noqa: B018
