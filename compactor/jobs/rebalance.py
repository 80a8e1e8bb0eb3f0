"""Rebalance: all live rows of a full ACID table spread evenly over the buckets of a new base.

1. SCAN    Tasks read the ACID columns of all files and find the live rows.
2. ORDER   By row id the driver merges what the tasks found; no row is moved for it. With ORDER BY, Spark sorts the
           rows into hidden files of the output directory; what Arrow cannot hold goes there in a form that it can.
3. WRITE   Each output bucket is a stretch of the ordered rows; one task writes one bucket. Stripes that stay together
           keep their bytes; others are decoded, by the JVM where Arrow cannot.
4. VERIFY  Every row is in exactly one bucket, each bucket has its share, and row ids go on from file to file.

Row ids change, so nobody may change rows meanwhile: the transaction is a REBALANCE_COMPACTION under an EXCL_WRITE
lock, and its publication conflicts with every update and delete that it overlaps. Delete events that are already
committed but above the high water mark would name rows that are gone: then there is nothing to do but wait.
Sources: Hive `RebalanceQueryCompactor`, `CompactionQueryBuilderForRebalance`, `Worker.CompactionTxn`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol, assert_never

import numpy as np

from compactor.acid import stripes
from compactor.acid.directory import Snapshot
from compactor.acid.layout import (
    ACID_VERSION_CONTENT,
    ACID_VERSION_FILE,
    base_name,
    bucket_file,
    encode_bucket,
    is_hidden,
)
from compactor.acid.planning import Depth, FileFacts, Refusal
from compactor.acid.rebalance import (
    Pieces,
    Place,
    RebalancePlan,
    Runs,
    check_buckets,
    check_order,
    in_row_order,
    movable_stripes,
    output_type,
    parse_order_by,
    shares,
    source_buckets,
    why_never_rebalanced,
    why_not_now,
)
from compactor.acid.schema import struct_of
from compactor.acid.sources import SourceFile
from compactor.errors import BeyondArrow, CompactorError, VerificationError
from compactor.jobs.beyond_arrow import from_part_file, jvm_task
from compactor.jobs.carried import Rewrite, Sort, holds_unions, sort_carried
from compactor.jobs.compaction import Progress, engine_errors
from compactor.jobs.execution import Failure
from compactor.jobs.jvm import JvmOrcTask, rewrite_orc
from compactor.jobs.planner import CompactionTarget, Survey, read_facts
from compactor.jobs.resources import enter_pool, with_resources
from compactor.jobs.row_sort import remove_parts, sort_rows
from compactor.jobs.session import SparkSessions
from compactor.jobs.spark_wish import NO_WISH, SparkWish
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.reader import OrcSource
from compactor.orc.rebalance import BucketTask, Scan, ScanTask, output_template, scan, write_bucket
from compactor.orc.rewrite import ItemResult
from compactor.orc.tail import stripe_length
from compactor.orc.types import acid_type
from compactor.storage.filesystem import FileSystem, open_location

ORC_INPUT_FORMAT = "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"

Task = ScanTask | BucketTask
Outcome = Scan | ItemResult | Failure
Step = Callable[[], None]
"""Called before each stage; raises when the work is to end."""
Map = Callable[[Sequence[Task]], list[Outcome]]
"""Runs `run_tasks` on tasks, somewhere; outcomes in the order of the tasks."""


class Rebalancer(Protocol):
    """What the worker needs of an engine for a rebalance: `run_rebalance` with a session, or a stand-in."""

    def __call__(
        self, plan: RebalancePlan, *, group: str, description: str, wish: SparkWish, step: Step, progress: Progress
    ) -> list[ItemResult]: ...


SCAN_BYTES = 512 << 20
"""Files that one task scans; of these bytes it reads the ACID columns only."""


def run_rebalance(
    sessions: SparkSessions,
    plan: RebalancePlan,
    *,
    group: str,
    description: str,
    wish: SparkWish = NO_WISH,
    step: Step = lambda: None,
    progress: Progress,
) -> list[ItemResult]:
    """Carry out a plan on Spark; what was written, a result a bucket.

    The first result also accounts for the rows that nobody wrote because they were deleted or never valid. group,
    description, wish, progress: as in `JobRunner.run` and `Job`. Raises the typed error of a task, JobError when the
    engine fails or the group is cancelled.
    """
    session = sessions.get()
    context = session.sparkContext

    def on_spark(tasks: Sequence[Task]) -> list[Outcome]:
        step()
        spread = with_resources(context.parallelize(tasks, max(len(tasks), 1)), wish)
        outcomes: list[Outcome] = spread.mapPartitions(run_tasks).collect()
        return outcomes

    def in_the_jvm(parts: Sequence[JvmOrcTask]) -> list[int | CompactorError]:
        step()
        return rewrite_orc(sessions, parts)

    def sorted_on_spark(*given: Any) -> list[SourceFile]:
        step()
        return sort_rows(session, *given)

    with engine_errors(f"Spark job {group}"):
        context.setJobGroup(group, description, interruptOnCancel=True)
        enter_pool(context, wish)
        return rebalance(plan, on_spark, sorted_on_spark, in_the_jvm, progress)


def plan_rebalance(
    target: CompactionTarget,
    surveyed: Survey,
    snapshot: Snapshot,
    *,
    buckets: int | None,
    order_by: str | None,
    txn_id: int,
    compression: int = pb.ZLIB,
    facts: Mapping[str, FileFacts] | None = None,
) -> RebalancePlan | Refusal:
    """What a rebalance would do, or why there is none; nothing is read but the tails of the files.

    buckets: None takes as many as there are bucket ids in the current files. order_by: as CQ_ORDER_BY has it.
    compression: codec (ORC CompressionKind) of the output. facts: of every file, when they are there already. Raises
    UsageError for columns that do not exist, UnsupportedData for files that cannot be joined, CorruptFile.
    """
    check_buckets(buckets)
    never = why_never_rebalanced(full_acid=target.full_acid, bucketed=target.bucketed)
    if not never and target.input_format != ORC_INPUT_FORMAT:
        never = f"tables read by {target.input_format} are not compacted"
    if never:
        return Refusal(reason=never, leftovers=False)
    state, listing = surveyed.state, surveyed.listing
    leftovers = bool(state.obsolete or state.aborted)
    reason = why_not_now(listing, snapshot)
    if not reason and state.base is None and not state.deltas and not state.originals:
        reason = "there are no files to rebalance"
    if reason:
        return Refusal(reason=reason, leftovers=leftovers)
    keys, table_type = parse_order_by(order_by), struct_of(target.columns)
    check_order(keys, table_type)
    if facts is None:
        facts = read_facts(target, surveyed, Depth.MAJOR)
    sources = source_buckets(state, listing, facts)
    files = [file for bucket in sources for file in bucket.sources]
    row_type = output_type([facts[f.path] for f in files], table_type)
    template, movable = movable_stripes(files, facts, row_type)
    return RebalancePlan(
        location=target.location,
        row_type=row_type,
        write_ids=snapshot.write_ids,
        directory=base_name(snapshot.write_ids.high_water, txn_id),
        sources=sources,
        columns=tuple(name.lower() for name, _ in target.columns),
        buckets=buckets or max(len(sources), 1),
        order_by=keys,
        template=template,
        movable=movable,
        stripes=tuple(tuple(s.rows for s in facts[f.path].stripes) for f in files),
        compression=compression,
    )


def rebalance(plan: RebalancePlan, run: Map, sort: Sort, rewrite: Rewrite, progress: Progress) -> list[ItemResult]:
    """Carry out a plan; run, sort and rewrite say where. As `run_rebalance` otherwise."""
    fs, root = open_location(plan.location)
    _prepare(fs, f"{root}/{plan.directory}")
    scans = scan_tasks(plan)
    steps = len(scans) + plan.buckets
    progress(0, steps)
    found = [o for o in _succeeded(run(scans)) if isinstance(o, Scan)]
    progress(len(scans), steps)
    writes = _bucket_tasks(plan, found, fs, root, sort, rewrite)
    results = [o for o in _succeeded(_written(plan, writes, run, rewrite, fs, root)) if isinstance(o, ItemResult)]
    remove_parts(fs, f"{root}/{plan.directory}")
    progress(steps, steps)
    deleted, invalid = sum(s.deleted for s in found), sum(s.invalid for s in found)
    first = replace(
        results[0], rows_in=results[0].rows_in + deleted + invalid, rows_deleted=deleted, rows_invalid=invalid
    )
    return [first, *results[1:]]


def run_tasks(tasks: Iterable[Task]) -> Iterator[Outcome]:
    """On an executor. A typed error is a value here: Spark must not retry what will fail again."""
    for task in tasks:
        try:
            fs, root = open_location(task.location)
            match task:
                case ScanTask():
                    yield scan(fs, root, task)
                case BucketTask():
                    yield write_bucket(fs, root, task)
                case _:
                    assert_never(task)
        except CompactorError as error:
            yield Failure(kind=type(error).__name__, message=error.message, hint=error.hint)


def scan_tasks(plan: RebalancePlan) -> list[ScanTask]:
    """Tasks of about SCAN_BYTES of files; a file is never divided."""
    numbers = {file.path: number for number, file in enumerate(plan.files)}
    tasks: list[ScanTask] = []
    for bucket in plan.sources:
        files: list[tuple[int, SourceFile]] = []
        for position, file in enumerate(bucket.sources, start=1):
            files.append((numbers[file.path], file))
            if sum(f.size for _, f in files) >= SCAN_BYTES or position == len(bucket.sources):
                tasks.append(
                    ScanTask(
                        location=plan.location,
                        sources=tuple(files),
                        deletes=bucket.deletes,
                        write_ids=plan.write_ids,
                    )
                )
                files = []
    return tasks


def verify_rebalance(plan: RebalancePlan, results: Sequence[ItemResult]) -> None:
    """Raises VerificationError at the first thing that is not as promised: files, rows, shares, row ids."""
    fs, root = open_location(plan.location)
    promised = {r.output: r.size for r in results}
    listed = [f for f in fs.listing(f"{root}/{plan.directory}").files if not is_hidden(f.name)]
    if {f"{plan.directory}/{f.path}": f.size for f in listed} != promised:
        raise VerificationError(f"output files: {sorted(f.path for f in listed)} found, {sorted(promised)} promised")
    total = sum(r.rows_out for r in results)
    missing = plan.rows_in - total - sum(r.rows_deleted + r.rows_invalid for r in results)
    if missing:
        raise VerificationError(f"{plan.rows_in} rows were there, {missing} of them are neither written nor deleted")
    wanted = shares(total, plan.buckets)
    if [r.output for r in results] != [f"{plan.directory}/{bucket_file(b)}" for b in range(len(wanted))]:
        raise VerificationError(f"{len(results)} buckets were written, {len(wanted)} have rows")
    for bucket, ((first, stop), result) in enumerate(zip(wanted, results, strict=True)):
        with OrcSource(fs, f"{root}/{result.output}") as source:
            if not source.tail.rows == result.rows_out == stop - first:
                raise VerificationError(
                    f"{result.output}: {source.tail.rows} rows, {result.rows_out} written, {stop - first} its share"
                )
            keys = source.tail.key_index()
            if keys is None:
                raise VerificationError(f"{result.output}: the key index has not one entry a stripe")
            ends = accumulate(source.stripe_rows(s) for s in range(source.stripes))
            if [(k.bucket, k.row_id) for k in keys] != [(encode_bucket(bucket), first + end - 1) for end in ends]:
                raise VerificationError(f"{result.output}: row ids do not go on from {first}")
            if list(keys) != sorted(keys):
                raise VerificationError(f"{result.output}: write ids do not ascend")


def _written(
    plan: RebalancePlan, tasks: Sequence[BucketTask], run: Map, rewrite: Rewrite, fs: FileSystem, root: str
) -> list[Outcome]:
    """Run the tasks; where they meet values that Arrow cannot hold, once more with the JVM's help."""
    outcomes = run(tasks)
    beyond = [n for n, o in enumerate(outcomes) if isinstance(o, Failure) and o.kind == BeyondArrow.__name__]
    if not beyond:
        return outcomes
    for answer in rewrite([jvm_task(fs, root, plan, tasks[n]) for n in beyond]):
        if isinstance(answer, CompactorError):
            raise answer
    again = run([from_part_file(fs, root, plan, tasks[n]) for n in beyond])
    done = dict(zip(beyond, again, strict=True))
    return [done.get(n, outcome) for n, outcome in enumerate(outcomes)]


