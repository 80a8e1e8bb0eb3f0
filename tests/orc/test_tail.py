"""Reading the tail of a file: of Hive's own, of ours, and of every kind of broken one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from compactor.acid.records import RowId
from compactor.acid.snapshot import ValidWriteIdList
from compactor.errors import CompactorError, CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.facts import orc_facts
from compactor.orc.reader import OrcSource
from compactor.orc.tail import read_tail
from tests.fixtures.hive_tables import unpack
from tests.orc.acid_files import FS, ROW, event_table, insert, write_events

_ALL = ValidWriteIdList(table="d.t", high_water=99)


@pytest.fixture(scope="session")
def hive_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket that Hive wrote: every type, with nulls."""
    root = unpack(tmp_path_factory.mktemp("hive"))
    return root / "warehouse/fx.db/complex_types/delta_0000001_0000001_0000/bucket_00000_0"


@pytest.fixture(scope="session")
def our_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ours") / "bucket_00000"
    write_events(path, [insert(1, i, (i, f"v{i}")) for i in range(9)], stripe_rows=3, compression=pb.SNAPPY)
    return path


def test_a_tail_of_hive_is_understood(hive_file: Path) -> None:
    with OrcSource(FS, str(hive_file)) as source:
        tail = source.tail
    assert tail.is_acid
    assert tail.rows > 0
    assert tail.key_index() is not None
    assert [name for name, _ in tail.row_type.children][:3] == ["id", "b", "ti"]
    assert "char(10)" in str(tail.row_type)


def test_a_file_cut_at_any_length_is_corrupt(hive_file: Path, our_file: Path) -> None:
    for path in (hive_file, our_file):
        content = path.read_bytes()
        for length in range(len(content)):
            with pytest.raises(CorruptFile):
                read_tail(pa.BufferReader(content[:length]), "cut")


@pytest.mark.parametrize(
    "content",
    [b"", b"ORC", b"PAR1" + bytes(100) + b"PAR1", bytes(20_000), b"\xff" * 20_000, b"id,v\n1,a\n" * 50],
    ids=["empty", "magic", "parquet", "zeros", "ones", "csv"],
)
def test_a_foreign_file_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        read_tail(pa.BufferReader(content), "foreign")


def read_everything(path: Path) -> None:
    """All that a plan and a job do with a file."""
    orc_facts(FS, str(path))
    with OrcSource(FS, str(path)) as source:
        for stripe in range(source.stripes):
            source.keys(stripe).visible(_ALL)
            source.rows(stripe, source.tail.row_type)


_FLIPS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=4)


def flipped(content: bytes, flips: list[tuple[int, int]], region: int) -> bytes:
    """Bytes changed in the last `region` bytes."""
    damaged = bytearray(content)
    for place, mask in flips:
        damaged[-1 - place % min(region, len(content))] ^= mask
    return bytes(damaged)


@given(flips=_FLIPS)
@settings(max_examples=150)
def test_a_damaged_tail_of_hive_is_a_typed_error_or_a_tail(hive_file: Path, flips: list[tuple[int, int]]) -> None:
    damaged = flipped(hive_file.read_bytes(), flips, 3000)
    with contextlib.suppress(CompactorError):
        read_tail(pa.BufferReader(damaged), "damaged").key_index()


