"""A streaming batch of which some transactions were aborted after their rows had reached the file."""

from __future__ import annotations

import pytest

from compactor.errors import TransactionAborted
from compactor.metastore import txns
from compactor.table.streaming import StreamingIngest
from tests.simulation.world import Rows, World, arrow


def stream_with_an_abort(world: World) -> Rows:
    """One delta of three transactions, the middle one aborted with its row on disk; the rows that count.

    The rows are {1000: …} and {1002: …}; 1001 is the row that nobody may ever see.
    """
    batch = StreamingIngest(world.writer(), batch_size=3)
    batch.write(arrow({1000: "first"}))
    batch.commit()
    batch.write(arrow({1001: "never committed"}))
    still_open = [t.id for t in txns.show_transactions(world.db) if t.state is txns.TxnState.OPEN]
    txns.abort_transactions(world.db, still_open[:1])
    with pytest.raises(TransactionAborted):
        batch.commit()
    batch.write(arrow({1002: "third"}))
    batch.commit()
    batch.close()
    return {1000: "first", 1002: "third"}
