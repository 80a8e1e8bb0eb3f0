from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactor.acid.directory import DirectoryState, ListedFile, Listing, Snapshot, directory_state
from compactor.acid.planning import Depth
from compactor.acid.price import Price, Scan
from compactor.acid.rates import DEFAULTS as RATES
from compactor.acid.snapshot import ValidTxnList, ValidWriteIdList
from compactor.errors import ConfigError
from initiator.choose import Opinions, choose
from initiator.decide import (
    AbortFacts,
    BreakerLimits,
    DidNotInitiate,
    Initiate,
    Measurements,
    ObjectFacts,
    PastCompaction,
    Skip,
    Thresholds,
    breaker,
    decide,
    decide_for_trino,
    decide_on_aborts,
    eligible,
    measure,
    thresholds,
)

DEFAULTS = Thresholds(delta_num=10, delta_pct=0.1)
DAY_MS = 86_400_000


def listing(sizes: Mapping[str, int]) -> Listing:
    """path → size; directories follow from the paths."""
    return Listing(
        directories=frozenset(path.partition("/")[0] for path in sizes if "/" in path),
        files=tuple(ListedFile(path=path, size=size) for path, size in sorted(sizes.items())),
    )


def seen(sizes: Mapping[str, int], *, high_water: int = 100) -> tuple[DirectoryState, Listing]:
    found = listing(sizes)
    snapshot = Snapshot(
        txns=ValidTxnList(high_water=1000), write_ids=ValidWriteIdList(table="db.t", high_water=high_water)
    )
    return directory_state(found, snapshot, whole_ranges=True), found


def measured(sizes: Mapping[str, int], *, high_water: int = 100) -> Measurements:
    return measure(*seen(sizes, high_water=high_water))


def deltas(count: int, size: int, *, first: int = 2) -> dict[str, int]:
    return {f"delta_{i:07d}_{i:07d}_0000/bucket_00000": size for i in range(first, first + count)}


def facts(
    *,
    database: Mapping[str, str] | None = None,
    table: Mapping[str, str] | None = None,
    transactional: bool = True,
    insert_only: bool = False,
    dynamic_partitions: bool = False,
    compact_insert_only: bool = True,
) -> ObjectFacts:
    return ObjectFacts(
        database_parameters=database or {},
        table_parameters=table or {},
        transactional=transactional,
        insert_only=insert_only,
        dynamic_partitions=dynamic_partitions,
        compact_insert_only=compact_insert_only,
    )


BASE = {"base_0000001/bucket_00000": 1000}


def test_delta_bytes_exactly_at_the_percentage_do_not_start_a_major() -> None:
    assert isinstance(decide(measured(BASE | deltas(1, 100)), DEFAULTS), Skip)


def test_delta_bytes_above_the_percentage_start_a_major_and_the_reason_names_both_values() -> None:
    decision = decide(measured(BASE | deltas(1, 123)), DEFAULTS)
    assert decision == Initiate(depth=Depth.MAJOR, reason="delta bytes are 12.3 % of the base > 10 %")


def test_delete_deltas_count_as_delta_bytes() -> None:
    sizes = BASE | {"delete_delta_0000002_0000002_0000/bucket_00000": 101}
    assert isinstance(decide(measured(sizes), DEFAULTS), Initiate)


def test_as_many_deltas_as_the_threshold_are_fine() -> None:
    assert isinstance(decide(measured(BASE | deltas(10, 1)), DEFAULTS), Skip)


def test_one_delta_more_than_the_threshold_starts_a_minor() -> None:
    decision = decide(measured(BASE | deltas(11, 1)), DEFAULTS)
    assert decision == Initiate(depth=Depth.MINOR, reason="11 deltas > 10")


def test_a_delete_delta_counts_as_a_delta_of_its_own() -> None:
    pairs = deltas(6, 1) | {f"delete_{path}": size for path, size in deltas(6, 1).items()}
    assert decide(measured(BASE | pairs), DEFAULTS) == Initiate(depth=Depth.MINOR, reason="12 deltas > 10")


