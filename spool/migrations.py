"""The schema's history: numbered steps, append-only, each applied in one transaction with its record.

A step that was released is never edited. `schema.py` says the same in SQLModel; a test holds the two together.
"""

from __future__ import annotations

import sqlite3

from .errors import NewerDatabase

_STEP_1 = """
CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
CREATE TABLE specs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    body TEXT NOT NULL
);
CREATE TABLE jobs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    spec_id INTEGER NOT NULL REFERENCES specs (id),
    array_id INTEGER,
    array_index INTEGER,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    project TEXT NOT NULL,
    job_class TEXT NOT NULL,
    priority INTEGER NOT NULL,
    preemptible INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    gpu_type TEXT NOT NULL,
    walltime_s INTEGER NOT NULL,
    grace_s INTEGER NOT NULL,
    min_runtime_s INTEGER NOT NULL,
    own_min_runtime_s INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    reason_text TEXT NOT NULL,
    hold TEXT NOT NULL,
    wish TEXT NOT NULL,
    begin_at FLOAT NOT NULL,
    not_before FLOAT NOT NULL,
    submitted_at FLOAT NOT NULL,
    state_since FLOAT NOT NULL,
    started_at FLOAT,
    ended_at FLOAT,
    attempt INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    interruptions INTEGER NOT NULL,
    delays INTEGER NOT NULL,
    gpu_seconds FLOAT NOT NULL,
    progress_step INTEGER,
    progress_identity TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_step INTEGER,
    checkpoint_at FLOAT,
    exit_code INTEGER,
    signal INTEGER,
    end_reason TEXT NOT NULL,
    end_text TEXT NOT NULL,
    launch_failures INTEGER NOT NULL,
    version INTEGER NOT NULL
);
CREATE INDEX jobs_state ON jobs (state);
CREATE INDEX jobs_array ON jobs (array_id, array_index) WHERE array_id IS NOT NULL;
CREATE TABLE attempts (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    number INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    token TEXT NOT NULL UNIQUE,
    backend TEXT NOT NULL,
    node TEXT NOT NULL,
    gpu_uuids TEXT NOT NULL,
    gpus INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    launcher TEXT NOT NULL,
    handle TEXT NOT NULL,
    folder TEXT NOT NULL,
    started_at FLOAT,
    walltime_s INTEGER NOT NULL,
    grace_s INTEGER NOT NULL,
    ends_by FLOAT,
    stop_kind TEXT NOT NULL,
    stop_at FLOAT,
    stop_grace_s INTEGER,
    stop_written INTEGER NOT NULL,
    stop_delivered INTEGER NOT NULL,
    lost_at FLOAT,
    ended_at FLOAT,
    end_reason TEXT NOT NULL,
    exit_code INTEGER,
    signal INTEGER,
    cause TEXT NOT NULL,
    cause_text TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_step INTEGER,
    resume_from TEXT NOT NULL,
    cpu_seconds FLOAT NOT NULL,
    max_rss_mib FLOAT NOT NULL,
    PRIMARY KEY (job_id, number)
);
CREATE INDEX attempts_live ON attempts (job_id) WHERE ended_at IS NULL;
CREATE TABLE streams (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    next_number INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, incarnation, rank)
);
CREATE TABLE events (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    number INTEGER,
    at FLOAT NOT NULL,
    actor TEXT NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX events_job ON events (job_id, id);
CREATE UNIQUE INDEX events_once ON events (job_id, attempt, incarnation, rank, number) WHERE number IS NOT NULL;
CREATE TABLE projects (
    name TEXT NOT NULL PRIMARY KEY,
    quota FLOAT,
    limit_gpus FLOAT,
    weight FLOAT NOT NULL,
    parent TEXT NOT NULL
);
CREATE TABLE nodes (
    name TEXT NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    seen_at FLOAT NOT NULL
);
CREATE TABLE gpus (
    uuid TEXT NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    idx INTEGER NOT NULL,
    name TEXT NOT NULL,
    type TEXT NOT NULL,
    memory_mib INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE reservations (
    job_id INTEGER NOT NULL PRIMARY KEY,
    node TEXT NOT NULL,
    gpu_uuids TEXT NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    until FLOAT NOT NULL
);
CREATE TABLE usage (
    day TEXT NOT NULL,
    user TEXT NOT NULL,
    project TEXT NOT NULL,
    job_class TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    gpu_seconds FLOAT NOT NULL,
    cpu_seconds FLOAT NOT NULL,
    PRIMARY KEY (day, user, project, job_class)
);
INSERT INTO meta (key, value) VALUES ('epoch', '0');
INSERT INTO projects (name, quota, limit_gpus, weight, parent) VALUES ('default', NULL, NULL, 1.0, '');
"""

STEPS: tuple[str, ...] = (_STEP_1,)
VERSION = len(STEPS)


def found_version(connection: sqlite3.Connection) -> int:
    """The schema number that the database carries; 0 for a new one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the database up to `VERSION`; the number of steps applied.

    Each step and its number commit together, so a kill in between leaves a schema that some version knows. Raises
    NewerDatabase when a newer program wrote it.
    """
    found = found_version(connection)
    if found > VERSION:
        raise NewerDatabase(path=path, found=found, known=VERSION)
    applied = 0
    for number in range(found + 1, VERSION + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            now = found_version(connection)
            if now > VERSION:  # a newer program was quicker
                raise NewerDatabase(path=path, found=now, known=VERSION)
            if now < number:  # nobody was quicker
                for statement in STEPS[number - 1].split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
                applied += 1
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return applied
