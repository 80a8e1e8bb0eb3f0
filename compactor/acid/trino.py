"""What Trino reads wrongly and without a word, and which compaction cures it. Pure.

1. Trino looks for the deletes of `bucket_00000_0` in files named `bucket_00000`, without the attempt id that Hive 4
   writes; the file that it does not find counts as no deletes, and deleted rows come back (trinodb/trino#31302). Every
   compaction that rewrites the delete deltas cures it, a minor one is enough: our names have no attempt ids.
2. Trino finds bases by listing files. A base without a visible one, as TRUNCATE and a DELETE of everything leave it, is
   none to Trino, and what the base replaced is read until the cleaner has removed it. Only a major compaction cures it:
   its base always has a file.
3. Trino reads the files of a base or delta, not those of folders in it. A UNION ALL into an insert-only table writes
   each of its branches into a folder HIVE_UNION_SUBDIR_n, and their rows are missing. A minor compaction cures it for
   deltas, a major one for all: our files stand in the directory itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from compactor.acid.directory import DirectoryState, Listing
from compactor.acid.layout import is_hidden, parse_bucket


def trino_blind(state: DirectoryState, listing: Listing) -> str:
    """Why Trino shows rows that are gone, for people; empty when it reads what Hive reads."""
    return unseen_base(state, listing) or unseen_in_deltas(state, listing)


def unseen_in_deltas(state: DirectoryState, listing: Listing) -> str:
    """What a minor or a major compaction cures: unseen deletes, and rows in folders of deltas; empty: nothing."""
    return unseen_deletes(state, listing) or _unseen_rows((d.name for d in state.insert_deltas), listing)


def unseen_deletes(state: DirectoryState, listing: Listing) -> str:
    """Case 1, cured by a minor or a major compaction: which delete files Trino does not find; empty: none."""
    for delta in state.delete_deltas:
        for file in listing.data_files(delta.name):
            parsed = parse_bucket(file.name)
            if parsed is not None and parsed.attempt is not None:
                return f"Trino does not find the deletes in {file.path}, whose name has an attempt id"
    return ""


def unseen_base(state: DirectoryState, listing: Listing) -> str:
    """Cases 2 and 3, cured by a major compaction: what Trino does not see of the base; empty: nothing, or no loss.

    Without obsolete entries nothing on disk is older than the base, so there is nothing that could be read instead. A
    file of no bytes is enough for Trino.
    """
    if state.base is None:
        return ""
    if reason := _unseen_rows([state.base.name], listing):
        return reason
    if not state.obsolete:
        return ""
    prefix = f"{state.base.name}/"
    seen = any(
        f.path.startswith(prefix) and not any(map(is_hidden, f.path[len(prefix) :].split("/"))) for f in listing.files
    )
    return (
        "" if seen else f"Trino does not see {state.base.name}, which has no visible file, and reads what it replaced"
    )


def _unseen_rows(directories: Iterable[str], listing: Listing) -> str:
    """Case 3 in some directories."""
    for directory in directories:
        for file in listing.data_files(directory):
            if "/" in file.path[len(directory) + 1 :]:
                return f"Trino does not read {file.path}, which stands in a folder of its own"
    return ""
