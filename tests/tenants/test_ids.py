"""Ids contain their creation time, to the millisecond."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.ids import created_at, first_id_at, new_id

moments = st.datetimes(
    datetime(1970, 1, 2),
    datetime(2500, 1, 1),
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))


@given(moments)
def test_the_first_id_of_a_moment_says_that_moment(moment: datetime) -> None:
    first = first_id_at(moment)
    assert (first.version, first.variant) == (7, "specified in RFC 4122")
    assert created_at(first) == moment


def test_an_id_lies_between_the_bounds_of_its_time() -> None:
    before = datetime.now(UTC)
    made = new_id()
    assert first_id_at(before) <= made < first_id_at(datetime.now(UTC) + timedelta(milliseconds=1))


def test_ids_made_one_after_the_other_sort_in_that_order() -> None:
    made = []
    for _ in range(5):
        made.append(new_id())
        time.sleep(0.002)
    assert sorted(made) == made


@pytest.mark.parametrize("other", [uuid4(), UUID(int=0)])
def test_another_kind_of_id_has_no_time(other: UUID) -> None:
    with pytest.raises(ValueError, match="not a UUIDv7"):
        created_at(other)
