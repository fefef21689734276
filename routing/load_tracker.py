"""How much work each replica has in flight, counted in tokens by the one who sends it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

#: No affinity may push a replica above this multiple of the mean (Mirrokni et al., bounded loads).
LOAD_BOUND = 1.25


class LoadTracker(Generic[R]):
    """Tokens in flight per replica, and whose turn it is among equals. Not thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[R, int] = {}
        self._turns: dict[R, int] = {}
        self._turn = 0

    def take(self, replica: R, tokens: int) -> None:
        """Count a request in."""
        self._turn += 1
        self._turns[replica] = self._turn
        self._tokens[replica] = self._tokens.get(replica, 0) + tokens

    def give_back(self, replica: R, tokens: int) -> None:
        """Count it out; exactly once for each :meth:`take`."""
        left = self._tokens.get(replica, 0) - tokens
        if left > 0:
            self._tokens[replica] = left
        else:
            self._tokens.pop(replica, None)

    def tokens(self, replica: R) -> int:
        """Return the tokens in flight."""
        return self._tokens.get(replica, 0)

    def order(self, replica: R) -> tuple[int, int]:
        """Return a sort key: least tokens in flight first, then the one that was given a request longest ago.

        Equals take turns, so a replica that joins an idle fleet gets its share and not all there is.
        """
        return self._tokens.get(replica, 0), self._turns.get(replica, 0)

    def below_bound(self, replicas: Iterable[R], arriving_tokens: int) -> set[R]:
        """Return the replicas that affinity may still add to: those not above LOAD_BOUND × the mean.

        The mean counts the arriving request, so an idle fleet admits everybody.
        """
        loads = {replica: self.tokens(replica) for replica in replicas}
        if not loads:
            return set()
        bound = LOAD_BOUND * (sum(loads.values()) + arriving_tokens) / len(loads)
        return {replica for replica, tokens in loads.items() if tokens <= bound}

    def forget(self, replica: R) -> None:
        """Drop the turn of a replica that is gone; what it has in flight is still counted out one by one."""
        self._turns.pop(replica, None)
