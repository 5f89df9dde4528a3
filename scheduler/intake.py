"""From what a user asks for to a submission: defaults filled in, everything checked, nothing half-made.

Light to import: `spool submit` waits for it.
"""

from __future__ import annotations

import os

from ..sbatch.environment import submission_environment
from ..spool.config import PRIORITIES, Config
from ..spool.errors import BadRequest, NeverRunnable, NoSuchProject
from ..spool.model import JobSpec, Submission
from ..spool.processes import user_name
from ..spool.quantities import duration, memory, moment
from ..spool.session import storable
from ..spool.store import Store, refuse_without_space
from ..spool.values import dataclass, field
from .ledger import Ledger
from .placement import never_fits
from .quota import admit
from .snapshot import known_projects
from .state import ClusterState, Gpu, Machine, Never, Pending

#: Linux refuses a single argument of 128 KiB or more (MAX_ARG_STRLEN), whatever the limit for all of them.
MAX_ARGUMENT = 131071
#: Formats that a user may name with --checkpoint-format.
CHECKPOINT_FORMATS = ("auto", "hf", "lightning", "torch", "safetensors", "gpuspool")
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
    env.pop("", None)  # "=x", which some shell left there: no program could be started with it
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
        output=_path(request.output, "the output file (-o)"),
        error=_path(request.error, "the output file (-e)"),
        stop_signal=_signal(request.stop_signal),
        checkpoint_dir=_absolute(cwd, _path(request.checkpoint_dir, "--checkpoint-dir")),
        checkpoint_format=_one_of(request.checkpoint_format, "--checkpoint-format", CHECKPOINT_FORMATS),
        backoff_limit=_bounded(
            request.backoff_limit, "--backoff-limit", config["defaults.backoff_limit"], 0, 100
        ),
        backoff_reset=_one_of(request.backoff_reset, "--backoff-reset", ("never", "progress")) or "never",
        max_attempts=_bounded(
            request.max_attempts, "--max-attempts", config["defaults.max_attempts"], 1, 1000000
        ),
        max_gpu_hours=_hours(request.max_gpu_hours),
        on_timeout=_one_of(request.on_timeout, "--on-timeout", ("requeue", "fail")),
        stopped_exit_0=_one_of(request.stopped_exit_0, "--stopped-exit-0", ("requeue", "done")) or "requeue",
        comment=storable(request.comment),
    )
    if request.resume_arg is not None:
        spec.resume_arg = _resume_arg(request.resume_arg)
    if request.torchrun:
        spec.python = _python(request.python, spec)
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
        user=user_name(),
        uid=os.getuid(),
        project=storable(request.project) or config["defaults.project"],
        job_class=job_class.name,
        priority=priority(request.priority or config["defaults.priority"]),
        preemptible=preemptible,
        nodes=nodes,
        gpus=gpus,
        cpus=_positive(request.cpus, "the number of CPUs (-c)", 0 if gpus else 1),
        memory_mib=memory(request.memory, what="the memory (--mem)") if request.memory else 0,
        gpu_type=_gpu_type(request.gpu_type, gpus),
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


def put(store: Store, config: Config, request: Request, now: float) -> tuple[int, Submission]:
    """Check `request`, put it into the queue of `store`; its number and what it became.

    Raises BadRequest, NoSuchProject, NeverRunnable, DiskFull or StoreUnavailable, and then nothing was submitted.
    """
    submission = build(request, config, now)
    refuse_without_space(store.folders, config["spool.free_space_mib"])
    refuse_never(store, config, submission, now)
    return store.submit([submission], now)[0], submission


