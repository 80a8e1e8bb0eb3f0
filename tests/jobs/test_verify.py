"""Each kind of wrong output is found before anything is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import orc

from compactor.acid.layout import encode_bucket
from compactor.acid.planning import CompactionPlan, Depth
from compactor.acid.records import RowId
from compactor.errors import CompactorError, CorruptFile, VerificationError
from compactor.jobs.verify import verify_output
from compactor.orc import orc_proto_pb2 as pb
from compactor.orc.assembler import AcidStats, FileAssembler, acid_template
from compactor.orc.rewrite import ItemResult
from tests.jobs.compacted import direct_results, planned, two_bucket_table
from tests.orc.acid_files import FS, ROW, event_table, insert, write_events

B0 = encode_bucket(0)
Output = tuple[CompactionPlan, list[ItemResult]]


@pytest.fixture
def output(location: Path) -> Output:
    two_bucket_table(location)
    made = planned(location, Depth.MAJOR)
    return made, direct_results(made)


def first_file(location: Path, output: Output) -> Path:
    return location / output[0].items[0].output


def test_the_output_of_a_good_run_passes(output: Output) -> None:
    verify_output(*output)


def test_a_missing_file_is_found(location: Path, output: Output) -> None:
    first_file(location, output).unlink()
    with pytest.raises(VerificationError, match=r"missing \['base_.*bucket_00000'\]"):
        verify_output(*output)


def test_a_file_too_many_is_found(location: Path, output: Output) -> None:
    first_file(location, output).with_name("bucket_00007").write_bytes(b"x")
    with pytest.raises(VerificationError, match=r"unexpected \['base_.*bucket_00007'\]"):
        verify_output(*output)


def test_what_a_killed_task_left_behind_does_not_matter(location: Path, output: Output) -> None:
    first_file(location, output).with_name("_tmp.bucket_00000.1").write_bytes(b"x")
    verify_output(*output)


def test_another_size_is_found(location: Path, output: Output) -> None:
    path = first_file(location, output)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(VerificationError, match=r"wrong size \['base_.*bucket_00000'\]"):
        verify_output(*output)


def test_a_result_too_few_is_found(output: Output) -> None:
    made, results = output
    with pytest.raises(VerificationError, match="1 results for 2 planned files"):
        verify_output(made, results[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {"rows_in": r.rows_in - 1}, "planned"),
        (lambda r: {"rows_out": r.rows_out - 1}, "rows read, but"),
        (lambda r: {"rows_deleted": r.rows_deleted + 1}, "rows read, but"),
        (lambda r: {"rows_deleted": r.rows_deleted + 1, "rows_out": r.rows_out - 1}, "more rows deleted"),
        (lambda r: {"rows_invalid": r.rows_invalid + 1, "rows_out": r.rows_out - 1}, "in the footer"),
    ],
)
def test_rows_that_are_not_accounted_for_are_found(
    output: Output, change: Callable[[ItemResult], dict[str, int]], message: str
) -> None:
    made, results = output
    with pytest.raises(VerificationError, match=message):
        verify_output(made, [replace(results[0], **change(results[0])), *results[1:]])


def same_size(path: Path, output: Output) -> list[ItemResult]:
    """The results as if the first task had written what lies there now."""
    return [replace(output[1][0], size=path.stat().st_size), *output[1][1:]]


def test_another_number_of_rows_in_the_footer_is_found(location: Path, output: Output) -> None:
    path = first_file(location, output)
    write_events(path, [insert(1, 0, (1, "a"))])
    with pytest.raises(VerificationError, match="1 rows in the footer"):
        verify_output(output[0], same_size(path, output))


def test_a_file_without_a_key_index_is_found(location: Path, output: Output) -> None:
    path = first_file(location, output)
    orc.write_table(orc.ORCFile(str(path)).read(), str(path))
    with pytest.raises(VerificationError, match="key index"):
        verify_output(output[0], same_size(path, output))


@pytest.mark.parametrize(
    ("write_ids", "lasts", "message"),
    [
        ([1, 2], [RowId(2, B0, 4), RowId(1, B0, 4)], "do not ascend"),
        ([1, 2], [RowId(1, B0, 4), RowId(1, B0, 4)], "do not ascend"),
        ([2, 3], [RowId(1, B0, 4), RowId(3, B0, 4)], "originalTransaction goes up to 2"),
        ([1, 2], [RowId(1, B0 - 1, 4), RowId(2, B0, 4)], "bucket goes up to"),
        ([1, 2], [RowId(1, B0, 4), RowId(2, B0, 5)], "stripe 1 ends at .* rowId goes up to 4"),
    ],
)
def test_a_key_index_that_says_something_else_than_the_statistics_is_found(
    location: Path, output: Output, write_ids: list[int], lasts: list[RowId], message: str
) -> None:
    path = first_file(location, output)
    with FS.write_atomically(str(path)) as stream:
        file = FileAssembler(stream, acid_template(ROW, compression=pb.ZLIB))
        for write_id, last in zip(write_ids, lasts, strict=True):
            file.append(event_table([insert(write_id, i, (i, "a")) for i in range(5)], ROW), last)
        file.finish(AcidStats(inserts=10))
    rows = {"rows_out": 10, "rows_deleted": 0, "rows_invalid": output[1][0].rows_in - 10, "size": path.stat().st_size}
    with pytest.raises(VerificationError, match=message):
        verify_output(output[0], [replace(output[1][0], **rows), *output[1][1:]])


def test_part_files_that_are_still_there_do_not_matter(location: Path, output: Output) -> None:
    first_file(location, output).with_name("_part_00000_00001").write_bytes(b"x")
    verify_output(*output)


def test_a_file_that_is_none_is_found(location: Path, output: Output) -> None:
    path = first_file(location, output)
    path.write_bytes(b"no ORC file at all")
    with pytest.raises(CorruptFile):
        verify_output(output[0], same_size(path, output))


def test_a_missing_directory_is_found(location: Path, output: Output) -> None:
    first_file(location, output).parent.rename(location / "elsewhere")
    with pytest.raises(CompactorError):
        verify_output(*output)
