"""Which files of an insert-only table become one, and what the output is called."""

from __future__ import annotations

from compactor.acid.directory import DirectoryState, ListedFile, Listing
from compactor.acid.layout import Delta, DeltaKind, delta_name, insert_only_file, parse_bucket
from compactor.acid.planning import Depth, FileFacts, OutputOptions, PlanItem, plan_compaction
from compactor.acid.schema import parse_type
from compactor.acid.snapshot import ValidWriteIdList

TYPE = parse_type("struct<a:int>")
BASE = "base_0000003_v0000050"


def items(
    files: dict[str, tuple[bytes, str]], *, bucketed: bool = False, skipped: tuple[int, int] = (0, 0)
) -> list[PlanItem]:
    """files: of deltas 1, 2, …: `label:name` or name in the delta's folder -> (template, suffix)."""
    deltas, listed, facts = [], [], {}
    for number, (name, (template, suffix)) in enumerate(files.items(), 1):
        folder = delta_name(DeltaKind.INSERT, number, number)
        deltas.append(Delta(name=folder, kind=DeltaKind.INSERT, min_write_id=number, max_write_id=number))
        path = f"{folder}/{name.partition(':')[2] or name}"
        listed.append(ListedFile(path=path, size=1))
        facts[path] = FileFacts(
            rows=-1, row_type=TYPE, acid=False, format="text", template=template, suffix=suffix, skipped=skipped
        )
    state = DirectoryState(
        base=None, deltas=tuple(deltas), originals=(), obsolete=(), aborted=(), uncompacted_aborts=False
    )
    made = plan_compaction(
        Depth.MAJOR,
        state,
        Listing(directories=frozenset(d.name for d in deltas), files=tuple(listed)),
        facts,
        location="file:/t",
        table_type=TYPE,
        write_ids=ValidWriteIdList(table="d.t", high_water=3),
        txn_id=50,
        full_acid=False,
        bucketed=bucketed,
        output=OutputOptions(file_format="text"),
    )
    return list(made.items)


def test_files_of_equal_template_become_one_in_the_order_of_their_writes() -> None:
    found = items({"a:x.gz": (b"g", ".gz"), "b:y": (b"p", ""), "c:z.gz": (b"g", ".gz")})
    assert [i.output for i in found] == [f"{BASE}/000000_0.gz", f"{BASE}/000001_0"]
    assert [[s.path for s in i.sources] for i in found] == [
        ["delta_0000001_0000001/x.gz", "delta_0000003_0000003/z.gz"],
        ["delta_0000002_0000002/y"],
    ]


def test_files_of_a_bucket_that_differ_are_copies_of_it() -> None:
    found = items({"a:000002_0": (b"p", ""), "b:000002_0.gz": (b"g", ".gz"), "c:000001_0": (b"p", "")}, bucketed=True)
    assert [(i.output, i.bucket) for i in found] == [
        (f"{BASE}/000001_0", 1),
        (f"{BASE}/000002_0", 2),
        (f"{BASE}/000002_0_copy_1.gz", 2),
    ]


def test_an_output_without_files_has_no_suffix() -> None:
    assert [(i.output, i.format, i.skipped) for i in items({})] == [(f"{BASE}/000000_0", "text", (0, 0))]


def test_lines_to_skip_come_from_the_files() -> None:
    assert [i.skipped for i in items({"a": (b"", "")}, skipped=(2, 1))] == [(2, 1)]


def test_names_of_outputs_tell_their_bucket() -> None:
    for name in (
        insert_only_file(7, suffix=".gz"),
        insert_only_file(7, copy=3),
        insert_only_file(7, copy=3, suffix=".zst"),
    ):
        parsed = parse_bucket(name)
        assert parsed is not None
        assert (parsed.bucket, parsed.copy) == (7, 3 if "copy" in name else 0)
