"""Which flights can be joined, and until when."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from caching.single_flight import MAX_UNFOLLOWED_BYTES, Flight, Piece, SingleFlight

NAME = b"name"


def flown(flights: SingleFlight, *, stays: bool) -> Flight:
    """Begin a flight and complete it."""
    flight = Flight(NAME, uuid4(), uuid4(), streamed=True)
    flights.begin(flight)
    flight.add(Piece("content", b"one"))
    flight.complete(None, stays=stays)
    return flight


async def test_a_landed_flight_whose_answer_is_kept_may_be_joined_for_a_moment() -> None:
    flights = SingleFlight()
    flight = flown(flights, stays=True)
    assert flights.find(NAME) is flight
    assert [piece.events async for piece in flight.follow()] == [b"one"]
    async with asyncio.timeout(60):
        while flights.find(NAME) is not None:  # noqa: ASYNC110 - nobody else waits for it
            await asyncio.sleep(0.05)


async def test_one_whose_answer_is_not_kept_is_forgotten_at_once() -> None:
    flights = SingleFlight()
    flown(flights, stays=False)
    assert flights.find(NAME) is None


async def test_a_new_flight_outlives_the_one_that_stays() -> None:
    flights = SingleFlight()
    flown(flights, stays=True)
    later = Flight(NAME, uuid4(), uuid4(), streamed=True)
    flights.begin(later)
    flights._expire()
    flights._expire()
    assert flights.find(NAME) is later


async def test_nobody_joins_what_has_lost_a_piece() -> None:
    flights = SingleFlight()
    flight = Flight(NAME, uuid4(), uuid4(), streamed=True)
    flights.begin(flight)
    for _ in range(2):
        flight.add(Piece("content", b"." * (MAX_UNFOLLOWED_BYTES // 2 + 1)))
    assert flights.find(NAME) is None
