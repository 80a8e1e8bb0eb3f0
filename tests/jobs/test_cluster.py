"""Compactions on a standalone cluster of two workers, which have nothing but Python and the package."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from compactor.acid.planning import Depth
from compactor.acid.schema import parse_type
from compactor.jobs.compaction import Job, SparkJobRunner
from compactor.jobs.java import find_java_home
from compactor.jobs.jvm import JvmOrcTask, JvmStripe, rewrite_orc
from compactor.jobs.resources import enter_pool, with_resources
from compactor.jobs.session import SparkSessions
from compactor.jobs.spark_wish import SparkWish
from compactor.jobs.verify import verify_output
from compactor.orc import orc_proto_pb2 as pb
from tests.jobs.compacted import planned, two_bucket_table
from tests.jobs.java_files import OrcFiles

pytestmark = pytest.mark.slow
BOUND_S = 120


@contextmanager
def started(folder: Path, sign: str, *arguments: str) -> Iterator[str]:
    """A process of Spark's standalone mode; what `sign` matches in its log, as soon as it does."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(find_java_home(os.environ, cache=folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    process = subprocess.Popen(
        [home / "bin" / "spark-class", *arguments], env=environment, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in process.stderr or ():
            match = re.search(sign, line)
            if match is not None:
                found.put(match.group(0))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield found.get(timeout=BOUND_S)
    finally:
        process.terminate()
        process.wait(BOUND_S)
        reader.join(BOUND_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as running:
        any_port = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = running.enter_context(
            started(folder, r"spark://127\.0\.0\.1:\d+", "org.apache.spark.deploy.master.Master", *any_port)
        )
        for _ in range(2):
            worker = ("org.apache.spark.deploy.worker.Worker", *any_port, "--cores", "2", "--memory", "2g", master)
            running.enter_context(started(folder, "Successfully registered with master", *worker))
        yield master


@pytest.fixture(scope="module")
def sessions(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    made = SparkSessions(
        master=cluster,
        app_name="tests",
        driver_memory="512m",
        conf={
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "1",
            "spark.dynamicAllocation.initialExecutors": "2",
            "spark.dynamicAllocation.executorIdleTimeout": "2s",
        },
        cache=tmp_path_factory.mktemp("java"),
    )
    yield made
    made.stop()


def heaps(sessions: SparkSessions) -> list[int]:
    """Bytes of storage memory of each executor, the driver's left out: they grow with the heap."""
    context = sessions.get().sparkContext
    infos = context._jsc.sc().statusTracker().getExecutorInfos()
    return sorted(info.totalOnHeapStorageMemory() for info in infos)[1:]


def test_a_compaction_runs_on_the_clusters_workers(sessions: SparkSessions, tmp_path: Path) -> None:
    two_bucket_table(tmp_path)
    made = planned(tmp_path, Depth.MAJOR)
    (results,) = SparkJobRunner(sessions).run(
        [Job(plan=made)], group="g", description="on a cluster", progress=lambda *_: None
    )
    assert isinstance(results, list)
    verify_output(made, results)
    assert len(made.items) == 2
    assert heaps(sessions)


def test_executors_get_the_java_classes_from_the_driver(sessions: SparkSessions, tmp_path: Path) -> None:
    source = OrcFiles(sessions).write(tmp_path / "in", "struct<u:uniontype<int,string>>", [[[0, 1]], [[1, "b"]]])
    stripe = JvmStripe(path=f"file:{source}", stripe=0, keep=zlib.compress(b"\x40"))
    tasks = [
        JvmOrcTask(
            output=f"file:{tmp_path}/out{number}",
            row_type=parse_type("struct<u:uniontype<int,string>>"),
            acid=False,
            compression=pb.ZLIB,
            block_size=1 << 16,
            stride=10000,
            proleptic=True,
            stripes=(stripe,),
        )
        for number in range(4)
    ]
    assert rewrite_orc(sessions, tasks) == [1] * 4
    assert [OrcFiles(sessions).read(tmp_path / f"out{number}") for number in range(4)] == [[[[1, "b"]]]] * 4


def test_tasks_get_executors_of_the_size_and_the_pool_that_the_table_asks_for(sessions: SparkSessions) -> None:
    context = sessions.get().sparkContext
    before = heaps(sessions)
    wish = SparkWish(pool="night", resources=(("spark.executor.memory", "1g"),))
    enter_pool(context, wish)
    assert context.getLocalProperty("spark.scheduler.pool") == "night"
    assert with_resources(context.parallelize(range(4), 2), wish).map(lambda n: n * n).collect() == [0, 1, 4, 9]
    assert max(heaps(sessions)) > max(before)
    enter_pool(context, SparkWish())
    assert context.getLocalProperty("spark.scheduler.pool") is None
