"""The schema of a database as values that can be compared, and how one differs from another."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any


def describe(connection: sqlite3.Connection) -> dict[str, dict[str, Any]]:
    """The schema of a database as values that can be compared: table → columns, foreign keys, indexes, numbering.

    Columns are (name, type, not null, place in the primary key, default) in their order.
    """
    found = {}
    tables = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchall()
    for table, sql in tables:
        columns = [
            (name, kind.upper(), bool(not_null), key, default)
            for _, name, kind, not_null, default, key in connection.execute(f'PRAGMA table_info("{table}")')
        ]
        foreign = sorted(
            (row[3], row[2], row[4]) for row in connection.execute(f'PRAGMA foreign_key_list("{table}")')
        )
        found[table] = {
            "columns": columns,
            "foreign keys": foreign,
            "indexes": _indexes(connection, table),
            "numbers never used again": "AUTOINCREMENT" in sql.upper(),
        }
    return found


def _indexes(connection: sqlite3.Connection, table: str) -> dict[str, tuple[Any, ...]]:
    """Index → (unique, columns, condition); those that SQLite makes for keys go by what they hold."""
    found = {}
    for _, name, unique, origin, _ in connection.execute(f'PRAGMA index_list("{table}")').fetchall():
        columns = tuple(row[2] for row in connection.execute(f'PRAGMA index_info("{name}")'))
        sql = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
        condition = " ".join((sql or "").partition(" WHERE ")[2].split())
        label = name if origin == "c" else f"{'unique' if origin == 'u' else 'key'} {', '.join(columns)}"
        found[label] = (bool(unique), columns, condition)
    return found


def drift(found: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]]) -> list[str]:
    """How one schema (`describe`) differs from another, a sentence each."""
    said = [f"The table {name} is missing." for name in wanted if name not in found]
    said += [f"The table {name} is not of this schema." for name in found if name not in wanted]
    for table in wanted:
        if table not in found:
            continue
        is_now, should_be = found[table], wanted[table]
        said += _drift_of_columns(table, is_now["columns"], should_be["columns"])
        for what in ("foreign keys", "indexes", "numbers never used again"):
            if is_now[what] != should_be[what]:
                said.append(
                    f"The {what} of table {table} differ: found {is_now[what]}, should be {should_be[what]}."
                )
    return said


def _drift_of_columns(table: str, found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> list[str]:
    here, there = {column[0]: column for column in found}, {column[0]: column for column in wanted}
    said = [f"The column {name} of table {table} is missing." for name in there if name not in here]
    said += [
        f"The column {name} of table {table} is not of this schema." for name in here if name not in there
    ]
    for name, column in there.items():
        if name in here and here[name] != column:
            said.append(f"The column {name} of table {table} is {here[name][1:]}, should be {column[1:]}.")
    if not said and [column[0] for column in found] != [column[0] for column in wanted]:
        said.append(f"The columns of table {table} stand in another order.")
    return said


@cache
def wanted_schema() -> dict[str, dict[str, Any]]:
    """`describe` of the schema that `schema.py` defines."""
    from sqlalchemy.dialects import sqlite
    from sqlalchemy.schema import CreateIndex, CreateTable

    from .schema import METADATA

    blank = sqlite3.connect(":memory:")
    try:
        for table in METADATA.sorted_tables:
            blank.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
            for index in table.indexes:
                blank.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
        return describe(blank)
    finally:
        blank.close()
