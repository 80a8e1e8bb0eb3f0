"""The formats of tables: what a plan must know of a file, and how the files of an insert-only table become one.

ORC, Parquet, text and Avro are joined by Python tasks, SequenceFiles and RCFiles by Java ones (`compactor.jobs.jvm`),
whose libraries know their codecs and classes. Files with different `FileFacts.template` never share an output.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactor.acid.planning import FileFacts, PlanItem
from compactor.acid.schema import HiveType
from compactor.errors import ConfigError, UnsupportedData
from compactor.jobs.avro import run_avro_item
from compactor.jobs.parquet import parquet_facts, run_parquet_item
from compactor.jobs.text import run_text_item
from compactor.orc.facts import orc_facts
from compactor.orc.rewrite import ItemResult
from compactor.storage.codecs import codec_of
from compactor.storage.filesystem import FileSystem
from compactor.storage.headers import avro_template, hadoop_template

FORMATS: Mapping[str, str] = {
    "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat": "orc",
    "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat": "parquet",
    "org.apache.hadoop.mapred.TextInputFormat": "text",
    "org.apache.hadoop.hive.ql.io.avro.AvroContainerInputFormat": "avro",
    "org.apache.hadoop.mapred.SequenceFileInputFormat": "sequencefile",
    "org.apache.hadoop.hive.ql.io.RCFileInputFormat": "rcfile",
}
"""Input format of a storage descriptor -> our name."""
_DELIMITER = "textinputformat.record.delimiter"
_IN_JVM = frozenset({"sequencefile", "rcfile"})
NOT_COUNTED = -1
"""Rows of a file whose format does not tell before it is read, and of text, which is never counted."""


def facts_of(
    file_format: str, fs: FileSystem, path: str, table_type: HiveType, properties: Mapping[str, str]
) -> FileFacts:
    """What a plan must know of a file of this format. properties: of the table, as the metastore has them.

    Raises CorruptFile, UnsupportedData; ConfigError for a property that is no number.
    """
    match file_format:
        case "orc":
            return orc_facts(fs, path)
        case "parquet":
            return parquet_facts(fs, path, table_type)
        case "text":
            if properties.get(_DELIMITER, "\n") != "\n":
                raise UnsupportedData(f"{path}: its lines end in {properties[_DELIMITER]!r} ({_DELIMITER})")
            suffix = codec_of(path).suffix
            return FileFacts(
                rows=NOT_COUNTED,
                row_type=table_type,
                acid=False,
                format=file_format,
                template=suffix.encode(),
                suffix=suffix,
                skipped=(_lines(properties, "header"), _lines(properties, "footer")),
            )
        case _:
            template = avro_template(fs, path) if file_format == "avro" else hadoop_template(fs, path)
            return FileFacts(rows=NOT_COUNTED, row_type=table_type, acid=False, format=file_format, template=template)


def joined_in_jvm(file_format: str) -> bool:
    """Are items of this format for `jvm.append_in_jvm`, not for `run_plain_item`?"""
    return file_format in _IN_JVM


def run_plain_item(fs: FileSystem, root: str, item: PlanItem, row_type: HiveType) -> ItemResult:
    """On an executor: write the output of an item of an insert-only table that is neither ORC nor Java's.

    root: the plan's location inside `fs`. Raises CorruptFile, UnsupportedData, StorageError.
    """
    match item.format:
        case "parquet":
            return run_parquet_item(fs, root, item, row_type)
        case "text":
            return run_text_item(fs, root, item)
        case "avro":
            return run_avro_item(fs, root, item)
        case _:
            raise AssertionError(f"{item.format} files are not joined by Python tasks")


def _lines(properties: Mapping[str, str], end: str) -> int:
    name = f"skip.{end}.line.count"
    value = properties.get(name, "0").strip()
    if not value.isdigit():
        raise ConfigError(f"table property {name} is {value!r}, not a number of lines")
    return int(value)
