"""A small tracer on ptrace(2), by ctypes: run a function in a forked child and end it with SIGKILL at system call n.

The child is killed when it *enters* its n-th system call, which is then not carried out: what is left is exactly what
the first n - 1 calls did. Only the one process is traced; what it forks runs free and outlives it, as the children of
a killed scheduler do. With `follow_fork` the first child that it forks is traced in its place, and it runs free. With
`meanwhile` it is not killed: it stands still at call n while somebody else does something, and then goes on.

Counts drift by a few between runs (a retry, a signal, a busy lock): a run that ends by itself before call n is told
by `reached` being False. Linux only; the names of calls are those of x86-64, on other machines they are numbers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

_TRACEME, _CONT, _SYSCALL, _DETACH = 0, 7, 24, 17
_SETOPTIONS, _GETEVENTMSG, _SYSCALL_INFO = 0x4200, 0x4201, 0x420E
_SYSGOOD, _TRACEFORK, _TRACEVFORK, _TRACECLONE, _EXITKILL = 1, 2, 4, 8, 0x100000
_WALL = 0x40000000
_AT_SYSCALL = (signal.SIGTRAP | 0x80) << 8 | 0x7F
_ENTRY = 1  # PTRACE_SYSCALL_INFO_ENTRY

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)

_X86_64 = """
0 read 1 write 2 open 3 close 4 stat 5 fstat 6 lstat 7 poll 8 lseek 9 mmap 10 mprotect 11 munmap 12 brk
13 rt_sigaction 14 rt_sigprocmask 15 rt_sigreturn 16 ioctl 17 pread64 18 pwrite64 19 readv 20 writev 21 access 22 pipe
24 sched_yield 25 mremap 28 madvise 32 dup 33 dup2 34 pause 35 nanosleep 37 alarm 38 setitimer 39 getpid 41 socket
42 connect 43 accept 44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 53 socketpair 54 setsockopt 55 getsockopt 56 clone
57 fork 58 vfork 59 execve 60 exit 61 wait4 62 kill 63 uname 72 fcntl 73 flock 74 fsync 75 fdatasync 76 truncate
77 ftruncate 78 getdents 79 getcwd 80 chdir 81 fchdir 82 rename 83 mkdir 84 rmdir 85 creat 86 link 87 unlink 88 symlink
89 readlink 90 chmod 91 fchmod 92 chown 93 fchown 95 umask 96 gettimeofday 97 getrlimit 98 getrusage 99 sysinfo
102 getuid 104 getgid 107 geteuid 108 getegid 109 setpgid 110 getppid 111 getpgrp 112 setsid 121 getpgid 124 getsid
131 sigaltstack 133 mknod 137 statfs 138 fstatfs 157 prctl 158 arch_prctl 160 setrlimit 165 mount 186 gettid 201 time
202 futex 203 sched_setaffinity 204 sched_getaffinity 213 epoll_create 217 getdents64 218 set_tid_address
219 restart_syscall 221 fadvise64 228 clock_gettime 229 clock_getres 230 clock_nanosleep 231 exit_group 232 epoll_wait
233 epoll_ctl 234 tgkill 247 waitid 257 openat 258 mkdirat 259 mknodat 262 newfstatat 263 unlinkat 264 renameat
265 linkat 266 symlinkat 267 readlinkat 268 fchmodat 269 faccessat 270 pselect6 271 ppoll 273 set_robust_list
285 fallocate 290 eventfd2 291 epoll_create1 292 dup3 293 pipe2 302 prlimit64 316 renameat2 318 getrandom
319 memfd_create 332 statx 334 rseq 424 pidfd_send_signal 434 pidfd_open 435 clone3 436 close_range 439 faccessat2
"""
_words = _X86_64.split() if os.uname().machine == "x86_64" else []
NAMES = {int(number): name for number, name in zip(_words[::2], _words[1::2], strict=True)}
#: Which argument is the path to show: 0 or 1 (after a folder's descriptor); for two paths the new name.
_PATH_AT = {
    **dict.fromkeys(
        ("open", "stat", "lstat", "access", "mkdir", "rmdir", "unlink", "execve", "chdir", "statfs"), 0
    ),
    **dict.fromkeys(("rename", "link", "mknod"), 1),
    **dict.fromkeys(
        ("openat", "mkdirat", "newfstatat", "unlinkat", "faccessat", "faccessat2", "mknodat", "statx"), 1
    ),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), 3),
}
#: Of those that act on a descriptor, its file is shown.
_FD_AT = frozenset(
    {"write", "pwrite64", "fsync", "fdatasync", "ftruncate", "flock", "fcntl", "fchmod", "writev"}
)


@dataclass(slots=True)
class Run:
    """What became of a traced run.

    pid: whom we traced, reaped by now; first: with `follow_fork` the one that forked it, which is the caller's to reap;
    calls: system calls entered, the one at which it was killed included; reached: it came to the call that was asked
    for; status: as of waitpid(2); last: that call; points: all calls by name where `named` was asked for.
    """

    pid: int
    first: int = 0
    calls: int = 0
    reached: bool = False
    status: int = 0
    last: str = ""
    points: list[str] = field(default_factory=list)


class TraceFailed(Exception):
    """The child could not be traced, or did not end in time."""


def _ptrace(request: int, pid: int, address: int | None = None, data: object = None) -> int:
    result = int(_libc.ptrace(request, pid, address, data))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")
    return result


def describe(pid: int) -> str:
    """The system call that the stopped `pid` stands at, by name, with the path or file that it is about."""
    info = ctypes.create_string_buffer(88)
    _ptrace(_SYSCALL_INFO, pid, len(info), ctypes.cast(info, ctypes.c_void_p))
    operation = info.raw[0]
    number, *arguments = struct.unpack_from("=Q6Q", info.raw, 24)
    name = NAMES.get(number, f"syscall {number}") if operation == _ENTRY else "?"
    try:
        if name in _PATH_AT:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(arguments[_PATH_AT[name]])
                text = memory.read(4096).partition(b"\0")[0]
            return f"{name} {os.fsdecode(text)}"
        if name in _FD_AT:
            return f"{name} {os.readlink(f'/proc/{pid}/fd/{arguments[0] & 0xFFFFFFFF}')}"
    except (OSError, OverflowError, ValueError):
        pass
    return name


def trace(
    body: Callable[[], None],
    at: int = 0,
    *,
    before: Callable[[], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
    named: bool = False,
    follow_fork: bool = False,
    timeout_s: float = 30.0,
) -> Run:
    """Run `before` and then `body` in a forked child, tracing `body`; SIGKILL at its system call `at` (from 1), or run
    `meanwhile` there and let it go on.

    0 lets it run to its end, which is `os._exit(0)`, or 70 with a traceback on its standard error when `body` raises.
    `named` collects the names of all calls (slowly). Call it from the main thread: the time limit is a SIGALRM. Raises
    TraceFailed.
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(body, before)
    traced = pid
    try:
        with _Alarm(timeout_s):
            _, status = os.waitpid(pid, _WALL)
            if not os.WIFSTOPPED(status):
                raise TraceFailed(f"the child ended before it could be traced: status {status:#x}")
            _ptrace(_SETOPTIONS, pid, None, _SYSGOOD | _EXITKILL | (_TRACEFORK if follow_fork else 0))
            if follow_fork:
                traced = _follow(pid)
            run = _count(traced, at, named, meanwhile)
    except BaseException:
        for victim in {traced, pid}:
            try:
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, _WALL)
            except OSError:
                pass
        raise
    run.first = 0 if traced == pid else pid
    return run


