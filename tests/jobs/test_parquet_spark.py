"""Joined Parquet files as parquet-java reads them: by Spark with pushdown, page indexes and bloom filters included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import parse_type
from compactor.jobs.parquet import parquet_facts, run_parquet_item
from compactor.jobs.session import SparkSessions
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import ArrowFileSystem

pytestmark = pytest.mark.slow

FS = ArrowFileSystem(pafs.LocalFileSystem())
_TYPE = parse_type("struct<id:bigint,s:string,t:timestamp,a:array<string>>")
_ROWS = (
    "id * {step} id",
    "cast(id % 1000 as string) s",
    "if(id % 3 = 0, timestamp'9999-12-31 23:59:59.999999', timestamp'0001-01-01 00:00:00') t",
    "array(concat('x', id), null) a",
)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]",
        app_name="tests",
        driver_memory="512m",
        conf={"spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED"},
        cache=tmp_path_factory.mktemp("java"),
    )
    yield made
    made.stop()


def spark_file(sessions: SparkSessions, folder: Path, number: int, rows: int) -> Path:
    """A file of Spark's, with a bloom filter on `s` and row groups of 1 MB."""
    frame = sessions.get().range(rows).selectExpr(*(e.format(step=number + 1) for e in _ROWS))
    options = {"parquet.bloom.filter.enabled#s": "true", "parquet.bloom.filter.expected.ndv#s": "1000"}
    limits = {"parquet.block.size": str(1 << 20), "parquet.page.size": "10000"}
    frame.coalesce(1).write.options(**options, **limits).parquet(str(folder / f"w{number}"))
    (written,) = (folder / f"w{number}").glob("part-*")
    return written.rename(folder / f"{number}.parquet")


def joined(folder: Path, paths: list[Path]) -> ItemResult:
    assert len({parquet_facts(FS, str(p), _TYPE).template for p in paths}) == 1
    sources = tuple(SourceFile(path=p.name, size=p.stat().st_size, rows=0) for p in paths)
    item = PlanItem(kind=ItemKind.PLAIN, output="joined.parquet", bucket=0, sources=sources, format="parquet")
    return run_parquet_item(FS, str(folder), item, _TYPE)


@pytest.mark.parametrize("rows", [(120_000, 80_000), (50, 70, 90)])
def test_spark_finds_every_row_with_and_without_pushdown(
    sessions: SparkSessions, tmp_path: Path, rows: tuple[int, ...]
) -> None:
    paths = [spark_file(sessions, tmp_path, number, count) for number, count in enumerate(rows)]
    done = joined(tmp_path, paths)
    assert done.rows_out == sum(rows)
    spark = sessions.get()
    found, expected = (spark.read.parquet(*map(str, p)) for p in ([tmp_path / "joined.parquet"], paths))
    assert found.schema == expected.schema
    for condition in ("true", "id = 40", "id between 100 and 5000", "s = '17'", "s = 'none'", "year(t) = 9999"):
        rows_found, rows_expected = (
            frame.where(condition).selectExpr("count(*)", "sum(cast(xxhash64(*) as decimal(38)))").collect()
            for frame in (found, expected)
        )
        assert rows_found == rows_expected, condition


def test_page_indexes_and_bloom_filters_come_along(sessions: SparkSessions, tmp_path: Path) -> None:
    paths = [spark_file(sessions, tmp_path, number, 120_000) for number in range(2)]
    done = joined(tmp_path, paths)
    assert (done.stripes_encoded, done.stripes_copied) == (0, sum(len(groups(sessions, p)) for p in paths) // 4)
    before = [group for path in paths for group in groups(sessions, path)]
    assert groups(sessions, tmp_path / "joined.parquet") == before


def groups(sessions: SparkSessions, path: Path) -> list[Any]:
    """For each row group and column: pages (position in the chunk, rows before), their bounds, and the bloom filter."""
    jvm: Any = sessions.get().sparkContext._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    source = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(jvm.org.apache.hadoop.fs.Path(str(path)), conf)
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(source)
    found = []
    for block in reader.getFooter().getBlocks():
        for column in block.getColumns():
            offsets, bounds = reader.readOffsetIndex(column), reader.readColumnIndex(column)
            start, bloom = column.getStartingPos(), reader.readBloomFilter(column)
            found.append(
                (
                    [
                        (offsets.getOffset(i) - start, offsets.getFirstRowIndex(i))
                        for i in range(offsets.getPageCount())
                    ],
                    None if bounds is None else bounds.toString(),
                    None if bloom is None else [bloom.getBitsetSize(), bloom.findHash(bloom.hash(_binary(jvm, "17")))],
                    (column.getStatistics().toString(), column.getTotalSize(), column.getValueCount()),
                )
            )
    reader.close()
    return found


def _binary(jvm: Any, text: str) -> Any:
    return jvm.org.apache.parquet.io.api.Binary.fromString(text)
