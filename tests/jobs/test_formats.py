"""Avro, SequenceFiles and RCFiles of insert-only tables: records are joined, none is decoded and none is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from compactor.acid.planning import ItemKind, PlanItem, SourceFile
from compactor.acid.schema import parse_type
from compactor.errors import CompactorError, ConfigError, CorruptFile, UnsupportedData
from compactor.jobs.formats import facts_of, joined_in_jvm, run_plain_item
from compactor.jobs.jvm import JvmJoin, append_in_jvm
from compactor.jobs.session import SparkSessions
from compactor.orc.rewrite import ItemResult
from compactor.storage.filesystem import ArrowFileSystem
from tests.jobs.java_files import AVRO_SCHEMA, RecordFiles

FS = ArrowFileSystem(pafs.LocalFileSystem())
TYPE = parse_type("struct<n:int,s:string>")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master="local[2]", app_name="tests", driver_memory="512m", conf={}, cache=tmp_path_factory.mktemp("java")
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def java(sessions: SparkSessions) -> RecordFiles:
    return RecordFiles(sessions)


def item_of(file_format: str, paths: Sequence[Path]) -> PlanItem:
    sources = tuple(SourceFile(path=p.name, size=p.stat().st_size, rows=-1) for p in paths)
    return PlanItem(kind=ItemKind.PLAIN, output="d/000000_0", bucket=0, sources=sources, format=file_format)


def joined(sessions: SparkSessions, root: Path, file_format: str, paths: Sequence[Path]) -> ItemResult:
    assert joined_in_jvm(file_format)
    (outcome,) = outcomes(sessions, root, item_of(file_format, paths))
    assert isinstance(outcome, ItemResult), outcome
    assert outcome.size == (root / outcome.output).stat().st_size
    assert [p.name for p in (root / "d").iterdir()] == ["000000_0"]
    return outcome


def outcomes(sessions: SparkSessions, root: Path, *items: PlanItem) -> list[ItemResult | CompactorError]:
    (root / "d").mkdir(exist_ok=True)
    return append_in_jvm(sessions, [JvmJoin(location=f"file:{root}", item=i, row_type=TYPE) for i in items])


def joined_here(root: Path, paths: Sequence[Path]) -> ItemResult:
    (root / "d").mkdir()
    return run_plain_item(FS, str(root), item_of("avro", paths), TYPE)


def template(file_format: str, path: Path) -> bytes:
    facts = facts_of(file_format, FS, str(path), TYPE, {})
    assert (facts.rows, facts.format, facts.acid, facts.row_type) == (-1, file_format, False, TYPE)
    return facts.template


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_avro_blocks_are_copied(java: RecordFiles, tmp_path: Path, codec: str) -> None:
    paths = [tmp_path / "0.avro", tmp_path / "1.avro"]
    rows = [[(i, f"row {i}") for i in range(100)], [(i, "x" * i) for i in range(50)]]
    for path, content in zip(paths, rows, strict=True):
        java.write_avro(path, content, codec=codec)
    assert template("avro", paths[0]) == template("avro", paths[1])
    done = joined_here(tmp_path, paths)
    assert (done.rows_in, done.rows_out, done.size) == (150, 150, (tmp_path / done.output).stat().st_size)
    assert java.read_avro(tmp_path / done.output) == (codec, rows[0] + rows[1])


@pytest.mark.slow
def test_avro_files_that_differ_in_schema_or_codec_stay_apart(java: RecordFiles, tmp_path: Path) -> None:
    for name, codec, schema in (
        ("0", "null", AVRO_SCHEMA),
        ("1", "deflate", AVRO_SCHEMA),
        ("2", "null", AVRO_SCHEMA.replace('"int"', '"long"')),
    ):
        java.write_avro(tmp_path / name, [], codec=codec, schema=schema)
    assert len({template("avro", tmp_path / name) for name in "012"}) == 3


@pytest.mark.slow
def test_an_avro_output_without_rows_can_be_read(java: RecordFiles, tmp_path: Path) -> None:
    done = joined_here(tmp_path, [])
    assert (done.rows_out, java.read_avro(tmp_path / done.output)) == (0, ("null", []))


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_damaged_avro_file_is_corrupt(java: RecordFiles, tmp_path: Path, cut: int) -> None:
    java.write_avro(tmp_path / "0.avro", [(i, "text") for i in range(100)], codec="null")
    (tmp_path / "0.avro").write_bytes((tmp_path / "0.avro").read_bytes()[:-cut])
    with pytest.raises(CorruptFile, match=r"0\.avro"):
        joined_here(tmp_path, [tmp_path / "0.avro"])
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("NONE", None),
        ("RECORD", "DefaultCodec"),
        ("BLOCK", "DefaultCodec"),
        ("BLOCK", "SnappyCodec"),
        ("RECORD", "GzipCodec"),
    ],
)
def test_sequence_file_records_are_copied(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path, kind: str, codec: str | None
) -> None:
    paths = [tmp_path / str(i) for i in range(3)]
    values = [[f"{n} of {i} " + "é" * n for n in range(300)] for i in range(3)]
    for path, content in zip(paths, values, strict=True):
        java.write_sequence(path, content, kind, codec)
    assert len({template("sequencefile", path) for path in paths}) == 1
    done = joined(sessions, tmp_path, "sequencefile", paths)
    assert (done.rows_in, done.rows_out, done.bytes_copied) == (900, 900, done.size)
    assert java.read_sequence(tmp_path / done.output) == (kind, codec, [v for content in values for v in content])


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, "DefaultCodec", "GzipCodec", "SnappyCodec"])
def test_rc_file_blocks_are_copied(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path, codec: str | None
) -> None:
    paths = [tmp_path / str(i) for i in range(3)]
    rows = [[[str(n), f"{n} of {i}" if n % 3 else ""] for n in range(200)] for i in range(3)]
    for path, content in zip(paths, rows, strict=True):
        java.write_rc(path, content, codec, block=1000)
    assert len({template("rcfile", path) for path in paths}) == 1
    done = joined(sessions, tmp_path, "rcfile", paths)
    assert (done.rows_in, done.rows_out) == (600, 600)
    assert java.read_rc(tmp_path / done.output) == (codec is not None, [r for content in rows for r in content])
    assert template("rcfile", tmp_path / done.output) == template("rcfile", paths[0])


@pytest.mark.slow
def test_files_of_other_compression_stay_apart(java: RecordFiles, tmp_path: Path) -> None:
    for number, (kind, codec) in enumerate([("NONE", None), ("RECORD", "GzipCodec"), ("BLOCK", "GzipCodec")]):
        java.write_sequence(tmp_path / str(number), ["v"], kind, codec)
    assert len({template("sequencefile", tmp_path / str(i)) for i in range(3)}) == 3
    java.write_rc(tmp_path / "3", [["a", "b"]], None)
    java.write_rc(tmp_path / "4", [["a", "b"]], "GzipCodec")
    assert template("rcfile", tmp_path / "3") != template("rcfile", tmp_path / "4")


@pytest.mark.slow
def test_outputs_without_any_source_are_files_without_records(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path
) -> None:
    joined(sessions, tmp_path, "sequencefile", [])
    assert java.read_sequence(tmp_path / "d" / "000000_0") == ("NONE", None, [])
    joined(sessions, tmp_path, "rcfile", [])
    assert java.read_rc(tmp_path / "d" / "000000_0") == (False, [])


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["sequencefile", "rcfile"])
def test_damage_is_an_answer_and_leaves_nothing(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path, file_format: str
) -> None:
    path = tmp_path / "0"
    if file_format == "rcfile":
        java.write_rc(path, [[str(i), "text"] for i in range(500)], None, block=1000)
    else:
        java.write_sequence(path, [f"text {i}" for i in range(500)], "NONE", None)
    path.write_bytes(path.read_bytes()[:-7])
    (outcome,) = outcomes(sessions, tmp_path, item_of(file_format, [path]))
    assert isinstance(outcome, CorruptFile)
    assert str(path) in outcome.message
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.slow
def test_records_of_a_class_that_nobody_has_are_unsupported(
    sessions: SparkSessions, java: RecordFiles, tmp_path: Path
) -> None:
    java.write_sequence(tmp_path / "0", ["v"], "NONE", None)
    content = (tmp_path / "0").read_bytes()
    known, unknown = b"org.apache.hadoop.io.Text", b"org.somebody.else.Writable"[:25]
    assert content.count(known) == 1
    (tmp_path / "0").write_bytes(content.replace(known, unknown))
    (outcome,) = outcomes(sessions, tmp_path, item_of("sequencefile", [tmp_path / "0"]))
    assert isinstance(outcome, UnsupportedData)
    assert "org.somebody.else" in outcome.message


@pytest.mark.slow
def test_items_of_several_formats_keep_their_order(sessions: SparkSessions, java: RecordFiles, tmp_path: Path) -> None:
    java.write_rc(tmp_path / "rc", [["a", "b"]], None)
    java.write_sequence(tmp_path / "seq", ["v", "w"], "NONE", None)
    items = [item_of("rcfile", [tmp_path / "rc"]), item_of("sequencefile", [tmp_path / "seq"])]
    assert [o.rows_out if isinstance(o, ItemResult) else o for o in outcomes(sessions, tmp_path, *items)] == [1, 2]
    assert append_in_jvm(sessions, []) == []


@pytest.mark.parametrize("content", [b"x", b"PAR1 and more than that", b"SEQ\x06\x00"])
@pytest.mark.parametrize("file_format", ["avro", "sequencefile", "rcfile"])
def test_a_file_of_another_format_is_corrupt(tmp_path: Path, file_format: str, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(CorruptFile, match="/f"):
        facts_of(file_format, FS, f"{tmp_path}/f", TYPE, {})


def test_long_names_in_a_header_are_read_to_their_end(tmp_path: Path) -> None:
    def header(name: bytes, length: bytes) -> bytes:
        return b"SEQ\x06" + length + name + b"\x01v" + bytes(2) + bytes(4) + bytes(16)

    for file, name, length in (("0", b"k" * 300, b"\x8e\x01\x2c"), ("1", b"k" * 299 + b"j", b"\x8e\x01\x2c")):
        (tmp_path / file).write_bytes(header(name, length))
    assert template("sequencefile", tmp_path / "0") != template("sequencefile", tmp_path / "1")
    (tmp_path / "0").write_bytes(header(b"k", b"\x87\x00"))
    with pytest.raises(CorruptFile, match="length of -1"):
        template("sequencefile", tmp_path / "0")


def test_a_sequence_file_of_an_old_version_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"SEQ\x04" + bytes(50))
    with pytest.raises(UnsupportedData, match="version 4"):
        facts_of("sequencefile", FS, f"{tmp_path}/f", TYPE, {})


def test_facts_of_text_are_its_codec_and_the_lines_that_readers_skip(tmp_path: Path) -> None:
    properties = {"skip.header.line.count": "2"}
    facts = facts_of("text", FS, f"{tmp_path}/a.csv.gz", TYPE, properties)
    assert (facts.rows, facts.suffix, facts.skipped) == (-1, ".gz", (2, 0))
    assert facts.template != facts_of("text", FS, f"{tmp_path}/a.csv", TYPE, properties).template
    with pytest.raises(UnsupportedData, match=r"record\.delimiter"):
        facts_of("text", FS, f"{tmp_path}/a", TYPE, {"textinputformat.record.delimiter": "|"})
    with pytest.raises(ConfigError, match=r"skip\.header\.line\.count"):
        facts_of("text", FS, f"{tmp_path}/a", TYPE, {"skip.header.line.count": "one"})
