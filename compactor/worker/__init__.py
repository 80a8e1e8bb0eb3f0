"""The worker: takes requests from the queue and carries them out. The commit protocol, step by step:

1. CLAIM        A guarded UPDATE i→w with a worker id unique to the claim. One row changed: it is ours.
2. TRANSACTION  Open one of type COMPACTION, heartbeat it, take a SHARED_READ lock at once or give up. A rebalance,
                which changes row ids: REBALANCE_COMPACTION and EXCL_WRITE.
3. SNAPSHOT     Our own transaction counts as open, so that our own unfinished output can never be taken for the base
                (HIVE-29567). Highest write id, transaction id and a TXN_COMPONENTS row 'c' are recorded.
4. PLAN         From the listing and the file tails. Nothing worth doing: refused, with the reason.
5. WRITE        The Spark job writes `base_N_vT` or `delta_x_N_vT` (+ delete_delta), where T is our transaction: the
                name is unique, and invisible to every reader until T commits. Files appear atomically.
6. VERIFY       Files, sizes, row accounting and key index against the plan, before anybody can see them.
7. PUBLISH      One database transaction: TXNS o→c, queue w→r with NEXT_TXN_ID and COMMIT_TIME; every UPDATE guarded,
                every row count checked. Not one row: we were fenced, and nothing has changed. A rebalance fails here
                when an update or delete that overlaps it was first.
8. OUTCOME      A connection lost during step 7 says nothing. Read the transaction's state: committed is success,
                aborted is failure, open is step 7 again.

Invariants: I2 no crash between two steps loses, doubles or resurrects a row; I3 two committed outputs never have the
same range; I4 every change of state is guarded. The worker deletes no table file: the output of an aborted
transaction is found by its TXN_COMPONENTS row and removed by the cleaner (I6).

Steps 1 to 4 stand in `preparing`, 5 in `cycle`, 6 to 8 in `publishing`. Small compactions share one Spark job in step
5; every other step is each compaction's own, with its own transaction, so that one that fails takes no other along.
"""

from compactor.worker.cycle import Worker
from compactor.worker.work import BatchResult, Outcome, Step, WorkerResult

__all__ = ["BatchResult", "Outcome", "Step", "Worker", "WorkerResult"]
