"""New row ids for rows that nobody decodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from compactor.acid.layout import encode_bucket
from compactor.acid.records import RowId
from compactor.errors import CorruptFile
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, Template, acid_template
from compactor.orc.reader import OrcSource
from compactor.orc.renumber import renumbered
from compactor.orc.tail import ACID_COLUMNS
from tests.orc.acid_files import FS, ROW, insert, read_events, write_events, write_plain

B3 = encode_bucket(3)


def ids(write_id: int, row_ids: Sequence[int]) -> pa.Table:
    count = len(row_ids)
    columns = [
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(np.full(count, write_id, dtype=np.int64)),
        pa.array(np.full(count, B3, dtype=np.int32)),
        pa.array(row_ids, pa.int64()),
        pa.array(np.full(count, write_id, dtype=np.int64)),
    ]
    return pa.Table.from_arrays(columns, names=ACID_COLUMNS[:5])


def lifted(source: OrcSource, path: Path, template: Template, row_ids: Sequence[int]) -> None:
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, template)
        stripe = renumbered(source, 0, ids(7, row_ids), template)
        out.lift(stripe, RowId(7, B3, row_ids[-1]), block_size=source.tail.block_size)
        out.finish(AcidStats(inserts=out.rows))


@pytest.mark.parametrize("compression", [pb.NONE, pb.ZLIB, pb.SNAPPY, pb.ZSTD, pb.LZ4])
def test_rows_keep_their_values_and_get_other_ids(tmp_path: Path, compression: int) -> None:
    rows = [(n, None if n % 3 else f"text {n}" * 5) for n in range(25_000)]
    write_events(tmp_path / "old", [insert(1, n, row) for n, row in enumerate(rows)], compression=compression)
    with OrcSource(FS, str(tmp_path / "old")) as source:
        lifted(source, tmp_path / "new", Template.of(source.tail), range(100, 25_100))
        with OrcSource(FS, str(tmp_path / "new")) as new:
            assert (
                new.tail.metadata.stripe_stats[0].col_stats[6:] == (source.tail.metadata.stripe_stats[0].col_stats[6:])
            )
            assert new.tail.footer.statistics[4].int_statistics.maximum == 25_099
            assert new.tail.key_index() == (RowId(7, B3, 25_099),)
    found = read_events(tmp_path / "new")
    assert [(e.row_id, e.current_write_id, e.row) for e in found] == [
        (RowId(7, B3, 100 + n), 7, row) for n, row in enumerate(rows)
    ]


def test_a_file_without_acid_columns_gets_some(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, None, 3], pa.int32()), "v": ["a", "b", None]})
    write_plain(tmp_path / "plain", rows, compression="zlib")
    with OrcSource(FS, str(tmp_path / "plain")) as source:
        lifted(source, tmp_path / "new", acid_template(ROW, compression=pb.ZLIB), range(3))
    assert [e.row for e in read_events(tmp_path / "new")] == [(1, "a"), (None, "b"), (3, None)]


def test_a_stripe_whose_streams_do_not_fill_it_is_damaged(tmp_path: Path) -> None:
    write_events(tmp_path / "old", [insert(1, n, (n, "x")) for n in range(10)])
    with OrcSource(FS, str(tmp_path / "old")) as source:
        stripe = source.tail.footer.stripes[0]
        stripe.data_length += stripe.footer_length
        with pytest.raises(CorruptFile):
            renumbered(source, 0, ids(1, range(10)), Template.of(source.tail))
