"""Work that pyarrow cannot do, done by Java libraries inside Spark's executors.

The Java sources in `hadoop/` are compiled when a session first needs them, by Janino, the compiler that Spark uses
for its own generated code. Executors get the classes as a jar from the driver, so they need nothing but Spark. A
task is a JSON text, its answer another one; a typed error is an answer, because Spark must not retry what will fail
again. Spark's exceptions pass through to the caller, whose job group the tasks belong to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkContext

import compactor.errors
from compactor.acid.planning import PlanItem
from compactor.acid.records import SyntheticIds
from compactor.acid.schema import HiveType
from compactor.errors import CompactorError, JobError
from compactor.jobs.session import SparkSessions
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.rewrite import ItemResult
from compactor.orc.types import acid_type

_SOURCES = Path(__file__).with_name("hadoop")
_PACKAGE = "hivecompactor"
_STORED = (1980, 1, 1, 0, 0, 0)
_JOINERS = {"sequencefile": "SequenceFileJoiner", "rcfile": "RcFileJoiner"}
_SCHEMES = {"s3": "s3a", "s3n": "s3a"}


@dataclass(frozen=True, kw_only=True)
class JvmStripe:
    """Rows of one stripe. path: location and path of the file, as the metastore gives it. keep: zlib of
    numpy.packbits of the mask of surviving rows. synthetic: row ids of a file without ACID columns.
    """

    path: str
    stripe: int
    keep: bytes
    synthetic: SyntheticIds | None = None


@dataclass(frozen=True, kw_only=True)
class JvmOrcTask:
    """An ORC file to write. output: like JvmStripe.path. row_type: the table's columns. acid: the file has ACID columns.

    compression: CompressionKind. block_size: bytes of a compression chunk. stride: rows of an index entry, 0 means
    10,000. proleptic: calendar of its dates and timestamps. blooms: columns, numbered as in the file's types, that get
    bloom filters. written: the file's type where it is not row_type but a form of it for a sort (`jobs.carried`).
    """

    output: str
    row_type: HiveType
    acid: bool
    compression: int
    block_size: int
    stride: int
    proleptic: bool
    stripes: tuple[JvmStripe, ...]
    blooms: tuple[int, ...] = ()
    written: HiveType | None = None


def rewrite_orc(sessions: SparkSessions, tasks: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
    """Write each task's file with orc-core; for each, in order, the number of rows in it or its error.

    The errors are CorruptFile, UnsupportedData, StorageError and their kinds. Memory of a task: one batch of 1024
    rows and one stripe of at most 16 MB.
    """
    answers = run_in_jvm(sessions, "OrcRewriter", [_orc_spec(task) for task in tasks])
    return [answer if isinstance(answer, CompactorError) else int(answer["rows"]) for answer in answers]


@dataclass(frozen=True, kw_only=True)
class JvmJoin:
    """An item of SequenceFiles or RCFiles. location: of its plan. row_type: the table's columns."""

    location: str
    item: PlanItem
    row_type: HiveType


def append_in_jvm(sessions: SparkSessions, joins: Sequence[JvmJoin]) -> list[ItemResult | CompactorError]:
    """Join the records of each item's sources; for each, in order, its result or its error.

    The errors are CorruptFile, UnsupportedData (a codec or class that the executors lack) and StorageError's kinds.
    """
    outcomes: dict[int, ItemResult | CompactorError] = {}
    for file_format, name in _JOINERS.items():
        chosen = [number for number, join in enumerate(joins) if join.item.format == file_format]
        answers = run_in_jvm(sessions, name, [_join_spec(joins[number]) for number in chosen])
        for number, answer in zip(chosen, answers, strict=True):
            item = joins[number].item
            outcomes[number] = answer if isinstance(answer, CompactorError) else _join_result(item, **answer)
    return [outcomes[number] for number in range(len(joins))]


def run_in_jvm(
    sessions: SparkSessions, name: str, specs: Sequence[Mapping[str, object]]
) -> list[dict[str, Any] | CompactorError]:
    """One Spark task a spec, run by the class `name` of `hadoop/`; the answers in the order of the specs."""
    if not specs:
        return []
    context = sessions.get().sparkContext
    function = _function(context, name)
    texts = [json.dumps(spec) for spec in specs]
    answers = context._jsc.parallelize(texts, len(texts)).map(function).collect()
    return [_outcome(json.loads(answer)) for answer in answers]


def hadoop_path(location: str) -> str:
    """A location as Hadoop understands it: without a scheme it is a local path here, and S3 is spelt s3a there."""
    if location.startswith("/"):
        return f"file:{location}"
    scheme, colon, rest = location.partition(":")
    return _SCHEMES.get(scheme, scheme) + colon + rest


