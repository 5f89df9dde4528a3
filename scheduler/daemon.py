"""Who ticks: the daemon (lasting or on demand), a cold tick, and how a command leaves a daemon behind.

All of them may run at once: one tick lock a host orders the passes, one daemon lock says who serves. The wake FIFO
has a reader exactly while a daemon serves. A daemon that ends closes the FIFO first and looks at the queue once
more: a job that was submitted before that look is seen by it, a later submitter finds no reader and starts another.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from collections.abc import Callable

from ..launch.forkserver import ForkServer
from ..launch.local import LocalBackend
from ..launch.processes import reset_signals, set_title
from ..launch.waking import leave_word, tick_again
from ..spool.config import Config, load, signature
from ..spool.errors import GpuspoolError, NotOwner, StoreGone, StoreUnavailable
from ..spool.folders import Folders
from ..spool.processes import ProcessName
from ..spool.store import Store, open_store
from .controller import Controller, Report
from .handover import LAST, wake

#: How often a daemon looks though nothing woke it.
LOOK_EVERY_S = 15.0
#: How long news that free no room (a job started) may wait for others.
NEWS_S = 0.1
#: How long a supervisor's cold tick stays for the ends of other short jobs.
LINGER_S = 1.0
STOPPING_DAEMON_PATIENCE_S = 10.0


def serving(folders: Folders) -> ProcessName | None:
    """The daemon of this host by name, None when none holds the lock."""
    from ..launch.guardian import is_held

    if not is_held(folders.daemon_lock):
        return None
    try:
        with open(folders.daemon_lock) as file:
            return ProcessName.parse(file.read().strip())
    except OSError:
        return None


class TickLock:
    """One pass at a time on this host."""

    def __init__(self, folders: Folders) -> None:
        self.fd = os.open(folders.tick_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.again = tick_again(folders.runtime)

    def take(self, *, wait: bool) -> bool:
        """Take it; without `wait` False when somebody else is in a pass."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        except BlockingIOError:
            return False

    def release(self) -> None:
        """Let the next one in."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Release it for good."""
        os.close(self.fd)

    def wanted_again(self) -> bool:
        """Whether somebody found the lock taken and left word; the word is taken away."""
        try:
            os.unlink(self.again)
            return True
        except OSError:
            return False


def tick_once(
    folders: Folders, config: Config, clock: Callable[[], float] = time.time, *, linger_s: float = 0.0
) -> Report | None:
    """One cold pass, and another whenever somebody left word meanwhile; None when somebody else is in one.

    Who finds the lock taken leaves word first and tries once more, and the holder looks for word after it has let
    go: so no end of a job falls between two passes. With `linger_s` it stays that much longer while short jobs come
    and go, since the next one's end would start another Python.
    """
    since = time.monotonic()
    lock = TickLock(folders)
    try:
        if not lock.take(wait=False):
            leave_word(folders.runtime)
            # A short patience: a supervisor that asks whether somebody is in a pass holds the lock for that moment.
            give_up = time.monotonic() + 0.05
            while not lock.take(wait=False):
                if time.monotonic() > give_up:
                    return None
                time.sleep(0.005)
        # Forked off before the store is opened: no database connection crosses a fork.
        backend = LocalBackend(folders, config)
        backend.fork_server = ForkServer(fork=True)
        backend.warm = True
        report = None
        try:
            store = open_store(folders)
            try:
                controller = Controller(store, folders, config, backend, clock)
                while True:
                    lock.wanted_again()
                    report = controller.tick()
                    while (
                        report.live
                        and report.queued > report.held
                        and time.monotonic() - since < linger_s
                        and not os.path.exists(lock.again)
                    ):
                        time.sleep(0.005)
                    if os.path.exists(lock.again):
                        continue
                    lock.release()
                    if not (os.path.exists(lock.again) and lock.take(wait=False)):
                        return report
            finally:
                store.close()
        finally:
            backend.close()
    finally:
        lock.close()