def _bucket_tasks(
    plan: RebalancePlan, found: Sequence[Scan], fs: FileSystem, root: str, sort: Sort, rewrite: Rewrite
) -> list[BucketTask]:
    runs = Runs.joined([s.runs for s in found])
    masks = {place: mask for s in found for place, mask in s.masks.items()}
    pieces = in_row_order(runs)
    if not plan.order_by or not pieces.total:
        return _tasks(plan, pieces, dict(enumerate(plan.files)), masks, plan.movable, write_id=None)
    files = _sorted(plan, list(pieces.places()), masks, fs, root, sort, rewrite)
    ordered, movable = _whole_files(fs, root, files)
    if output_template(fs, root, plan.template_file, acid_type(plan.row_type), compression=plan.compression).blooms:
        # Sorted stripes have no bloom filters, and orc-core would ask those of the stripe before (`Template.accepts`).
        movable = {}
    if ordered.total != pieces.total:
        raise VerificationError(f"{pieces.total} rows were sorted, {ordered.total} came back")
    return _tasks(plan, ordered, dict(enumerate(files)), {}, movable, write_id=int(runs.write_id.max()))


def _sorted(
    plan: RebalancePlan,
    places: Sequence[Place],
    masks: Mapping[Place, bytes],
    fs: FileSystem,
    root: str,
    sort: Sort,
    rewrite: Rewrite,
) -> list[SourceFile]:
    """The live rows in order, in files of their own."""
    if not holds_unions(plan.row_type):
        # Which values a timestamp has is known when it is read.
        with contextlib.suppress(BeyondArrow):
            return sort(plan, places, masks)
    return sort_carried(fs, root, plan, places, masks, sort=sort, rewrite=rewrite)