def orc_schema(hive_type: HiveType) -> str:
    """A type as ORC's TypeDescription.fromString reads it, with every field name quoted."""
    if hive_type.kind == "struct":
        fields = (f"`{name.replace('`', '``')}`:{orc_schema(child)}" for name, child in hive_type.children)
        return f"struct<{','.join(fields)}>"
    if hive_type.children:
        return f"{hive_type.kind}<{','.join(orc_schema(child) for _, child in hive_type.children)}>"
    return str(hive_type)


def _orc_spec(task: JvmOrcTask) -> dict[str, object]:
    return {
        "output": hadoop_path(task.output),
        "schema": _file_schema(task, task.row_type),
        "written": _file_schema(task, task.written or task.row_type),
        "acid": task.acid,
        "compression": pb.CompressionKind.Name(task.compression),
        "block_size": task.block_size,
        "stride": task.stride,
        "proleptic": task.proleptic,
        "blooms": list(task.blooms),
        "stripes": [
            {
                "path": hadoop_path(stripe.path),
                "stripe": stripe.stripe,
                "keep": base64.b64encode(stripe.keep).decode(),
                "synthetic": None if stripe.synthetic is None else asdict(stripe.synthetic),
            }
            for stripe in task.stripes
        ],
    }


def _file_schema(task: JvmOrcTask, row_type: HiveType) -> str:
    return orc_schema(acid_type(row_type) if task.acid else row_type)


def _join_spec(join: JvmJoin) -> dict[str, object]:
    root = hadoop_path(join.location.rstrip("/"))
    return {
        "output": f"{root}/{join.item.output}",
        "sources": [f"{root}/{source.path}" for source in join.item.sources],
        "columns": len(join.row_type.children),
    }


def _join_result(item: PlanItem, *, rows: int, size: int) -> ItemResult:
    return ItemResult(
        output=item.output,
        size=size,
        rows_in=rows,
        rows_out=rows,
        bytes_copied=size,
        bytes_encoded=0,
    )


def _outcome(answer: dict[str, Any]) -> dict[str, Any] | CompactorError:
    if "error" not in answer:
        return answer
    error: CompactorError = getattr(compactor.errors, answer["error"], JobError)(answer["message"])
    return error


_LOADERS: weakref.WeakKeyDictionary[SparkContext, Any] = weakref.WeakKeyDictionary()
_LOADING = threading.Lock()


def _function(context: SparkContext, name: str) -> Any:
    """An instance of a class of ours, holding the session's Hadoop configuration."""
    jvm: Any = context._jvm
    with _LOADING:
        loader = _LOADERS.get(context)
        if loader is None:
            loader = _LOADERS[context] = _install(context)
    arguments = context._gateway.new_array(jvm.java.lang.Object, 1)  # type: ignore[union-attr]
    arguments[0] = jvm.org.apache.spark.util.SerializableConfiguration(context._jsc.hadoopConfiguration())
    return loader.loadClass(f"{_PACKAGE}.{name}").getConstructors()[0].newInstance(arguments)


def _install(context: SparkContext) -> Any:
    """Compile our classes and hand them to all executors, present and future; the driver's loader of them."""
    jvm: Any = context._jvm
    folder = Path(str(jvm.org.apache.spark.SparkFiles.getRootDirectory())) / "hive-compactor"
    folder.mkdir(exist_ok=True)
    jar = folder / f"hive-compactor-{_digest()}.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path, content in sorted(_compile(context).items()):
            archive.writestr(zipfile.ZipInfo(path, _STORED), content)
    context._jsc.addJar(jar.as_uri())
    urls = context._gateway.new_array(jvm.java.net.URL, 1)  # type: ignore[union-attr]
    urls[0] = jvm.java.net.URL(jar.as_uri())
    return jvm.java.net.URLClassLoader(urls, jvm.java.lang.Thread.currentThread().getContextClassLoader())


def _compile(context: SparkContext) -> dict[str, bytes]:
    """Class files by path."""
    jvm: Any = context._jvm
    resources = jvm.org.codehaus.commons.compiler.util.resource
    made = jvm.java.util.HashMap()
    compiler = jvm.org.codehaus.janino.Compiler()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler.setIClassLoader(jvm.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setClassFileCreator(resources.MapResourceCreator(made))
    compiler.setClassFileFinder(resources.ResourceFinder.EMPTY_RESOURCE_FINDER)
    sources = context._gateway.new_array(resources.Resource, len(_sources()))  # type: ignore[union-attr]
    for position, (path, text) in enumerate(_sources().items()):
        sources[position] = resources.StringResource(path, text)
    compiler.compile(sources)
    return {str(path): bytes(made[path]) for path in made}


@cache
def _sources() -> dict[str, str]:
    return {f"{_PACKAGE}/{file.name}": file.read_text() for file in sorted(_SOURCES.glob("*.java"))}


def _digest() -> str:
    return hashlib.sha256("\0".join(_sources().values()).encode()).hexdigest()[:16]
