"""The certificates of nodes as lists show them: until when each is valid, and what is wrong with it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from workers.certificates.authority import NODE_LIFE

#: A certificate with less than this left was due for renewal a whole day ago.
LATE = NODE_LIFE / 2 - dt.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """A node's newest certificate. ``expires_at`` is None until its first request is signed."""

    expires_at: dt.datetime | None
    #: Why its last request was refused; empty if it was not.
    refusal: str
    #: When this was read, by the database's clock.
    read_at: dt.datetime

    @property
    def problem(self) -> str:
        """Return what is wrong, or an empty text."""
        if self.refusal:
            return f"its request was refused: {self.refusal}"
        if self.expires_at is None:
            return "no control role has signed its request yet"
        if self.expires_at <= self.read_at:
            return "it has expired: gateways reach no engine of this node"
        if self.expires_at - self.read_at < LATE:
            return "it was due for renewal a day ago: neither the agent nor the control role renews it"
        return ""
