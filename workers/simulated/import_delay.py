"""The time a real engine needs for its imports: spent once in a process, so a promoted zygote has it behind it."""

import time

_spent: list[float] = []


def take(seconds: float) -> None:
    """Sleep as long as imports would take; at once when this process has done so before."""
    if not _spent:
        time.sleep(seconds)
        _spent.append(seconds)
