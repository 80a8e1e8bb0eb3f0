"""Names of the ACID format: directories, files, buckets.

    base_N[_vT]   delta_x_y[_sssss][_vT]   delete_delta_x_y[_ssss][_vT]
    bucket_NNNNN[_attempt]   00000N_0[_copy_n]   _orc_acid_version   bucket_NNNNN_flush_length

Sources: Hive `AcidUtils` (baseDir, deltaSubdir, parsedDelta, ParsedBaseLight, BUCKET_PATTERN,
LEGACY_BUCKET_DIGIT_PATTERN), `BucketCodec.V1`, `OrcAcidVersion`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from compactor.errors import UnparsableName

ACID_VERSION_FILE = "_orc_acid_version"
ACID_VERSION_CONTENT = b"2"
METADATA_FILE = "_metadata_acid"
FLUSH_LENGTH_SUFFIX = "_flush_length"

MAX_BUCKETS = 1 << 12
MAX_STATEMENTS = 1 << 12
NO_STATEMENT = -1

# ASCII: Java's \d knows no other digits, and what Hive cannot parse is no ACID name here either.
_BASE = re.compile(r"base_(\d+)(?:_v(\d+))?", re.ASCII)
_DELTA = re.compile(r"(delete_delta|delta)_(\d+)_(\d+)(?:_(\d{1,5}))?(?:_v(\d+))?", re.ASCII)
_BUCKET = re.compile(r"bucket_(\d{5,})(?:_(\d+))?", re.ASCII)
_LEGACY = re.compile(r"(\d+)_(\d+)(?:_copy_(\d+))?(?:\.[A-Za-z0-9]+)*", re.ASCII)


class DeltaKind(enum.Enum):
    """What the events in a delta directory do; the value is the directory's prefix."""

    INSERT = "delta"
    """Rows were added."""
    DELETE = "delete_delta"
    """Rows, named by their ROW__ID, were deleted."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """`base_N[_vT]`: every row up to write id N."""

    name: str
    write_id: int
    visibility_txn: int = 0
    """Transaction that must be committed for the directory to count; 0: always."""


@dataclass(frozen=True, kw_only=True)
class Delta:
    """`delta_x_y…` or `delete_delta_x_y…`: the events of write ids x to y."""

    name: str
    kind: DeltaKind
    min_write_id: int
    max_write_id: int
    statement_id: int = NO_STATEMENT
    """Number of the statement inside a multi-statement transaction; -1 in compacted and streaming deltas."""
    visibility_txn: int = 0

    @property
    def is_delete(self) -> bool:
        return self.kind is DeltaKind.DELETE


@dataclass(frozen=True, kw_only=True)
class BucketName:
    """A data file's name taken apart.

    bucket: number of the bucket (writer). attempt: Hive 4's attempt id in `bucket_N_attempt`, None without.
    copy: n of `00000N_0_copy_n`, 0 without. legacy: True for `00000N_0` names, which say nothing of the content.
    """

    name: str
    bucket: int
    attempt: int | None = None
    copy: int = 0
    legacy: bool = False


def base_name(write_id: int, visibility_txn: int = 0) -> str:
    """`base_0000005_v0000123` (AcidUtils.baseDir, addVisibilitySuffix)."""
    return f"base_{write_id:07d}{_visibility(visibility_txn)}"


def delta_name(
    kind: DeltaKind,
    min_write_id: int,
    max_write_id: int,
    *,
    statement_id: int = NO_STATEMENT,
    visibility_txn: int = 0,
) -> str:
    """`delta_0000001_0000005_v0000123`, `delete_delta_0000003_0000003_0000` (AcidUtils.deltaSubdir)."""
    statement = "" if statement_id == NO_STATEMENT else f"_{statement_id:04d}"
    return f"{kind.value}_{min_write_id:07d}_{max_write_id:07d}{statement}{_visibility(visibility_txn)}"


def bucket_file(bucket: int) -> str:
    """`bucket_00003`, never with an attempt id: Trino ignores delete files that have one (trinodb/trino#31302)."""
    return f"bucket_{bucket:05d}"


def insert_only_file(bucket: int, *, copy: int = 0, suffix: str = "") -> str:
    """`000003_0`, `000003_0_copy_1.gz`: names in insert-only tables (AcidUtils.ORIGINAL_PATTERN, …_COPY)."""
    return f"{bucket:06d}_0{f'_copy_{copy}' if copy else ''}{suffix}"


def flush_length_file(name: str) -> str:
    """Side file that tells how much of a streaming file is committed (OrcAcidUtils.getSideFile)."""
    return name + FLUSH_LENGTH_SUFFIX


def parse_directory(name: str) -> Base | Delta | None:
    """The ACID directory that `name` denotes; None when it is something else.

    Raises UnparsableName for a name that starts like one but is not, such as `delta_7_3`: neither reading it nor
    deleting it can be right.
    """
    if match := _BASE.fullmatch(name):
        return Base(name=name, write_id=int(match[1]), visibility_txn=int(match[2] or 0))
    if match := _DELTA.fullmatch(name):
        low, high = int(match[2]), int(match[3])
        if low > high:
            raise UnparsableName(f"{name!r}: the range of write ids ends before it starts")
        return Delta(
            name=name,
            kind=DeltaKind(match[1]),
            min_write_id=low,
            max_write_id=high,
            statement_id=NO_STATEMENT if match[4] is None else int(match[4]),
            visibility_txn=int(match[5] or 0),
        )
    if name.startswith(("base_", "delta_", "delete_delta_")):
        raise UnparsableName(
            f"{name!r} looks like an ACID directory but does not parse",
            hint="rename or remove it; nothing below this location is compacted or cleaned until then",
        )
    return None


def parse_bucket(name: str) -> BucketName | None:
    """The data file that `name` denotes; None for side files and foreign names."""
    if match := _BUCKET.fullmatch(name):
        return BucketName(name=name, bucket=int(match[1]), attempt=None if match[2] is None else int(match[2]))
    if match := _LEGACY.fullmatch(name):
        return BucketName(name=name, bucket=int(match[1]), copy=int(match[3] or 0), legacy=True)
    return None


def is_hidden(name: str) -> bool:
    """Readers ignore names that start with `_` or `.` (AcidUtils.hiddenFileFilter).

    So do we for `-tmp.…`: a statement of Hive's that runs keeps the manifests of its direct inserts there, under names
    like `000000_0.manifest`. Hive's readers take them for original files and fail; a cleaner that did would lose rows.
    """
    return name.startswith(("_", ".", "-tmp."))


def encode_bucket(bucket: int, statement_id: int = 0) -> int:
    """The 32-bit `bucket` property of a row id: version 1, bucket, statement (BucketCodec.V1.encode)."""
    if not 0 <= bucket < MAX_BUCKETS:
        raise ValueError(f"bucket {bucket} is not in 0..{MAX_BUCKETS - 1}")
    if not -1 <= statement_id < MAX_STATEMENTS:
        raise ValueError(f"statement id {statement_id} is not in -1..{MAX_STATEMENTS - 1}")
    return 1 << 29 | bucket << 16 | max(statement_id, 0)


def decode_bucket(encoded: int) -> int:
    """The bucket number in a row id's `bucket` property; version 0 is the plain number (BucketCodec)."""
    return encoded if encoded >> 29 == 0 else (encoded >> 16) & (MAX_BUCKETS - 1)


def _visibility(txn_id: int) -> str:
    return f"_v{txn_id:07d}" if txn_id > 0 else ""
