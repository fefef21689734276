"""A gateway process of which only the flights are there, for tests that need several, freeze one or kill one.

Reads one JSON line: Redis, its folder of sockets, its host, the caller's tenant and the answer's name. Then each line
is a command: ``ask N`` has N requests ask at once, of which one leads if nobody else does; ``add TEXT``, ``land`` and
``fail`` are told to the flight that this process leads. Says ``listens``, ``leads``, and of each request ``heard`` and
what.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from caching.errors import FlightFailed
from caching.single_flight import Flight, Piece
from gateway.flight_listener import Place
from gateway.shared_flights import SharedFlights
from gateway.turns import Turns
from tenants.ids import new_id
from tenants.snapshot import Caller
from tests.gateway.doors import caller

#: What the process runs.
COMMAND = "import django; django.setup(); from tests.gateway import flying_process as it; it.main()"


def main() -> None:
    """Do what the lines of the input say until it ends."""
    asyncio.run(_run(json.loads(sys.stdin.readline())))


async def _run(asked: dict[str, Any]) -> None:
    turns = Turns(asked["url"], timeout_seconds=5.0)
    place = Place(sockets=Path(asked["sockets"]), host=asked["host"])
    requests = Requests(
        SharedFlights(turns, place, lambda: True),
        caller(tenant=UUID(asked["tenant"])),
        bytes.fromhex(asked["name"]),
        lambda said: print(said, flush=True),
    )
    await requests.ready()
    running = []
    while line := (await asyncio.to_thread(sys.stdin.readline)).split():
        match line:
            case ["ask", count]:
                running += [asyncio.ensure_future(requests.one()) for _ in range(int(count))]
            case ["add", text]:
                requests.leading.add(Piece("content", text.encode()))
            case ["land"]:
                requests.leading.land(None)
            case ["fail"]:
                requests.leading.fail()
    await requests.flights.close()
    await turns.close()


class Requests:
    """Identical requests of one process."""

    def __init__(self, flights: SharedFlights, who: Caller, name: bytes, say: Any = print) -> None:
        self.flights = flights
        self._who = who
        self._name = name
        self._say = say
        self.leading: Flight
        self.led = 0

    async def ready(self) -> None:
        """Wait until others can follow what runs here."""
        self.flights.start()
        async with asyncio.timeout(60):
            while not self.flights.listens:  # noqa: ASYNC110 - nobody else waits for it
                await asyncio.sleep(0.01)
        self._say("listens")

    async def one(self) -> str:
        """Lead or follow until there is an answer; return it."""
        while True:
            flight = await self.flights.claim(self._who, self._name)
            heard = await (self._lead() if flight is None else self._follow(flight))
            if heard is not None:
                self._say(f"heard {heard}")
                return heard

    async def _lead(self) -> str | None:
        flight = self.leading = Flight(self._name, new_id(), new_id(), streamed=True)
        self.led += 1
        self.flights.begin(flight)
        self._say("leads")
        try:
            return "".join([piece.events.decode() async for piece in flight.follow()])
        except FlightFailed:
            return None
        finally:
            self.flights.end(flight)

    async def _follow(self, flight: Flight) -> str | None:
        flight.join()
        try:
            return "".join([piece.events.decode() async for piece in flight.follow()])
        except FlightFailed:
            return None
        finally:
            flight.leave()
