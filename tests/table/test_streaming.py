"""Streaming ingest: visible after each commit, readable after each crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs as pafs

from compactor.errors import StorageFull, TransactionAborted, UsageError
from compactor.metastore import txns
from compactor.metastore.catalog import TableName, get_table
from compactor.metastore.database import Database
from compactor.metastore.locks import show_locks
from compactor.storage.filesystem import ArrowFileSystem, FileSystem, open_location
from compactor.table.ddl import create_table
from compactor.table.reader import TableReader, open_snapshot
from compactor.table.streaming import StreamingIngest
from compactor.table.writer import TableWriter
from tests.table.conftest import Oracle

COLUMNS = [("id", "int"), ("v", "string")]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{i}" for i in ids]})


def read(db: Database, name: TableName) -> list[int]:
    return sorted(TableReader(db, open_location, name, user="b", host="h").read()["id"].to_pylist())


def entries(db: Database, name: TableName) -> list[str]:
    fs, root = open_location(get_table(db, name).location or "")
    return sorted(f.path for f in fs.listing(root).files)


def tear(data_file: Path) -> None:
    """Leave behind what a writer leaves that dies while it appends."""
    side_file = data_file.with_name(f"{data_file.name}_flush_length")
    for file, torn in ((data_file, b"half a stripe"), (side_file, b"\0\0\0")):
        with file.open("ab") as stream:
            stream.write(torn)


@pytest.fixture
def flat(db: Database, name: TableName) -> TableName:
    create_table(db, name, COLUMNS)
    return name


def test_rows_are_visible_after_their_commit_and_not_before(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    with StreamingIngest(writer, batch_size=3) as ingest:
        for n in range(3):
            ingest.write(rows(10 * n))
            ingest.write(rows(10 * n + 1))
            assert read(db, flat) == [i for m in range(n) for i in (10 * m, 10 * m + 1)]
            assert ingest.commit() == n + 1
            assert read(db, flat) == [row[2] for row in oracle(flat)]
    assert read(db, flat) == [0, 1, 10, 11, 20, 21]


def test_a_batch_is_one_delta_with_one_file_whose_side_file_goes_at_the_end(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    ingest = StreamingIngest(writer, batch_size=5)
    for n in range(2):
        ingest.write(rows(n))
        ingest.commit()
    delta = "delta_0000001_0000005"
    complete = [f"{delta}/_orc_acid_version", f"{delta}/bucket_00000"]
    assert entries(db, flat) == [*complete, f"{delta}/bucket_00000_flush_length"]
    ingest.close()
    assert entries(db, flat) == complete
    assert read(db, flat) == [0, 1]
    assert [t.state for t in txns.show_transactions(db)] == [txns.TxnState.ABORTED] * 3
    assert show_locks(db) == []


def test_the_next_batch_opens_by_itself(db: Database, flat: TableName, writer: TableWriter) -> None:
    with StreamingIngest(writer, batch_size=2) as ingest:
        for n in range(5):
            ingest.write(rows(n))
            ingest.commit()
    assert read(db, flat) == [0, 1, 2, 3, 4]
    assert {e.partition("/")[0] for e in entries(db, flat)} == {
        "delta_0000001_0000002",
        "delta_0000003_0000004",
        "delta_0000005_0000006",
    }


def test_aborted_rows_never_show_and_the_batch_goes_on(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    with StreamingIngest(writer, batch_size=4) as ingest:
        ingest.write(rows(1))
        ingest.commit()
        ingest.write(rows(2))
        ingest.abort()
        ingest.write(rows(3))
        ingest.commit()
    assert read(db, flat) == [row[2] for row in oracle(flat)] == [1, 3]


def test_a_transaction_that_timed_out_loses_its_rows_but_not_those_after_it(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle
) -> None:
    with StreamingIngest(writer, batch_size=3) as ingest:
        ingest.write(rows(1))
        ingest.commit()
        ingest.write(rows(2))
        txns.abort_transactions(db, [min(t.id for t in txns.show_transactions(db))])
        with pytest.raises(TransactionAborted):
            ingest.heartbeat()
        with pytest.raises(TransactionAborted):
            ingest.commit()
        ingest.write(rows(3))
        ingest.commit()
    assert read(db, flat) == [row[2] for row in oracle(flat)] == [1, 3]


def test_a_reader_of_an_older_snapshot_does_not_see_what_the_file_grows_by(
    db: Database, flat: TableName, writer: TableWriter
) -> None:
    with StreamingIngest(writer, batch_size=3) as ingest:
        ingest.write(rows(1))
        ingest.commit()
        with open_snapshot(db, [flat], user="b", host="h") as snapshot:
            ingest.write(rows(2))
            ingest.commit()
            assert snapshot.read(flat)["id"].to_pylist() == [1]


def test_buckets_grow_each_on_its_own(db: Database, name: TableName, writer: TableWriter, oracle: Oracle) -> None:
    create_table(db, name, COLUMNS, partitioned_by=[("p", "string")], clustered_by=["id"], buckets=3)
    with StreamingIngest(writer, batch_size=4, partition={"p": "x y"}) as ingest:
        for n in range(4):
            ingest.write(rows(*range(n * 5, n * 5 + 5)))
            ingest.commit()
            assert read(db, name) == sorted(row[2] for row in oracle(name)) == list(range(n * 5 + 5))
    assert {(row[1].bucket >> 16) & 0xFFF for row in oracle(name)} == {0, 1, 2}


@pytest.mark.slow
def test_a_killed_writer_leaves_what_it_committed_readable(db: Database, flat: TableName, tmp_path: Path) -> None:
    script = """
