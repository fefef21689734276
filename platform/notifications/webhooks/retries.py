"""When a failed delivery is tried again, and when it is given up."""

from __future__ import annotations

import datetime as dt
import random

FIRST_SECONDS = 10
LONGEST_SECONDS = 6 * 3600
#: Longest pause of an endpoint whose attempts fail: then one delivery tries whether it works again.
LONGEST_PAUSE_SECONDS = 300
#: From its making or its replay on. Then a delivery is dead; an endpoint that failed all the time is disabled.
GIVEN_UP_AFTER = dt.timedelta(days=3)


def delivery_seconds(attempts: int) -> float:
    """Return how long a delivery waits after ``attempts`` failed: 10 s, doubled each time up to 6 hours, ± 20 %."""
    return _spread(min(FIRST_SECONDS * 2 ** min(attempts - 1, 20), LONGEST_SECONDS))


def pause_seconds(failures: int) -> float:
    """Return how long an endpoint gets nothing after ``failures`` in a row: the same, up to 5 minutes."""
    return _spread(min(FIRST_SECONDS * 2 ** min(failures - 1, 20), LONGEST_PAUSE_SECONDS))


def _spread(seconds: float) -> float:
    """Return the time ± 20 %, so that deliveries that failed together do not come back together."""
    return seconds * random.uniform(0.8, 1.2)