@given(flips=_FLIPS)
@settings(max_examples=200)
def test_reading_a_damaged_file_is_a_typed_error_or_rows(
    our_file: Path, flips: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Everything but the values, for ORC C++ does not survive all of theirs: negative lengths of texts end the process.

    In a job that is a Python worker of Spark, and the compaction fails with its end as the reason.
    """
    content = bytearray(our_file.read_bytes())
    stripes = read_tail(pa.BufferReader(bytes(content)), "whole").footer.stripes
    values = [range(s.offset + s.index_length, s.offset + s.index_length + s.data_length) for s in stripes]
    places = [place for place in range(len(content)) if not any(place in data for data in values)]
    for place, mask in flips:
        content[places[place % len(places)]] ^= mask
    path = tmp_path / "bucket_00000"
    path.write_bytes(content)
    with contextlib.suppress(CompactorError):
        read_everything(path)


def tail_with(edit: object, tmp_path: Path) -> bytes:
    """An uncompressed file whose footer `edit` has changed."""
    path = tmp_path / "bucket_00000"
    write_events(path, [insert(1, 0, (1, "a"))], compression=pb.NONE)
    content = path.read_bytes()
    length = content[-1]
    postscript = pb.PostScript.FromString(content[-1 - length : -1])
    end = len(content) - 1 - length
    footer = pb.Footer.FromString(content[end - postscript.footer_length : end])
    edit(footer)  # type: ignore[operator]
    packed = footer.SerializeToString()
    body = content[: end - postscript.footer_length]
    postscript.footer_length = len(packed)
    raw = postscript.SerializeToString()
    return body + packed + raw + bytes([len(raw)])


def _break_children(footer: pb.Footer) -> None:
    del footer.types[0].subtypes[5:]


def _break_reference(footer: pb.Footer) -> None:
    footer.types[0].subtypes[5] = 99


def _break_cycle(footer: pb.Footer) -> None:
    footer.types[0].subtypes[5] = 0


def _break_decimal(footer: pb.Footer) -> None:
    footer.types[7].kind = pb.Type.DECIMAL
    footer.types[7].precision = 60


def _break_root(footer: pb.Footer) -> None:
    footer.types[6].kind = pb.Type.INT
    del footer.types[6].subtypes[:]


def _break_rows(footer: pb.Footer) -> None:
    footer.number_of_rows += 1


def _break_offset(footer: pb.Footer) -> None:
    footer.stripes[0].offset += 10**6


def _break_types(footer: pb.Footer) -> None:
    del footer.types[:]


def _break_statistics(footer: pb.Footer) -> None:
    footer.types.add(kind=pb.Type.INT)


@pytest.mark.parametrize(
    "edit",
    [
        _break_children,
        _break_reference,
        _break_cycle,
        _break_decimal,
        _break_root,
        _break_rows,
        _break_offset,
        _break_types,
        _break_statistics,
    ],
)
def test_a_footer_that_contradicts_itself_is_corrupt(edit: object, tmp_path: Path) -> None:
    content = tail_with(edit, tmp_path)
    with pytest.raises(CorruptFile):
        read_tail(pa.BufferReader(content), "edited")


def test_a_footer_that_was_not_changed_is_read(tmp_path: Path) -> None:
    assert read_tail(pa.BufferReader(tail_with(lambda _: None, tmp_path)), "same").rows == 1


def test_a_tail_larger_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "bucket_00000"
    row = (1, "x" * 800)
    write_events(path, [insert(1, i, row) for i in range(300)], stripe_rows=1, compression=pb.NONE)
    with OrcSource(FS, str(path)) as source:
        assert source.stripes == 300
        assert source.tail.key_index() == tuple(RowId(1, 536870912, i) for i in range(300))


def test_a_key_index_of_another_length_is_none(tmp_path: Path) -> None:
    def edit(footer: pb.Footer) -> None:
        for item in footer.metadata:
            if item.name == "hive.acid.key.index":
                item.value += b"2,536870912,0;"

    assert read_tail(pa.BufferReader(tail_with(edit, tmp_path)), "edited").key_index() is None


@pytest.mark.parametrize("value", [b"1,2;", b"a,b,c;", b"1,2,3,4;", "１,２,ü;".encode()])
def test_a_key_index_that_is_none_is_corrupt(value: bytes, tmp_path: Path) -> None:
    def edit(footer: pb.Footer) -> None:
        for item in footer.metadata:
            if item.name == "hive.acid.key.index":
                item.value = value

    tail = read_tail(pa.BufferReader(tail_with(edit, tmp_path)), "edited")
    with pytest.raises(CorruptFile, match=r"hive\.acid\.key\.index"):
        tail.key_index()


def test_the_key_index_of_a_file_without_stripes_is_empty(tmp_path: Path) -> None:
    with FS.write_atomically(f"{tmp_path}/f") as stream:
        FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB)).finish(AcidStats())
    with OrcSource(FS, f"{tmp_path}/f") as source:
        assert source.tail.key_index() == ()


def test_an_acid_file_of_another_writer_has_no_key_index(tmp_path: Path) -> None:
    orc.write_table(event_table([insert(1, 0, (1, "a"))], ROW), f"{tmp_path}/f")
    with OrcSource(FS, f"{tmp_path}/f") as source:
        assert source.tail.is_acid
        assert source.tail.key_index() is None