class Daemon:
    """Serves one spool on this host until it is told to stop, or (on demand) the spool was empty long enough."""

    def __init__(
        self,
        folders: Folders,
        config: Config,
        *,
        lasting: bool,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folders, self.config, self.lasting, self.log, self.clock = folders, config, lasting, log, clock
        self.stop_asked = False
        self.fifo = -1

    def run(self) -> ProcessName | None:
        """Serve. None when served to the end; the other daemon's name when one serves already."""
        lock = os.open(self.folders.daemon_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        give_up = time.monotonic() + STOPPING_DAEMON_PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A daemon that serves has a reader on the FIFO; one without is just leaving.
                other = serving(self.folders)
                if wake(self.folders) or time.monotonic() > give_up:
                    os.close(lock)
                    return other or ProcessName("", "", 0, 0)
                time.sleep(0.01)
        me = ProcessName.of(os.getpid())
        os.ftruncate(lock, 0)
        os.pwrite(lock, me.text().encode(), 0)
        store = open_store(self.folders, role="daemon")
        backend = LocalBackend(self.folders, self.config)
        backend.warm = True
        try:
            self._serve(store, backend)
        finally:
            backend.close()
            store.close()
            os.close(lock)
        return None

    def _serve(self, store: Store, backend: LocalBackend) -> None:
        controller = Controller(store, self.folders, self.config, backend, self.clock)
        ticks = TickLock(self.folders)
        store.renew(0)
        self._open_fifo()
        self.log(f"serving {self.folders.state}")
        empty_since = time.monotonic()
        beat, renewed = 0, time.monotonic()
        trouble = ""
        read = signature()
        while not self.stop_asked:
            report = Report()
            if (now_read := signature()) != read:
                read = now_read
                self._reconfigure(controller)
            ticks.take(wait=True)
            try:
                report = controller.tick()
                said = "; ".join(report.troubles)
            except (GpuspoolError, OSError) as error:
                # A full disk or a locked database never takes the scheduler down: said once, tried again.
                said = str(error)
                report.live = 1
                report.wake(self.clock() + 2)
            finally:
                ticks.release()
            if said != trouble:
                self.log(said or "all is well again")
                trouble = said
            if time.monotonic() - renewed > LOOK_EVERY_S:
                beat, renewed = beat + 1, time.monotonic()
                try:
                    store.renew(beat)
                except (NotOwner, StoreGone) as error:
                    self.log(f"ending: {error}")
                    return
                except (StoreUnavailable, OSError) as error:
                    self.log(f"the ownership record cannot be renewed: {error}")
            busy = report.live or report.queued > report.held
            if busy:
                empty_since = time.monotonic()
            if not self.lasting and not busy and time.monotonic() - empty_since >= self.config["daemon.idle"]:
                if self._leave(controller, ticks):
                    self.log("the spool is empty: ending")
                    return
                empty_since = time.monotonic()
                continue
            self._sleep(report, time.monotonic() - empty_since)
        self.log("asked to end; jobs go on")

    def _reconfigure(self, controller: Controller) -> None:
        """A configuration file has changed: go on under it, or, when it is wrong, under the one before."""
        try:
            self.config = load()
        except GpuspoolError as error:
            self.log(f"the old configuration stays in force: {error}")
            return
        controller.configure(self.config)
        self.log("the configuration has changed and is in force")

    def _leave(self, controller: Controller, ticks: TickLock) -> bool:
        """Close the FIFO, then look once more; False (and serving again) when something came in between."""
        os.close(self.fifo)
        ticks.take(wait=True)
        try:
            report = controller.tick()
        except (GpuspoolError, OSError) as error:
            self.log(str(error))
            self._open_fifo()
            return False
        finally:
            ticks.release()
        if report.live or report.queued > report.held:
            self._open_fifo()
            return False
        return True

    def _open_fifo(self) -> None:
        try:
            os.mkfifo(self.folders.wake, 0o600)
        except FileExistsError:
            pass
        self.fifo = os.open(self.folders.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _sleep(self, report: Report, empty_s: float) -> None:
        timeout = LOOK_EVERY_S
        if report.wake_at is not None:
            timeout = min(timeout, max(0.005, report.wake_at - self.clock()))
        if not self.lasting:
            timeout = min(timeout, max(0.05, self.config["daemon.idle"] - empty_s))
        poller = select.poll()
        poller.register(self.fifo, select.POLLIN)
        give_up = time.monotonic() + timeout
        while True:
            poller.poll(max(0, int((give_up - time.monotonic()) * 1000) + 1))
            try:
                said = os.read(self.fifo, 65536)
            except BlockingIOError:
                said = b""
            self.lasting = self.lasting or LAST in said
            if not said or self.stop_asked or said.strip(b"s"):
                return
            # News that free no room: gather more of them for a moment.
            give_up = min(give_up, time.monotonic() + NEWS_S)


def serve(
    folders: Folders, config: Config, *, lasting: bool, log: Callable[[str], None]
) -> ProcessName | None:
    """Be the daemon of this host, ending on SIGTERM or SIGINT; the other's name when one serves already."""
    import signal

    reset_signals()
    set_title("spool-daemon")
    daemon = Daemon(folders, config, lasting=lasting, log=log)

    def ask(*_: object) -> None:
        daemon.stop_asked = True
        wake(folders)

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask if lasting else signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return daemon.run()


def main() -> None:
    """The on-demand daemon, its talk on standard error; with `--once` a supervisor's cold tick."""
    from ..spool.folders import resolve

    config = load()

    def log(text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        os.write(2, f"{stamp} [{os.getpid()}] {text}\n".encode(errors="replace"))

    try:
        folders = resolve(config)
        if "--once" in sys.argv:
            if not wake(folders):
                tick_once(folders, config, linger_s=LINGER_S)
        else:
            serve(folders, config, lasting=False, log=log)
    except GpuspoolError as error:
        log(str(error))
        sys.exit(4)


if __name__ == "__main__":
    main()
