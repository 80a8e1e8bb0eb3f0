"""Stripes whose range of write ids spans an aborted one, but that hold no row of it.

What a compaction writes has no rows of aborted transactions, and the next one would still decode each of its stripes
that such a write id lies between, for as long as the abort is known: statistics tell the smallest and the largest write
id only. So these few stripes are looked into; of a sorted file that is one for each aborted id. The names of compacted
directories are no proof: Hive's MergeCompactor copies aborted rows into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compactor.acid import stripes
from compactor.acid.snapshot import ValidWriteIdList
from compactor.acid.sources import FileFacts
from compactor.acid.stripes import StripeFacts
from compactor.orc.reader import OrcSource
from compactor.storage.filesystem import FileSystem


def settled(
    fs: FileSystem, root: str, facts: Mapping[str, FileFacts], write_ids: ValidWriteIdList
) -> dict[str, FileFacts]:
    """The facts, with those stripes marked whose every event turned out to be of a valid write. Raises CorruptFile."""
    return {path: _settled_file(fs, f"{root}/{path}", found, write_ids) for path, found in facts.items()}


def _settled_file(fs: FileSystem, path: str, facts: FileFacts, write_ids: ValidWriteIdList) -> FileFacts:
    doubtful = [at for at, stripe in enumerate(facts.stripes) if facts.template and _spans_aborts(stripe, write_ids)]
    if not doubtful:
        return facts
    with OrcSource(fs, path) as source:
        fine = {at for at in doubtful if source.keys(at).visible(write_ids).all()}
    return replace(
        facts, stripes=tuple(replace(s, settled=True) if at in fine else s for at, s in enumerate(facts.stripes))
    )


def _spans_aborts(stripe: StripeFacts, write_ids: ValidWriteIdList) -> bool:
    """Could the stripe be copied, were it not for aborted write ids between its smallest and its largest?"""
    if not stripe.trusted or not stripe.inserts_only or stripe.size < stripes.SMALL_STRIPE_BYTES:
        return False
    if stripe.write_ids is None or not all(map(write_ids.is_valid, stripe.write_ids)):
        return False
    low, high = stripe.write_ids
    return any(low < aborted < high for aborted in write_ids.aborted)
