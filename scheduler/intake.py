"""From what a user asks for to a submission: defaults filled in, everything checked, nothing half-made.

Light to import: `spool submit` waits for it.
"""

from __future__ import annotations

import os

from ..sbatch.environment import submission_environment
from ..spool.config import PRIORITIES, Config
from ..spool.errors import BadRequest, NeverRunnable
from ..spool.model import JobSpec, Submission
from ..spool.quantities import duration, memory, moment
from ..spool.store import Store
from ..spool.values import dataclass, field
from .ledger import Ledger
from .placement import never_fits
from .quota import admit
from .state import ClusterState, Gpu, Machine, Never, Pending

#: Linux refuses a single argument of 128 KiB or more (MAX_ARG_STRLEN), whatever the limit for all of them.
MAX_ARGUMENT = 131071
SIGNALS = "HUP, INT, QUIT, USR1, USR2, TERM, ALRM, CONT, XCPU, URG, WINCH"


@dataclass(slots=True)
class Request:
    """What the user asked for, as given; None and '' mean "not said"."""

    command: list[str]
    name: str = ""
    project: str = ""
    job_class: str = ""
    priority: str = ""
    preemptible: bool | None = None
    nodes: int | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str = ""
    cpus: int | None = None
    memory: str = ""
    walltime: str = ""
    grace: str = ""
    min_runtime: str = ""
    begin: str = ""
    hold: bool = False
    cwd: str = ""
    output: str = ""
    error: str = ""
    torchrun: bool = False
    nproc: int | None = None
    python: str = ""
    module: bool = False
    stop_signal: str = ""
    resume_arg: str | None = None
    checkpoint_dir: str = ""
    checkpoint_format: str = ""
    backoff_limit: int | None = None
    backoff_reset: str = ""
    max_attempts: int | None = None
    max_gpu_hours: float | None = None
    on_timeout: str = ""
    stopped_exit_0: str = ""
    comment: str = ""
    env: dict[str, str] = field(default_factory=dict)


def build(request: Request, config: Config, now: float) -> Submission:
    """The submission for `request`. Raises BadRequest naming the value, the reason and the remedy."""
    cwd = _working_folder(request.cwd)
    env = submission_environment(request.env)
    _check_command(request.command, env)
    job_class = config.job_class(request.job_class or config["defaults.class"])
    preemptible = job_class.preemptible if request.preemptible is None else request.preemptible
    nodes = _positive(request.nodes, "the number of nodes (-N)", 1)
    gpus = _gpus(request, nodes)
    spec = JobSpec(
        command=list(request.command),
        cwd=cwd,
        env=env,
        umask=_umask(),
        launcher="torchrun" if request.torchrun else "plain",
        nproc=_positive(request.nproc, "--nproc", 0),
        module=request.module,
        gpus_per_node=gpus // nodes,
        output=request.output,
        error=request.error,
        stop_signal=_signal(request.stop_signal),
        checkpoint_dir=os.path.normpath(os.path.join(cwd, request.checkpoint_dir))
        if request.checkpoint_dir
        else "",
        checkpoint_format=request.checkpoint_format,
        backoff_limit=_bounded(
            request.backoff_limit, "--backoff-limit", config["defaults.backoff_limit"], 0, 100
        ),
        backoff_reset=request.backoff_reset or "never",
        max_attempts=_bounded(
            request.max_attempts, "--max-attempts", config["defaults.max_attempts"], 1, 1000000
        ),
        max_gpu_hours=_hours(request.max_gpu_hours),
        on_timeout=request.on_timeout,
        stopped_exit_0=request.stopped_exit_0 or "requeue",
        comment=request.comment,
    )
    if request.resume_arg is not None:
        spec.resume_arg = request.resume_arg
    if request.torchrun:
        spec.python = _python(request.python, env)
    elif request.python or request.module or request.nproc is not None:
        option = "--python" if request.python else "--module" if request.module else "--nproc"
        raise BadRequest(
            what=option,
            value="",
            why="it goes with --torchrun only",
            remedy="Add --torchrun, or leave it out.",
        )
    _check_output(spec, cwd)
    grace = (
        duration(request.grace, what="the grace", bare="s", zero=True)
        if request.grace
        else config["defaults.grace"]
    )
    if grace > 300:
        raise BadRequest(
            what="the grace", value=request.grace, why="it is more than 300 s", remedy="Write at most 5m."
        )
    return Submission(
        spec=spec,
        name=_name(request),
        user=_user(),
        uid=os.getuid(),
        project=request.project or config["defaults.project"],
        job_class=job_class.name,
        priority=priority(request.priority or config["defaults.priority"]),
        preemptible=preemptible,
        nodes=nodes,
        gpus=gpus,
        cpus=_positive(request.cpus, "the number of CPUs (-c)", 0 if gpus else 1) or (0 if gpus else 1),
        memory_mib=memory(request.memory, what="the memory (--mem)") if request.memory else 0,
        gpu_type=request.gpu_type.lower(),
        walltime_s=duration(request.walltime, what="the walltime (-t)")
        if request.walltime
        else config["defaults.walltime"],
        grace_s=grace,
        min_runtime_s=duration(request.min_runtime, what="the minimum runtime", zero=True)
        if request.min_runtime
        else config["defaults.min_runtime"],
        hold="user" if request.hold else "",
        begin_at=moment(request.begin, what="the begin time", now=now) if request.begin else 0.0,
    )


