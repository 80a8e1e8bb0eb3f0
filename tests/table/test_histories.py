"""Random histories of statements against a dictionary, the plain-Python merge and the reader."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.errors import WriteConflict
from compactor.metastore.catalog import TableName
from compactor.metastore.database import Database
from compactor.storage.filesystem import open_location
from compactor.table.ddl import create_table
from compactor.table.reader import TableReader, open_snapshot
from compactor.table.writer import Statements, TableWriter
from tests.table.conftest import Oracle, table_writer

Model = dict[int, tuple[str, int]]
TRANSACTIONS = 6


class Undo(Exception):
    pass


def step(rng: random.Random, txn: Statements, model: Model) -> None:
    """One statement on the table and on the model: id to (text, partition)."""
    low = rng.randrange(60)
    inside = (pc.field("id") >= low) & (pc.field("id") < low + 8)
    hit = [i for i in model if low <= i < low + 8]
    fresh = [i for i in range(low, low + 5) if i not in model]
    text = f"s{rng.randrange(1000)}"
    match rng.choice(["insert", "update", "delete", "merge"]):
        case "insert":
            txn.insert(pa.table({"id": fresh, "v": [text] * len(fresh), "p": [i % 3 for i in fresh]}, schema=SCHEMA))
            model.update({i: (text, i % 3) for i in fresh})
        case "update":
            assert txn.update(inside, {"v": text}).updated == len(hit)
            model.update({i: (text, model[i][1]) for i in hit})
        case "delete":
            assert txn.delete(inside).deleted == len(hit)
            for i in hit:
                del model[i]
        case _:
            ids = range(low, low + 6)
            source = pa.table({"id": list(ids), "v": [text] * 6, "p": [i % 3 for i in ids]}, schema=SCHEMA)
            txn.merge(
                source,
                ["id", "p"],
                when_matched_delete=pc.field("source.id") == low,
                when_matched_update={"v": pc.field("source.v")},
                when_not_matched_insert=True,
            )
            gone = low in model
            model.update({i: (text, i % 3) for i in ids})
            if gone:
                del model[low]


SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string()), ("p", pa.int32())])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_history_leaves_what_the_model_says(
    db: Database, name: TableName, writer: TableWriter, oracle: Oracle, seed: int
) -> None:
    rng = random.Random(seed)
    create_table(
        db, name, [("id", "int"), ("v", "string")], partitioned_by=[("p", "int")], clustered_by=["id"], buckets=2
    )
    model: Model = {}
    with open_snapshot(db, [name], user="slow", host="h") as before:
        for _ in range(TRANSACTIONS):
            tried = dict(model)
            try:
                with writer.transaction() as txn:
                    for _ in range(rng.choice([1, 2, 6])):
                        step(rng, txn, tried)
                    if rng.random() < 0.2:
                        raise Undo  # noqa: TRY301 - the transaction's block must end with it
            except Undo:
                continue
            model = tried
            rows = TableReader(db, open_location, name, user="b", host="h").read().to_pylist()
            assert {r["id"]: (r["v"], r["p"]) for r in rows} == model
            assert len(rows) == len(model)
            assert sorted((r[2], r[3]) for r in oracle(name)) == sorted((i, v) for i, (v, _) in model.items())
        assert before.read(name).num_rows == 0


def test_concurrent_increments_are_neither_lost_nor_doubled(db: Database, name: TableName) -> None:
    writer = table_writer(db, name, xlock_write=False)
    create_table(db, name, [("id", "int"), ("n", "int")])
    writer.insert(pa.table({"id": [1], "n": [0]}))

    def increment(times: int) -> int:
        done = conflicts = 0
        while done < times:
            try:
                writer.update(pc.field("id") == 1, {"n": pc.field("n") + 1})
                done += 1
            except WriteConflict:
                conflicts += 1
        return conflicts

    with ThreadPoolExecutor(3) as pool:
        conflicts = sum(pool.map(increment, [4, 4, 4]))
    assert conflicts > 0
    rows = TableReader(db, open_location, name, user="b", host="h").read().to_pylist()
    assert rows == [{"id": 1, "n": 12}]
