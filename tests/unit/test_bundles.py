"""How tasks of compactions become tasks of Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactor.jobs.compaction import bundled

MIB = 1 << 20


@given(st.lists(st.integers(0, 100 * MIB), max_size=80), st.integers(1, 16))
def test_every_task_is_in_one_bundle_and_no_bundle_is_empty(sizes: list[int], cores: int) -> None:
    bundles = bundled(sizes, cores=cores)
    assert sorted(n for bundle in bundles for n in bundle) == list(range(len(sizes)))
    assert all(bundles)


def test_large_tasks_come_first_and_alone_and_small_ones_share_the_cores() -> None:
    assert bundled([1, 90 * MIB, 2, 20 * MIB, 3], cores=2) == [[1], [3], [4, 0], [2]]


def test_many_small_tasks_that_are_much_together_are_more_bundles_than_cores() -> None:
    assert len(bundled([4 * MIB] * 40, cores=2)) == 20


def test_fewer_small_tasks_than_cores_are_a_bundle_each() -> None:
    assert bundled([5, 5], cores=8) == [[0], [1]]
