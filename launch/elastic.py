"""Starts the ranks of a torch job on one node: `PYTHON elastic.py [options] -- SCRIPT ARGS…`.

This file is copied alone to where the job runs and executed by the *user's* Python (3.9 and newer, torch 2.4
and newer), so it imports the standard library and torch only. It drives torch's elastic agent as a library
and differs from the `torchrun` binary in what a scheduler needs:

- a signal to this process (TERM, INT, HUP, QUIT, USR1, USR2) is handed to each rank once, to the rank alone;
  nothing is timed, and the ranks leave when they are ready. USR1 and USR2 wait until a rank catches them;
- a stop has begun once such a signal came, or a rank left with 75 (EX_TEMPFAIL), or SIGURG said that somebody
  else signals the ranks. From then on no rank is ended because of another one; before that, a failing rank
  ends the others, as under torchrun;
- the exit code is that of the first rank that did not exit 0; a rank that a signal killed makes this process
  die by the same signal;
- no rank outlives this process, not even when it is killed;
- one node meets at a port that the kernel chose and that is never let go, so jobs cannot collide. Several
  nodes meet where the caller said; their agents tell each other of stops and failures, and node 0, which
  hosts the store, leaves last.
"""

from __future__ import annotations

import sys

# The folder of this file holds the attempt's records, no modules: a user's import must never find one there.
if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]

import os
import signal
import threading
from typing import Any, Callable, Optional

EX_TEMPFAIL = 75
HANDED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# They ask for a checkpoint; a program that does not know them (yet) would die of them without one.
ONLY_IF_CAUGHT = (signal.SIGUSR1, signal.SIGUSR2)
# Ignored by default, so it can be sent to any process: "the ranks were signalled, hand nothing on".
STOP_ELSEWHERE = signal.SIGURG
MEET_TIMEOUT_S = 900  # torchrun's own; between the first node's arrival and the last one's
TALK_INTERVAL_S = 1.0
SILENT_ROUNDS = 60  # rounds without a sign of life after which node 0 no longer waits for another agent


def say(text: str) -> None:
    """One line on stderr, in one write."""
    try:
        os.write(2, f"gpuspool: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # nobody reads it: no reason to fail


def given_environment() -> dict[str, str]:
    """The environment as it was at exec: an interpreter may add LC_CTYPE, and torch or its libraries add theirs."""
    try:
        with open("/proc/self/environ", "rb") as file:
            block = file.read()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(item).partition("=") for item in block.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


# --- the life of one rank before it becomes the user's program


def become_rank(agent: int, command: list[str]) -> None:
    """Bind this process to the agent's life, then become the user's program. Does not return.

    PR_SET_PDEATHSIG survives exec. It fires when the *thread* that forked ends, which is the agent's main one.
    """
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError) as problem:
        say(f"this rank cannot be bound to its launcher's life ({problem}); it goes on without")
    if os.getppid() != agent:
        os._exit(128 + signal.SIGKILL)  # the agent died before we were bound to it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Python ignores these two, and exec would hand that on to programs that are no Python.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the agent's mask was inherited
    try:
        os.execvpe(command[0], command, given_environment())
    except FileNotFoundError:
        say(f"there is no program {command[0]!r}")
        os._exit(127)
    except OSError as problem:
        say(f"{command[0]!r} cannot be executed: {problem.strerror}")
        os._exit(126)


if __name__ == "__main__" and sys.argv[1:2] == ["--become-rank"]:
    become_rank(int(sys.argv[2]), sys.argv[3:])

import argparse  # noqa: E402  # below, so that a rank does not pay for what only the agent needs
import datetime  # noqa: E402
import logging  # noqa: E402
import resource  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
import tempfile  # noqa: E402
import uuid  # noqa: E402

