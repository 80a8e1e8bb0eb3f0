"""Joining Parquet files of an insert-only table, row group by row group.

Row groups are copied as they are. Runs of small ones are decoded and encoded together; nothing is converted on the way,
so the values mean what they meant, whatever calendar or time zone the footer tells. Where Arrow would store a column
in another way than its file does, or cannot hold a value (INT96 outside 1677-2262), small row groups are copied too.
Only files with equal `Footer.signature` come here together: columns, writer and the metadata that readers interpret.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.acid.planning import FileFacts, PlanItem
from compactor.acid.schema import HiveType
from compactor.errors import CorruptFile, VerificationError
from compactor.orc.rewrite import ItemResult
from compactor.orc.types import arrow_type
from compactor.storage.filesystem import FileSystem
from compactor.storage.parquet import WRITER_PROPERTIES, open_parquet
from compactor.storage.parquet_footer import Footer, ParquetAssembler, footer_of, read_footer

SMALL_GROUP_BYTES = 1 << 20
"""Row groups below this size are joined with their neighbours: each costs readers a footer entry and a seek a column."""
ENCODE_BYTES = 48 << 20
"""Uncompressed bytes of small row groups that become one."""
_CODECS = {0: "NONE", 1: "SNAPPY", 2: "GZIP", 4: "BROTLI", 6: "ZSTD", 7: "LZ4"}
"""Parquet's CompressionCodec -> pyarrow's name. Hadoop's LZ4 and LZO are not written by Arrow."""


def parquet_facts(fs: FileSystem, path: str, table_type: HiveType) -> FileFacts:
    """What the footer says. Columns match by name when the file is read, so its own type does not matter here."""
    footer = read_footer(fs, path)
    footer.check_copyable()
    return FileFacts(rows=footer.rows, row_type=table_type, acid=False, format="parquet", template=footer.signature)


def run_parquet_item(fs: FileSystem, root: str, item: PlanItem, row_type: HiveType) -> ItemResult:
    """Write the output file of an insert-only Parquet item below `root`. Memory: `ENCODE_BYTES` decoded.

    row_type: columns of the file when there is no source to take them from. Raises CorruptFile; VerificationError when
    the files are not those that the plan saw.
    """
    with fs.write_atomically(f"{root}/{item.output}") as stream:
        if not item.sources:
            pq.write_table(_empty(row_type), stream, version="2.6")
            return _result(item, stream.tell(), None)
        paths = [f"{root}/{source.path}" for source in item.sources]
        join = _Join(fs, stream, read_footer(fs, paths[0]))
        for path in paths:
            join.add(path)
        join.finish()
        return _result(item, stream.tell(), join)


class _Join:
    """Row groups on their way into a file; keeps the small ones back until they are worth encoding."""

    def __init__(self, fs: FileSystem, stream: pa.NativeFile, template: Footer) -> None:
        self._fs, self._template = fs, template
        self._out = ParquetAssembler(stream, template)
        self._encodable = template.codecs <= _CODECS.keys()
        self._small: list[tuple[Footer, int]] = []
        self._small_bytes = 0
        self.rows_in = self.copied = self.encoded = self.bytes_copied = 0

    @property
    def rows_out(self) -> int:
        return self._out.rows

    def add(self, path: str) -> None:
        with self._fs.open(path) as stream:
            footer = footer_of(stream, path)
            if footer.signature != self._template.signature:
                raise VerificationError(f"{path} has other columns or metadata than when the compaction was planned")
            self.rows_in += footer.rows
            for position in range(len(footer.groups)):
                if not self._encodable or footer.group_bytes(position) >= SMALL_GROUP_BYTES:
                    self._flush()
                    self._copy(stream, footer, position)
                    continue
                self._small.append((footer, position))
                self._small_bytes += footer.decoded_bytes(position)
                if self._small_bytes >= ENCODE_BYTES:
                    self._flush()

    def finish(self) -> None:
        """Write what was kept back, and the footer."""
        self._flush()
        self._out.finish()

    def _flush(self) -> None:
        small, self._small, self._small_bytes = self._small, [], 0
        if len(small) > 1 and self._encode(small):
            return
        for footer, position in small:
            with self._fs.open(footer.path) as stream:
                self._copy(stream, footer, position)

    def _copy(self, stream: pa.NativeFile, footer: Footer, position: int) -> None:
        self._out.copy(stream, footer, position)
        self.copied += 1
        self.bytes_copied += footer.group_bytes(position)

    def _encode(self, small: Sequence[tuple[Footer, int]]) -> bool:
        """Write small row groups as one; False, and nothing is written, when they have to be copied."""
        tables: list[pa.Table] = []
        for footer, position in small:
            table = _decoded(self._fs, footer, position)
            if table is None:
                return False
            tables.append(table)
        rows = pa.concat_tables(tables)
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows,
            sink,
            row_group_size=max(rows.num_rows, 1),
            compression=_CODECS[max(self._template.codecs, default=1)],
            use_deprecated_int96_timestamps=any(leaf.is_int96 for leaf in self._template.leaves),
            store_decimal_as_integer=any(leaf.is_integer_decimal for leaf in self._template.leaves),
            write_page_index=self._template.has_page_index,
            version="2.6",
        )
        # How Arrow stores the columns is the same for all files, so the first time tells.
        self._encodable = self._out.append(sink.getvalue())
        self.encoded += self._encodable
        return self._encodable


def _decoded(fs: FileSystem, footer: Footer, position: int) -> pa.Table | None:
    """A row group as it is stored, nothing converted; None when Arrow cannot hold it.

    Raises CorruptFile when its pages are damaged.
    """
    table = _read(fs, footer, position)
    if table is None or not any(leaf.is_int96 for leaf in footer.leaves):
        return table
    # pyarrow wraps an INT96 around silently when its nanoseconds do not fit; its microseconds do.
    exact = _read(fs, footer, position, coerce_int96_timestamp_unit="us")
    try:
        return None if exact is None or exact.cast(table.schema) is None else table
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _read(fs: FileSystem, footer: Footer, position: int, **options: str) -> pa.Table | None:
    try:
        with open_parquet(fs, footer.path, **options) as file:
            return file.read_row_group(position).replace_schema_metadata(None)
    except pa.ArrowNotImplementedError:
        return None
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(f"{footer.path}: row group {position} cannot be read: {error}") from error


def _empty(row_type: HiveType) -> pa.Table:
    schema = pa.schema([pa.field(name, arrow_type(child)) for name, child in row_type.children])
    return schema.with_metadata(WRITER_PROPERTIES).empty_table()


def _result(item: PlanItem, size: int, join: _Join | None) -> ItemResult:
    copied = join.bytes_copied if join is not None else 0
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=join.rows_in if join is not None else 0,
        rows_out=join.rows_out if join is not None else 0,
        stripes_copied=join.copied if join is not None else 0,
        stripes_encoded=join.encoded if join is not None else 0,
        bytes_copied=copied,
        bytes_encoded=size - copied,
    )
