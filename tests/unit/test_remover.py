from __future__ import annotations

from pathlib import Path

import pytest

from cleaner.obsolete import Doomed, Why
from cleaner.remover import remove
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
