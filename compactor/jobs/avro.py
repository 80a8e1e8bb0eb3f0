"""Joining Avro files of an insert-only table: blocks are copied as they are, as DataFileWriter.appendAllFrom does.

Files with equal metadata become one; the output has the header of the first. Every block ends in the file's sync marker,
which is all that changes.
"""

from __future__ import annotations

from compactor.acid.planning import PlanItem
from compactor.errors import CorruptFile
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import FileSystem
from compactor.storage.headers import AVRO_MAGIC, SYNC_BYTES, ContainerReader, avro_header

_EMPTY = {b"avro.codec": b"null", b"avro.schema": b'{"type":"record","name":"empty","fields":[]}'}
"""Of a file without rows: readers resolve their columns only when there is a row to read."""


def run_avro_item(fs: FileSystem, root: str, item: PlanItem) -> ItemResult:
    """Write the output of an Avro item below `root`, counting its rows. Memory: one block.

    Raises CorruptFile when a file is damaged or ends too early.
    """
    rows = 0
    sync = b""
    with fs.write_atomically(f"{root}/{item.output}") as stream:
        for source in item.sources:
            with ContainerReader(fs, f"{root}/{source.path}") as reader:
                header = avro_header(reader)
                if not sync:
                    sync = header.sync
                    stream.write(_header(dict(header.metadata), sync))
                while not reader.at_end():
                    count, size = reader.zigzag(), reader.zigzag()
                    block = reader.exactly(size)
                    if count < 0 or reader.exactly(SYNC_BYTES) != header.sync:
                        raise CorruptFile(f"{reader.path}: a block does not end where it says")
                    stream.write(_zigzag(count) + _zigzag(size) + block + sync)
                    rows += count
        if not sync:
            stream.write(_header(_EMPTY, bytes(SYNC_BYTES)))
        size = stream.tell()
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=rows,
        rows_out=rows,
        bytes_copied=size,
        bytes_encoded=0,
    )


def _header(metadata: dict[bytes, bytes], sync: bytes) -> bytes:
    pairs = [_zigzag(len(part)) + part for pair in metadata.items() for part in pair]
    return b"".join([AVRO_MAGIC, _zigzag(len(metadata)), *pairs, _zigzag(0), sync])


def _zigzag(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
