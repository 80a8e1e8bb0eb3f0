"""What a plan learns from the tail of an ORC file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.acid.layout import encode_bucket
from compactor.acid.records import Event, RowId
from compactor.acid.schema import parse_type
from compactor.errors import CorruptFile, UnsupportedData
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import Template
from compactor.orc.facts import is_encrypted, orc_facts, stripe_facts, template_digest
from compactor.orc.order import may_lie_within
from compactor.orc.tail import KEY_INDEX, OrcTail, read_tail
from tests.orc.acid_files import FS, delete, insert, write_events, write_plain

_B0 = encode_bucket(0)
_LOWEST = -(1 << 62)


def rows(write_id: int, *row_ids: int) -> list[Event]:
    return [insert(write_id, i, (i, "v")) for i in row_ids]


def tail_of(path: Path) -> OrcTail:
    return read_tail(pa.OSFile(str(path)), str(path))


@pytest.fixture
def tail(tmp_path: Path) -> OrcTail:
    """Four stripes: rows 0 to 3 and 5 to 8 of write id 2, and row 0 of write id 3 at the end."""
    write_events(tmp_path / "bucket_00000", rows(2, 0, 1, 2, 3, 5, 6, 7) + rows(3, 0), stripe_rows=2)
    return tail_of(tmp_path / "bucket_00000")


def changed(tail: OrcTail, change: Callable[[pb.Footer, pb.Metadata], None]) -> OrcTail:
    footer, metadata = pb.Footer(), pb.Metadata()
    footer.CopyFrom(tail.footer)
    metadata.CopyFrom(tail.metadata)
    change(footer, metadata)
    return dataclasses.replace(tail, footer=footer, metadata=metadata)


def with_index(tail: OrcTail, index: bytes | None) -> OrcTail:
    def change(footer: pb.Footer, metadata: pb.Metadata) -> None:
        kept = [m for m in footer.metadata if m.name != KEY_INDEX]
        del footer.metadata[:]
        footer.metadata.extend(kept)
        if index is not None:
            footer.metadata.append(pb.UserMetadataItem(name=KEY_INDEX, value=index))

    return changed(tail, change)


def test_stripes_know_their_bounds_and_write_ids(tail: OrcTail) -> None:
    facts = stripe_facts(tail)
    assert [(f.rows, f.trusted, f.inserts_only, f.write_ids) for f in facts] == [
        *[(2, True, True, (2, 2))] * 3,
        (2, True, True, (2, 3)),
    ]
    assert [f.last for f in facts] == [RowId(2, _B0, 1), RowId(2, _B0, 3), RowId(2, _B0, 6), RowId(3, _B0, 0)]
    assert [f.first for f in facts[:3]] == [RowId(2, _B0, 0), RowId(2, _B0, 2), RowId(2, _B0, 5)]


def test_a_stripe_of_several_write_ids_begins_after_the_end_of_the_one_before(tail: OrcTail) -> None:
    """The statistics alone only say that it has write ids from 2 on."""
    assert stripe_facts(tail)[3].first == RowId(2, _B0, 7)


def test_the_first_stripe_of_several_write_ids_has_a_loose_bound(tmp_path: Path) -> None:
    write_events(tmp_path / "f", rows(2, 4) + rows(3, 0))
    assert stripe_facts(tail_of(tmp_path / "f"))[0].first == RowId(2, _LOWEST, _LOWEST)


def test_delete_events_are_no_inserts(tmp_path: Path) -> None:
    write_events(tmp_path / "f", [delete(RowId(1, _B0, 4), by=3)])
    (facts,) = stripe_facts(tail_of(tmp_path / "f"))
    assert not facts.inserts_only
    assert (facts.first, facts.last, facts.write_ids) == (RowId(1, _B0, 4), RowId(1, _B0, 4), (3, 3))


def test_streaming_stripes_without_indexes_are_not_trusted_but_know_their_end(tail: OrcTail) -> None:
    def change(footer: pb.Footer, metadata: pb.Metadata) -> None:
        footer.row_index_stride = 0

    facts = stripe_facts(changed(tail, change))
    assert not any(f.trusted for f in facts)
    assert [f.last for f in facts] == [f.last for f in stripe_facts(tail)]
    assert {f.first for f in facts} == {None}


def test_statistics_that_count_nothing_are_not_trusted(tail: OrcTail) -> None:
    def change(footer: pb.Footer, metadata: pb.Metadata) -> None:
        metadata.stripe_stats[1].col_stats[0].number_of_values = 0

    assert [f.trusted for f in stripe_facts(changed(tail, change))] == [True, False, True, True]


def test_statistics_without_a_minimum_do_not_tell_where_a_stripe_begins(tail: OrcTail) -> None:
    def change(footer: pb.Footer, metadata: pb.Metadata) -> None:
        for column in (2, 5):
            metadata.stripe_stats[0].col_stats[column].int_statistics.ClearField("minimum")

    first = stripe_facts(changed(tail, change))[0]
    assert (first.trusted, first.first, first.write_ids) == (False, None, None)


@pytest.mark.parametrize(
    "index",
    [None, b"2,536870912,1;", b"2,1,1;2,1,3;2,1,3;3,1,0;", b"2,1,1;2,1,3;2,1,6;99999999999999999999,1,0;"],
    ids=["missing", "too short", "not ascending", "no row id"],
)
def test_without_a_sound_key_index_stripes_of_one_write_id_still_tell_their_end(
    tail: OrcTail, index: bytes | None
) -> None:
    """Trino writes one entry, however many stripes there are."""
    facts = stripe_facts(with_index(tail, index))
    assert [f.trusted for f in facts] == [True, True, True, False]
    assert [f.last for f in facts] == [*(f.last for f in stripe_facts(tail)[:3]), None]


@pytest.mark.parametrize("entry", [b"2,536870912,8;", b"3,536870913,0;", b"3,536870912,9;"])
def test_a_key_index_that_contradicts_the_statistics_is_none(tail: OrcTail, entry: bytes) -> None:
    facts = stripe_facts(with_index(tail, b"2,536870912,1;2,536870912,3;2,536870912,6;" + entry))
    assert [f.trusted for f in facts] == [True, True, True, False]


def test_the_end_of_delete_events_comes_from_their_statistics(tmp_path: Path) -> None:
    """Trino's key index counts the events of a delete delta instead of naming the last one, and leaves them unsorted."""
    events = [delete(RowId(w, _B0, r), by=9) for w, r in ((2, 70), (2, 80), (1, 0), (1, 1000))]
    write_events(tmp_path / "f", events, stripe_rows=2)
    tail = with_index(tail_of(tmp_path / "f"), f"1,{_B0},1;2,{_B0},1;".encode())
    facts = stripe_facts(tail)
    assert [(f.first, f.last) for f in facts] == [
        (RowId(2, _B0, 70), RowId(2, _B0, 80)),
        (RowId(1, _B0, 0), RowId(1, _B0, 1000)),
    ]
    for at, event in enumerate(events):
        row = event.row_id
        just_before = RowId(row.write_id, row.bucket, row.row_id - 1)
        assert may_lie_within(facts[at // 2], just_before, row)


def test_delete_events_of_several_write_ids_are_bounded_loosely(tmp_path: Path) -> None:
    events = [delete(RowId(w, _B0, r), by=9) for w, r in ((1, 1000), (2, 80))]
    write_events(tmp_path / "f", events)
    (facts,) = stripe_facts(tail_of(tmp_path / "f"))
    assert facts.first is not None
    assert facts.last is not None
    assert facts.first < RowId(1, 0, 0) < RowId(2, encode_bucket(4095), 1 << 40) < facts.last


def test_a_file_without_row_ids_needs_no_key_index(tmp_path: Path) -> None:
    write_plain(tmp_path / "000000_0", pa.table({"id": [1, 2]}), compression="snappy")
    facts = orc_facts(FS, str(tmp_path / "000000_0"))
    assert (facts.rows, facts.acid, facts.compression, facts.row_type) == (2, False, 2, parse_type("struct<id:bigint>"))
    assert [(s.trusted, s.first, s.last) for s in facts.stripes] == [(True, None, None)]


def test_files_share_a_template_exactly_when_their_stripes_may_share_a_file(tmp_path: Path) -> None:
    other_type = parse_type("struct<id:int,w:string>")
    write_events(tmp_path / "a", rows(1, 0))
    write_events(tmp_path / "b", rows(2, *range(50)), stripe_rows=7)
    write_events(tmp_path / "c", rows(1, 0), compression=pb.ZSTD)
    write_events(tmp_path / "d", rows(1, 0), row_type=other_type)
    a, b, c, d = (orc_facts(FS, str(tmp_path / name)).template for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


def test_a_file_that_no_output_of_ours_can_follow_has_no_template(tmp_path: Path) -> None:
    """Nobody here encodes LZO, so a file that took it from its template could not be finished."""
    write_events(tmp_path / "f", rows(1, 0), compression=pb.NONE)
    with_tail(tmp_path / "f", compression=pb.LZO)
    facts = orc_facts(FS, str(tmp_path / "f"))
    assert (facts.template, facts.compression, facts.rows) == (b"", pb.LZO, 1)


def test_block_size_and_software_are_no_part_of_the_template(tail: OrcTail) -> None:
    template = Template.of(tail)
    alike = dataclasses.replace(template, block_size=template.block_size * 2, software="another one")
    assert template_digest(alike) == template_digest(template)
    assert template_digest(dataclasses.replace(template, stride=5000)) != template_digest(template)


def with_tail(path: Path, *, encryption: bytes = b"", compression: pb.CompressionKind = pb.NONE) -> None:
    """Give an uncompressed file another tail, as a writer with these options would."""
    tail, content = tail_of(path), path.read_bytes()
    footer, postscript = pb.Footer(), pb.PostScript()
    footer.CopyFrom(tail.footer)
    postscript.CopyFrom(tail.postscript)
    if encryption:
        footer.encryption = encryption
    pieces = [tail.metadata.SerializeToString(), footer.SerializeToString()]
    if compression != pb.NONE:
        # Blocks that did not shrink are stored as they are.
        pieces = [(len(piece) << 1 | 1).to_bytes(3, "little") + piece for piece in pieces]
    postscript.metadata_length, postscript.footer_length = map(len, pieces)
    postscript.compression = compression
    end = postscript.SerializeToString()
    length = 1 + content[-1] + tail.postscript.footer_length + tail.postscript.metadata_length
    path.write_bytes(content[:-length] + b"".join(pieces) + end + bytes([len(end)]))


def test_encrypted_columns_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "bucket_00000"
    write_events(path, rows(1, 0), compression=pb.NONE)
    with_tail(path, encryption=b"variants and keys")
    with pytest.raises(UnsupportedData, match="has encrypted columns, whose keys the compactor does not have"):
        orc_facts(FS, str(path))


def test_keys_in_a_stripe_mean_encrypted_columns_too(tail: OrcTail) -> None:
    def change(footer: pb.Footer, metadata: pb.Metadata) -> None:
        footer.stripes[0].encrypted_local_keys.append(b"key")

    assert not is_encrypted(tail)
    assert is_encrypted(changed(tail, change))


@pytest.mark.parametrize(
    "lengths", [(0).to_bytes(8, "big"), b"", b"\0\0\0"], ids=["zero", "no length", "half a length"]
)
def test_a_streaming_file_without_a_commit_has_no_rows(tmp_path: Path, lengths: bytes) -> None:
    path = tmp_path / "bucket_00000"
    write_events(path, rows(1, 0, 1))
    (tmp_path / "bucket_00000_flush_length").write_bytes(lengths)
    assert (orc_facts(FS, str(path)).rows, orc_facts(FS, str(path)).stripes) == (0, ())


def test_a_streaming_file_has_the_rows_of_its_committed_part(tmp_path: Path) -> None:
    path = tmp_path / "bucket_00000"
    write_events(path, rows(1, 0, 1))
    committed = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"a stripe that is being written")
    (tmp_path / "bucket_00000_flush_length").write_bytes(committed.to_bytes(8, "big"))
    assert orc_facts(FS, str(path)).rows == 2


def test_a_damaged_file_is_not_taken_for_an_uncommitted_one(tmp_path: Path) -> None:
    path = tmp_path / "bucket_00000"
    path.write_bytes(b"ORC and nothing else")
    with pytest.raises(CorruptFile):
        orc_facts(FS, str(path))
    (tmp_path / "bucket_00000_flush_length").write_bytes((20).to_bytes(8, "big"))
    with pytest.raises(CorruptFile):
        orc_facts(FS, str(path))
