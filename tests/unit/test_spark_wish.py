"""What tables and requests may ask of Spark, and what they are told when they ask for something else."""

from __future__ import annotations

import pytest

from compactor.jobs.spark_wish import SparkWish, spark_wish


def test_a_table_without_compactor_properties_wishes_for_the_installations_queue() -> None:
    assert spark_wish({"orc.compress": "ZSTD"}, {}, job_queue="etl") == (SparkWish(pool="etl"), ())


def test_the_request_wins_over_the_table_and_the_table_over_the_installation() -> None:
    table = {"compactor.hive.compactor.job.queue": "of_table", "compactor.spark.executor.memory": "2g"}
    request = {"compactor.spark.executor.memory": "4g"}
    wish, warnings = spark_wish(table, request, job_queue="of_installation")
    assert wish == SparkWish(pool="of_table", resources=(("spark.executor.memory", "4g"),))
    assert warnings == ()


@pytest.mark.parametrize(
    ("key", "value", "wish"),
    [
        ("mapreduce.job.queuename", "night", SparkWish(pool="night")),
        ("mapred.job.queue.name", "night", SparkWish(pool="night")),
        ("mapreduce.map.memory.mb", "2048", SparkWish(resources=(("spark.executor.memory", "2048m"),))),
        ("mapred.job.map.memory.mb", "512", SparkWish(resources=(("spark.executor.memory", "512m"),))),
        ("mapreduce.map.cpu.vcores", "2", SparkWish(resources=(("spark.task.cpus", "2"),))),
    ],
)
def test_hives_mapreduce_names_are_taken_where_they_mean_the_same(key: str, value: str, wish: SparkWish) -> None:
    assert spark_wish({f"compactor.{key}": value}, {}) == (wish, ())


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("mapreduce.map.java.opts", "-Xmx1g", "another engine"),
        ("spark.driver.memory", "2g", "fixed when Spark starts"),
        ("spark.executor.memory", "a lot", "amount of memory"),
        ("spark.executor.cores", "0", "whole number"),
    ],
)
def test_what_cannot_be_heeded_is_named_in_a_warning(key: str, value: str, why: str) -> None:
    wish, (warning,) = spark_wish({f"compactor.{key}": value}, {})
    assert wish == SparkWish()
    assert f"compactor.{key} = {value}" in warning
    assert why in warning


def test_properties_about_the_data_are_not_taken_for_sparks() -> None:
    assert spark_wish({"compactor.recompress": "zstd"}, {}) == (SparkWish(), ())
