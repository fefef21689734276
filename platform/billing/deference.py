"""Let requests go first: what the drain does can wait a moment, as long as it keeps up. No Django here."""

from __future__ import annotations

import os
from pathlib import Path

#: A session's weight against others on its core, as ``nice`` has it: 10 weighs a ninth of 0. So a batch takes ten times
#: as long beside one that is always busy, and not longer: others wait for its locks.
USUAL, LATER = 0, 10
_AUTOGROUP = Path("/proc/self/autogroup")


class Deference:
    """How this process stands back: where Linux divides a core's time among sessions (``sched(7)``, autogroup).

    A priority of its own counts only inside its session there, and who is not root may not take one back. Where time is
    divided otherwise (a container, a service of systemd), or this process shares its session, nothing is changed.
    """

    def __init__(self) -> None:
        self._nice = USUAL if os.getsid(0) == os.getpid() and _AUTOGROUP.exists() else None

    def stand_back(self, caught_up: bool) -> None:
        """Go later while caught up, and take turns as usual while behind."""
        wanted = LATER if caught_up else USUAL
        if self._nice is None or self._nice == wanted:
            return
        try:
            _AUTOGROUP.write_text(str(wanted))
        except OSError:  # who is not root may change it ten times a second, all processes together
            return
        self._nice = wanted
