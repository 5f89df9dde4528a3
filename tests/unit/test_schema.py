"""One schema in four places: the migrations, the SQLModel classes, the dataclasses and the column lists."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spools import answers, make_folders, python, start, submission
from sqlmodel import Session, SQLModel, create_engine, select

from gpuspool.spool import model, schema, session
from gpuspool.spool.drift import describe, drift, wanted_schema
from gpuspool.spool.migrations import migrate
from gpuspool.spool.store import open_store

#: Dataclass, SQLModel class and (where there is one) the column list by which rows become dataclasses.
PAIRS: list[tuple[type, type[SQLModel], str]] = [
    (model.Job, schema.JobRow, session.JOB_COLUMNS),
    (model.Attempt, schema.AttemptRow, session.ATTEMPT_COLUMNS),
    (model.Event, schema.EventRow, session.EVENT_COLUMNS),
    (model.Project, schema.ProjectRow, ""),
    (model.Node, schema.NodeRow, ""),
    (model.GpuRow, schema.GpuRow, ""),
    (model.Reservation, schema.ReservationRow, ""),
]


@pytest.fixture
def migrated() -> Iterator[sqlite3.Connection]:
    """A database as the migrations make it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, ":memory:")
    yield connection
    connection.close()


def test_the_migrations_make_what_sqlmodel_means(migrated: sqlite3.Connection) -> None:
    assert drift(describe(migrated), wanted_schema()) == []
    assert describe(migrated) == wanted_schema()


def test_every_table_is_there_and_every_column_says_what_it_means() -> None:
    assert (
        {table.__tablename__ for table in schema.TABLES}
        == set(wanted_schema())
        == set(schema.METADATA.tables)
    )
    assert len(schema.TABLES) == 11
    for table in schema.TABLES:
        assert table.__doc__
        for name, info in table.model_fields.items():
            assert info.description, f"{table.__name__}.{name}"