def test_many_deltas_without_a_base_start_a_major() -> None:
    decision = decide(measured(deltas(11, 1)), DEFAULTS)
    assert decision == Initiate(depth=Depth.MAJOR, reason="11 deltas > 10 and no base")


def test_few_deltas_without_a_base_start_nothing_however_large() -> None:
    assert isinstance(decide(measured(deltas(10, 1_000_000)), DEFAULTS), Skip)


def test_original_files_count_as_the_base() -> None:
    originals = {"000000_0": 1000}
    assert measured(originals | deltas(1, 50)).base_bytes == 1000
    assert isinstance(decide(measured(originals | deltas(1, 50)), DEFAULTS), Skip)
    assert isinstance(decide(measured(originals | deltas(1, 150)), DEFAULTS), Initiate)


def test_an_older_base_besides_the_present_one_starts_a_major_when_there_are_no_deltas() -> None:
    decision = decide(measured({"base_0000001/bucket_00000": 10, "base_0000002/bucket_00000": 10}), DEFAULTS)
    assert decision == Initiate(depth=Depth.MAJOR, reason="1 older base(s) besides the present one")


def test_an_older_base_is_no_reason_while_there_are_small_deltas() -> None:
    sizes = {"base_0000001/bucket_00000": 1000, "base_0000002/bucket_00000": 1000} | deltas(1, 1, first=3)
    assert isinstance(decide(measured(sizes), DEFAULTS), Skip)


def test_deltas_above_an_open_write_do_not_count() -> None:
    assert measured(BASE | deltas(11, 1), high_water=5).deltas == 4


def test_small_deltas_are_those_below_a_fraction_of_the_base() -> None:
    sizes = BASE | deltas(2, 9) | deltas(1, 10, first=4)
    assert measured(sizes).small_deltas(0.01) == 2


def test_an_empty_location_needs_nothing() -> None:
    assert isinstance(decide(measured({}), DEFAULTS), Skip)


def test_too_many_aborts_start_a_major_before_old_ones_start_a_minor() -> None:
    both = AbortFacts(too_many=True, has_old=True, count_limit=1000, age_limit_s=43200)
    assert decide_on_aborts(both) == Initiate(depth=Depth.MAJOR, reason="more than 1000 aborted transactions")
    old = AbortFacts(has_old=True, count_limit=1000, age_limit_s=43200)
    assert decide_on_aborts(old) == Initiate(depth=Depth.MINOR, reason="an aborted transaction is older than 12 h")
    assert decide_on_aborts(AbortFacts(count_limit=1000, age_limit_s=43200)) is None


def test_table_properties_override_both_thresholds() -> None:
    own = thresholds(
        DEFAULTS,
        {
            "compactorthreshold.hive.compactor.delta.num.threshold": "3",
            "compactorthreshold.hive.compactor.delta.pct.threshold": "0.5",
        },
    )
    assert own == Thresholds(delta_num=3, delta_pct=0.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compactorthreshold.hive.compactor.delta.num.threshold", "many"),
        ("compactorthreshold.hive.compactor.delta.num.threshold", "-1"),
        ("compactorthreshold.hive.compactor.delta.num.threshold", "2.5"),
        ("compactorthreshold.hive.compactor.delta.pct.threshold", ""),
        ("compactorthreshold.hive.compactor.delta.pct.threshold", "nan"),
        ("compactorthreshold.hive.compactor.delta.pct.threshold", "inf"),
        ("compactorthreshold.hive.compactor.delta.pct.threshold", "-0.1"),
    ],
)
def test_an_override_that_is_no_limit_is_named_with_its_value(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match="allowed") as caught:
        thresholds(DEFAULTS, {key: value})
    assert key in str(caught.value)
    assert repr(value) in str(caught.value)


def test_an_ordinary_transactional_table_is_eligible() -> None:
    assert eligible(facts()) is None