def remarks(submission: Submission) -> list[str]:
    """Sentences about what is allowed, but hardly meant; nothing is refused for them."""
    spec, said = submission.spec, []
    program = spec.command[0]
    if spec.launcher == "plain" and not _which(program, spec):
        path = os.path.join(spec.cwd, program)
        if len(spec.command) == 1 and len(program.split()) > 1:
            said.append(
                f"{program!r} is one word with spaces in it: leave the quotes out, or write sh -c {program!r}"
            )
        elif "/" not in program and os.path.isfile(path):
            how = "python" if program.endswith(".py") else "bash"
            said.append(
                f"{program!r} is not on PATH; for the file in the working folder write {how} {program}"
            )
        elif os.path.isfile(path):
            said.append(f"{program!r} cannot be executed: write chmod +x, or name its interpreter before it")
        else:
            said.append(
                f"there is no program {program!r} here yet; if none comes, the job fails when it starts"
            )
    elif (
        spec.launcher == "torchrun"
        and not spec.module
        and not os.path.exists(os.path.join(spec.cwd, program))
    ):
        said.append(f"there is no script {program!r} here yet; if none comes, the job fails when it starts")
    if any("{resume}" in word and word != "{resume}" for word in spec.command):
        said.append("{resume} is filled in only where it is an argument of its own, not within one")
    return said


def refuse_never(store: Store, config: Config, submission: Submission, now: float) -> None:
    """Raise NoSuchProject or NeverRunnable for a job that this spool can never start, so that nobody waits for it."""
    projects = known_projects(store, config)
    if submission.project not in projects:
        raise NoSuchProject(project=submission.project, known=", ".join(projects))
    machines = _machines(store)
    plain = submission.nodes == 1 and submission.cpus <= 1 and not submission.memory_mib
    unseen = not any(machine.gpus for machine in machines) if submission.gpus else not (machines or plain)
    if unseen:
        from .nodes import note_this_machine

        note_this_machine(store, config, now)
        machines = _machines(store)
    ledger = Ledger(ClusterState([], [], machines, projects, config.classes, config.windows))
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
        trouble = "".join(f" ({machine.name}: {machine.reason})" for machine in machines if machine.reason)
        raise NeverRunnable(
            why=f"it {never.text}{trouble}",
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
            reason=node.reason,
        )
        for node in store.nodes()
    ]