# --- the command line


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, with the user's command as `command` (SCRIPT, ARGS…); exits 2 on a usage error.

    Everything after the first `--` is the user's, untouched: argparse would swallow a second `--`.
    """
    parser = argparse.ArgumentParser(
        prog="elastic.py", usage="%(prog)s [options] -- SCRIPT [ARGS…]", allow_abbrev=False
    )
    parser.add_argument("--nproc", default="1", metavar="N|gpu|auto", help="ranks on this node")
    parser.add_argument("--nnodes", type=int, default=1, metavar="N")
    parser.add_argument("--node-rank", type=int, metavar="R", help="this node's place, 0 hosts the store")
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", help="where the nodes meet, on node 0")
    parser.add_argument(
        "--rdzv-id", metavar="ID", help="the same on all nodes of one attempt, fresh for each"
    )
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("--no-python", action="store_true", help="SCRIPT is a program of any kind")
    parser.add_argument("--local-addr", metavar="ADDR", help="this node's address; MASTER_ADDR on one node")
    mark = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:mark])
    options.command = arguments[mark + 1 :]
    if not options.command:
        parser.error("there is nothing to start: put '-- SCRIPT ARGS…' at the end")
    if options.module and options.no_python:
        parser.error("--module and --no-python exclude each other")
    if options.nproc not in ("gpu", "auto") and not (options.nproc.isdigit() and int(options.nproc)):
        parser.error(f"--nproc {options.nproc!r} is not a positive number, 'gpu' or 'auto'")
    if options.nnodes < 1 or options.max_restarts < 0:
        parser.error("--nnodes is at least 1, --max-restarts at least 0")
    options.host, options.port = "127.0.0.1", 0
    if options.nnodes == 1:
        options.node_rank = 0
        options.rdzv_id = options.rdzv_id or str(uuid.uuid4())
        return options
    # Nothing is guessed here: a node that met itself on localhost would train alone, and say nothing.
    host, _, port = (options.rdzv_endpoint or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        parser.error(f"several nodes need --rdzv-endpoint HOST:PORT, not {options.rdzv_endpoint!r}")
    if options.node_rank is None or not 0 <= options.node_rank < options.nnodes:
        parser.error(f"several nodes need --node-rank from 0 to {options.nnodes - 1}")
    if not options.rdzv_id:
        parser.error("several nodes need --rdzv-id, the same on all of them")
    if options.max_restarts:
        parser.error("--max-restarts works on one node; the scheduler restarts several nodes together")
    options.host, options.port = host.strip("[]"), int(port)
    return options


def rank_command(options: argparse.Namespace) -> list[str]:
    """The command that becomes a rank. SystemExit 127 or 126, as of a shell, when there is no such program."""
    script = options.command[0]
    if options.no_python:
        if shutil.which(script) is None:
            say(f"there is no program {script!r} that can be executed (working folder {os.getcwd()})")
            raise SystemExit(126 if os.path.exists(script) and os.sep in script else 127)
        return list(options.command)
    python = os.environ.get("PYTHON_EXEC", sys.executable)  # the variable is torchrun's
    if options.module:
        return [python, "-u", "-m", *options.command]
    if not os.path.exists(script):
        say(f"there is no script {script!r} (working folder {os.getcwd()})")
        raise SystemExit(127)
    if not os.access(script, os.R_OK):
        say(f"the script {script!r} may not be read")
        raise SystemExit(126)
    return [python, "-u", *options.command]


# --- the ranks of this node, and the signals for them


class Rank:
    """One worker process; `code` is None while it lives, then its exit code, or minus the signal's number."""

    def __init__(self, local: int, rank: int, pid: int) -> None:
        self.local, self.rank, self.pid = local, rank, pid
        self.code: Optional[int] = None
        self.reaped = False  # by torch, before we looked: its code is not known here
        self.pending: list[int] = []  # signals that it is still to get

    def outcome(self) -> str:
        if self.code is not None and self.code < 0:
            return f"was killed by signal {-self.code} ({signal_name(-self.code)})"
        return f"exited with code {self.code}"


