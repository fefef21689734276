"""Tokens in flight per replica, as counted by the sending process."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

#: Affinity does not load a replica above this multiple of the mean (Mirrokni et al., bounded loads).
LOAD_BOUND = 1.25


class LoadTracker(Generic[R]):
    """Tokens in flight per replica, and the order among equally loaded ones. Not thread-safe."""

    def __init__(self) -> None:
        self._tokens: dict[R, int] = {}
        self._turns: dict[R, int] = {}
        self._turn = 0

    def add(self, replica: R, tokens: int) -> None:
        """Add a request."""
        self._turn += 1
        self._turns[replica] = self._turn
        self._tokens[replica] = self._tokens.get(replica, 0) + tokens

    def remove(self, replica: R, tokens: int) -> None:
        """Remove a request; call it exactly once for each :meth:`add`."""
        left = self._tokens.get(replica, 0) - tokens
        if left > 0:
            self._tokens[replica] = left
        else:
            self._tokens.pop(replica, None)

    def tokens(self, replica: R) -> int:
        """Return the tokens in flight."""
        return self._tokens.get(replica, 0)

    def order(self, replica: R) -> tuple[int, int]:
        """Return a sort key: fewest tokens in flight first, then the replica that received a request longest ago.

        Equally loaded replicas take turns, so a replica that joins an idle fleet gets its share, not all requests.
        """
        return self._tokens.get(replica, 0), self._turns.get(replica, 0)

    def below_bound(self, replicas: Iterable[R], arriving_tokens: int) -> set[R]:
        """Return the replicas that affinity may choose: those not above LOAD_BOUND × the mean.

        The mean includes the arriving request, so in an idle fleet affinity may choose any replica.
        """
        loads = {replica: self.tokens(replica) for replica in replicas}
        if not loads:
            return set()
        bound = LOAD_BOUND * (sum(loads.values()) + arriving_tokens) / len(loads)
        return {replica for replica, tokens in loads.items() if tokens <= bound}

    def forget(self, replica: R) -> None:
        """Forget the turn of a replica that is gone; its requests in flight are still removed one by one."""
        self._turns.pop(replica, None)
