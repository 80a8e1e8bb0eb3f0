"""How transactions are opened in this installation: how many, how fast, and what they leave for others to see.

Sources: Hive `TxnHandler.openTxns` (the limit and its hysteresis), `AcidOpenTxnsCounterService`, `OpenTxnsFunction`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from compactor.errors import TooManyTransactions, UsageError
from compactor.metastore.in_flight import OPEN_TXN_TIMEOUT_MS
from compactor.settings import TxnSettings

_REOPENS_BELOW = 0.9


class OpenLimit:
    """How many transactions one call may open, and all programs together may keep open.

    max_batch: a call that asks for more gets so many. max_open: as soon as so many are open every call is refused,
    until less than nine tenths are. The count is refreshed when it is older than interval_s, and goes up by what this
    process opens in between. clock: monotonic seconds. One object a process, safe to share between threads.
    """

    def __init__(
        self, *, max_batch: int, max_open: int, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_batch = max_batch
        self._max_open = max_open
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._counted_at: float | None = None
        self._open = 0
        self._full = False

    def admit(self, wanted: int, count_open: Callable[[], int]) -> int:
        """How many of `wanted` may be opened now; TooManyTransactions when none. count_open: asks the database."""
        with self._lock:
            now = self._clock()
            if self._counted_at is None or now - self._counted_at >= self._interval_s:
                self._open, self._counted_at = count_open(), now
            if self._open >= self._max_open:
                self._full = True
            if self._full and self._open >= self._max_open * _REOPENS_BELOW:
                raise TooManyTransactions(
                    f"{self._open} transactions are open, and no more than {self._max_open} may be (hive.max.open.txns)"
                )
            self._full = False
            granted = min(wanted, self._max_batch)
            self._open += granted
            return granted


@dataclass(frozen=True, kw_only=True)
class OpenRules:
    """The [txn] settings as far as opening and committing go; the defaults are Hive's, without a limit.

    open_timeout_ms: see `in_flight`. min_history_level: note the oldest open transaction in MIN_HISTORY_LEVEL;
    without it every write stays in WRITE_SET while someone may see it as open. min_history_write_id: declare the
    tables that a reader reads. limit: None opens without end.
    """

    open_timeout_ms: int = OPEN_TXN_TIMEOUT_MS
    min_history_level: bool = True
    min_history_write_id: bool = True
    limit: OpenLimit | None = field(default=None, compare=False)

    @classmethod
    def of(cls, txn: TxnSettings) -> OpenRules:
        """The rules of an installation; keep the object, its limit counts."""
        return cls(
            open_timeout_ms=int(txn.open_timeout_s * 1000),
            min_history_level=txn.min_history_level,
            min_history_write_id=txn.min_history_write_id,
            limit=OpenLimit(max_batch=txn.max_open_batch, max_open=txn.max_open, interval_s=txn.count_open_interval_s),
        )

    def admit(self, wanted: int, count_open: Callable[[], int]) -> int:
        """How many of `wanted` transactions may be opened; UsageError for less than one, TooManyTransactions."""
        if wanted < 1:
            raise UsageError(f"{wanted} transactions cannot be opened")
        return wanted if self.limit is None else self.limit.admit(wanted, count_open)


HIVES_RULES = OpenRules()
"""Hive's defaults, for programs that have no settings."""
