"""Stripes that we encode: every type and codec, read back by pyarrow and by orc-core, with seeks and predicates."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor.errors import UnsupportedData
from compactor.jobs.session import SparkSessions
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.compression import ENCODABLE, Blocks, in_blocks
from compactor.orc.encode import encode
from compactor.orc.positions import moved, recorded
from tests.orc.acid_files import FS, source
from tests.orc.all_types import ALL_TYPES, all_types, write_stripes
from tests.orc.java_probe import OrcProbe

_HIVE_DELTA_BLOCK = 32 << 10
_ROWS = 9000
_STRIDE = 1000


@pytest.fixture(scope="module")
def tables() -> dict[float, pa.Table]:
    """By share of nulls."""
    return {nulls: all_types(_ROWS, nulls=nulls) for nulls in (0, 0.2)}


@pytest.mark.parametrize("kind", sorted(ENCODABLE))
@pytest.mark.parametrize("block_size", [4096, _HIVE_DELTA_BLOCK, 1 << 18])
def test_every_type_comes_back(kind: int, block_size: int, tables: dict[float, pa.Table], tmp_path: Path) -> None:
    for nulls, table in tables.items():
        path = write_stripes(
            tmp_path / str(nulls),
            [table.slice(0, 5500), table.slice(5500)],
            compression=kind,
            block_size=block_size,
            stride=_STRIDE,
        )
        assert orc.ORCFile(str(path)).read().cast(table.schema).equals(table)
        with source(path) as file:
            assert file.tail.postscript.compression == kind
            assert file.tail.block_size == (block_size if kind != pb.NONE else 1 << 18)


def test_a_table_of_several_chunks_is_one_stripe() -> None:
    parts = [all_types(300, seed=seed) for seed in (1, 2)]
    together = encode(pa.concat_tables(parts), compression=pb.ZSTD, block_size=1 << 16)
    assert together.information.number_of_rows == 600
    information = together.information
    assert sum(map(len, together.content)) == (
        information.index_length + information.data_length + information.footer_length
    )


def test_the_sizes_of_columns_are_those_of_their_streams() -> None:
    stripe = encode(all_types(500), compression=pb.ZLIB, block_size=1 << 16)
    sizes = [c.bytes_on_disk for c in stripe.statistics.col_stats]
    assert sum(sizes) == stripe.information.data_length
    assert sizes[0] == 0
    assert all(sizes[1:])


def test_a_block_that_does_not_shrink_is_stored() -> None:
    noise = random.Random(1).randbytes(1000)
    blocks = in_blocks(pb.ZSTD, noise + bytes(100), 500)
    assert blocks.starts == [0, 503, 1006]
    assert blocks.content[3:503] == noise[:500]
    assert len(blocks.content) < 1006 + 3 + 100


# --- places of row groups in compressed streams


def test_a_place_is_the_block_and_the_byte_inside_it() -> None:
    blocks = Blocks(content=b"", starts=(0, 40, 90), size=100)
    assert [blocks.place(at) for at in (0, 99, 100, 250)] == [(0, 0), (0, 99), (40, 0), (90, 50)]


def test_the_end_of_a_stream_is_in_its_last_block() -> None:
    assert Blocks(content=b"", starts=(0, 40), size=100).place(200) == (40, 100)
    assert in_blocks(pb.ZLIB, b"", 100).place(0) == (0, 0)


def test_only_the_places_of_a_row_group_move() -> None:
    index = pb.RowIndex()
    index.entry.add(positions=[0, 0, 0, 5, 0], statistics=b"s")
    index.entry.add(positions=[3, 2, 7, 150, 11])
    places = recorded(pb.Type.INT, pb.ColumnEncoding.DIRECT_V2, present=True)
    present, data = (Blocks(content=b"", starts=s, size=100) for s in ((0,), (0, 60)))
    by_stream = {pb.Stream.PRESENT: present, pb.Stream.DATA: data}
    found = moved(index, [(by_stream[stream], after) for stream, after in places])
    assert [list(e.positions) for e in found.entry] == [[0, 0, 0, 0, 0, 5, 0], [0, 3, 2, 7, 60, 50, 11]]
    assert found.entry[0].statistics == b"s"


def test_positions_of_an_unknown_make_are_refused() -> None:
    index = pb.RowIndex()
    index.entry.add(positions=[1, 2, 3])
    with pytest.raises(UnsupportedData, match="3 positions, not 2"):
        moved(index, [(Blocks(content=b"", starts=(0,), size=100), 1)])


# --- orc-core


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcProbe]:
    sessions = SparkSessions(
        master="local[1]", app_name="encode", driver_memory="1g", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield OrcProbe(sessions)
    sessions.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "block_size", "stride"),
    [
        *((kind, _HIVE_DELTA_BLOCK, 1000) for kind in sorted(ENCODABLE)),
        (pb.ZLIB, 1 << 16, 3000),
        (pb.ZSTD, 1 << 18, 10_000),
    ],
)
def test_java_finds_every_row_by_its_number_and_by_its_values(
    kind: int, block_size: int, stride: int, tables: dict[float, pa.Table], probe: OrcProbe, tmp_path: Path
) -> None:
    for nulls, table in tables.items():
        stripes = [table.slice(0, 5500), table.slice(5500)]
        expected = probe.dump(write_stripes(tmp_path / "plain", stripes, compression=pb.NONE))
        path = write_stripes(tmp_path / str(nulls), stripes, compression=kind, block_size=block_size, stride=stride)
        assert probe.dump(path) == expected
        starts = [*range(0, 5500, stride), *range(5500, _ROWS, stride)]
        rows = sorted({min(max(start + by, 0), _ROWS - 1) for start in starts for by in (-1, 0, 1, 513)})
        assert probe.seeks(path, rows) == ""
        for column, literal, low, high in _PREDICATES:
            found = probe.search(path, column, literal, str(low), str(high))
            hits = [v is not None and low <= v <= high for v in table.column(column).to_pylist()]
            assert {number for number, hit in enumerate(hits) if hit} <= set(found)
        assert len(probe.search(path, "id", "LONG", "4100", "4150")) <= min(stride, 5500)


_PREDICATES: list[tuple[str, str, object, object]] = [
    ("id", "LONG", 4100, 4150),
    ("small", "LONG", 100, 300),
    ("double_", "FLOAT", 1000.0, 1500.0),
    ("city", "STRING", "city3", "city31"),
    ("name", "STRING", "a", "a5"),
    ("day", "DATE", dt.date(2000, 1, 1), dt.date(2000, 2, 1)),
    ("price", "DECIMAL", decimal.Decimal(5), decimal.Decimal("2000.5")),
]


@pytest.mark.slow
def test_java_reads_our_stripes_between_its_own(probe: OrcProbe, tmp_path: Path) -> None:
    parts = [all_types(2500, seed=seed) for seed in (1, 2, 3)]
    plain = [write_stripes(tmp_path / f"part{i}", [part], compression=pb.NONE) for i, part in enumerate(parts)]
    java = probe.rewrite([plain[0], plain[2]], tmp_path / "java", compression="ZLIB")
    with source(java) as old, FS.write_atomically(f"{tmp_path}/both") as stream:
        out = FileAssembler(stream, replace(Template.like(old.tail, ALL_TYPES), block_size=_HIVE_DELTA_BLOCK))
        out.copy(old, 0, None)
        out.append(parts[1], None)
        out.copy(old, 1, None)
        out.finish(None)
    expected = [row for path in plain for row in probe.dump(path)]
    assert probe.dump(tmp_path / "both") == expected
    assert probe.seeks(tmp_path / "both", range(0, 7500, 250)) == ""


# --- statistics


def without(statistics: list[pb.ColumnStatistics], *names: str) -> list[pb.ColumnStatistics]:
    found = [pb.ColumnStatistics.FromString(s.SerializeToString()) for s in statistics]
    for column in found:
        for name in names:
            column.ClearField(name)  # type: ignore[arg-type]
    return found


@pytest.fixture(scope="module")
def parts() -> list[pa.Table]:
    """Stripes of many, no, only and some nulls; of texts over 1024 bytes; of one row."""
    long = ["é" * 2000, "b" * 1500, None, "a"]
    texts = all_types(len(long), seed=5)
    at = texts.schema.get_field_index("name")
    return [
        all_types(2000, seed=1),
        all_types(12_000, seed=2, nulls=0),
        all_types(50, seed=3, nulls=1),
        all_types(2000, seed=4, nulls=0.6),
        texts.set_column(at, "name", pa.array(long)),
        all_types(1, seed=6, nulls=0),
    ]


@pytest.mark.slow
def test_merged_statistics_are_those_that_java_merges(parts: list[pa.Table], probe: OrcProbe, tmp_path: Path) -> None:
    plain = [write_stripes(tmp_path / f"p{i}", [part], compression=pb.NONE) for i, part in enumerate(parts)]
    whole = probe.rewrite(plain, tmp_path / "whole", compression="ZLIB")
    with source(whole) as java, FS.write_atomically(f"{tmp_path}/copy") as stream:
        out = FileAssembler(stream, Template.of(java.tail))
        for stripe in range(java.stripes):
            out.copy(java, stripe, None)
        out.finish(None)
        assert java.stripes == len(parts)
        with source(tmp_path / "whole") as again:
            expected = list(again.tail.footer.statistics)
    with source(tmp_path / "copy") as copy:
        assert list(copy.tail.footer.statistics) == expected


@pytest.mark.slow
def test_statistics_of_our_stripes_are_those_of_java(parts: list[pa.Table], probe: OrcProbe, tmp_path: Path) -> None:
    for number, part in enumerate(parts):
        ours = write_stripes(tmp_path / f"ours{number}", [part], compression=pb.NONE)
        java = probe.rewrite([ours], tmp_path / f"java{number}", compression="NONE")
        with source(ours) as a, source(java) as b:
            # Java counts the capacity of its batches as the sizes of collections; decimals are encoded differently.
            known = "collection_statistics", "bytes_on_disk"
            found, expected = (without(list(f.tail.footer.statistics), *known) for f in (a, b))
            for column, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
                if mine.has_null and not theirs.has_null:
                    # A field of a null struct: more nulls than there are only keep readers from skipping.
                    assert a.tail.footer.types[column].kind != pb.Type.STRUCT
                    mine.has_null = False
                assert mine == theirs, (number, column)
