"""Columns as we lay them out, against pyarrow's writer: its reader reads them, its statistics are ours."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

from compactor.acid.schema import struct_of
from compactor.jobs.session import SparkSessions
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import FileAssembler, Template
from compactor.orc.columns import LaidColumn, laid_out
from compactor.orc.layout import _by_pyarrow
from compactor.orc.runs import byte_runs, integer_runs
from tests.orc.acid_files import FS
from tests.orc.all_types import all_types
from tests.orc.java_probe import OrcProbe

_STRIDE = 1000
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def ours(array: pa.Array) -> LaidColumn:
    found = laid_out(array, _STRIDE)
    assert found is not None
    return found


def theirs(array: pa.Array) -> LaidColumn:
    (found,) = _by_pyarrow(pa.chunked_array([array]), _STRIDE, ())
    return found


def what_a_writer_is_free_to_choose_left_out(column: LaidColumn) -> object:
    """The cuts between runs decide where a place is, not how many numbers tell it."""
    return (
        column.kind,
        column.encoding.kind,
        column.encoding.dictionary_size,
        column.statistics,
        list(column.streams),
        [(len(entry.positions), entry.statistics) for entry in column.index.entry],
    )


def read_back(array: pa.Array, folder: Path, kind: str) -> pa.Array:
    path = folder / "one_column"
    template = Template.fresh(struct_of((("x", kind),)), compression=pb.NONE)
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, template)
        out.append(pa.table({"x": array}), None)
        out.finish(None)
    return orc.ORCFile(str(path)).read().column(0).combine_chunks()


@pytest.mark.parametrize("nulls", [0, 0.2, 0.9])
def test_a_column_says_of_itself_what_pyarrows_writer_says(nulls: float) -> None:
    table = all_types(5000, nulls=nulls)
    done = 0
    for column in table.columns:
        for array in (column.chunk(0), column.chunk(0).slice(77, 3000)):
            found = laid_out(array, _STRIDE)
            if found is not None:
                expected = theirs(array)
                assert what_a_writer_is_free_to_choose_left_out(found) == what_a_writer_is_free_to_choose_left_out(
                    expected
                )
                done += 1
    assert done >= 2 * 15


INTEGERS = st.one_of(
    st.integers(_LEAST, _GREATEST),
    st.integers(-300, 300),
    st.sampled_from([_LEAST, _GREATEST, 0, 1 << 62, -(1 << 62), 1 << 55, -(1 << 55)]),
)


@st.composite
def number_arrays(draw: st.DrawFn) -> list[int]:
    """Shapes that each encoding is for, of lengths around that of a run, with some values out of the way."""
    count = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 511, 512, 513, 1024, 1500]))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    base, spread = draw(INTEGERS), 1 << draw(st.integers(0, 62))
    match draw(st.sampled_from(["equal", "steps", "ascending", "descending", "any", "skewed"])):
        case "equal":
            offsets = np.zeros(count, dtype=np.int64)
        case "steps":
            offsets = np.arange(count) * draw(st.integers(-5, 5))
        case "ascending":
            offsets = np.sort(random.integers(0, spread, count))
        case "descending":
            offsets = -np.sort(random.integers(0, spread, count))
        case "any":
            offsets = random.integers(0, spread, count)
        case _:
            offsets = random.integers(0, 100, count) + (random.random(count) < 0.03) * random.integers(0, spread, count)
    values = (np.int64(base) + offsets.astype(np.int64)).tolist()
    for _ in range(draw(st.integers(0, 3))):
        values[draw(st.integers(0, count - 1))] = draw(INTEGERS)
    return values


@given(number_arrays())
def test_integers_come_back_and_are_summed_up_as_pyarrow_does(
    tmp_path_factory: pytest.TempPathFactory, values: list[int]
) -> None:
    array = pa.array(values, pa.int64())
    assert read_back(array, tmp_path_factory.mktemp("integers"), "bigint").equals(array)
    assert what_a_writer_is_free_to_choose_left_out(ours(array)) == what_a_writer_is_free_to_choose_left_out(
        theirs(array)
    )


@given(st.lists(st.tuples(st.sampled_from([0, 1, 127, 128, 255]), st.sampled_from([1, 2, 3, 127, 128, 129, 400]))))
def test_bytes_come_back(tmp_path_factory: pytest.TempPathFactory, repeats: list[tuple[int, int]]) -> None:
    values = np.array([value for value, count in repeats for _ in range(count)] or [7], dtype=np.uint8)
    array = pa.array(values.view(np.int8))
    assert read_back(array, tmp_path_factory.mktemp("bytes"), "tinyint").equals(array)
    assert byte_runs(values).place(len(values))[0] <= len(byte_runs(values).content)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("row ids with gaps", np.flatnonzero(np.random.default_rng(1).random(60_000) > 0.01)),
        ("equal values", np.full(50_000, -7)),
        ("uniform", np.random.default_rng(2).integers(0, 10**6, 50_000)),
        ("few large ones", (np.random.default_rng(3).pareto(1.2, 50_000) * 100).astype(np.int64) % 50_000),
    ],
)
def test_runs_take_hardly_more_bytes_than_pyarrows(name: str, values: np.ndarray) -> None:
    streams = theirs(pa.array(values.astype(np.int64))).streams
    size = len(streams[pb.Stream.DATA])
    assert len(integer_runs(values.astype(np.int64), signed=True).content) <= 1.1 * size, name


def test_places_are_runs_and_values_into_them() -> None:
    runs = integer_runs(np.arange(1100), signed=True)
    assert [runs.place(at) for at in (0, 511, 512, 1024, 1099)] == [
        (0, 0),
        (0, 511),
        (runs.starts[1], 0),
        (runs.starts[2], 0),
        (runs.starts[2], 75),
    ]
    assert integer_runs(np.arange(1024), signed=True).place(1024) == (runs.starts[2], 0)
    assert integer_runs(np.zeros(0, dtype=np.int64), signed=True).place(0) == (0, 0)


UNUSUAL = [
    ("double", pa.array([1.5, float("nan"), -1.0]), False),
    ("double", pa.array([float("inf"), -float("inf"), 0.0]), True),
    ("double", pa.array([-0.0, 0.0, None]), True),
    ("double", pa.array([0.1] * 3000 + [None] * 1500 + [1e300, -1e300, 0.3]), True),
    ("float", pa.array([0.1, 3.4e38, 3.4e38], pa.float32()), True),
    ("decimal(38,2)", pa.array([decimal.Decimal(10) ** 30], pa.decimal128(38, 2)), False),
    ("decimal(18,0)", pa.array([decimal.Decimal(-(10**17)), None], pa.decimal128(18, 0)), True),
    ("decimal(18,18)", pa.array([decimal.Decimal("-0.1"), decimal.Decimal(0)], pa.decimal128(18, 18)), True),
    ("string", pa.array(["", "", "é" * 2000, "\U0010ffff", "\uffff"]), True),
    ("string", pa.array([""] * 1200), True),
    ("string", pa.array([None, None], pa.string()), True),
    ("string", pa.array([f"w{i % 7}" for i in range(2500)]), True),
    ("string", pa.array([b"\xff\xfe", b"a"]).view(pa.string()), False),
    ("binary", pa.array([b"\xff", b"", None]), True),
    ("boolean", pa.array([True] * 5000 + [None] * 3 + [False]), True),
    ("timestamp", pa.array([0, 1, 1_000_000, 999_999, 10**17, None], pa.timestamp("ns")), True),
    ("date", pa.array([-141_000, 0, 2_932_896], pa.date32()), True),
]


@pytest.mark.parametrize(("kind", "array", "here"), UNUSUAL)
def test_unusual_values_come_back(kind: str, array: pa.Array, *, here: bool, tmp_path: Path) -> None:
    """here: laid out by us, not by pyarrow."""
    found = laid_out(array, _STRIDE)
    assert (found is not None) == here
    if found is not None:
        expected = theirs(array)
        assert what_a_writer_is_free_to_choose_left_out(found) == what_a_writer_is_free_to_choose_left_out(expected)
        assert found.statistics.SerializeToString() == expected.statistics.SerializeToString()
    back = read_back(array, tmp_path, kind)
    if array.type == pa.float64():
        # NaN equals nothing, not even itself.
        np.testing.assert_array_equal(back.to_numpy(zero_copy_only=False), array.to_numpy(zero_copy_only=False))
    else:
        assert back.cast(pa.binary()).equals(array.cast(pa.binary())) if kind == "string" else back.equals(array)


BEFORE_1970 = pa.array(
    [-1_000_000_000, -1_999_999_999, -1_000_999_999, -1_500_000_000, -(10**9), -(10**18) + 5, 7], pa.timestamp("ns")
)


def test_fractions_of_seconds_before_1970_come_back(tmp_path: Path) -> None:
    assert read_back(BEFORE_1970, tmp_path, "timestamp").equals(BEFORE_1970)


# --- orc-core


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrcProbe]:
    sessions = SparkSessions(
        master="local[1]", app_name="layout", driver_memory="1g", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield OrcProbe(sessions)
    sessions.stop()


@pytest.mark.slow
def test_java_reads_every_encoding_of_runs_and_seeks_in_them(probe: OrcProbe, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    count = 6000
    words = [f"w{i}" for i in range(300)]
    columns = {
        "equal": ("bigint", pa.array(np.full(count, -(1 << 40)))),
        "steps": ("bigint", pa.array(np.arange(count) * -3)),
        "gaps": ("bigint", pa.array(np.flatnonzero(random.random(2 * count) > 0.01)[:count])),
        "falling": ("bigint", pa.array(-np.cumsum(random.integers(1, 1 << 20, count)))),
        "skewed": ("int", pa.array(((random.pareto(1.2, count) * 100) % 50_000).astype(np.int32))),
        "far": ("bigint", pa.array(np.where(np.arange(count) % 300, -5, 1 << 50))),
        "wide": ("bigint", pa.array(random.integers(_LEAST, _GREATEST, count))),
        "some": ("smallint", pa.array(random.integers(-9, 9, count).astype(np.int16), mask=random.random(count) < 0.5)),
        "word": ("string", pa.array(words).take(pa.array(random.integers(0, 300, count)))),
        "early": ("timestamp", pa.concat_arrays([BEFORE_1970] * count).slice(0, count)),
        "bits": ("boolean", pa.array(np.arange(count) > 5000)),
        "tiny": ("tinyint", pa.array((np.arange(count) // 700).astype(np.int8))),
    }
    template = Template.fresh(struct_of([(n, k) for n, (k, _) in columns.items()]), compression=pb.ZSTD)
    path = tmp_path / "file"
    with FS.write_atomically(str(path)) as stream:
        out = FileAssembler(stream, replace(template, stride=_STRIDE))
        out.append(pa.table({name: array for name, (_, array) in columns.items()}), None)
        out.finish(None)
    rows = [row.split("|") for row in probe.dump(path)]
    for at, (name, (kind, array)) in enumerate(columns.items()):
        found = [row[at].strip('"') for row in rows]
        if kind == "timestamp":
            expected = [str(value.value) for value in array]
            found = [str(np.datetime64(text.rstrip("Z").replace(" ", "T"), "ns").astype(np.int64)) for text in found]
        else:
            # orc-core holds booleans as numbers.
            expected = ["null" if v is None else str(int(v) if v in (True, False) else v) for v in array.to_pylist()]
        assert found == expected, name
    assert probe.seeks(path, [0, 999, 1000, 1001, 1513, 2048, 5000, 5999]) == ""
