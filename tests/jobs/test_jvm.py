"""Stripes that pyarrow cannot read or write, rewritten by orc-core on Spark's executors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import orc

from compactor.acid.records import SyntheticIds
from compactor.acid.schema import parse_type
from compactor.errors import CompactorError, CorruptFile, PathNotFound, UnsupportedData, VerificationError
from compactor.jobs.jvm import JvmOrcTask, JvmStripe, hadoop_path, orc_schema, rewrite_orc
from compactor.jobs.session import SparkSessions
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.reader import OrcSource
from compactor.orc.types import acid_type
from compactor.storage.filesystem import open_location
from tests.jobs.java_files import OrcFiles, in_time_zone

pytestmark = pytest.mark.slow

END = [253402300799, 999_999_999]
"""9999-12-31 23:59:59.999999999"""
START = [-62135596800, 1]
"""0001-01-01 00:00:00.000000001"""
BEFORE = [-2, 999_000_001]
"""A second before 1970 whose fraction ORC writes in its own way; it has none for the last one (ORC-763)."""
NOW = [1_700_000_000, 123_456_789]
BUCKET = 536870912


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    with in_time_zone(made, "America/New_York"):
        yield made
    made.stop()


@pytest.fixture(scope="module")
def files(sessions: SparkSessions) -> OrcFiles:
    return OrcFiles(sessions)


def kept(*mask: int) -> bytes:
    return zlib.compress(np.packbits(np.array(mask, dtype=bool)).tobytes())


def event(row_id: int, row: list[Any] | None) -> list[Any]:
    return [0, 3, BUCKET, row_id, 3, row]


def task(output: Path, schema: str, stripes: Sequence[JvmStripe], **options: Any) -> JvmOrcTask:
    defaults = {"acid": True, "compression": pb.ZLIB, "block_size": 1 << 15, "stride": 1000, "proleptic": True}
    return JvmOrcTask(
        output=str(output), row_type=parse_type(schema), stripes=tuple(stripes), **{**defaults, **options}
    )


def rewritten(sessions: SparkSessions, wanted: JvmOrcTask) -> int:
    (outcome,) = rewrite_orc(sessions, [wanted])
    assert isinstance(outcome, int), outcome
    return outcome


def failed(sessions: SparkSessions, wanted: JvmOrcTask) -> CompactorError:
    (outcome,) = rewrite_orc(sessions, [wanted])
    assert isinstance(outcome, CompactorError), outcome
    return outcome


_EVERY = (
    "struct<t:timestamp,u:uniontype<int,string>,d:date,dec:decimal(38,18),c:char(5),vc:varchar(9),s:string,b:boolean,"
    "ti:tinyint,l:bigint,f:double,a:array<timestamp>,m:map<string,uniontype<int,timestamp>>,"
    "st:struct<x:decimal(9,2),y:array<struct<z:string>>>,z:timestamp with local time zone>"
)
_ROWS: list[list[Any]] = [
    [END, [0, 7], 2932896, "12345678901234567890.123456789012345678", "ab", "xyz", "é", 1, -128, 2**63 - 1, 0.1,
     [END, None, START], [["k", [1, NOW]], ["l", None]], ["1.5", [["q"], None]], END],
    [START, [1, "seven"], -719162, "-0.000000000000000001", "äöü", "", "", 0, 127, -(2**63), -0.0, [], [], None, NOW],
    [None] * 15,
    [BEFORE, [1, None], -1, "0", "", "v", "w", 1, 0, 0, 1e300, None, None, [None, []], BEFORE],
]  # fmt: skip


@pytest.mark.parametrize("proleptic", [True, False])
def test_every_value_of_every_type_survives_with_its_nanoseconds(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path, proleptic: bool
) -> None:
    row_type = parse_type(_EVERY)
    source = files.write(
        tmp_path / "in",
        orc_schema(acid_type(row_type)),
        [event(i, r) for i, r in enumerate(_ROWS)],
        proleptic=proleptic,
    )
    stripes = [JvmStripe(path=f"file:{source}", stripe=0, keep=kept(1, 1, 1, 1))]
    assert rewritten(sessions, task(tmp_path / "out", _EVERY, stripes, proleptic=not proleptic)) == 4
    assert files.read(tmp_path / "out") == files.read(source)
    assert files.read(tmp_path / "out") == [event(i, r) for i, r in enumerate(_ROWS)]
    assert not [p for p in tmp_path.iterdir() if p.name not in ("in", "out")]


def test_only_surviving_rows_are_written_in_the_order_of_the_stripes(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    schema = "struct<t:timestamp,n:int>"
    rows = [event(i, [END if i % 2 else START, i]) for i in range(3000)]
    source = files.write(tmp_path / "in", orc_schema(acid_type(parse_type(schema))), rows, stripe_rows=1500)
    rng = np.random.default_rng(4)
    masks = [rng.random(1500) < 0.6, np.zeros(1500, dtype=bool)]
    masks[1][1499] = True
    stripes = [
        JvmStripe(path=str(source), stripe=i, keep=zlib.compress(np.packbits(mask).tobytes()))
        for i, mask in enumerate(masks)
    ]
    expected = [row for row, keep in zip(rows, np.concatenate(masks), strict=True) if keep]
    assert rewritten(sessions, task(tmp_path / "out", schema, stripes)) == len(expected)
    assert files.read(tmp_path / "out") == expected


@pytest.mark.parametrize("codec", ["NONE", "ZLIB", "SNAPPY", "LZO", "LZ4", "ZSTD"])
@pytest.mark.parametrize(("block", "stride"), [(32 << 10, 0), (1000, 1500)])
def test_any_codec_chunk_size_and_stride_can_be_read_and_written(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path, codec: str, block: int, stride: int
) -> None:
    schema = "struct<n:bigint,s:string>"
    rows = [event(i, [i * i, f"text {i % 7}" * 5]) for i in range(2000)]
    source = files.write(
        tmp_path / "in",
        orc_schema(acid_type(parse_type(schema))),
        rows,
        compression=codec,
        block=block,
        stride=stride,
        stripe_rows=2000,
    )
    stripes = [JvmStripe(path=f"file:{source}", stripe=0, keep=kept(*[1] * 1999, 0))]
    options = {"compression": pb.CompressionKind.Value(codec), "block_size": block, "stride": stride}
    assert rewritten(sessions, task(tmp_path / "out", schema, stripes, **options)) == 1999
    assert files.read(tmp_path / "out") == rows[:-1]
    found = files.describe(tmp_path / "out").split()
    assert (found[0], found[2], found[3]) == (codec, str(stride or 10000), "1")
    assert codec == "NONE" or found[1] == str(block)
    if codec != "LZO":
        assert orc.read_table(str(tmp_path / "out")).column("row").to_pylist()[-1]["n"] == 1998**2


def test_columns_get_the_bloom_filters_that_are_asked_for(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    schema = "struct<n:bigint,s:string>"
    rows = [event(i, [i, f"text {i}"]) for i in range(10)]
    source = files.write(tmp_path / "in", orc_schema(acid_type(parse_type(schema))), rows)
    stripes = [JvmStripe(path=f"file:{source}", stripe=0, keep=kept(*[1] * 10))]
    assert rewritten(sessions, task(tmp_path / "out", schema, stripes, blooms=(7, 8))) == 10
    with OrcSource(open_location(str(tmp_path))[0], str(tmp_path / "out")) as written:
        assert written.tail.blooms == ((7, pb.Stream.BLOOM_FILTER_UTF8), (8, pb.Stream.BLOOM_FILTER_UTF8))


def test_columns_match_by_position_and_their_fields_by_name(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    old = "struct<a:int,b:float,in:struct<x:smallint,y:string>,gone:decimal(5,2)>"
    new = "struct<b:bigint,a:double,in:struct<y:string,z:timestamp,x:int>,dec:decimal(12,4),`neu ``x`:uniontype<int,string>>"
    source = files.write(
        tmp_path / "in", orc_schema(acid_type(parse_type(old))), [event(0, [5, 0.5, [3, "p"], "1.25"])]
    )
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(1))]
    assert rewritten(sessions, task(tmp_path / "out", new, stripes)) == 1
    assert files.read(tmp_path / "out") == [event(0, [5, 0.5, ["p", None, 3], "1.25", None])]
    assert "b:bigint,a:double" in files.describe(tmp_path / "out")


def test_fields_below_an_array_match_by_position(sessions: SparkSessions, files: OrcFiles, tmp_path: Path) -> None:
    """As Hive reads them, which forces positional evolution: its level counts down through arrays and maps."""
    old, new = (
        "struct<l:array<struct<a:int>>,s:struct<a:int>>",
        "struct<m:array<struct<b:int,c:string>>,s:struct<b:int>>",
    )
    source = files.write(tmp_path / "in", orc_schema(acid_type(parse_type(old))), [event(0, [[[1], [2]], [3]])])
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(1))]
    assert rewritten(sessions, task(tmp_path / "out", new, stripes)) == 1
    assert files.read(tmp_path / "out") == [event(0, [[[1, None], [2, None]], [None]])]


def test_rows_of_files_without_acid_columns_get_their_row_ids(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    source = files.write(
        tmp_path / "000001_0", "struct<_col0:int,_col1:timestamp>", [[i, END] for i in range(20)], stripe_rows=8
    )
    ids = SyntheticIds(write_id=7, bucket=BUCKET + (1 << 16), first_row_id=100)
    stripes = [JvmStripe(path=str(source), stripe=i, keep=kept(*[0, 1] * 4), synthetic=ids) for i in range(2)]
    assert rewritten(sessions, task(tmp_path / "out", "struct<id:int,t:timestamp,added:string>", stripes)) == 8
    assert files.read(tmp_path / "out") == [
        [0, 7, BUCKET + (1 << 16), 100 + i, 7, [i, END, None]] for i in range(16) if i % 2
    ]


def test_a_plain_file_stays_plain(sessions: SparkSessions, files: OrcFiles, tmp_path: Path) -> None:
    source = files.write(tmp_path / "in", "struct<u:uniontype<int,string>>", [[[0, 1]], [[1, "b"]], [None]])
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(0, 1, 1))]
    assert rewritten(sessions, task(tmp_path / "out", "struct<u:uniontype<int,string>>", stripes, acid=False)) == 2
    assert files.read(tmp_path / "out") == [[[1, "b"]], [None]]


def test_char_values_keep_their_padding(sessions: SparkSessions, files: OrcFiles, tmp_path: Path) -> None:
    source = files.write(tmp_path / "in", "struct<c:char(4)>", [["ab"], ["äö"]])
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(1, 1))]
    assert rewritten(sessions, task(tmp_path / "out", "struct<c:char(4)>", stripes, acid=False)) == 2
    assert orc.read_table(str(tmp_path / "out")).column("c").to_pylist() == ["ab  ", "äö  "]


def test_a_streaming_file_ends_where_its_side_file_says(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    source = files.write(tmp_path / "bucket_00000", "struct<n:int>", [[1], [2]])
    committed = source.stat().st_size
    with source.open("ab") as more:
        more.write(b"a transaction that has not committed")
    (tmp_path / "bucket_00000_flush_length").write_bytes((5).to_bytes(8, "big") + committed.to_bytes(8, "big") + b"xx")
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(1, 1))]
    assert rewritten(sessions, task(tmp_path / "out", "struct<n:int>", stripes, acid=False)) == 2


def test_errors_are_typed_answers_beside_good_ones_and_leave_nothing(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    source = files.write(tmp_path / "in", "struct<n:int>", [[1], [2]])
    (tmp_path / "damaged").write_bytes(source.read_bytes()[:-20])
    (tmp_path / "outputs").mkdir()

    def wanted(
        number: int, path: Path, stripe: int = 0, keep: bytes = kept(1, 1), schema: str = "struct<n:int>"
    ) -> JvmOrcTask:
        stripes = [JvmStripe(path=str(path), stripe=stripe, keep=keep)]
        return task(tmp_path / "outputs" / str(number), schema, stripes, acid=False)

    outcomes = rewrite_orc(
        sessions,
        [
            wanted(0, tmp_path / "missing"),
            wanted(1, source),
            wanted(2, tmp_path / "damaged"),
            wanted(3, source, stripe=1),
            wanted(4, source, keep=kept(*[1] * 9)),
            wanted(5, source, keep=b"no zlib"),
            wanted(6, source, schema="struct<n:struct<x:int>>"),
        ],
    )
    assert [o if isinstance(o, int) else type(o) for o in outcomes] == [
        PathNotFound, 2, CorruptFile, CorruptFile, VerificationError, VerificationError, UnsupportedData
    ]  # fmt: skip
    assert all("in" in str(o) or "damaged" in str(o) for o in outcomes if isinstance(o, CompactorError))
    assert [p.name for p in (tmp_path / "outputs").iterdir()] == ["1"]


def test_a_second_attempt_replaces_the_first_ones_file(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    source = files.write(tmp_path / "a b%3A", "struct<n:int>", [[1], [2]])
    wanted = task(
        tmp_path / "p=a b%3A", "struct<n:int>", [JvmStripe(path=str(source), stripe=0, keep=kept(1, 0))], acid=False
    )
    assert rewritten(sessions, wanted) == 1
    first = (tmp_path / "p=a b%3A").read_bytes()
    assert rewritten(sessions, wanted) == 1
    assert (tmp_path / "p=a b%3A").read_bytes() == first


def test_a_codec_that_sparks_libraries_lack_is_unsupported(
    sessions: SparkSessions, files: OrcFiles, tmp_path: Path
) -> None:
    source = files.write(tmp_path / "in", "struct<n:int>", [[1]])
    stripes = [JvmStripe(path=str(source), stripe=0, keep=kept(1))]
    wanted = task(tmp_path / "out", "struct<n:int>", stripes, acid=False, compression=pb.BROTLI)
    assert isinstance(failed(sessions, wanted), UnsupportedData)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/w/a b", "file:/w/a b"),
        ("file:/w", "file:/w"),
        ("s3://b/k", "s3a://b/k"),
        ("hdfs://h:8020/w", "hdfs://h:8020/w"),
    ],
)
def test_locations_mean_the_same_to_hadoop(location: str, expected: str) -> None:
    assert hadoop_path(location) == expected