@pytest.mark.parametrize("key", ["no_auto_compaction", "NO_AUTO_COMPACTION"])
@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_no_auto_compaction_keeps_a_table_out_in_either_spelling(key: str, value: str) -> None:
    assert eligible(facts(table={key: value})) is not None
    assert eligible(facts(database={key: value})) is not None


def test_the_databases_no_auto_compaction_wins_over_the_tables_even_when_it_is_false() -> None:
    assert eligible(facts(database={"no_auto_compaction": "false"}, table={"no_auto_compaction": "true"})) is None
    assert eligible(facts(database={"NO_AUTO_COMPACTION": "true"}, table={"no_auto_compaction": "false"})) is not None


def test_insert_only_tables_are_skipped_only_when_the_switch_says_so() -> None:
    assert eligible(facts(insert_only=True)) is None
    assert eligible(facts(insert_only=True, compact_insert_only=False)) is not None
    assert eligible(facts(insert_only=False, compact_insert_only=False)) is None


def test_a_partitioned_table_as_a_whole_is_eligible_only_for_an_old_abort() -> None:
    assert eligible(facts(dynamic_partitions=True)) is not None
    assert eligible(facts(dynamic_partitions=True), has_old_abort=True) is None


def test_tables_that_are_not_transactional_or_wait_for_replication_are_skipped() -> None:
    assert eligible(facts(transactional=False)) is not None
    assert eligible(facts(database={"hive.repl.first.inc.pending": "true"})) is not None
    assert eligible(facts(table={"hive.repl.first.inc.pending": "true"})) is not None
    assert eligible(facts(database={"hive.repl.first.inc.pending": "false"})) is None


LIMITS = BreakerLimits(failures=2, retry_after_s=7 * 86400)


def failed(at: int) -> PastCompaction:
    return PastCompaction(failed=True, enqueue_time_ms=at)


def succeeded(at: int) -> PastCompaction:
    return PastCompaction(failed=False, enqueue_time_ms=at)


def test_two_failures_in_a_row_stop_the_automatic_requests() -> None:
    stopped = breaker([failed(2000), failed(1000)], LIMITS, now_ms=3000)
    assert isinstance(stopped, DidNotInitiate)
    assert "last 2 compactions failed" in stopped.reason


def test_a_success_among_the_last_ones_keeps_them_going() -> None:
    assert breaker([failed(2000), succeeded(1000), failed(500)], LIMITS, now_ms=3000) is None
    assert breaker([succeeded(2000), failed(1000), failed(500)], LIMITS, now_ms=3000) is None


def test_one_failure_is_not_enough() -> None:
    assert breaker([failed(2000)], LIMITS, now_ms=3000) is None


def test_the_breaker_closes_when_the_newest_failure_is_older_than_the_retry_time() -> None:
    past = [failed(DAY_MS), failed(0)]
    assert breaker(past, LIMITS, now_ms=8 * DAY_MS) is not None
    assert breaker(past, LIMITS, now_ms=8 * DAY_MS + 1) is None


@pytest.mark.parametrize("never", [0.0, -1.0])
def test_without_a_retry_time_the_breaker_stays_open_for_good(never: float) -> None:
    limits = BreakerLimits(failures=2, retry_after_s=never)
    assert breaker([failed(1), failed(0)], limits, now_ms=1000 * DAY_MS) is not None


def test_the_breakers_reason_does_not_change_with_time() -> None:
    past = [failed(2000), failed(1000)]
    assert breaker(past, LIMITS, now_ms=3000) == breaker(past, LIMITS, now_ms=DAY_MS)


def test_deletes_that_trino_does_not_find_need_a_minor_and_the_reason_names_a_file() -> None:
    file = "delete_delta_0000002_0000002_0000/bucket_00000_0"
    wish = decide_for_trino(*seen(BASE | {file: 10}))
    assert wish is not None
    assert wish.depth is Depth.MINOR
    assert file in wish.reason


def test_deletes_under_a_name_that_trino_finds_need_nothing() -> None:
    files = BASE | {"delete_delta_0000002_0000002_v0000009/bucket_00000": 10}
    assert decide_for_trino(*seen(files | {"delta_0000003_0000003_0000/bucket_00000_0": 10})) is None


