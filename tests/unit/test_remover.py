from __future__ import annotations

from pathlib import Path

import pytest

from cleaner.obsolete import Doomed, Why
from cleaner.remover import remove, remove_below, remove_empty
from compactor.acid.directory import ListedFile
from compactor.errors import StorageError, UnsafePath
from compactor.storage.filesystem import open_location


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"0123456789")


def directory(name: str, *files: str) -> Doomed:
    inside = tuple(ListedFile(path=f"{name}/{file}", size=10) for file in files)
    return Doomed(name=name, why=Why.OBSOLETE, is_directory=True, files=inside)


def original(path: str) -> Doomed:
    return Doomed(name=path, why=Why.OBSOLETE, is_directory=False, files=(ListedFile(path=path, size=10),))


def run(root: Path, *doomed: Doomed) -> tuple[int, int, int]:
    location = f"file:{root}"
    filesystem, path = open_location(location)
    removed = remove(filesystem, path, doomed, location=location)
    return removed.entries, removed.files, removed.bytes


@pytest.fixture
def table(tmp_path: Path) -> Path:
    root = tmp_path / "t"
    put(root, "delta_0000001_0000001_0000/bucket_00000", "base_0000001_v0000007/bucket_00000", "000000_0")
    put(tmp_path, "elsewhere/base_0000001/bucket_00000", "elsewhere/000000_0")
    return root


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def test_removes_directories_and_original_files_and_counts_them(table: Path) -> None:
    assert run(table, directory("delta_0000001_0000001_0000", "bucket_00000"), original("000000_0")) == (2, 2, 20)
    assert files(table) == ["base_0000001_v0000007/bucket_00000"]


def test_what_is_gone_already_is_fine(table: Path) -> None:
    doomed = directory("delta_0000001_0000001_0000", "bucket_00000"), original("000000_0")
    run(table, *doomed)
    run(table, *doomed)
    assert files(table) == ["base_0000001_v0000007/bucket_00000"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../elsewhere",
        "../elsewhere/base_0000001",
        "/base_0000001",
        "base_0000001/..",
        "base_0000001_v0000007/",
        "base_0000001_v0000007/bucket_00000",
        "p=1/base_0000001",
        "notes",
        "_tmp",
        "base_x",
        "delta_7_3",
    ],
)
def test_a_directory_that_is_no_acid_entry_of_the_location_is_refused(table: Path, name: str) -> None:
    before = files(table.parent)
    with pytest.raises(UnsafePath, match="nothing was deleted"):
        run(table, directory("delta_0000001_0000001_0000"), directory(name))
    assert files(table.parent) == before


@pytest.mark.parametrize(
    "path",
    [
        "../elsewhere/000000_0",
        "/000000_0",
        "notes.txt",
        "_SUCCESS",
        "_hidden/000000_0",
        ".hive-staging/000000_0",
        "base_0000001_v0000007/000000_0",
        "delta_7_3/000000_0",
        "a\\..\\000000_0",
    ],
)
def test_a_file_that_is_no_original_data_file_is_refused(table: Path, path: str) -> None:
    before = files(table.parent)
    with pytest.raises(UnsafePath, match="nothing was deleted"):
        run(table, directory("delta_0000001_0000001_0000"), original(path))
    assert files(table.parent) == before


def test_an_original_file_that_the_listing_did_not_show_is_refused(table: Path) -> None:
    unseen = Doomed(name="000000_0", why=Why.OBSOLETE, is_directory=False)
    with pytest.raises(UnsafePath):
        run(table, unseen)
    assert "000000_0" in files(table)


def test_a_link_in_the_place_of_a_directory_is_refused(table: Path) -> None:
    (table / "base_0000009").symlink_to(table.parent / "elsewhere" / "base_0000001", target_is_directory=True)
    with pytest.raises(UnsafePath, match="symbolic link"):
        run(table, directory("base_0000009", "bucket_00000"))
    assert "base_0000001/bucket_00000" in files(table.parent / "elsewhere")


def test_a_link_on_the_way_to_an_original_file_is_refused(table: Path) -> None:
    (table / "1").symlink_to(table.parent / "elsewhere", target_is_directory=True)
    with pytest.raises(UnsafePath, match="symbolic link"):
        run(table, original("1/000000_0"))
    assert "000000_0" in files(table.parent / "elsewhere")


def test_a_location_that_is_reached_through_a_link_is_cleaned(table: Path) -> None:
    link = table.parent / "link"
    link.symlink_to(table, target_is_directory=True)
    assert run(link, original("000000_0")) == (1, 1, 10)


def test_an_entry_that_the_file_system_will_not_delete_is_a_storage_error(table: Path) -> None:
    (table / "000001_0").mkdir()
    with pytest.raises(StorageError):
        run(table, original("000001_0"))


# --- dropped tables


def run_below(root: Path, partition: str, *doomed: Doomed) -> int:
    filesystem, path = open_location(f"file:{root}")
    return remove_below(filesystem, path, {partition: doomed}, location=f"file:{root}").files


def run_empty(root: Path, *directories: str) -> None:
    filesystem, path = open_location(f"file:{root}")
    remove_empty(filesystem, path, directories, location=f"file:{root}")


def test_removes_entries_below_partition_directories(table: Path) -> None:
    put(table, "p=1/q=a b/delta_0000001_0000001/bucket_00000", "p=1/q=x/000000_0")
    assert run_below(table, "p=1/q=a b", directory("delta_0000001_0000001", "bucket_00000")) == 1
    assert run_below(table, "p=1/q=x", original("000000_0")) == 1
    assert [f for f in files(table) if f.startswith("p=1")] == []


@pytest.mark.parametrize(
    "partition", ["..", "p=1/..", "../elsewhere", "notes", "p=1/notes", "p=", "=1", "_p=1", "/p=1"]
)
def test_anything_but_a_partition_directory_above_an_entry_is_refused(table: Path, partition: str) -> None:
    put(table, "notes/base_0000001/bucket_00000", "p=1/notes/base_0000001/bucket_00000")
    before = files(table.parent)
    with pytest.raises(UnsafePath, match="nothing was deleted"):
        run_below(table, partition, directory("base_0000001", "bucket_00000"))
    assert files(table.parent) == before


def test_a_link_in_the_place_of_a_partition_is_refused(table: Path) -> None:
    (table / "p=1").symlink_to(table.parent / "elsewhere", target_is_directory=True)
    with pytest.raises(UnsafePath, match="symbolic link"):
        run_below(table, "p=1", directory("base_0000001", "bucket_00000"))
    assert "base_0000001/bucket_00000" in files(table.parent / "elsewhere")


def test_directories_go_only_when_nothing_is_in_them(tmp_path: Path) -> None:
    put(tmp_path, "t/p=2/notes.txt")
    for name in ("p=1/q=1", "p=2/q=1"):
        (tmp_path / "t" / name).mkdir(parents=True)
    run_empty(tmp_path / "t", "p=1/q=1", "p=2/q=1", "p=1", "p=2", "")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["t", "t/p=2", "t/p=2/notes.txt"]
    (tmp_path / "t/p=2/notes.txt").unlink()
    run_empty(tmp_path / "t", "p=2", "")
    run_empty(tmp_path / "t", "p=2", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../elsewhere", "/", "p=1/.."])
def test_an_empty_directory_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t" / "p=1").mkdir(parents=True)
    with pytest.raises(UnsafePath):
        run_empty(tmp_path / "t", name)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_dropped_location_that_is_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UnsafePath, match="symbolic link"):
        run_empty(tmp_path / "t", "")
    assert (tmp_path / "t").is_symlink()
