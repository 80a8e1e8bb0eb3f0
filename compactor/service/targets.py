"""From names in the catalogue to what the planner needs to know of a table or partition, and what is never compacted."""

from __future__ import annotations

from compactor.acid.rebalance import why_never_rebalanced
from compactor.errors import ConfigError, NoSuchObject
from compactor.jobs.planner import CompactionTarget
from compactor.metastore import catalog
from compactor.metastore.catalog import Partition, Table
from compactor.metastore.compaction import CompactionType
from compactor.metastore.database import Database
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.compression import ENCODABLE, compression_kind
from compactor.settings import WorkerSettings

RECOMPRESS = "compactor.recompress"
"""Table property: codec of ORC files whose stripes are all encoded anew anyway; `off`: the one they had."""


def compaction_target(
    db: Database, table: Table, partition: str | None, *, worker: WorkerSettings | None = None
) -> CompactionTarget:
    """The target of a compaction of `table`, or of its partition named in Hive's form; `target_of` after a look-up.

    Raises NoSuchObject for an unknown partition, too.
    """
    place = None if partition is None else catalog.get_partition(db, table.name, partition)
    return target_of(table, place, worker=worker)


def target_of(table: Table, partition: Partition | None, *, worker: WorkerSettings | None = None) -> CompactionTarget:
    """The target of a compaction of `table`, or of its partition.

    Files are matched to the table's columns, not to the partition's, which may lag behind after ALTER TABLE: what was
    written since has the table's. Their format is the partition's own, as Hive keeps it. worker: None: the defaults. Raises NoSuchObject for a view, ConfigError or
    UnsupportedData for a table property that names no codec.
    """
    limits = worker or WorkerSettings()
    holder: Table | Partition = table if partition is None else partition
    name = str(table.name) if partition is None else f"{table.name}/{partition.name}"
    if holder.location is None or holder.input_format is None:
        raise NoSuchObject(f"{table.name} is a {table.type} and holds no files")
    return CompactionTarget(
        name=name,
        location=holder.location,
        columns=tuple((c.name, c.type) for c in table.columns),
        input_format=holder.input_format,
        full_acid=table.is_full_acid,
        bucketed=bool(table.bucket_columns),
        codec=compression_kind(table.parameters.get("orc.compress", "ZLIB")),
        recompress=_recompress(table.parameters.get(RECOMPRESS, limits.recompress)),
        max_num_delta=limits.max_num_delta,
        properties=table.parameters,
    )


def _recompress(codec: str) -> int | None:
    if codec.lower() == "off":
        return None
    kinds = {pb.CompressionKind.Name(kind).lower(): kind for kind in ENCODABLE}
    if codec.lower() not in kinds:
        raise ConfigError(f"{RECOMPRESS} is {codec!r}, not one of off, {', '.join(sorted(kinds))}")
    return kinds[codec.lower()]


def why_never_compacted(table: Table, kind: CompactionType, partition: str | None) -> str:
    """Why a table is never compacted in this way, whatever lies in it; empty when it may be.

    partition: the one asked for, None for the table itself. The worker, `plan` and requests by hand all ask here.
    """
    if not table.is_transactional:
        return f"{table.name} is not transactional"
    if kind is CompactionType.REBALANCE:
        never = why_never_rebalanced(full_acid=table.is_full_acid, bucketed=bool(table.bucket_columns))
        if never:
            return f"{table.name}: {never}"
    elif kind not in (CompactionType.MAJOR, CompactionType.MINOR):
        return f"{kind.name.lower()} is no kind of compaction"
    if table.sort_columns:
        return f"{table.name} is sorted (SORTED BY): compacting it would lose the order"
    if table.is_partitioned and partition is None:
        return f"{table.name} is partitioned: name the partition to compact"
    return ""
