"""The scheduling cycle, in numbered steps: ingest, settle, look after the lost, snapshot, plan, apply, tidy.

The shell around the pure `plan`: it reads, calls and writes. Each step leaves the spool in a state from which any
later pass goes on; a SIGKILL between two lines costs nothing but time.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Callable
from typing import Any

from ..launch.local import LocalBackend
from ..launch.plan import StopRequest
from ..launch.processes import Process
from ..launch.recorder import read_end
from ..spool.config import Config
from ..spool.endrules import EndFacts
from ..spool.eventlog import read
from ..spool.folders import Folders
from ..spool.lifecycle import Claim, Ending, LiveAttempt, Room, StreamUpdate
from ..spool.model import JobSpec, State, Stop
from ..spool.processes import ProcessName
from ..spool.store import Store
from ..spool.values import dataclass, field
from . import ends, snapshot
from .nodes import NodeWatch
from .plan import plan
from .state import ClusterState, Never, Plan

#: What a pass starts at most; the next one goes on. Bounds the time in which nothing is ingested.
STARTS_A_PASS = 64
#: How long an unclaimed attempt of a scheduler that is gone is waited for before it is given up.
ORPHAN_PATIENCE_S = 2.0
#: Nothing is left of a lost attempt when two looks so far apart find nothing.
SECOND_LOOK_S = 0.05
#: By job and attempt number.
EndRecords = dict[tuple[int, int], dict[str, Any]]


@dataclass(slots=True)
class Report:
    """What a pass did, and when time alone makes another one worth it (UTC seconds; None: nothing to wait for)."""

    started: int = 0
    ended: int = 0
    preempted: int = 0
    live: int = 0
    queued: int = 0
    held: int = 0
    wake_at: float | None = None
    troubles: list[str] = field(default_factory=list)

    def wake(self, at: float | None) -> None:
        """Another pass is due at `at`."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at


