"""What is left at the location of a dropped table or partition: names in, names out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cleaner.dropped import Leftovers, of_partition, of_table, suffix_of
from compactor.acid.directory import ListedFile, Listing

DROPPED_AT = 5
MARK = "base_0000005"


def listing(*paths: str) -> tuple[Listing, frozenset[str]]:
    """What a file system shows of these files, and of these directories, which end in '/'."""
    files = tuple(ListedFile(path=path, size=10) for path in sorted(paths) if not path.endswith("/"))
    directories = {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/") + 1)}
    top = frozenset(directory for directory in directories if "/" not in directory)
    return Listing(directories=top, files=files), frozenset(directories)


def table(*paths: str) -> Leftovers:
    return of_table(*listing(*paths))


def partition(*paths: str) -> Leftovers:
    return of_partition(listing(*paths)[0], dropped_at=DROPPED_AT)


def names(leftovers: Leftovers) -> dict[str, list[str]]:
    return {part: [entry.name for entry in entries] for part, entries in leftovers.doomed.items() if entries}


@pytest.mark.parametrize(
    ("location", "txn_id"),
    [
        ("file:/w/t.v0000012", 12),
        ("s3://b/w/t.v0000012/", 12),
        ("/w/db.db/t.v12345678", 12345678),
        ("hdfs://n/t.v1.v0000012", 12),
    ],
)
def test_a_location_that_ends_as_hive_makes_it_names_its_transaction(location: str, txn_id: int) -> None:
    assert suffix_of(location) == txn_id


@pytest.mark.parametrize(
    "location",
    ["/w/t", "/w/t.v12", "/w/t.v000001x", "/w/t.v0000012/p=1", "/w/.v0000012", "/w/t_v0000012", "/", "/w/t.v٠٠٠٠٠١٢"],
)
def test_any_other_location_names_none(location: str) -> None:
    assert suffix_of(location) is None


def test_everything_that_acid_writers_leave_goes_with_a_table() -> None:
    found = table(
        "delta_0000001_0000001_0000/bucket_00000",
        "delta_0000001_0000001_0000/_orc_acid_version",
        "delete_delta_0000002_0000002_0000/bucket_00000_0",
        "base_0000002_v0000007/",
        "000000_0",
        "1/000001_0",
    )
    assert names(found) == {
        "": [
            "base_0000002_v0000007",
            "delete_delta_0000002_0000002_0000",
            "delta_0000001_0000001_0000",
            "000000_0",
            "1/000001_0",
        ]
    }
    assert found.foreign == ()
    assert found.directories == ("1",)


def test_entries_of_a_partitioned_table_go_by_partition_and_directories_from_below() -> None:
    found = table(
        "p=1/q=a b/delta_0000001_0000001_0000/bucket_00000", "p=1/q=x%2F/base_0000002/000000_0", "p=2/q=", "p=3/q=1/"
    )
    assert names(found) == {"p=1/q=a b": ["delta_0000001_0000001_0000"], "p=1/q=x%2F": ["base_0000002"]}
    assert found.foreign == ("p=2/q=",)
    assert found.directories == ("p=1/q=a b", "p=1/q=x%2F", "p=3/q=1", "p=1", "p=2", "p=3")


def test_what_an_object_store_shows_without_directories_is_found_as_well() -> None:
    shown, _ = listing("p=1/delta_0000001_0000001_0000/bucket_00000", "base_0000002/bucket_00000", "000000_0")
    assert names(of_table(shown, ())) == {"": ["base_0000002", "000000_0"], "p=1": ["delta_0000001_0000001_0000"]}


@pytest.mark.parametrize(
    "path",
    [
        "notes.txt",
        "_SUCCESS",
        ".hive-staging_hive_1/000000_0",
        "-tmp.delta_0000001_0000001_0000/000000_0.manifest",
        "delta_7_3/bucket_00000",
        "base_0000001",
        "notes/base_0000001/bucket_00000",
        "notes/p=1/000000_0",
        "_p=1/delta_0000001_0000001_0000/bucket_00000",
        "p=1/part-00000.parquet",
        "p=1/delta_x/bucket_00000",
    ],
)
def test_anything_else_in_a_table_is_foreign(path: str) -> None:
    found = table("p=1/delta_0000001_0000001_0000/bucket_00000", path)
    assert found.foreign == (path,)
    assert names(found) == {"p=1": ["delta_0000001_0000001_0000"]}


def test_a_partition_goes_up_to_the_write_of_its_drop() -> None:
    found = partition(
        "000000_0",
        "delta_0000001_0000001_0000/bucket_00000",
        "delta_0000004_0000005_v0000009/bucket_00000",
        f"{MARK}/_metadata_acid",
        "delta_0000005_0000006/bucket_00000",
        "delta_0000006_0000006_0000/bucket_00000",
        "base_0000007/bucket_00000",
    )
    assert names(found) == {"": ["delta_0000001_0000001_0000", "delta_0000004_0000005_v0000009", "000000_0"]}
    assert found.mark is not None
    assert found.mark.name == MARK
    assert found.foreign == ()


@pytest.mark.parametrize("younger", ["delta_0000006_0000006_0000/bucket_00000", "base_0000006/", "-tmp.x/"])
def test_a_partition_in_the_making_is_left_alone(younger: str) -> None:
    assert partition(younger) == Leftovers(doomed={"": ()})


@pytest.mark.parametrize("path", ["q=1/000000_0", "q=1/delta_0000001_0000001/bucket_00000", "notes", "delta_7_3/x"])
def test_anything_else_in_a_partition_is_foreign(path: str) -> None:
    found = partition(path, f"{MARK}/_metadata_acid")
    assert found.foreign == (path,)
    assert names(found) == {}


@pytest.mark.parametrize("paths", [[], ["p=1/"], ["p=1/q=2/"]])
def test_directories_alone_are_nothing(paths: Sequence[str]) -> None:
    assert table(*paths).is_empty
    assert partition(*paths).is_empty