def refuse_never(store: Store, config: Config, submission: Submission, now: float) -> None:
    """Raise NoSuchProject or NeverRunnable for a job that this spool can never start, so that nobody waits for it."""
    store.project(submission.project)
    machines = _machines(store)
    if submission.gpus and not any(machine.gpus for machine in machines):
        from .nodes import note_this_machine

        note_this_machine(store, config, now)
        machines = _machines(store)
    ledger = Ledger(ClusterState([], [], machines, store.projects(), config.classes, config.windows))
    pending = Pending(
        0,
        0,
        submission.project,
        submission.job_class,
        submission.priority,
        submission.preemptible,
        submission.nodes,
        submission.gpus,
        submission.cpus,
        submission.memory_mib,
        submission.gpu_type,
        submission.walltime_s,
        submission.grace_s,
        "",
        0.0,
        0.0,
        now,
        now,
    )
    never = never_fits(ledger, pending) or admit(ledger, pending)
    if isinstance(never, Never):
        raise NeverRunnable(
            why=f"it {never.text}",
            remedy="'spool node list' and 'spool project list' show what there is; nothing was submitted.",
        )


def _machines(store: Store) -> list[Machine]:
    gpus = store.gpus()
    return [
        Machine(
            node.name,
            node.cpus,
            node.memory_mib,
            # Drained or lost GPUs may come back: they do not make a job impossible.
            tuple(Gpu(gpu.uuid, gpu.idx, gpu.type, gpu.memory_mib) for gpu in gpus if gpu.node == node.name),
        )
        for node in store.nodes()
    ]


