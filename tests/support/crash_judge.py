"""What must hold in a spool that has come to rest after a crash: rows, event logs, owner, and what really ran."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

from gpuspool.spool.eventlog import read
from gpuspool.spool.folders import Folders
from gpuspool.spool.model import LIVE

#: Notes of the jobs' commands: [word, job's name, attempt, pid, number]; crash_job.c says which words there are.
Log = list[list[str]]


def judge(folders: Folders, log: Log) -> list[str]:
    """Faults of the spool in `folders`, whose commands wrote `log`."""
    db = sqlite3.connect(folders.database, timeout=5)
    db.row_factory = sqlite3.Row
    try:
        return [*_rows(db), *_owner(db, folders), *_event_logs(db), *_runs(db, log), *_left(db, folders)]
    finally:
        db.close()


def _rows(db: sqlite3.Connection) -> list[str]:
    """Every job whole, every attempt claimed and settled once, nothing kept for who does not wait."""
    faults = []
    if (said := db.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
        faults.append(f"integrity: {said}")
    if rows := db.execute("PRAGMA foreign_key_check").fetchall():
        faults.append(f"foreign keys: {[tuple(row) for row in rows]}")
    events: dict[tuple[int, int, str], int] = {}
    for job, attempt, kind in db.execute("SELECT job_id, attempt, kind FROM events"):
        events[job, attempt, kind] = events.get((job, attempt, kind), 0) + 1
    attempts: dict[int, list[sqlite3.Row]] = {}
    for row in db.execute("SELECT * FROM attempts ORDER BY number"):
        attempts.setdefault(row["job_id"], []).append(row)
    settled = 0
    for job in db.execute("SELECT * FROM jobs ORDER BY id"):
        mine = attempts.get(job["id"], [])
        if [row["number"] for row in mine] != list(range(1, job["attempt"] + 1)):
            faults.append(f"job {job['id']}: its attempts are not 1 to {job['attempt']}")
        live = [row["number"] for row in mine if row["ended_at"] is None]
        if live != ([job["attempt"]] if job["state"] in LIVE else []):
            faults.append(f"job {job['id']} is {job['state']} with live attempts {live}")
        if events.get((job["id"], 0, "submitted")) != 1:
            faults.append(f"job {job['id']} was not submitted once")
        for row in mine:
            over = row["ended_at"] is not None
            settled += over
            claims, ends = (events.get((job["id"], row["number"], kind), 0) for kind in ("claimed", "ended"))
            if (claims, ends) != (1, int(over)):
                faults.append(
                    f"job {job['id']} attempt {row['number']}: claimed {claims} times, ended {ends} times"
                )
    usage = db.execute("SELECT coalesce(sum(attempts), 0) FROM usage").fetchone()[0]
    if usage != settled:
        faults.append(f"{usage} attempts in the usage, {settled} have ended")
    kept = db.execute(
        "SELECT r.job_id FROM reservations r JOIN jobs j ON j.id = r.job_id WHERE j.state != 'queued'"
    ).fetchall()
    if kept:
        faults.append(f"room is kept for jobs that do not wait: {[row[0] for row in kept]}")
    return faults


def _owner(db: sqlite3.Connection, folders: Folders) -> list[str]:
    epoch = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()[0]
    owner = json.loads(Path(folders.owner).read_text())
    return (
        []
        if str(owner["epoch"]) == epoch
        else [f"the owner's epoch is {owner['epoch']}, the database's {epoch}"]
    )


def _event_logs(db: sqlite3.Connection) -> list[str]:
    """Every event log is readable to its end, and what an attempt that is settled had written was taken in."""
    faults = []
    taken = {
        (job, number): at for job, number, at in db.execute("SELECT job_id, attempt, offset FROM streams")
    }
    for folder, job, number, ended in db.execute("SELECT folder, job_id, number, ended_at FROM attempts"):
        path = os.path.join(folder, "events-0-0.jsonl")
        if not os.path.exists(path):
            continue
        batch, size, which = read(path, 0, 1), os.path.getsize(path), f"job {job} attempt {number}"
        if batch.trouble or batch.offset != size:
            faults.append(
                f"{which}: events are readable up to {batch.offset} of {size} bytes; {batch.trouble}"
            )
        if ended is not None and taken.get((job, number), 0) < batch.offset:
            left = read(path, taken.get((job, number), 0), 1).lines
            faults.append(f"{which}: events were never taken in: {[line.kind for line in left]}")
    return faults


def _runs(db: sqlite3.Connection, log: Log) -> list[str]:
    """The commands' own notes against the rows: one run an attempt, none beside another, none after an end that stands,
    and the exit codes that they really left with."""
    faults = []
    jobs = {row["name"]: row for row in db.execute("SELECT * FROM jobs")}
    left: dict[tuple[str, int], int] = {}
    started: list[tuple[str, int]] = []
    done: set[str] = set()
    for word, name, text, _, number in log:
        key = (name, int(text))
        if word in ("overlap", "crowd"):
            faults.append(f"{word}: {name}, attempt {text}, ran beside another")
        elif word == "start":
            if name in done:
                faults.append(f"{name} ran again as attempt {text} although it had ended with 0")
            started.append(key)
        else:
            left[key] = 75 if word == "stopped" else int(number)
            if left[key] == 0:
                done.add(name)
    for name, number in dict.fromkeys(started):
        if (count := started.count((name, number))) > 1:
            faults.append(f"{name}, attempt {number}, ran {count} times")
        row = (
            name in jobs
            and db.execute(
                "SELECT end_reason, exit_code, ended_at FROM attempts WHERE job_id = ? AND number = ?",
                (jobs[name]["id"], number),
            ).fetchone()
        )
        if not row:
            faults.append(f"{name}, attempt {number}, ran and is not in the store")
        elif row["end_reason"] in ("revoked", "launch_failed"):
            faults.append(f"{name}, attempt {number}, ran and was {row['end_reason']}")
        elif row["ended_at"] is not None and row["end_reason"] != "supervisor_lost":
            true = left.get((name, number))
            if row["exit_code"] != true:
                faults.append(
                    f"{name}, attempt {number}, left with {true}; the store says {row['exit_code']}"
                )
    faults += [
        f"{name} has succeeded and never left with 0"
        for name, row in jobs.items()
        if row["state"] == "succeeded" and name not in done
    ]
    return faults


def _left(db: sqlite3.Connection, folders: Folders) -> list[str]:
    """Node-local traces of attempts that have ended: locks, notes, scratch, cgroups."""
    from gpuspool.launch import cgroup

    faults = []
    tokens = [row[0] for row in db.execute("SELECT token FROM attempts WHERE ended_at IS NOT NULL")]
    places = [(folders.runtime, ("guard-", "seen-"))]
    places.append((os.path.join(os.environ["TMPDIR"], f"gpuspool-{os.getuid()}"), ("scratch-",)))
    if parent := cgroup.find_parent():
        places.append((parent, ("gpuspool-",)))
    for folder, prefixes in places:
        for prefix in prefixes:
            for token in tokens:
                if os.path.lexists(os.path.join(folder, prefix + token)):
                    faults.append(f"{prefix}{token} is left in {folder}")
    return faults


def story(folders: Folders, log: Log) -> str:
    """All that is known of a spool, for the report of a violation."""
    lines = [f"log: {log}"]
    db = sqlite3.connect(folders.database, timeout=5)
    db.row_factory = sqlite3.Row
    keys = (
        "id",
        "name",
        "state",
        "attempt",
        "counted",
        "failures",
        "launch_failures",
        "end_reason",
        "wish",
        "hold",
    )
    try:
        lines += [str({key: job[key] for key in keys}) for job in db.execute("SELECT * FROM jobs")]
        for event in db.execute("SELECT * FROM events ORDER BY id"):
            what = f"{event['actor']} {event['kind']} {event['text']} {event['data'][:160]}"
            lines.append(f"  {event['job_id']}/{event['attempt']} {event['at']:.3f} {what}")
        lines += [f"  attempt {dict(row)}" for row in db.execute("SELECT * FROM attempts")]
    except sqlite3.Error as error:
        lines.append(f"the database: {error}")
    finally:
        db.close()
    for top in (folders.state, folders.runtime):
        for root, _, files in os.walk(top):
            lines += [f"  {os.path.join(root, name)}" for name in files]
    return "\n".join(lines)