import os, sys
import pyarrow as pa
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.storage.filesystem import open_location
from compactor.table.streaming import StreamingIngest
from compactor.table.writer import TableWriter
db = Database.connect(sys.argv[1])
ingest = StreamingIngest(TableWriter(db, open_location, TableName.parse("default.t"), user="u", host="h"), batch_size=9)
for n in range(3):
    ingest.write(pa.table({"id": [n], "v": ["x"]}))
    ingest.commit()
ingest.write(pa.table({"id": [99], "v": ["x"]}))
os.kill(os.getpid(), 9)
"""
    url = f"sqlite:///{tmp_path / 'metastore.db'}"
    done = subprocess.run([sys.executable, "-c", script, url], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    tear(tmp_path / "warehouse" / "t" / "delta_0000001_0000009" / "bucket_00000")
    assert read(db, flat) == [0, 1, 2]
    open_ids = [t.id for t in txns.show_transactions(db)]
    assert txns.abort_transactions(db, open_ids).aborted == tuple(open_ids)
    assert read(db, flat) == [0, 1, 2]


def test_a_torn_append_is_overwritten_by_the_next_commit(
    db: Database, flat: TableName, writer: TableWriter, oracle: Oracle, tmp_path: Path
) -> None:
    with StreamingIngest(writer, batch_size=4) as ingest:
        ingest.write(rows(1))
        ingest.commit()
        tear(tmp_path / "warehouse" / "t" / "delta_0000001_0000004" / "bucket_00000")
        assert read(db, flat) == [1]
        ingest.write(rows(2))
        ingest.commit()
        assert read(db, flat) == [row[2] for row in oracle(flat)] == [1, 2]
    assert read(db, flat) == [1, 2]


def test_a_side_file_stays_while_a_torn_append_follows_the_last_commit(
    db: Database, flat: TableName, writer: TableWriter, tmp_path: Path
) -> None:
    with StreamingIngest(writer, batch_size=4) as ingest:
        ingest.write(rows(1))
        ingest.commit()
        tear(tmp_path / "warehouse" / "t" / "delta_0000001_0000004" / "bucket_00000")
    assert read(db, flat) == [1]


def test_a_full_disk_costs_one_transaction_and_no_committed_row(db: Database, flat: TableName, oracle: Oracle) -> None:
    disk = {"full": True}

    class SmallDisk(ArrowFileSystem):
        @contextmanager
        def write_atomically(self, path: str, **hints: Any) -> Iterator[pa.NativeFile]:
            if disk["full"] and path.endswith("bucket_00000"):
                raise StorageFull(f"no space left writing {path}")
            with super().write_atomically(path, **hints) as stream:
                yield stream

    def small(location: str) -> tuple[FileSystem, str]:
        return SmallDisk(pafs.LocalFileSystem()), open_location(location)[1]

    with StreamingIngest(TableWriter(db, small, flat, user="u", host="h"), batch_size=4) as ingest:
        ingest.write(rows(1))
        with pytest.raises(StorageFull):
            ingest.commit()
        disk["full"] = False
        ingest.write(rows(2))
        ingest.commit()
        assert read(db, flat) == [row[2] for row in oracle(flat)] == [2]
    assert read(db, flat) == [2]


def test_where_files_cannot_be_appended_to_a_batch_is_one_transaction(
    db: Database, name: TableName, tmp_path: Path
) -> None:
    local, root = open_location(str(tmp_path / "bucket"))
    local.create_directory(root)

    def object_store(location: str) -> tuple[FileSystem, str]:
        return local, root + location.removeprefix("s3://bucket")

    create_table(db, name, COLUMNS, location="s3://bucket/t", filesystem_of=object_store)
    writer = TableWriter(db, object_store, name, user="u", host="h")
    with StreamingIngest(writer, batch_size=2) as ingest, pytest.raises(UsageError, match="batch_size=1"):
        ingest.write(rows(1))
    with StreamingIngest(writer) as ingest:
        for n in range(2):
            ingest.write(rows(n))
            ingest.commit()
    found = TableReader(db, object_store, name, user="b", host="h").read()
    assert sorted(found["id"].to_pylist()) == [0, 1]
    assert [f.path for f in local.listing(f"{root}/t").files if f.name.startswith("bucket")] == [
        "delta_0000001_0000001/bucket_00000",
        "delta_0000002_0000002/bucket_00000",
    ]


def test_insert_only_tables_and_unnamed_partitions_are_refused(
    db: Database, name: TableName, writer: TableWriter
) -> None:
    create_table(db, name, COLUMNS, partitioned_by=[("p", "string")])
    with pytest.raises(UsageError, match="a value for each of: p"):
        StreamingIngest(writer)
    other = TableName(database="default", table="mm")
    create_table(db, other, COLUMNS, insert_only=True)
    with pytest.raises(UsageError, match="insert-only"):
        StreamingIngest(TableWriter(db, open_location, other, user="u", host="h"))
