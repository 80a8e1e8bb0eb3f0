"""The order of row ids in a file that grows stripe by stripe, told from tails where they tell it.

ACID files are sorted by (write id, bucket, row id). A compaction that put stripes in another order would hide rows
from every reader that merges, so each stripe is held against the last row id before it.
"""

from __future__ import annotations

import numpy as np

from compactor.acid.records import RowId
from compactor.acid.stripes import StripeFacts
from compactor.errors import VerificationError
from compactor.orc.reader import BoolArray, Keys, OrcSource


class RowOrder:
    """The last row id so far. repeats: a row id may come again, as two delete events of one row do."""

    def __init__(self, *, repeats: bool = False) -> None:
        self.last: RowId | None = None
        self._repeats = repeats

    def follow_stripe(self, source: OrcSource, at: int, stripe: StripeFacts) -> RowId:
        """A whole stripe comes next; its last row id. The rows are read only where the tail does not tell enough."""
        if stripe.first is None or stripe.last is None or not self._is_next(stripe.first):
            keys = source.keys(at)
            self.follow(keys, None, source.path)
            return keys.at(-1)
        self.last = stripe.last
        return stripe.last

    def follow(self, keys: Keys, keep: BoolArray | None, path: str) -> None:
        """Rows come next, those of the mask `keep`. Raises VerificationError when they do not ascend."""
        first = keys.at(0 if keep is None else int(np.argmax(keep)))
        if not keys.ascending(repeats=self._repeats) or not self._is_next(first):
            raise VerificationError(
                f"{path}: row ids do not ascend at {first} (after {self.last}); the files of this bucket overlap",
                hint="two writers used the same row ids; look at the files of this bucket and move the intruder away",
            )
        self.last = keys.at(-1 if keep is None else len(keep) - 1 - int(np.argmax(keep[::-1])))

    def _is_next(self, first: RowId) -> bool:
        return self.last is None or first > self.last or (self._repeats and first == self.last)


def may_lie_within(stripe: StripeFacts, after: RowId | None, up_to: RowId | None) -> bool:
    """Can a row of the stripe come after `after` and not after `up_to`, as far as the tail tells?"""
    if not stripe.trusted:
        return True
    too_early = after is not None and stripe.last is not None and stripe.last <= after
    too_late = up_to is not None and stripe.first is not None and stripe.first > up_to
    return not too_early and not too_late