def test_deletes_that_are_compacted_already_or_not_yet_to_be_compacted_need_nothing() -> None:
    deletes = BASE | {"delete_delta_0000002_0000002_0000/bucket_00000_0": 10}
    assert decide_for_trino(*seen(deletes | {"delete_delta_0000002_0000002_v0000009/bucket_00000": 10})) is None
    assert decide_for_trino(*seen(deletes, high_water=1)) is None


TRUNCATED = {"base_0000005/_metadata_acid": 20}


def test_a_base_that_trino_does_not_see_needs_a_major_while_older_directories_are_there() -> None:
    wish = decide_for_trino(*seen(TRUNCATED | deltas(1, 10)))
    assert wish is not None
    assert wish.depth is Depth.MAJOR
    assert "base_0000005" in wish.reason
    assert decide_for_trino(*seen(TRUNCATED | {"000000_0": 10})) is not None
    assert decide_for_trino(*seen(TRUNCATED | BASE)) is not None


def test_a_base_with_a_file_of_no_bytes_or_with_nothing_older_needs_nothing() -> None:
    assert decide_for_trino(*seen(TRUNCATED | deltas(1, 10) | {"base_0000005/bucket_00000": 0})) is None
    assert decide_for_trino(*seen(TRUNCATED)) is None
    assert decide_for_trino(*seen(TRUNCATED | deltas(1, 10, first=6))) is None


def test_a_base_that_trino_does_not_see_comes_before_its_deletes() -> None:
    wish = decide_for_trino(*seen(TRUNCATED | deltas(1, 10) | {"delete_delta_0000006_0000006_0000/bucket_00000_0": 1}))
    assert wish is not None
    assert wish.depth is Depth.MAJOR


MINOR = Initiate(depth=Depth.MINOR, reason="11 deltas > 10")
MAJOR = Initiate(depth=Depth.MAJOR, reason="delta bytes are 12 % of the base > 10 %")
NOTHING = Skip(reason="1 deltas ≤ 10")
NO_BASE = measured(deltas(11, 1))
SMALL_DELTAS = measured({"base_0000001/bucket_00000": 1_000_000} | deltas(11, 1))
GB = 1 << 30


def offer(*, copied: int = 0, encoded: int = 0, saved: int = GB, rows: int = 1_000_000, events: int = 0) -> Price:
    """A price whose compaction spares each scan so many bytes."""
    before = Scan(directories=9, files=9, bytes=10 * GB, delete_events=0, opens=0, compacted_work=GB)
    after = Scan(directories=1, files=1, bytes=10 * GB - saved, delete_events=0, opens=0, compacted_work=GB)
    return Price(
        bytes_copied=copied,
        bytes_encoded=encoded,
        stripes_copied=0,
        stripes_decoded=0,
        stripes_coalesced=0,
        rows_in=rows,
        delete_events=events,
        tasks=1,
        before=before,
        after=after,
    )


SCATTERED = {
    # One deleted row in a thousand: every stripe of the base has some, so a major encodes all of them anew.
    Depth.MINOR: offer(copied=50 << 20, encoded=1 << 20, saved=44 << 20, rows=100_000, events=10_000),
    Depth.MAJOR: offer(encoded=10 * GB, saved=56 << 20, rows=10_000_000, events=10_000),
}


def test_scattered_deletes_get_a_minor_and_the_reason_tells_both_prices() -> None:
    decision = choose(MAJOR, SCATTERED, SMALL_DELTAS, RATES, scans=100)
    assert isinstance(decision, Initiate)
    assert decision.depth is Depth.MINOR
    assert decision.reason.startswith(f"{MAJOR.reason}; in 100 scans a minor costs ")
    assert ", a major costs 613.9 core seconds and saves 97.9" in decision.reason


def test_with_enough_readers_the_major_is_worth_its_price() -> None:
    decision = choose(MAJOR, SCATTERED, SMALL_DELTAS, RATES, scans=10_000)
    assert isinstance(decision, Initiate)
    assert decision.depth is Depth.MAJOR


