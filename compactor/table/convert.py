"""Tables that begin with files: ordinary ones that become transactional, and ACID directories of another metastore.

`make_transactional` is ALTER TABLE … SET TBLPROPERTIES ('transactional'='true'):

1. Take an EXCLUSIVE lock: nobody reads or writes the table meanwhile.
2. Every file must be one that the ACID readers take for an original file; otherwise nothing is changed.
3. With files there, let the table's write ids begin at 10000001: the old rows count as written before all others.
4. Set the properties; from now on the old files are the table's originals, until the first major compaction.

A crash between 3 and 4 leaves an ordinary table with a seed, which the next attempt finds.

`adopt_directories` is what MSCK REPAIR does for a transactional table over directories that were copied here: write
ids and transaction ids go on above those in their names.
Sources: Hive `TransactionalValidationListener`, `TxnHandler.seedWriteId`, `Msck.validateAndAddMaxTxnIdAndWriteId`.
"""

from __future__ import annotations

from contextlib import suppress

from compactor.acid.layout import Base, is_hidden, parse_bucket, parse_directory
from compactor.errors import AlreadyExists, UnparsableName, UsageError
from compactor.metastore.catalog import Table, TableName, get_table, list_partitions
from compactor.metastore.catalog_write import ORC_INPUT_FORMAT, set_table_parameters
from compactor.metastore.seeding import ensure_txn_ids_above
from compactor.metastore.writeids import seed_write_id
from compactor.table.locking import Statement, Writer, locked_ordinary_table


def make_transactional(writer: Writer, name: TableName, *, insert_only: bool = False) -> Table:
    """Convert an ordinary managed table; the table as it is then.

    UsageError when it cannot become transactional: transactional already, sorted, not ORC (unless insert_only), or
    with files that have no names of data files. LockNotAcquired, StorageError.
    """
    with locked_ordinary_table(writer, name, Statement.OVERWRITE):
        table = get_table(writer.db, name)
        if table.sort_columns:
            raise UsageError(f"table {name} is sorted (SORTED BY): Hive does not make such a table transactional")
        partitions = list_partitions(writer.db, name) if table.is_partitioned else []
        formats = {table.input_format, *(partition.input_format for partition in partitions)}
        if not insert_only and formats != {ORC_INPUT_FORMAT}:
            raise UsageError(f"table {name} is not stored as ORC", hint="insert_only=True allows other formats")
        # every location is looked at before anything is changed
        places = [p.location for p in partitions] if table.is_partitioned else [table.location]
        holds_data = [_is_data(writer, location) for location in places if location is not None]
        if any(holds_data):
            # there already: an earlier attempt broke off after it
            with suppress(AlreadyExists):
                seed_write_id(writer.db, name)
        kind = "insert_only" if insert_only else "default"
        set_table_parameters(writer.db, name, {"transactional": "true", "transactional_properties": kind})
    return get_table(writer.db, name)


def adopt_directories(writer: Writer, name: TableName) -> None:
    """Let a transactional table that was never written here go on after the ACID directories at its location.

    UsageError when the table is not transactional, AlreadyExists when it has write ids already: its directories are
    known then. Nothing may be written to it meanwhile, and nothing was: it has no write ids.
    """
    table = get_table(writer.db, name)
    if not table.is_transactional:
        raise UsageError(f"table {name} is not transactional", hint="make_transactional converts it")
    partitions = list_partitions(writer.db, name) if table.is_partitioned else []
    highest_write_id = highest_txn_id = 0
    for location in [p.location for p in partitions] if table.is_partitioned else [table.location]:
        if location is None:
            continue
        fs, root = writer.filesystem_of(location)
        for directory in map(parse_directory, fs.listing(root).directories):
            if directory is None:
                continue
            last = directory.write_id if isinstance(directory, Base) else directory.max_write_id
            highest_write_id = max(highest_write_id, last)
            highest_txn_id = max(highest_txn_id, directory.visibility_txn)
    # the transactions first: with write ids and without them, an output of the other metastore would be invisible
    ensure_txn_ids_above(writer.db, highest_txn_id)
    seed_write_id(writer.db, name, highest_write_id + 1)


def _is_data(writer: Writer, location: str) -> bool:
    """Does the location hold data files? UsageError when one of them would get lost, or mean something else."""
    fs, root = writer.filesystem_of(location)
    found = False
    for file in fs.listing(root).files:
        *folders, last = file.path.split("/")
        if any(map(is_hidden, (*folders, last))):
            continue
        if parse_bucket(last) is None or any(map(_is_acid, folders)):
            raise UsageError(
                f"{location}/{file.path} is no file that Hive would have written",
                hint="INSERT OVERWRITE the table from itself with Hive, which names its files anew",
            )
        found = True
    return found


def _is_acid(folder: str) -> bool:
    try:
        return parse_directory(folder) is not None
    except UnparsableName:
        return True