def priority(text: str) -> int:
    """A priority by name (low 25, normal 50, high 75, urgent 100) or number. Raises BadRequest."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
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
    if not os.access(path, os.X_OK):
        raise BadRequest(
            what="the working folder",
            value=given or path,
            why="you may not enter it",
            remedy="Name another one with -D.",
        )
    return _absolute("/", path)


def _absolute(cwd: str, path: str) -> str:
    """`path`, which may be relative to `cwd`, without . and ..; '' stays ''."""
    if not path:
        return ""
    path = os.path.join(cwd, path)
    # After a symbolic link, .. is the parent of where it leads; without any the links stay as the user wrote them.
    return os.path.realpath(path) if ".." in path.split("/") else os.path.normpath(path)


def _path(given: str, what: str) -> str:
    if "\0" in given:
        raise BadRequest(what=what, value=given, why="it holds a NUL byte", remedy="Leave that out.")
    return os.path.expanduser(given)


def _resume_arg(given: str) -> str:
    if not given or "\0" in given:
        raise BadRequest(
            what="--resume-arg",
            value=given,
            why="it is empty" if not given else "it holds a NUL byte",
            remedy="Write the option's name; 'X=' puts the path into the same argument.",
        )
    return given


def _check_command(command: list[str], env: dict[str, str]) -> None:
    if not command or not command[0]:
        raise BadRequest(
            what="the command",
            value="",
            why="it is empty",
            remedy="Write it behind --: spool submit -- python train.py",
        )
    total = sum(_size(word, "an argument of the command") for word in command)
    for name, value in env.items():
        if "=" in name:
            raise BadRequest(
                what="a variable's name", value=name, why="it holds =", remedy="Name it otherwise."
            )
        total += _size(f"{name}={value}", "a variable of the environment")
    limit = os.sysconf("SC_ARG_MAX") - 8192
    if total > limit:
        raise BadRequest(
            what="the command",
            value=f"{command[0][:40]} … ({total} bytes with its environment)",
            why=f"Linux takes at most {limit} bytes for arguments and environment together",
            remedy="Put long arguments into a file and pass the file's name.",
        )


def _size(word: str, what: str) -> int:
    """Bytes that the kernel needs for `word`, with its pointer. Raises BadRequest where it takes no such word."""
    data = os.fsencode(word)
    if b"\0" in data:
        raise BadRequest(what=what, value=word[:40], why="it holds a NUL byte", remedy="Leave that out.")
    if len(data) > MAX_ARGUMENT:
        raise BadRequest(
            what=what,
            value=f"{word[:40]}… ({len(data)} bytes)",
            why=f"Linux takes at most {MAX_ARGUMENT} bytes in one",
            remedy="Put it into a file and pass the file's name.",
        )
    return len(data) + 9


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


def _gpu_type(given: str, gpus: int) -> str:
    if given and not gpus:
        raise BadRequest(
            what="--gpu-type",
            value=given,
            why="the job asks for no GPU",
            remedy="Add -G, or leave it out.",
        )
    if not given.isprintable():
        raise BadRequest(
            what="--gpu-type",
            value=given,
            why="it holds control characters",
            remedy="'spool node list' shows the types.",
        )
    return given.lower()


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


def _one_of(given: str, what: str, choices: tuple[str, ...]) -> str:
    if given and given not in choices:
        raise BadRequest(
            what=what, value=given, why="it is not known", remedy=f"Choose one of {', '.join(choices)}."
        )
    return given


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


def _which(program: str, spec: JobSpec) -> str:
    """The file that `program` is for the job, '' when there is none. (`shutil` would cost 3 ms of each submit.)"""
    folders = spec.env.get("PATH", os.defpath).split(os.pathsep) if "/" not in program else [""]
    for folder in folders:
        path = os.path.join(spec.cwd, folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def _python(given: str, spec: JobSpec) -> str:
    if "/" in given:
        try:
            given = os.path.abspath(os.path.expanduser(given))  # as the shell completed it, whatever -D says
        except OSError:
            pass  # the shell's folder is gone: relative to -D then
    for name in (given,) if given else ("python", "python3"):
        if found := _which(name, spec):
            return found
    raise BadRequest(
        what="the job's Python",
        value=given or "python",
        why="it is not on PATH or cannot be run",
        remedy="Name the one that has torch: --python /path/to/python",
    )


def _check_output(spec: JobSpec, cwd: str) -> None:
    for path, option in ((spec.output, "-o"), (spec.error, "-e")):
        full = os.path.join(cwd, path)
        folder = os.path.dirname(full)
        if not path or "%" in folder:
            continue
        why, remedy = "", ""
        if not os.path.isdir(folder):
            why, remedy = f"there is no folder {folder!r}", "Make it with mkdir -p first."
        elif os.path.isdir(full):
            why, remedy = "it is a folder", f"Name a file in it: {option} {os.path.join(path, '%j.out')!r}"
        elif not os.access(full if os.path.exists(full) else folder, os.W_OK):
            why, remedy = "you may not write there", "Choose another place."
        if why:
            raise BadRequest(what=f"the output file ({option})", value=path, why=why, remedy=remedy)


def _name(request: Request) -> str:
    name = request.name
    if not name:
        words = request.command
        name = os.path.basename(words[0])
        # An interpreter says little: its script does. (python3.12 and sh are some, shuffle.py is none.)
        bare = name.rstrip("0123456789.")
        if bare in ("python", "bash", "sh") and len(words) > 1 and not words[1].startswith("-"):
            name = os.path.basename(words[1])
    if len(name) > 255:
        raise BadRequest(
            what="the name (-J)",
            value=name[:40] + "…",
            why="it is longer than 255 letters",
            remedy="Shorten it.",
        )
    return storable(name) or "job"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