def priority(text: str) -> int:
    """A priority by name (low 25, normal 50, high 75, urgent 100) or number. Raises BadRequest."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 1000:
        raise BadRequest(
            what="the priority",
            value=text,
            why="it is neither a name nor a number from 0 to 1000",
            remedy=f"Write one of {', '.join(PRIORITIES)}, or a number.",
        )
    return number


def _working_folder(given: str) -> str:
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if not given and not here:
        raise BadRequest(
            what="the working folder",
            value=os.environ.get("PWD", "."),
            why="it is gone",
            remedy="Change to a folder that exists, or name one with -D.",
        )
    path = os.path.join(here or "/", os.path.expanduser(given)) if given else here
    if not os.path.isdir(path):
        raise BadRequest(
            what="the working folder",
            value=given,
            why="there is no such folder",
            remedy="Name one that exists with -D.",
        )
    return os.path.normpath(path)


def _check_command(command: list[str], env: dict[str, str]) -> None:
    if not command or not command[0]:
        raise BadRequest(
            what="the command",
            value="",
            why="it is empty",
            remedy="Write it behind --: spool submit -- python train.py",
        )
    total = 0
    for word in command:
        data = os.fsencode(word)
        if b"\0" in data:
            raise BadRequest(
                what="the command", value=word[:40], why="it holds a NUL byte", remedy="Leave that out."
            )
        if len(data) > MAX_ARGUMENT:
            raise BadRequest(
                what="an argument of the command",
                value=f"{word[:40]}… ({len(data)} bytes)",
                why=f"Linux takes at most {MAX_ARGUMENT} bytes in one argument",
                remedy="Put it into a file and pass the file's name.",
            )
        total += len(data) + 9
    total += sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 10 for name, value in env.items())
    limit = os.sysconf("SC_ARG_MAX") - 8192
    if total > limit:
        raise BadRequest(
            what="the command",
            value=f"{command[0][:40]} … ({total} bytes with its environment)",
            why=f"Linux takes at most {limit} bytes for arguments and environment together",
            remedy="Put long arguments into a file and pass the file's name.",
        )


def _gpus(request: Request, nodes: int) -> int:
    per_node = request.gpus_per_node
    for number, what in ((request.gpus, "the number of GPUs (-G)"), (per_node, "--gpus-per-node")):
        if number is not None and number < 0:
            raise BadRequest(what=what, value=number, why="it is negative", remedy="Write 0 or more.")
    if per_node is None:
        gpus = request.gpus or 0
        if gpus % nodes:
            raise BadRequest(
                what="the number of GPUs (-G)",
                value=gpus,
                why=f"it is the total, and {nodes} nodes cannot share it evenly",
                remedy=f"Write a multiple of {nodes}, or --gpus-per-node.",
            )
        return gpus
    if request.gpus is not None and request.gpus != per_node * nodes:
        raise BadRequest(
            what="-G",
            value=request.gpus,
            why=f"--gpus-per-node {per_node} on {nodes} nodes makes {per_node * nodes} in all",
            remedy="Leave one of the two out.",
        )
    return per_node * nodes


def _positive(number: int | None, what: str, default: int) -> int:
    if number is None:
        return default
    if number < 1:
        raise BadRequest(what=what, value=number, why="it is less than one", remedy="Write 1 or more.")
    return number


def _bounded(number: int | None, what: str, default: int, low: int, high: int) -> int:
    if number is None:
        return default
    if not low <= number <= high:
        raise BadRequest(what=what, value=number, why="it is out of range", remedy=f"Write {low} to {high}.")
    return number


def _hours(hours: float | None) -> float:
    if hours is None:
        return 0.0
    if not 0 < hours < 1e9:
        raise BadRequest(
            what="--max-gpu-hours", value=hours, why="it is no positive number", remedy="Write 24, say."
        )
    return hours


def _signal(name: str) -> str:
    if not name:
        return "USR2"
    bare = name.upper().removeprefix("SIG")
    if bare not in SIGNALS.split(", "):
        raise BadRequest(
            what="the stop signal",
            value=name,
            why="it is none that a program can catch for this",
            remedy=f"Choose one of {SIGNALS}.",
        )
    return bare


def _python(given: str, env: dict[str, str]) -> str:
    import shutil

    for name in (given,) if given else ("python", "python3"):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return os.path.abspath(found)
    raise BadRequest(
        what="the job's Python",
        value=given or "python",
        why="it is not on PATH or cannot be run",
        remedy="Name the one that has torch: --python /path/to/python",
    )


def _check_output(spec: JobSpec, cwd: str) -> None:
    for path in (spec.output, spec.error):
        folder = os.path.dirname(os.path.join(cwd, path))
        if path and "%" not in folder and not os.path.isdir(folder):
            raise BadRequest(
                what="the output file",
                value=path,
                why=f"there is no folder {folder}",
                remedy=f"Type: mkdir -p {folder}",
            )


def _name(request: Request) -> str:
    name = request.name
    if not name:
        words = request.command
        name = os.path.basename(words[0])
        if name.startswith(("python", "bash", "sh")) and len(words) > 1 and not words[1].startswith("-"):
            name = os.path.basename(words[1])
    if len(name) > 255:
        raise BadRequest(
            what="the name (-J)",
            value=name[:40] + "…",
            why="it is longer than 255 letters",
            remedy="Shorten it.",
        )
    return name.encode(errors="backslashreplace").decode() or "job"


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