class Crew:
    """The ranks of this node: who lives, who ended first, and which signals they are to get.

    All signals of HANDED_ON are blocked in every thread and taken by one thread of ours. So torch's handlers,
    which would start its 30 s shutdown, never run, in whatever version and however it installs them; and a
    signal is taken at once also while the main thread sits in C++ and waits for the other nodes.
    The main thread alone signals ranks: it is also the one that reaps them, so no pid can be a stranger's.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ranks: list[Rank] = []
        self.ended: list[Rank] = []  # in the order of their ends
        self.early: list[int] = []  # signals that came before there was a rank
        self.started = False
        self.stopping = False  # no rank is ended because of another one
        self.ending = False  # torch ends the ranks because one of them failed
        self.failed_node: Optional[int] = None  # another node whose rank failed
        self.ended_for_peer = False
        self.dismissed = threading.Event()  # told to go when nothing is left to wait for but other nodes
        self.scratch: Optional[str] = None  # folder of torch's error files

    def listen(self) -> None:
        """Block the signals and take them in a thread. Before torch is imported: its threads inherit the mask."""
        taken = {signal.SIGCHLD, STOP_ELSEWHERE, *HANDED_ON}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            taken.discard(signal.SIGHUP)  # nohup
        signal.pthread_sigmask(signal.SIG_SETMASK, taken)
        for number in taken:  # an inherited ignored SIGCHLD would lose the exit codes
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=self._take, args=(taken,), name="signals", daemon=True).start()

    def _take(self, taken: set[signal.Signals]) -> None:
        while True:
            number = signal.sigwait(taken)
            with self.lock:
                if number == signal.SIGCHLD:
                    self._look()
                elif number == STOP_ELSEWHERE:
                    self.stopping = True
                elif not self.started and number not in ONLY_IF_CAUGHT:
                    self.remove_scratch()
                    end_by(number)
                else:
                    self.stopping = True
                    alive = self._alive()
                    for rank in alive:
                        rank.pending.append(number)
                    if not self.ranks:
                        self.early.append(number)
                    elif not alive and number not in ONLY_IF_CAUGHT:
                        self.dismissed.set()

    def prepare(self) -> None:
        """Ranks are about to be started: from now on a signal is for them."""
        with self.lock:
            self.started = True

    def start(self, ranks: list[Rank]) -> None:
        """These are the ranks now."""
        with self.lock:
            self.ranks, self.ended, self.ending = ranks, [], False
            for rank in ranks:
                rank.pending = list(self.early)

    def look(self) -> None:
        """Note the ranks that have ended, in the order of their ends."""
        with self.lock:
            self._look()

    def _look(self) -> None:
        for rank in self._alive():
            try:
                # Only looked at: reaping is torch's.
                found = os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            except ChildProcessError:
                rank.reaped = True
                continue
            if found is not None:
                rank.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self.ended.append(rank)
                # Not while torch ends the ranks: then it is only how this one takes SIGTERM.
                self.stopping = self.stopping or (rank.code == EX_TEMPFAIL and not self.ending)

    def _alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.code is None and not rank.reaped]

    def alive(self) -> bool:
        with self.lock:
            return bool(self._alive())

    def hand_out(self) -> None:
        """Give every living rank the signals it has not had yet. Called by the thread that reaps."""
        with self.lock:
            for rank in self._alive():
                held = []
                for number in rank.pending:
                    if number in ONLY_IF_CAUGHT and not catches(rank.pid, number):
                        held.append(number)
                    else:
                        os.kill(rank.pid, number)
                rank.pending = held

    def first_failure(self) -> Optional[Rank]:
        """The first rank that ended in a way that is neither success nor a request to be started again."""
        return next((rank for rank in self.ended if rank.code not in (0, EX_TEMPFAIL)), None)

    def result(self) -> int:
        """The first code that is not 0, by time; minus a signal's number; TERM when another node's failure ended us."""
        if self.ended_for_peer:
            return -signal.SIGTERM
        return next((rank.code for rank in self.ended if rank.code), 0)

    def remove_scratch(self) -> None:
        """Remove the folder of torch's error files, unless a rank wrote one."""
        if self.scratch and not any(files for _, _, files in os.walk(self.scratch)):
            shutil.rmtree(self.scratch, ignore_errors=True)


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal or ignores it: it will not die of it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return bool((int(lines["SigCgt"], 16) | int(lines["SigIgn"], 16)) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return True  # no /proc: better handed on than lost


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_by(number: int) -> None:
    """End this process by a signal, so that whoever waits for it sees the truth. Does not return.

    The disposition must be the default one: only the main thread could set it here.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a namespace does not die of its own signals


# --- several nodes


class Peers:
    """What the agents of several nodes tell each other, through a connection to the store of its own.

    A thread of its own, because a call to a node that is gone may block for minutes. A store that cannot be
    reached ends the talk and nothing else: whether the ranks can go on without that node they find out.
    """

    def __init__(self, crew: Crew, connect: Callable[[], Any], node: int, nnodes: int) -> None:
        self.crew, self.connect, self.node, self.nnodes = crew, connect, node, nnodes
        self.leaving = threading.Event()
        self.thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self.thread.start()

    def leave(self) -> None:
        """Say that this node's ranks have ended; on node 0, wait for the other nodes that show life."""
        self.leaving.set()
        self.thread.join(None if self.node == 0 else 10)

    def _run(self) -> None:
        try:
            store = self.connect()
            rounds = 0
            while not self.leaving.wait(TALK_INTERVAL_S if rounds else 0):
                rounds += 1
                store.set(f"alive/{self.node}", str(rounds))
                self._tell(store)
                if not self.crew.stopping and store.check(["stopping"]):
                    self.crew.stopping = True
                if self.crew.failed_node is None and store.check(["failed"]):
                    node = int(store.get("failed"))
                    self.crew.failed_node = node if node != self.node else None
            self._tell(store)
            store.set(f"ended/{self.node}", "")
            if self.node == 0:
                self._wait_for_others(store)
        except (RuntimeError, ValueError, OSError):
            pass  # torch's store errors are RuntimeErrors

    def _tell(self, store: Any) -> None:
        if self.crew.ending and not self.crew.ended_for_peer:
            store.set("failed", str(self.node))
        elif self.crew.stopping:
            store.set("stopping", "")

    def _wait_for_others(self, store: Any) -> None:
        """Counted in rounds, not by the clock: a suspended job is not a silent one."""
        silent = dict.fromkeys(range(1, self.nnodes), 0)
        seen: dict[int, bytes] = {}
        while silent and not self.crew.dismissed.wait(TALK_INTERVAL_S / 4):
            for node in list(silent):
                sign = store.get(f"alive/{node}") if store.check([f"alive/{node}"]) else b""
                silent[node] = silent[node] + 1 if seen.get(node) == sign else 0
                seen[node] = sign
                if store.check([f"ended/{node}"]) or silent[node] > SILENT_ROUNDS / (TALK_INTERVAL_S / 4):
                    del silent[node]


# --- torch


class StoppedInstead(Exception):
    """The ranks are not started again."""


def load_torch() -> Any:
    """The user's torch. SystemExit 1, with a sentence, when this Python has none that fits."""
    try:
        import torch
        import torch.distributed.elastic.agent.server.local_elastic_agent
        import torch.distributed.elastic.multiprocessing
        import torch.distributed.elastic.rendezvous
        from torch.distributed.elastic.rendezvous import RendezvousInfo  # noqa: F401  # since 2.4
    except (ImportError, OSError) as problem:
        say(
            f"{sys.executable} cannot import what the ranks of this job need from torch ({problem}). Install"
            " PyTorch 2.4 or newer there, or choose another interpreter with --python"
        )
        raise SystemExit(1) from None
    return torch


def quiet_torch() -> None:
    """Our own line about a failure replaces the agent's log, unless the user asked for one with LOGLEVEL."""
    if "LOGLEVEL" in os.environ:
        return
    log = logging.getLogger("torch.distributed.elastic")
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.addFilter(lambda record: not str(record.msg).startswith("failed (exitcode"))
    log.addHandler(handler)
    log.propagate = False


def count_ranks(torch: Any, wanted: str) -> int:
    """How many ranks `--nproc` asks for. SystemExit 1 where it asks for GPUs and there are none."""
    if wanted.isdigit():
        return int(wanted)
    gpus = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    if wanted == "gpu" and not gpus:
        say(f"--nproc gpu, but the torch of {sys.executable} sees no GPU here")
        raise SystemExit(1)
    return gpus or len(os.sched_getaffinity(0))


def meeting(torch: Any, options: argparse.Namespace) -> Any:
    """The rendezvous: who has which place is settled, so it only opens the store and says where it is.

    Each start on one node has a store of its own: with torch's backends a group that is started again may read
    the addresses of the one before it. The port is the kernel's choice and bound all the time, and there are no
    heartbeats that could time out.
    """
    rendezvous = torch.distributed.elastic.rendezvous
    # torch's own switch, for programs that host a store at MASTER_PORT themselves.
    shared = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    class Meeting(rendezvous.RendezvousHandler):  # type: ignore[misc,name-defined]
        store: Any = None

        def open(self, host: bool) -> Any:
            return torch.distributed.TCPStore(
                options.host,
                options.port,
                is_master=host,
                timeout=datetime.timedelta(seconds=MEET_TIMEOUT_S),
                wait_for_workers=False,
            )

        def next_rendezvous(self) -> Any:
            first = options.node_rank == 0
            self.store = self.open(first)
            store = torch.distributed.PrefixStore(options.rdzv_id, self.store)
            address = (options.local_addr if options.nnodes == 1 else None) or options.host
            port = self.store.port
            # Two jobs that were given one endpoint must not become one job.
            if first:
                self.store.set("gpuspool/id", options.rdzv_id)
                store.set("gpuspool/port", str(port if shared else free_port()))
            found = self.store.get("gpuspool/id").decode()
            if found != options.rdzv_id:
                raise RuntimeError(f"another job ({found}) meets there")
            port = int(store.get("gpuspool/port"))
            info = rendezvous.RendezvousStoreInfo(address, port)
            return rendezvous.RendezvousInfo(store, options.node_rank, options.nnodes, info)

        use_agent_store = property(lambda self: shared)

        def get_backend(self) -> str:
            return "gpuspool"

        def get_run_id(self) -> str:
            return str(options.rdzv_id)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def shutdown(self) -> bool:
            return True

    return Meeting()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def elastic_agent(torch: Any, options: argparse.Namespace, crew: Crew, spec: Any, logs: Any) -> Any:
    """torch's agent, which ends ranks only when we let it look at them."""
    server = torch.distributed.elastic.agent.server

    class Agent(server.local_elastic_agent.LocalElasticAgent):  # type: ignore[misc,name-defined]
        peers: Optional[Peers] = None
        noted: Optional[Rank] = None

        def _start_workers(self, worker_group: Any) -> Any:
            if crew.ranks and crew.stopping:
                raise StoppedInstead  # 75, or a stop that came while a failed group was being ended
            crew.prepare()
            pids = super()._start_workers(worker_group)
            crew.start([Rank(n, worker_group.workers[n].global_rank, pids[n]) for n in sorted(pids)])
            if options.nnodes > 1:
                self.peers = Peers(crew, self._connect, options.node_rank, options.nnodes)
            return pids

        def _connect(self) -> Any:
            return torch.distributed.PrefixStore("gpuspool/agents", spec.rdzv_handler.open(False))

        def _monitor_workers(self, worker_group: Any) -> Any:
            """Every 0.1 s. The first failure that torch sees makes it end the other ranks, so it sees none in a stop."""
            crew.look()
            crew.hand_out()
            failure = crew.first_failure()
            if failure is not None and failure is not self.noted:
                self.noted = failure
                self._note(failure)
            if failure is not None and not crew.stopping:
                crew.ending = True
            if crew.alive():
                if crew.failed_node is not None and not crew.stopping and not crew.ending:
                    say(f"a rank of node {crew.failed_node} failed; ending the ranks of this node")
                    crew.ending = crew.ended_for_peer = True
                    return server.RunResult(state=server.WorkerState.FAILED)
                if not crew.ending:
                    return server.RunResult(state=server.WorkerState.HEALTHY)
            return super()._monitor_workers(worker_group)

        def _note(self, rank: Rank) -> None:
            text = f"rank {rank.rank} (local rank {rank.local}, pid {rank.pid}) {rank.outcome()}"
            file = getattr(self._pcontext, "error_files", {}).get(rank.local)
            if file and os.path.exists(file) and file != os.devnull:
                wanted = os.environ.get("TORCHELASTIC_ERROR_FILE")
                if wanted:
                    file = shutil.copyfile(file, wanted)
                text += f"; its traceback is in {file}"
            if crew.alive() and not crew.stopping:
                text += "; ending the other ranks"
            say(text)

        def _exit_barrier(self) -> None:
            """torch waits 300 s for agents that may be gone; Peers knows better."""

    return Agent(spec=spec, logs_specs=logs)


def run(torch: Any, options: argparse.Namespace, crew: Crew, command: list[str]) -> int:
    """Start the ranks and wait until they have ended: the exit code, or minus a signal's number."""
    nproc = count_ranks(torch, options.nproc)
    if nproc > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, which warns of it
    multiprocessing = torch.distributed.elastic.multiprocessing
    try:
        crew.scratch = tempfile.mkdtemp(prefix="gpuspool_elastic_")
    except OSError as problem:
        say(f"no folder for the ranks' error files: {problem}")
    # PYTHONHOME may be all that lets this interpreter find its library; -I would ignore it.
    isolated = ["-S"] if "PYTHONHOME" in os.environ else ["-I", "-S"]
    entry = [*isolated, os.path.abspath(__file__), "--become-rank", str(os.getpid())]
    # torch fills in ${local_rank}, but it would also make $ of every $$.
    escaped = [text.replace("$", "$$").replace("$${local_rank}", "${local_rank}") for text in command]
    spec = torch.distributed.elastic.agent.server.WorkerSpec(
        role="default",
        local_world_size=nproc,
        entrypoint=sys.executable,
        args=(*entry, *escaped),
        rdzv_handler=meeting(torch, options),
        max_restarts=options.max_restarts,
        monitor_interval=0.1,
        local_addr=options.local_addr,
    )
    logs = multiprocessing.DefaultLogsSpecs(log_dir=crew.scratch or os.devnull)
    agent = elastic_agent(torch, options, crew, spec, logs)
    try:
        agent.run()
    except StoppedInstead:
        pass
    except Exception as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        if crew.started:
            say(f"the launcher of the ranks failed: {type(problem).__name__}: {reason}")
        else:
            say(
                f"node {options.node_rank} did not meet the others at {options.host}:{options.port}: {reason}"
            )
        return crew.result() or 1
    if agent.peers is not None:
        agent.peers.leave()
    return crew.result()


def main(arguments: list[str]) -> None:
    """Run one node's ranks, then exit as they did."""
    options = parse(arguments)
    given = given_environment()
    crew = Crew()
    crew.listen()
    try:
        command = rank_command(options)
        torch = load_torch()
        quiet_torch()
        # What importing torch left in the environment is ours, not the user's.
        for name in set(os.environ) - set(given):
            del os.environ[name]
        os.environ.update(given)
        code = run(torch, options, crew, command)
    except SystemExit as stop:
        code = int(stop.code or 0)
    crew.remove_scratch()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)  # torch has put its own there
        end_by(-code)
    # Not sys.exit: threads of the store sometimes abort a process that ends in the ordinary way.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