def test_a_major_that_costs_and_brings_the_same_is_preferred() -> None:
    same = {Depth.MINOR: offer(copied=GB), Depth.MAJOR: offer(copied=GB)}
    for prices in (same, dict(reversed(same.items()))):
        decision = choose(MINOR, prices, NO_BASE, RATES, scans=100)
        assert isinstance(decision, Initiate)
        assert decision.depth is Depth.MAJOR


def test_nothing_is_asked_for_that_costs_more_than_it_brings() -> None:
    decision = choose(MAJOR, {Depth.MAJOR: offer(encoded=GB, saved=1 << 20)}, SMALL_DELTAS, RATES, scans=10)
    assert isinstance(decision, Skip)
    assert decision.reason.startswith(f"put off: {MAJOR.reason}")


def test_a_major_is_put_off_only_until_a_tenth_of_the_rows_is_deleted() -> None:
    def asked(events: int) -> Initiate | Skip:
        prices = {
            Depth.MINOR: offer(copied=GB),
            Depth.MAJOR: offer(encoded=100 * GB, rows=1_000_000, events=events),
        }
        return choose(MINOR, prices, SMALL_DELTAS, RATES, scans=1)

    assert isinstance(asked(99_999), Initiate)
    assert asked(99_999).reason.startswith("11 deltas > 10; in 1 scans")
    assert asked(100_000) == Initiate(
        depth=Depth.MAJOR, reason="11 deltas > 10; 100000 delete events on 1000000 rows ≥ 10%"
    )


def test_a_major_is_put_off_only_until_the_deltas_are_half_as_large_as_the_base() -> None:
    prices = {Depth.MINOR: offer(copied=GB), Depth.MAJOR: offer(encoded=100 * GB)}
    at_last = choose(MAJOR, prices, measured(BASE | deltas(1, 500)), RATES, scans=100)
    assert at_last == Initiate(depth=Depth.MAJOR, reason=f"{MAJOR.reason}; delta bytes are 50% of the base ≥ 50%")
    before = choose(MAJOR, prices, measured(BASE | deltas(1, 499)), RATES, scans=100)
    assert isinstance(before, Initiate)
    assert before.depth is Depth.MINOR


def test_what_only_the_cleaner_can_do_is_asked_for_as_hive_does() -> None:
    assert choose(MAJOR, {}, SMALL_DELTAS, RATES, scans=100) == MAJOR


def test_prices_do_not_ask_for_what_is_below_hives_thresholds() -> None:
    assert choose(NOTHING, SCATTERED, SMALL_DELTAS, RATES, scans=10_000) == NOTHING


FOR_DELETES = Initiate(depth=Depth.MINOR, reason="Trino does not find a file")
FOR_BASE = Initiate(depth=Depth.MAJOR, reason="Trino does not see the base")


@pytest.mark.parametrize(
    ("hive", "cost", "trino", "depth"),
    [
        (MINOR, None, None, Depth.MINOR),
        (MAJOR, MINOR, None, Depth.MINOR),
        (MAJOR, NOTHING, None, None),
        (NOTHING, None, None, None),
        (NOTHING, None, FOR_DELETES, Depth.MINOR),
        (NOTHING, NOTHING, FOR_BASE, Depth.MAJOR),
        (MINOR, None, FOR_DELETES, Depth.MINOR),
        (MAJOR, None, FOR_DELETES, Depth.MAJOR),
        (MAJOR, MINOR, FOR_BASE, Depth.MAJOR),
    ],
)
def test_a_verdict_follows_the_price_where_it_counts_and_always_does_what_trino_needs(
    hive: Initiate | Skip, cost: Initiate | Skip | None, trino: Initiate | None, depth: Depth | None
) -> None:
    verdict = Opinions(hive=hive, cost=cost, trino=trino).verdict()
    assert (verdict.depth if isinstance(verdict, Initiate) else None) is depth
    if trino is not None:
        assert trino.reason in verdict.reason