@pytest.mark.parametrize(("values", "rows", "columns"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_dataclasses_have_the_columns_in_their_order(
    values: type, rows: type[SQLModel], columns: str
) -> None:
    """Rows become dataclasses by position: `Job(*row)`."""
    names = [field.name for field in dataclasses.fields(values)]
    assert names == list(rows.model_fields)
    assert names == [column[0] for column in wanted_schema()[str(rows.__tablename__)]["columns"]]
    if columns:
        assert [name.strip() for name in columns.split(",")] == names


@pytest.mark.parametrize(("values", "rows", "columns"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_dataclasses_have_the_types_of_their_columns(
    values: type, rows: type[SQLModel], columns: str
) -> None:
    types = {"TEXT": "str", "INTEGER": "int", "FLOAT": "float"}
    found = {field.name: field.type for field in dataclasses.fields(values)}
    for name, kind, not_null, _, _ in wanted_schema()[str(rows.__tablename__)]["columns"]:
        assert found[name] == types[kind] + ("" if not_null else " | None"), name
        assert (rows.model_fields[name].annotation is not None) is True


def test_the_schema_is_apart_from_a_users_own_classes() -> None:
    assert not set(SQLModel.metadata.tables) & set(schema.METADATA.tables)


def test_a_spool_can_be_queried_with_sqlmodel(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    store = open_store(folders)
    jobs = store.submit([submission(name="é", gpus=1), submission()], 1.0)
    start(store, jobs[0], 2.0, "GPU-a")
    engine = create_engine(f"sqlite:///file:{folders.database}?mode=ro&uri=true")
    with Session(engine) as reader:
        [job] = reader.exec(select(schema.JobRow).where(schema.JobRow.state == "running")).all()
        assert (job.id, job.name, job.started_at) == (jobs[0], "é", 3.0)
        [attempt] = reader.exec(select(schema.AttemptRow)).all()
        assert attempt.gpu_uuids == '["GPU-a"]'
        for table in schema.TABLES:
            reader.exec(select(table)).all()
    engine.dispose()
    store.close()


def test_nothing_hot_imports_sqlmodel() -> None:
    """SQLAlchemy and pydantic take longer to import than a whole `spool submit`."""
    script = """
import json, sys
import gpuspool.spool.store, gpuspool.spool.check, gpuspool.spool.interface, gpuspool.spool.jobids, gpuspool.spool.config
print(json.dumps([name for name in ("sqlmodel", "sqlalchemy", "pydantic", "hashlib", "tomllib", "zoneinfo") if name in sys.modules]))
"""
    assert answers(python(script)) == [[]]


# -- drift -----------------------------------------------------------------------------------------------


def changed(migrated: sqlite3.Connection, *statements: str) -> list[str]:
    """What is said after these changes."""
    for statement in statements:
        migrated.execute(statement)
    return drift(describe(migrated), wanted_schema())


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE reservations", "The table reservations is missing."),
        ("CREATE TABLE extra (a TEXT)", "The table extra is not of this schema."),
        ("ALTER TABLE gpus DROP COLUMN reason", "The column reason of table gpus is missing."),
        ("ALTER TABLE gpus ADD COLUMN power FLOAT", "The column power of table gpus is not of this schema."),
        ("ALTER TABLE gpus RENAME COLUMN idx TO i", "The column idx of table gpus is missing."),
        ("DROP INDEX jobs_state", "The indexes of table jobs differ"),
        ("CREATE INDEX more ON jobs (user)", "The indexes of table jobs differ"),
    ],
)
def test_drift_is_told(migrated: sqlite3.Connection, statement: str, said: str) -> None:
    found = changed(migrated, statement)
    assert any(sentence.startswith(said) for sentence in found), found


def rebuilt(migrated: sqlite3.Connection, table: str, old: str, new: str) -> list[str]:
    """What is said when a table was made with a slip."""
    sql = migrated.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    assert old in sql
    indexes = migrated.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql LIKE 'CREATE % INDEX%'", (table,)
    ).fetchall()
    indexes += migrated.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql LIKE 'CREATE INDEX%'", (table,)
    ).fetchall()
    return changed(migrated, f"DROP TABLE {table}", sql.replace(old, new), *(row[0] for row in indexes))


@pytest.mark.parametrize(
    ("table", "old", "new", "said"),
    [
        (
            "nodes",
            "cpus INTEGER NOT NULL",
            "cpus TEXT NOT NULL",
            "The column cpus of table nodes is ('TEXT', True, 0, None), should be ('INTEGER', True, 0, None).",
        ),
        (
            "nodes",
            "cpus INTEGER NOT NULL",
            "cpus INTEGER",
            "The column cpus of table nodes is ('INTEGER', False, 0, None), should be",
        ),
        (
            "nodes",
            "cpus INTEGER NOT NULL",
            "cpus INTEGER NOT NULL DEFAULT 1",
            "The column cpus of table nodes is ('INTEGER', True, 0, '1'), should be",
        ),
        (
            "nodes",
            "NOT NULL PRIMARY KEY",
            "NOT NULL",
            "The column name of table nodes is ('TEXT', True, 0, None), should be ('TEXT', True, 1, None).",
        ),
        (
            "nodes",
            "host TEXT NOT NULL,\n    boot_id TEXT NOT NULL",
            "boot_id TEXT NOT NULL,\n    host TEXT NOT NULL",
            "The columns of table nodes stand in another order.",
        ),
        (
            "attempts",
            "PRIMARY KEY (job_id, number)",
            "PRIMARY KEY (number, job_id)",
            "The column job_id of table attempts is ('INTEGER', True, 2, None), should be",
        ),
        (
            "attempts",
            "token TEXT NOT NULL UNIQUE",
            "token TEXT NOT NULL",
            "The indexes of table attempts differ",
        ),
        ("attempts", " REFERENCES jobs (id)", "", "The foreign keys of table attempts differ"),
        (
            "events",
            " AUTOINCREMENT",
            "",
            "The numbers never used again of table events differ: found False, should be True.",
        ),
    ],
)
def test_slips_in_a_table_are_told(
    migrated: sqlite3.Connection, table: str, old: str, new: str, said: str
) -> None:
    found = rebuilt(migrated, table, old, new)
    assert any(sentence.startswith(said) for sentence in found), found


@pytest.mark.parametrize(
    ("name", "sql"),
    [
        (
            "events_once",
            "CREATE INDEX events_once ON events (job_id, attempt, incarnation, rank, number) WHERE number IS NOT NULL",
        ),
        (
            "events_once",
            "CREATE UNIQUE INDEX events_once ON events (job_id, attempt, incarnation, rank, number)",
        ),
        (
            "events_once",
            "CREATE UNIQUE INDEX events_once ON events (job_id, attempt, rank, number) WHERE number IS NOT NULL",
        ),
        ("attempts_live", "CREATE INDEX attempts_live ON attempts (job_id) WHERE ended_at IS NOT NULL"),
        ("events_job", "CREATE INDEX events_job ON events (id, job_id)"),
    ],
)
def test_slips_in_an_index_are_told(migrated: sqlite3.Connection, name: str, sql: str) -> None:
    [said] = changed(migrated, f"DROP INDEX {name}", sql)
    assert said.startswith("The indexes of table ")


def test_spelling_is_no_drift(migrated: sqlite3.Connection) -> None:
    assert (
        changed(
            migrated,
            "DROP INDEX jobs_array",
            "CREATE INDEX  jobs_array ON jobs(array_id,array_index)\n WHERE  array_id  IS NOT NULL",
        )
        == []
    )


def test_values_of_other_types_are_no_part_of_this(migrated: sqlite3.Connection) -> None:
    found: dict[str, Any] = describe(migrated)
    assert "sqlite_sequence" not in found
