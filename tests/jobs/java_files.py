"""Files of Java's own libraries for tests, written and read back in the driver's Java."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compactor.jobs.session import SparkSessions

AVRO_SCHEMA = '{"type":"record","name":"r","fields":[{"name":"n","type":"int"},{"name":"s","type":["null","string"]}]}'


@contextmanager
def in_time_zone(sessions: SparkSessions, name: str) -> Iterator[None]:
    """Set what Java takes for the machine's zone. A process's Java outlives its sessions, and its options with it."""
    jvm: Any = sessions.get().sparkContext._jvm
    zones = jvm.java.util.TimeZone
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(name))
    try:
        yield
    finally:
        zones.setDefault(before)


class OrcFiles:
    """ORC files as lists of rows, by orc-core alone; see OrcFiles.java for how values look."""

    def __init__(self, sessions: SparkSessions) -> None:
        jvm: Any = sessions.get().sparkContext._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(Path(__file__).with_name("OrcFiles.java").read_text())
        self._methods = {m.getName(): m for m in compiler.getClassLoader().loadClass("tests.OrcFiles").getMethods()}
        self._context = sessions.get().sparkContext

    def write(
        self,
        path: Path,
        schema: str,
        rows: list[Any],
        *,
        compression: str = "ZLIB",
        block: int = 1 << 16,
        stride: int = 1000,
        proleptic: bool = True,
        stripe_rows: int = 1024,
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call("write", str(path), schema, json.dumps(rows), compression, block, stride, proleptic, stripe_rows)
        return path

    def read(self, path: Path) -> list[Any]:
        rows: list[Any] = json.loads(self._call("read", str(path)))
        return rows

    def describe(self, path: Path) -> str:
        """Compression, chunk size, stride, number of stripes, proleptic, schema."""
        return str(self._call("describe", str(path)))

    def _call(self, name: str, *arguments: object) -> Any:
        jvm: Any = self._context._jvm
        array = self._context._gateway.new_array(jvm.java.lang.Object, len(arguments))  # type: ignore[union-attr]
        for position, argument in enumerate(arguments):
            array[position] = argument
        return self._methods[name].invoke(None, array)


class RecordFiles:
    """Writes and reads files with the libraries of Avro, Hadoop and Hive, in the driver's Java."""

    def __init__(self, sessions: SparkSessions) -> None:
        context = sessions.get().sparkContext
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self._conf = self._jvm.org.apache.hadoop.conf.Configuration()
        self._fs = self._jvm.org.apache.hadoop.fs.FileSystem.getLocal(self._conf).getRawFileSystem()

    def write_avro(self, path: Path, rows: Sequence[tuple[int, str]], *, codec: str, schema: str = AVRO_SCHEMA) -> None:
        avro = self._jvm.org.apache.avro
        parsed = avro.Schema.Parser().parse(schema)
        writer = avro.file.DataFileWriter(avro.generic.GenericDatumWriter(parsed))
        writer.setCodec(avro.file.CodecFactory.fromString(codec))
        writer.setSyncInterval(100)
        writer.setMeta("writer.time.zone", "Europe/Berlin")
        writer.create(parsed, self._jvm.java.io.File(str(path)))
        for n, s in rows:
            record = avro.generic.GenericData.Record(parsed)
            record.put("n", n)
            record.put("s", s)
            writer.append(record)
        writer.close()

    def read_avro(self, path: Path) -> tuple[str, list[tuple[int, str]]]:
        """(codec, rows)."""
        avro = self._jvm.org.apache.avro
        reader = avro.file.DataFileReader(self._jvm.java.io.File(str(path)), avro.generic.GenericDatumReader())
        codec, rows = reader.getMetaString("avro.codec"), []
        while reader.hasNext():
            record = reader.next()
            rows.append((record.get("n"), str(record.get("s").toString())))
        reader.close()
        return codec, rows

    def write_sequence(self, path: Path, values: Sequence[str], kind: str, codec: str | None) -> None:
        io = self._jvm.org.apache.hadoop.io
        sequence, options = io.SequenceFile, io.SequenceFile.Writer
        types = getattr(self._jvm.org.apache.hadoop.io, "SequenceFile$CompressionType")
        made = self._array(
            getattr(io, "SequenceFile$Writer$Option"),
            options.file(self._path(path)),
            options.keyClass(self._class("org.apache.hadoop.io.BytesWritable")),
            options.valueClass(self._class("org.apache.hadoop.io.Text")),
            options.compression(types.valueOf(kind), self._codec(codec)) if codec else options.compression(types.NONE),
        )
        writer = sequence.createWriter(self._conf, made)
        for value in values:
            writer.append(io.BytesWritable(), io.Text(value))
        writer.close()

    def read_sequence(self, path: Path) -> tuple[str, str | None, list[str]]:
        """(compression, codec, values)."""
        io = self._jvm.org.apache.hadoop.io
        options = getattr(io, "SequenceFile$Reader")
        made = self._array(getattr(io, "SequenceFile$Reader$Option"), options.file(self._path(path)))
        reader = io.SequenceFile.Reader(self._conf, made)
        codec = reader.getCompressionCodec()
        key, value, values = io.BytesWritable(), io.Text(), []
        while reader.next(key, value):
            values.append(value.toString())
        kind = reader.getCompressionType().toString()
        reader.close()
        return kind, None if codec is None else codec.getClass().getSimpleName(), values

    def write_rc(self, path: Path, rows: Sequence[Sequence[str]], codec: str | None, *, block: int = 1 << 22) -> None:
        hive = self._jvm.org.apache.hadoop.hive
        conf = self._jvm.org.apache.hadoop.conf.Configuration(self._conf)
        conf.setInt("hive.io.rcfile.column.number.conf", 2)
        conf.setInt("hive.io.rcfile.record.buffer.size", block)
        found = self._codec(codec) if codec else None
        writer = hive.ql.io.RCFile.Writer(self._fs, conf, self._path(path), None, found)
        for row in rows:
            columns = hive.serde2.columnar.BytesRefArrayWritable(len(row))
            for position, text in enumerate(row):
                data = text.encode()
                columns.set(position, hive.serde2.columnar.BytesRefWritable(data, 0, len(data)))
            writer.append(columns)
        writer.close()

    def read_rc(self, path: Path) -> tuple[bool, list[list[str]]]:
        """(is it compressed, rows)."""
        hive = self._jvm.org.apache.hadoop.hive
        reader = hive.ql.io.RCFile.Reader(self._fs, self._path(path), self._conf)
        number, columns = self._jvm.org.apache.hadoop.io.LongWritable(), hive.serde2.columnar.BytesRefArrayWritable()
        rows = []
        while reader.next(number):
            reader.getCurrentRow(columns)
            rows.append([bytes(columns.get(i).getBytesCopy()).decode() for i in range(columns.size())])
        compressed = reader.isCompressedRCFile()
        reader.close()
        return compressed, rows

    def _path(self, path: Path) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"file:{path}")

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(name)

    def _codec(self, name: str) -> Any:
        kind = self._class(f"org.apache.hadoop.io.compress.{name}")
        return self._jvm.org.apache.hadoop.util.ReflectionUtils.newInstance(kind, self._conf)

    def _array(self, kind: Any, *values: Any) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array