def _be_traced(body: Callable[[], None], before: Callable[[], None] | None) -> None:
    code = 70
    try:
        if before is not None:
            before()
        _ptrace(_TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _follow(pid: int) -> int:
    """Let `pid` run to its first fork, let it go there, and hold its child; the child."""
    number = 0
    while True:
        _ptrace(_CONT, pid, None, number)
        _, status = os.waitpid(pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise TraceFailed(f"it ended before it forked: status {status:#x}")
        number = status >> 8
        if number == signal.SIGTRAP | 1 << 8:
            break
        if number >> 8:
            number = 0
    message = ctypes.c_ulong()
    _ptrace(_GETEVENTMSG, pid, None, ctypes.cast(ctypes.byref(message), ctypes.c_void_p))
    child = int(message.value)
    _, status = os.waitpid(child, _WALL)
    _ptrace(_SETOPTIONS, child, None, _SYSGOOD | _EXITKILL)
    _ptrace(_DETACH, pid)
    return child


def _count(pid: int, at: int, named: bool, meanwhile: Callable[[], None] | None) -> Run:
    run = Run(pid)
    ptrace, waitpid = _libc.ptrace, os.waitpid  # the loop is what a point costs
    calls, entering, number = 0, False, 0
    while True:
        # ESRCH (3): ended by somebody else's SIGKILL, which waitpid tells.
        if ptrace(_SYSCALL, pid, None, number) < 0 and ctypes.get_errno() != 3:
            raise OSError(ctypes.get_errno(), "ptrace")
        _, status = waitpid(pid, _WALL)
        number = 0
        if status == _AT_SYSCALL:
            entering = not entering
            if not entering:
                continue
            calls += 1
            if named:
                run.points.append(describe(pid))
            if calls == at:
                run.reached = True
                run.last = describe(pid)
                if meanwhile is None:
                    os.kill(pid, signal.SIGKILL)
                else:
                    meanwhile()
        elif status & 0xFF == 0x7F:
            number = status >> 8
            if number >> 8:
                number = 0  # an event, not a signal
        else:
            run.calls, run.status = calls, status
            return run


class _Alarm:
    """Raises TraceFailed in the main thread when the traced child takes too long."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGALRM, self._ring)
        self.left, _ = signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        signal.setitimer(signal.ITIMER_REAL, self.left)  # somebody else's, a test's own time limit say

    def _ring(self, *_: object) -> None:
        raise TraceFailed(f"the traced process did not end within {self.seconds} s")
