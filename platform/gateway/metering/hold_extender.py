"""Hold money ahead of a stream under a hard budget, so that no token is passed on that nobody has paid for."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.admission.controller import Reservation
from gateway.admission.cost_estimate import CostReservation
from gateway.errors import GatewayError
from gateway.metering.meter import Meter


class HoldExtender:
    """The next part of what one answer may cost. Whoever has it calls :meth:`close` at the end.

    It is asked for while half of the part before is left, so that a stream waits for it only where Redis is slow.
    """

    def __init__(self, ticket: Reservation, meter: Meter, allowance: CostReservation) -> None:
        self._ticket = ticket
        self._meter = meter
        self._allowance = allowance
        #: Of the answer, that are paid for; the allowance counts what is being asked for too.
        self._held_tokens = allowance.paid_tokens
        self._refused = False
        self._asking: asyncio.Task[None] | None = None

    async def cover(self, tokens: int) -> None:
        """Return once so many tokens of the answer are paid for. Raises BudgetExceeded, Unavailable.

        What was refused early is asked for once more when nothing is left, and only then told.
        """
        if not self._lasts(tokens) and self._asking is None and not self._refused:
            self._asking = asyncio.ensure_future(self._ask_early(tokens))
        if tokens > self._held_tokens and self._asking is not None:
            await asyncio.wait({self._asking})
        while tokens > self._held_tokens and not self._lasts(tokens):
            await self._ask(tokens)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._asking is not None:
            self._asking.cancel()

    def _lasts(self, tokens: int) -> bool:
        """Say whether more than half a part is left, or nothing more may be written."""
        allowance = self._allowance
        left = self._held_tokens - tokens
        return 2 * left > allowance.step_tokens or self._held_tokens >= allowance.most_tokens

    async def _ask_early(self, tokens: int) -> None:
        with contextlib.suppress(GatewayError):
            await self._ask(tokens)
        self._asking = None

    async def _ask(self, tokens: int) -> None:
        allowance = self._allowance
        paid_tokens = allowance.paid_tokens
        self._refused = True
        try:
            await self._ticket.extend(hold_pico=allowance.next_pico(tokens))
            self._meter.hold(allowance.held_pico)
        except BaseException:
            allowance.paid_tokens = paid_tokens
            raise
        self._refused = False
        self._held_tokens = allowance.paid_tokens
