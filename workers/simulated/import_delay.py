"""The time that a real engine needs for its imports, spent once per process, so that a promoted zygote saves it."""

import time

_spent: list[float] = []


def take(seconds: float) -> None:
    """Sleep as long as imports would take; return at once if this process has done so before."""
    if not _spent:
        time.sleep(seconds)
        _spent.append(seconds)