def _tasks(
    plan: RebalancePlan,
    pieces: Pieces,
    files: Mapping[int, SourceFile],
    masks: Mapping[Place, bytes],
    movable: Mapping[Place, int],
    *,
    write_id: int | None,
) -> list[BucketTask]:
    """A task a bucket. pieces: all rows in their order."""
    tasks: list[BucketTask] = []
    for bucket, (first, stop) in enumerate(shares(pieces.total, plan.buckets)):
        mine = pieces.cut(first, stop)
        places = list(mine.places())
        tasks.append(
            BucketTask(
                location=plan.location,
                output=f"{plan.directory}/{bucket_file(bucket)}",
                bucket=bucket,
                first_row=first,
                pieces=mine,
                sources={number: files[number] for number, _ in places},
                masks={place: masks[place] for place in places if place in masks},
                moved=frozenset(mine.whole(movable)),
                template=plan.template_file,
                row_type=plan.row_type,
                write_id=write_id,
                compression=plan.compression,
            )
        )
    return tasks


def _whole_files(fs: FileSystem, root: str, files: Sequence[SourceFile]) -> tuple[Pieces, dict[Place, int]]:
    """All rows of our own files, one file after the other, and those stripes that may move, with their rows."""
    found: list[tuple[int, int, int, int]] = []
    movable: dict[Place, int] = {}
    for number, file in enumerate(files):
        with OrcSource(fs, f"{root}/{file.path}") as source:
            for at, stripe in enumerate(source.tail.footer.stripes):
                found.append((number, at, 0, stripe.number_of_rows))
                if stripe_length(stripe) >= stripes.SMALL_STRIPE_BYTES:
                    movable[number, at] = stripe.number_of_rows
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Pieces(source=columns[0], stripe=columns[1], start=columns[2], rows=columns[3]), movable


def _prepare(fs: FileSystem, directory: str) -> None:
    fs.create_directory(directory)
    with fs.write_atomically(f"{directory}/{ACID_VERSION_FILE}") as stream:
        stream.write(ACID_VERSION_CONTENT)


def _succeeded(outcomes: Sequence[Outcome]) -> list[Scan | ItemResult]:
    """The outcomes, or the first failure raised."""
    done: list[Scan | ItemResult] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            raise outcome.error()
        done.append(outcome)
    return done