class Controller:
    """One process's scheduler over one spool; whoever calls `tick` holds the tick lock."""

    def __init__(
        self,
        store: Store,
        folders: Folders,
        config: Config,
        backend: LocalBackend,
        clock: Callable[[], float],
    ) -> None:
        self.store, self.folders, self.config, self.backend, self.clock = (
            store,
            folders,
            config,
            backend,
            clock,
        )
        self.me = ProcessName.of(os.getpid())
        self.nodes = NodeWatch(store, config)
        self.specs: dict[int, JobSpec] = {}

    def tick(self) -> Report:
        """One pass."""
        report = Report()
        # 1. Ingest: what supervisors wrote since the last pass. The end records are looked for first: who has written
        # his has written all of his events before, so nothing of an attempt that is settled stays unread.
        live = self.store.live()
        records = _end_records(live)
        live = self._ingest(live, records)
        # 2. Settle: attempts that ended, by their end records.
        live = self._settle(live, records, report)
        # 3. Look after what has no supervisor: never claimed, lost, or of another boot.
        live = self._look_after(live, report)
        # 4. Snapshot: machines as they are now, the queue, what runs.
        self.nodes.refresh(self.clock())
        state = snapshot.take(self.store, self.config, live)
        # 5. Plan.
        decided = plan(state, self.clock())
        # 6. Apply: stops first (they make room), then starts, then reasons.
        self._stop(state, decided, live, report)
        self._start(decided, report)
        self._explain(state, decided)
        # 7. Tidy.
        if decided.released:
            self.store.drop_reservations(decided.released)
        report.live = len(live) + report.started
        report.queued = len(state.pending) - report.started
        report.held = sum(1 for job in state.pending if job.hold)
        report.wake(decided.wake_at)
        self.store.note_tick(self.clock())
        return report

    def configure(self, config: Config) -> None:
        """Go on under another configuration, from the next pass on; what runs keeps what it was started with."""
        self.config = config
        self.backend.configure(config)
        self.nodes = NodeWatch(self.store, config)

    def spec(self, spec_id: int) -> JobSpec:
        """A spec, cached: it never changes."""
        if spec_id not in self.specs:
            if len(self.specs) > 4096:
                self.specs.clear()
            self.specs[spec_id] = self.store.spec(spec_id)
        return self.specs[spec_id]

    # -- 1 -----------------------------------------------------------------------------------------------

    def _ingest(self, live: list[LiveAttempt], ended: EndRecords) -> list[LiveAttempt]:
        updates = []
        for entry in live:
            offset, number = entry.streams.get((0, 0), (0, 1))
            path = os.path.join(entry.attempt.folder, "events-0-0.jsonl")
            key = (entry.job.id, entry.attempt.number)
            while True:
                batch = read(path, offset, number)
                if batch.lines:
                    updates.append(StreamUpdate(*key, 0, 0, batch.lines, batch.offset, batch.next_number))
                if batch.offset == offset or key not in ended:
                    break  # what a read leaves of a long file is the next pass's, unless there is none
                offset, number = batch.offset, batch.next_number
        if not updates:
            return live
        self.store.record(updates)
        return self.store.live()

    # -- 2 -----------------------------------------------------------------------------------------------

    def _settle(self, live: list[LiveAttempt], records: EndRecords, report: Report) -> list[LiveAttempt]:
        endings: list[Ending] = []
        for entry in live:
            record = records.get((entry.job.id, entry.attempt.number))
            if record is None:
                continue
            facts = ends.facts_of(entry, record)
            at = record.get("at")
            now = self.clock()
            endings.append(
                ends.ending(
                    entry,
                    self.spec(entry.job.spec_id),
                    facts,
                    now,
                    at=float(at) if isinstance(at, int | float) else None,
                    record=record,
                )
            )
            for pid in record.get("unkillable") or []:
                self._drain_gpus(entry, f"process {pid} of job {entry.job.id} cannot be killed")
        return self._apply(endings, live, report)

    def _apply(self, endings: list[Ending], live: list[LiveAttempt], report: Report) -> list[LiveAttempt]:
        if not endings:
            return live
        self.store.settle(endings, self.clock())
        report.ended += len(endings)
        for ending in endings:
            report.wake(ending.next.not_before or None)
        return self.store.live()

    def _drain_gpus(self, entry: LiveAttempt, why: str) -> None:
        for uuid in json.loads(entry.attempt.gpu_uuids):
            self.store.set_gpu_state(uuid, "drained", why)

    # -- 3 -----------------------------------------------------------------------------------------------

    def _look_after(self, live: list[LiveAttempt], report: Report) -> list[LiveAttempt]:
        endings: list[Ending] = []
        quiet: list[LiveAttempt] = []
        now = self.clock()
        for entry in live:
            if entry.attempt.node != self.backend.node:
                continue  # another host's to look after
            sight = self.backend.sight(entry)
            if sight.word == "rebooted":
                endings.append(self._end(entry, ends.lost_facts(entry, stop=Stop.NODE_LOST), now))
            elif sight.word == "revoked":
                endings.append(self._end(entry, EndFacts(revoked=True), now))
            elif sight.word == "unclaimed":
                ending = self._unclaimed(entry, now, report)
                if ending is not None:
                    endings.append(ending)
            elif sight.word == "dead":
                if read_end(entry.attempt.folder, 0, 0) is not None:
                    report.wake(now)  # it wrote its end between two looks of ours
                elif processes := self.backend.leftovers(entry):
                    endings += self._stop_leftovers(entry, processes, now, report)
                else:
                    quiet.append(entry)
            elif entry.job.state == State.INITIALIZING and entry.attempt.stop_kind:
                # Claimed before it could be revoked: it is stopped like any other.
                report.wake(now + 0.5)
        if quiet:
            # Both looks in this pass: where only cron ticks, the next one is a minute away and remembers nothing.
            time.sleep(SECOND_LOOK_S)
            keys: EndRecords = {(entry.job.id, entry.attempt.number): {} for entry in quiet}
            known = self._ingest(quiet, keys)  # what they wrote at the last moment counts, too
            quiet = [entry for entry in known if (entry.job.id, entry.attempt.number) in keys]
        for entry in quiet:
            if processes := self.backend.leftovers(entry):
                endings += self._stop_leftovers(entry, processes, now, report)
            else:
                stop = entry.attempt.stop_kind if entry.attempt.stop_delivered else ""
                endings.append(self._end(entry, ends.lost_facts(entry, stop=stop), now))
        return self._apply(endings, live, report)

    def _end(self, entry: LiveAttempt, facts: EndFacts, now: float) -> Ending:
        """The end of an attempt whose supervisor tells none; its node-local traces are removed first, since after the
        end is settled nobody looks for them any more."""
        self.backend.forget(entry)
        return ends.ending(entry, self.spec(entry.job.spec_id), facts, now)

    def _unclaimed(self, entry: LiveAttempt, now: float, report: Report) -> Ending | None:
        """No supervisor has claimed it: wait for it a little, then give the attempt up for good."""
        launcher = ProcessName.parse(entry.attempt.launcher)
        handle = ProcessName.parse(entry.attempt.handle)
        patience = float(self.config["supervisor.launch_patience"])
        if handle is not None and not handle.alive():
            patience = 0.0  # the process that would have claimed it is gone
        elif launcher is None or not (launcher == self.me or launcher.alive()):
            patience = min(patience, ORPHAN_PATIENCE_S)
        wanted = bool(entry.attempt.stop_kind) or entry.job.wish != ""
        if not wanted and 0 <= now - entry.attempt.created_at < patience:
            report.wake(entry.attempt.created_at + patience)
            return None
        if not self.backend.revoke(entry.attempt.folder, entry.attempt.token):
            report.wake(now + 0.2)
            return None  # it was quicker: the next pass sees what it does
        # Given up on request it costs nothing. A launch that failed is bounded, whoever's it was: a job whose start
        # takes the scheduler down would otherwise be tried for ever.
        facts = EndFacts(revoked=True) if wanted else EndFacts(launch_failed=True)
        return self._end(entry, facts, now)

    def _stop_leftovers(
        self, entry: LiveAttempt, processes: list[Process], now: float, report: Report
    ) -> list[Ending]:
        """Recorder and guardian are gone and left processes: stop those. No next attempt while the last may live.

        What cannot be stopped keeps its GPUs drained; then, and only then, the attempt's end.
        """
        kill_after = float(self.config["supervisor.term_to_kill"])
        if entry.attempt.lost_at is None:
            what = f"recorder and guardian are gone; stopping what they left ({len(processes)} processes)"
            self.store.note_lost(entry.job.id, entry.attempt.number, now, what)
            self.backend.signal(processes, signal.SIGTERM)
            self.backend.signal(processes, signal.SIGCONT)
        elif now - entry.attempt.lost_at >= kill_after or now < entry.attempt.lost_at:
            self.backend.signal(processes, signal.SIGKILL)
            if now - entry.attempt.lost_at > kill_after + 60:
                self._drain_gpus(entry, f"processes of job {entry.job.id} cannot be killed")
                return [ends.ending(entry, self.spec(entry.job.spec_id), ends.lost_facts(entry), now)]
        report.wake(now + 0.2)
        return []

    # -- 6 -----------------------------------------------------------------------------------------------

    def _stop(self, state: ClusterState, decided: Plan, live: list[LiveAttempt], report: Report) -> None:
        now = self.clock()
        jobs = {entry.job.id: entry.job for entry in live}
        victims, rooms = [], []
        for preemption in decided.preemptions:
            for victim in preemption.victims:
                text = f"preempted for job {preemption.beneficiary.id}"
                victims.append((jobs[victim.id], Stop.PREEMPT, text))
            room = preemption.room
            rooms.append(Room(room.job, room.node, room.gpu_uuids, room.cpus, room.memory_mib, room.until))
            report.wake(room.until)
        if victims:
            self.store.request_stops(victims, rooms, now)
            report.preempted = len(victims)
            live = self.store.live()
        # Every stop that stands in the store and not yet where its supervisor reads it: ours and the users'.
        written = []
        for entry in live:
            attempt = entry.attempt
            if not attempt.stop_kind or attempt.stop_written or attempt.node != self.backend.node:
                continue
            unclaimed = (
                entry.job.state == State.INITIALIZING and self.backend.sight(entry).word == "unclaimed"
            )
            if unclaimed and self.backend.revoke(attempt.folder, attempt.token):
                report.wake(now)
                continue
            grace = attempt.grace_s if attempt.stop_grace_s is None else attempt.stop_grace_s
            try:
                self.backend.stop(attempt.folder, StopRequest(attempt.stop_kind, grace))
            except OSError as error:
                report.troubles.append(
                    f"job {entry.job.id}: the stop request cannot be written: {error.strerror}"
                )
                report.wake(now + 2)
                continue
            written.append((entry.job.id, attempt.number, attempt.stop_kind))
        if written:
            self.store.note_stops_written(written)

    def _start(self, decided: Plan, report: Report) -> None:
        if not decided.starts:
            return
        now = self.clock()
        starts = decided.starts[:STARTS_A_PASS]
        if len(decided.starts) > STARTS_A_PASS:
            report.wake(now)
        claims = [
            Claim(
                start.job.id,
                start.job.version,
                secrets.token_hex(8),
                self.backend.name,
                start.node,
                start.gpu_uuids,
                start.cpus,
                start.memory_mib,
                start.job.walltime_s,
                start.job.grace_s,
                start.ends_by,
            )
            for start in starts
        ]
        won = self.store.claim(claims, now, self.me.text(), self.folders.attempt)
        hide_gpus = self.nodes.has_gpus
        ready, failed = [], []
        for entry in won:
            try:
                self.backend.prepare(entry, self.spec(entry.job.spec_id), hide_gpus=hide_gpus)
                ready.append(entry)
            except OSError as error:
                failed.append(entry)
                report.troubles.append(f"job {entry.job.id} cannot be started: {error.strerror or error}")
        started = self.backend.start(ready)
        handles = []
        for entry in ready:
            handle = started.get(entry.attempt.folder)
            if handle is None:
                failed.append(entry)
                report.troubles.append(f"job {entry.job.id} cannot be started: no process can be made")
            else:
                report.started += 1
                handles += [(entry.job.id, entry.attempt.number, handle)] if handle else []
        endings = []
        for entry in failed:
            # If even giving it up cannot be written, a later pass does it.
            try:
                if self.backend.revoke(entry.attempt.folder, entry.attempt.token):
                    endings.append(self._end(entry, EndFacts(launch_failed=True), self.clock()))
            except OSError:
                report.wake(now + 2)
        if handles:
            self.store.note_handles(handles)
        if endings:
            self._apply(endings, [], report)

    def _explain(self, state: ClusterState, decided: Plan) -> None:
        changed = {}
        for job in state.pending:
            reason = decided.reasons.get(job.id)
            if reason is None:
                continue
            code = f"Never{reason.code}" if isinstance(reason, Never) else reason.code
            if (code, reason.text) != (job.reason, job.reason_text):
                changed[job.id] = (code, reason.text)
        if changed:
            self.store.note_reasons(changed)


def _end_records(live: list[LiveAttempt]) -> EndRecords:
    """The end records of those that have one and bear their attempt's token."""
    found = {}
    for entry in live:
        record = read_end(entry.attempt.folder, 0, 0)
        if record is not None and record.get("token") == entry.attempt.token:
            found[entry.job.id, entry.attempt.number] = record
    return found
