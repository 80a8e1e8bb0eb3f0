"""Random requests, checks and ends against the compatibility table as the manual prints it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor.metastore.database import Database
from compactor.metastore.deadlocks import waits_for
from compactor.metastore.locks import LockComponent, LockRequest, LockState, LockType, check, enqueue, show_locks
from compactor.metastore.schema import init_db
from compactor.metastore.txns import abort_transactions, commit_transaction, open_transactions

R, W, X, E = LockType.SHARED_READ, LockType.SHARED_WRITE, LockType.EXCL_WRITE, LockType.EXCLUSIVE
# what may be held together on the same object
TOGETHER = {(R, R), (R, W), (W, R), (W, W), (R, X), (X, R)}

Place = tuple[str, str | None, str | None]
PLACES: list[Place] = [
    ("d", None, None),
    ("d", "t", None),
    ("d", "t", "p=x"),
    ("d", "t", "p=y"),
    ("d", "u", None),
    ("e", "t", None),
]


@dataclass(kw_only=True)
class Request:
    lock_id: int
    txn_id: int
    parts: list[tuple[LockType, Place]]
    acquired: bool = field(default=False)


def covers(one: Place, other: Place) -> bool:
    """Is one of them the other, or above it?"""
    return all(a == b for a, b in zip(one, other, strict=True) if a is not None and b is not None)


def excludes(asked: tuple[LockType, Place], held: tuple[LockType, Place]) -> bool:
    (kind, place), (held_kind, held_place) = asked, held
    if not covers(place, held_place) or (held_kind, kind) in TOGETHER:
        return False
    # reading a database only keeps it from being dropped
    reads_above = kind is R and place[1] is None and held_place[1] is not None
    below_reader = held_kind is R and held_place[1] is None and place[1] is not None
    return not (reads_above or (below_reader and kind is E))


class Locks(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = Database.connect(f"sqlite:///{Path(self.folder.name) / 'metastore.db'}")
        self.requests: list[Request] = []
        self.txns: list[int] = []

    @initialize()
    def create(self) -> None:
        init_db(self.db)
        self.txns = open_transactions(self.db, count=4, user="u", host="h")

    def teardown(self) -> None:
        self.db.dispose()
        self.folder.cleanup()

    @rule(
        who=st.integers(0, 3),
        parts=st.lists(
            st.tuples(st.sampled_from(list(LockType)), st.sampled_from(PLACES)),
            min_size=1,
            max_size=3,
            unique_by=lambda part: part[1],
        ),
    )
    def ask(self, who: int, parts: list[tuple[LockType, Place]]) -> None:
        txn_id = self.txns[who]
        components = [LockComponent(database=d, table=t, partition=p, type=kind) for kind, (d, t, p) in parts]
        request = LockRequest(txn_id=txn_id, components=components, user="u", host="h")
        self.requests.append(Request(lock_id=enqueue(self.db, request), txn_id=txn_id, parts=parts))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        in_the_way = [r for r in self.requests if r.lock_id < request.lock_id and r.txn_id != request.txn_id]
        blocked = any(excludes(mine, held) for r in in_the_way for held in r.parts for mine in request.parts)
        request.acquired = request.acquired or not blocked
        response = check(self.db, request.lock_id, txn_id=request.txn_id)
        assert (response.state is LockState.ACQUIRED) is request.acquired
        if response.blocked_by is not None:
            assert response.blocked_by.lock_id in {r.lock_id for r in in_the_way}

    @rule(who=st.integers(0, 3), commit=st.booleans())
    def end(self, who: int, commit: bool) -> None:
        txn_id = self.txns[who]
        if commit:
            commit_transaction(self.db, txn_id)
        else:
            abort_transactions(self.db, [txn_id])
        self.requests = [r for r in self.requests if r.txn_id != txn_id]
        self.txns[who] = open_transactions(self.db, user="u", host="h")[0]

    @invariant()
    def what_is_held_may_be_held_together(self) -> None:
        held = [r for r in self.requests if r.acquired]
        for later in held:
            for earlier in held:
                if earlier.lock_id < later.lock_id and earlier.txn_id != later.txn_id:
                    assert not any(excludes(mine, other) for mine in later.parts for other in earlier.parts)

    @invariant()
    def every_lock_is_known_and_waits_only_for_older_ones(self) -> None:
        shown = show_locks(self.db)
        assert {lock.lock_id for lock in shown} == {r.lock_id for r in self.requests}
        for waiting, others in waits_for(sorted(shown, key=lambda lock: (lock.lock_id, lock.component))).items():
            assert waiting not in others


Locks.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestLocks = Locks.TestCase
