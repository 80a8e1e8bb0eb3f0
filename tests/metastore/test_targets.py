"""What the planner is told of a table: its codec, recompression and how many files a task reads."""

from __future__ import annotations

import pytest

from compactor.errors import ConfigError, UnsupportedData
from compactor.jobs.planner import CompactionTarget
from compactor.metastore.catalog import Column, Table, TableName
from compactor.metastore.database import Database
from compactor.orc import orc_proto_pb2 as pb
from compactor.service.targets import compaction_target
from compactor.settings import WorkerSettings


def target(db: Database, worker: WorkerSettings | None = None, **parameters: str) -> CompactionTarget:
    """The target of a table with these parameters, `_` written for `.`."""
    named = {key.replace("_", "."): value for key, value in parameters.items()}
    table = Table(
        id=1,
        name=TableName(database="d", table="t"),
        type="MANAGED_TABLE",
        owner=None,
        location="/w/t",
        columns=(Column(name="id", type="int"),),
        parameters={"transactional": "true", **named},
        input_format="org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        output_format=None,
        serde=None,
    )
    return compaction_target(db, table, None, worker=worker)


def test_by_default_nothing_is_recompressed(db: Database) -> None:
    found = target(db)
    assert (found.codec, found.recompress, found.max_num_delta) == (pb.ZLIB, None, 500)


def test_the_codec_is_the_tables(db: Database) -> None:
    assert target(db, orc_compress="snappy").codec == pb.SNAPPY
    with pytest.raises(UnsupportedData, match="no ORC codec"):
        target(db, orc_compress="rar")


def test_the_table_decides_on_recompression_before_the_installation(db: Database) -> None:
    wish = WorkerSettings(recompress="zstd", max_num_delta=7)
    assert (target(db, wish).recompress, target(db, wish).max_num_delta) == (pb.ZSTD, 7)
    assert target(db, wish, compactor_recompress="NONE").recompress == pb.NONE
    assert target(db, wish, compactor_recompress="off").recompress is None


@pytest.mark.parametrize("codec", ["lzo", "rar"])
def test_a_codec_that_nothing_is_encoded_with_is_refused(db: Database, codec: str) -> None:
    with pytest.raises(ConfigError, match=f"compactor.recompress is '{codec}', not one of off, lz4, none"):
        target(db, compactor_recompress=codec)


def test_formats_see_the_tables_properties(db: Database) -> None:
    assert target(db, skip_header_line_count="1").properties["skip.header.line.count"] == "1"
