from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acid.partition_name import DEFAULT_PARTITION, escape, partition_name, partition_values, unescape
from compactor.errors import UnparsableName


def test_a_value_that_hive_wrote_is_escaped_the_same_way() -> None:
    assert partition_name(["dt", "n"], ["a b:c/d=e%", "7"]) == "dt=a b%3Ac%2Fd%3De%25/n=7"


def test_a_missing_or_empty_value_becomes_the_default_partition() -> None:
    assert partition_name(["dt", "n"], [None, "1"]) == f"dt={DEFAULT_PARTITION}/n=1"
    assert partition_name(["dt"], [""]) == f"dt={DEFAULT_PARTITION}"


def test_column_names_are_lower_case_and_values_keep_theirs() -> None:
    assert partition_name(["Region"], ["EU"]) == "region=EU"


@pytest.mark.parametrize("character", list("\"#%'*/:=?\\{[]^\x7f\x01\x1f\n\t"))
def test_each_reserved_character_becomes_two_upper_case_hex_digits(character: str) -> None:
    assert escape(character) == f"%{ord(character):02X}"


@pytest.mark.parametrize("character", list(" }-_.,;+@~$&()<>|!`aZ0é漢"))
def test_every_other_character_stays(character: str) -> None:
    assert escape(character) == character


def test_a_percent_sign_that_starts_no_escape_stays() -> None:
    assert unescape("100%") == "100%"
    assert unescape("%zz%4") == "%zz%4"
    assert unescape("%3a%3A") == "::"


def test_a_name_is_taken_apart_in_its_own_order() -> None:
    assert list(partition_values("dt=a b%3Ac%2Fd%3De%25/n=7").items()) == [("dt", "a b:c/d=e%"), ("n", "7")]
    assert partition_values(f"dt={DEFAULT_PARTITION}/n=1")["dt"] == DEFAULT_PARTITION


@pytest.mark.parametrize("name", ["", "dt", "dt=", "=x", "dt=1//n=2", "dt=1/n"])
def test_what_is_no_partition_name_is_refused(name: str) -> None:
    with pytest.raises(UnparsableName):
        partition_values(name)


def test_columns_and_values_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        partition_name(["a", "b"], ["1"])


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_a_name_gives_back_the_values_it_was_made_of(values: list[str]) -> None:
    columns = [f"c{i}" for i in range(len(values))]
    assert list(partition_values(partition_name(columns, values)).values()) == values
