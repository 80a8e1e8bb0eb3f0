"""HIVE-23966: Hive's query-based minor compaction always named its output delta_1_N, whatever it had merged. Over a base_5
that directory claims writes that the base has already, and a second minor over the same writes collides with the first.

Ours is named after the smallest and the highest write id that it stands for.
"""

from __future__ import annotations

from compactor.metastore.compaction import CompactionType
from compactor.worker import Outcome
from tests.simulation.world import World, rows_of


def compacted(world: World) -> list[str]:
    return [name.split("_v")[0] for name in world.entries() if "_v" in name]


def test_a_minor_over_a_base_starts_after_the_base(world: World) -> None:
    world.create_table()
    expected = world.fill()
    world.compact()
    world.clean()
    for n in (50, 51, 52):
        world.insert({n: "later"})
        expected[n] = "later"
    world.delete(50, 0)
    del expected[50], expected[0]
    assert world.compact(CompactionType.MINOR).outcome is Outcome.PUBLISHED
    assert compacted(world) == ["base_0000004", "delete_delta_0000005_0000008", "delta_0000005_0000008"]
    while world.clean().did_anything:
        assert world.rows() == expected
    assert compacted(world) == ["base_0000004", "delete_delta_0000005_0000008", "delta_0000005_0000008"]
    assert world.rows() == expected


def test_minors_one_after_the_other_never_share_a_range(world: World) -> None:
    world.create_table()
    expected: dict[int, str] = {}
    seen: list[str] = []
    with world.reader() as oldest:
        for n in range(0, 9, 3):
            for i in range(n, n + 3):
                world.insert({i: "row"})
                expected[i] = "row"
            assert world.compact(CompactionType.MINOR).outcome is Outcome.PUBLISHED
            assert world.rows() == expected
            seen = compacted(world)
        assert seen == ["delta_0000001_0000003", "delta_0000001_0000006", "delta_0000001_0000009"]
        assert rows_of(oldest) == {}
    while world.clean().did_anything:
        assert world.rows() == expected
    assert compacted(world) == ["delta_0000001_0000009"]
