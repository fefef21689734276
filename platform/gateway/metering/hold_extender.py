"""Extend the hold of a stream under a hard budget, so that every token is covered before it is sent."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.admission.controller import Reservation
from gateway.admission.cost_estimate import CostReservation
from gateway.errors import GatewayError
from gateway.metering.meter import Meter

#: How long a stream waits, with nothing more to send, until its budget is counted again. After a failover of Redis the
#: reconcilers of all hosts wait for each other for 10 s at most.
PATIENCE_SECONDS = 15.0


class HoldExtender:
    """Extends the hold of one stream. Its owner calls :meth:`close` at the end.

    The next step is requested while half of the last one is left, so a stream waits only if Redis is slow, or while
    what is left of its budget is not known.
    """

    def __init__(
        self,
        reservation: Reservation,
        meter: Meter,
        cost: CostReservation,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._reservation = reservation
        self._patience_seconds = patience_seconds
        self._meter = meter
        self._cost = cost
        #: Completion tokens that are held; the cost reservation also counts the step being requested.
        self._held_tokens = cost.paid_tokens
        self._rejected = False
        self._request: asyncio.Task[None] | None = None

    async def cover(self, tokens: int) -> None:
        """Return once ``tokens`` of the completion are held. Raises BudgetExceeded, Unavailable.

        A step that was rejected early is requested again when nothing is left; only then the error is raised.
        """
        if not self._suffices(tokens) and self._request is None and not self._rejected:
            self._request = asyncio.ensure_future(self._extend_early(tokens))
        if tokens > self._held_tokens and self._request is not None:
            await asyncio.wait({self._request})
        while tokens > self._held_tokens and not self._suffices(tokens):
            await self._extend(tokens)

    def close(self) -> None:
        """Stop requesting."""
        if self._request is not None:
            self._request.cancel()

    def _suffices(self, tokens: int) -> bool:
        """Return whether more than half a step is left, or no more tokens can be generated."""
        cost = self._cost
        left = self._held_tokens - tokens
        return 2 * left > cost.step_tokens or self._held_tokens >= cost.most_tokens

    async def _extend_early(self, tokens: int) -> None:
        with contextlib.suppress(GatewayError):
            await self._extend(tokens)
        self._request = None

    async def _extend(self, tokens: int) -> None:
        cost = self._cost
        paid_tokens = cost.paid_tokens
        self._rejected = True
        try:
            await self._reservation.extend(hold_pico=cost.next_pico(tokens), patience_seconds=self._patience_seconds)
            self._meter.hold(cost.held_pico)
        except BaseException:
            cost.paid_tokens = paid_tokens
            raise
        self._rejected = False
        self._held_tokens = cost.paid_tokens
