"""Files assembled from copied and encoded stripes, read back by pyarrow."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from compactor.acid.records import Event, RowId
from compactor.acid.schema import parse_type
from compactor.errors import CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, Template, acid_template
from compactor.orc.compression import ENCODABLE
from compactor.orc.types import acid_type
from tests.orc.acid_files import FS, ROW, event_table, insert, read_events, source, write_events


def events(write_id: int, count: int) -> list[Event]:
    return [insert(write_id, i, (i, f"w{write_id}r{i}")) for i in range(count)]


@pytest.mark.parametrize("kind", sorted(ENCODABLE))
def test_copied_and_encoded_stripes_stand_in_one_file(kind: int, tmp_path: Path) -> None:
    write_events(tmp_path / "a", events(1, 20), stripe_rows=7, compression=kind)
    with source(tmp_path / "a") as old, FS.write_atomically(f"{tmp_path}/b") as stream:
        out = FileAssembler(stream, Template.like(old.tail, acid_type(ROW)))
        for stripe in range(old.stripes):
            out.copy(old, stripe, old.keys(stripe).at(-1))
        out.append(event_table(events(2, 5), ROW), RowId(2, 536870912, 4))
        size = out.finish(AcidStats(inserts=25))
        assert (out.stripes_copied, out.stripes_encoded, out.rows) == (3, 1, 25)
    assert (tmp_path / "b").stat().st_size == size
    assert read_events(tmp_path / "b") == events(1, 20) + events(2, 5)
    with source(tmp_path / "b") as new:
        assert new.tail.key_index() == (
            RowId(1, 536870912, 6),
            RowId(1, 536870912, 13),
            RowId(1, 536870912, 19),
            RowId(2, 536870912, 4),
        )
        assert new.tail.user_metadata["hive.acid.stats"] == b"25,0,0"
        assert new.tail.user_metadata["hive.acid.version"] == b"2"
        assert new.tail.postscript.compression == kind
        assert new.tail.footer.statistics[0].number_of_values == 25
        assert (new.tail.footer.statistics[2].int_statistics.minimum, new.tail.row_type) == (1, ROW)


def test_the_types_of_hive_survive_encoding(tmp_path: Path) -> None:
    row_type = parse_type("struct<c:char(5),v:varchar(9),d:decimal(9,2),l:array<int>,m:map<string,int>>")
    rows = [("ab   ", "x", None, [1, None], [("k", 1)]), (None, None, None, None, None)]
    written = [insert(1, i, row) for i, row in enumerate(rows)]
    write_events(tmp_path / "a", written, row_type=row_type)
    assert read_events(tmp_path / "a") == written
    with source(tmp_path / "a") as file:
        assert file.tail.row_type == row_type


def test_a_growing_file_is_whole_at_every_tail(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    out = FileAssembler(pa.PythonFile(buffer, mode="w"), acid_template(ROW, compression=pb.ZLIB))
    lengths = []
    for write_id in (1, 2, 3):
        out.append(event_table(events(write_id, 4), ROW), RowId(write_id, 536870912, 3))
        lengths.append(out.finish(AcidStats(inserts=4 * write_id)))
    for count, length in enumerate(lengths, start=1):
        path = tmp_path / str(count)
        path.write_bytes(buffer.getvalue()[:length])
        assert read_events(path) == [e for w in range(1, count + 1) for e in events(w, 4)]


def test_a_file_without_stripes_is_readable_and_empty(tmp_path: Path) -> None:
    write_events(tmp_path / "a", [])
    assert orc.ORCFile(str(tmp_path / "a")).read().num_rows == 0


def test_an_empty_table_adds_no_stripe(tmp_path: Path) -> None:
    with FS.write_atomically(f"{tmp_path}/a") as stream:
        out = FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB))
        out.append(event_table([], ROW), None)
        assert out.stripes == 0


def test_a_source_that_shrinks_while_it_is_copied_is_corrupt(tmp_path: Path) -> None:
    write_events(tmp_path / "a", [insert(1, i, (i, str(i) * 50)) for i in range(2000)], compression=pb.NONE)
    with source(tmp_path / "a") as old:
        (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:5000])
        out = FileAssembler(pa.BufferOutputStream(), Template.of(old.tail))
        with pytest.raises(CorruptFile, match="too early"):
            out.copy(old, 0, None)


# --- which stripes may stand in one file


@pytest.fixture
def template(tmp_path: Path) -> Template:
    write_events(tmp_path / "template", events(1, 2))
    with source(tmp_path / "template") as file:
        return Template.of(file.tail)


def test_a_template_takes_the_stripes_of_its_own_file(template: Template, tmp_path: Path) -> None:
    with source(tmp_path / "template") as file:
        assert template.accepts(file.tail)


def test_another_block_size_is_taken(template: Template, tmp_path: Path) -> None:
    with source(tmp_path / "template") as file:
        assert replace(template, block_size=1 << 16, software="another").accepts(file.tail)


def test_another_codec_is_not_taken(template: Template, tmp_path: Path) -> None:
    write_events(tmp_path / "b", events(1, 2), compression=pb.SNAPPY)
    with source(tmp_path / "b") as file:
        assert not template.accepts(file.tail)


@pytest.mark.parametrize("columns", ["struct<id:bigint,v:string>", "struct<id:int,w:string>", "struct<id:int>"])
def test_other_types_are_not_taken(template: Template, tmp_path: Path, columns: str) -> None:
    write_events(tmp_path / "b", [], row_type=parse_type(columns))
    with source(tmp_path / "b") as file:
        assert not template.accepts(file.tail)


@pytest.mark.parametrize(
    "change", [{"stride": 5000}, {"writer": 7}, {"writer_version": 99}, {"version": (0, 11)}, {"calendar": 1}]
)
def test_a_file_of_another_make_is_not_taken(template: Template, tmp_path: Path, change: dict[str, int]) -> None:
    with source(tmp_path / "template") as file:
        assert not replace(template, **change).accepts(file.tail)


def test_a_file_without_a_row_index_is_never_copied(template: Template, tmp_path: Path) -> None:
    write_events(tmp_path / "b", events(1, 2), template=replace(template, stride=1))
    content = replace(template, stride=0)
    with source(tmp_path / "b") as file:
        file.tail.footer.row_index_stride = 0
        assert not content.accepts(file.tail)
        assert Template.like(file.tail, acid_type(ROW)).stride > 0
        assert not Template.like(file.tail, acid_type(ROW)).accepts(file.tail)


def test_an_encrypted_file_is_never_copied(template: Template, tmp_path: Path) -> None:
    with source(tmp_path / "template") as file:
        file.tail.footer.encryption = b"\x0a\x00"
        assert not Template.of(file.tail).accepts(file.tail)
        assert not Template.like(file.tail, acid_type(ROW)).accepts(file.tail)


def test_a_codec_that_cannot_be_written_gives_way_to_zlib(tmp_path: Path) -> None:
    write_events(tmp_path / "b", events(1, 2))
    with source(tmp_path / "b") as file:
        file.tail.postscript.compression = pb.LZO
        assert Template.like(file.tail, acid_type(ROW)).compression == pb.ZLIB
