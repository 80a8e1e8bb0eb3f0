"""What a compaction is: its kinds, its states, a request for one, and one as a row of queue or history.

    request ──► i ──claim──► w ──publish──► r ──mark_cleaned──► s
                ▲            │              └──► f, c
                └──revoke────┤
                             └──► f, c                    a and x are born in the history

COMPACTION_QUEUE holds i, w and r; everything else has ended and lives in COMPLETED_COMPACTIONS under the same id.
Sources: Hive `TxnStore`, `CompactionState`, `CompactionInfo`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy import RowMapping

from compactor.errors import MalformedProperties
from compactor.metastore.catalog import TableName


class CompactionType(enum.StrEnum):
    """What is asked for. The letters are Hive's; the same letters mean other things in CompactionState."""

    MAJOR = "a"
    """Base and deltas become one new base; deleted rows disappear."""
    MINOR = "i"
    """Deltas become one delta and one delete delta; the base stays."""
    REBALANCE = "r"
    """Rows are spread evenly over the buckets of a new base."""
    ABORT_TXN_CLEANUP = "c"
    """No compaction: the abort cleaner's note to itself that it has to try an object again."""


class CompactionState(enum.StrEnum):
    """Where a compaction stands; who moves it in, and what comes next."""

    INITIATED = "i"
    """The initiator or a user asked for it, or a worker lost it; the next free worker takes it."""
    WORKING = "w"
    """A worker claimed it; the worker publishes, refuses or fails it, or it is revoked."""
    READY_FOR_CLEANING = "r"
    """Published; the cleaner removes what it made obsolete once no reader needs it."""
    FAILED = "f"
    """The worker or the cleaner gave up; the message says why."""
    SUCCEEDED = "s"
    """The cleaner removed everything; the end."""
    DID_NOT_INITIATE = "a"
    """The initiator wanted to ask for it but could not, or had been told too often that it fails."""
    REFUSED = "c"
    """There was nothing worth doing, or the table forbids it; the message says which."""
    ABORTED = "x"
    """An operator cancelled the request before a worker took it."""


@dataclass(frozen=True, kw_only=True)
class CompactionRequest:
    """One wish for a compaction, however it was uttered.

    partition: Hive's partition name `p=x/q=y`, None for an unpartitioned table. pool: None is the default pool.
    properties: table properties that hold for this compaction only. buckets, order_by: REBALANCE only.
    """

    table: TableName
    type: CompactionType
    initiator_id: str
    initiator_version: str
    partition: str | None = None
    pool: str | None = None
    run_as: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    buckets: int | None = None
    order_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """A row of COMPACTION_QUEUE or COMPLETED_COMPACTIONS.

    Times are epoch ms from the database's clock. A worker's own copy, as `claim` returned it, is its claim: id and
    worker_id are what every later step of that worker is guarded by.
    """

    id: int
    table: TableName
    partition: str | None
    type: CompactionType
    state: CompactionState
    properties: Mapping[str, str]
    worker_id: str | None
    enqueue_time: int | None
    start: int | None
    end: int | None
    run_as: str | None
    highest_write_id: int | None
    txn_id: int | None
    next_txn_id: int | None
    commit_time: int | None
    error_message: str | None
    initiator_id: str | None
    initiator_version: str | None
    worker_version: str | None
    pool: str | None
    job_id: str | None
    cleaner_start: int | None
    retry_retention: int
    number_of_buckets: int | None
    order_by: str | None
    meta_info: bytes | None

    @property
    def object_name(self) -> str:
        """`db.table` or `db.table/p=x`."""
        return str(self.table) if self.partition is None else f"{self.table}/{self.partition}"

    @classmethod
    def from_row(cls, row: RowMapping) -> Compaction:
        """The only place where a row becomes a Compaction.

        row: values by Hive's column name without its prefix CQ_ or CC_; END, CLEANER_START and RETRY_RETENTION may
        be missing. Hive writes 0 for "not set" when it moves a row to the history, and -1 for "not being cleaned".
        """
        return cls(
            id=row["ID"],
            table=TableName(database=row["DATABASE"], table=row["TABLE"]),
            partition=row["PARTITION"],
            type=CompactionType(row["TYPE"]),
            state=CompactionState(row["STATE"]),
            properties=_Unread(row["TBLPROPERTIES"]),
            worker_id=row["WORKER_ID"],
            enqueue_time=row["ENQUEUE_TIME"] or None,
            start=row["START"] or None,
            end=row.get("END") or None,
            run_as=row["RUN_AS"],
            highest_write_id=row["HIGHEST_WRITE_ID"],
            txn_id=row["TXN_ID"] or None,
            next_txn_id=row["NEXT_TXN_ID"] or None,
            commit_time=row["COMMIT_TIME"] or None,
            error_message=row["ERROR_MESSAGE"],
            initiator_id=row["INITIATOR_ID"],
            initiator_version=row["INITIATOR_VERSION"],
            worker_version=row["WORKER_VERSION"],
            pool=row["POOL_NAME"] or None,
            job_id=row["HADOOP_JOB_ID"],
            cleaner_start=None if row.get("CLEANER_START") == -1 else row.get("CLEANER_START"),
            retry_retention=row.get("RETRY_RETENTION") or 0,
            number_of_buckets=row["NUMBER_OF_BUCKETS"] or None,
            order_by=row["ORDER_BY"],
            meta_info=row["META_INFO"],
        )


class _Unread(Mapping[str, str]):
    """Properties that are read when somebody asks, so that a malformed row spoils no listing and no cycle."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    @cached_property
    def _read(self) -> dict[str, str]:
        return parse_properties(self._text)

    def __getitem__(self, key: str) -> str:
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def format_properties(properties: Mapping[str, str]) -> str | None:
    """Hive's form `count:length:key length:value …` of TBLPROPERTIES (StringableMap.toString); None when empty."""
    if not properties:
        return None
    return f"{len(properties)}:" + "".join(_sized(key) + _sized(value) for key, value in properties.items())


def parse_properties(text: str | None) -> dict[str, str]:
    """Read Hive's form (StringableMap(String)); MalformedProperties when it is not one."""
    if not text:
        return {}
    # Java counts UTF-16 units, so lengths are cut from that encoding
    rest = text.encode("utf-16-le")
    try:
        count, rest = _number(rest)
        properties: dict[str, str] = {}
        for _ in range(count):
            key, rest = _cut(rest)
            properties[key], rest = _cut(rest)
    except ValueError:
        raise MalformedProperties(f"{text!r} is no list of compaction properties") from None
    return properties


def _sized(text: str) -> str:
    return f"{len(text.encode('utf-16-le')) // 2}:{text}"


def _number(data: bytes) -> tuple[int, bytes]:
    digits, colon, rest = data.partition(":".encode("utf-16-le"))
    if not colon:
        raise ValueError("':' is missing")
    return int(digits.decode("utf-16-le")), rest


def _cut(data: bytes) -> tuple[str, bytes]:
    length, rest = _number(data)
    if length < 0 or len(rest) < 2 * length:
        raise ValueError("shorter than announced")
    return rest[: 2 * length].decode("utf-16-le"), rest[2 * length :]
