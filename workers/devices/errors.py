"""Errors of devices.

DeviceError
├── BadSlots            the value of HEARTH_SLOTS is not allowed
└── DevicesUnreadable   the driver or the file cannot be read
"""

from __future__ import annotations


class DeviceError(Exception):
    """Any error of devices; its text is for operators."""


class BadSlots(DeviceError):
    """``value`` is the value of HEARTH_SLOTS."""

    def __init__(self, value: str, expected: str = "") -> None:
        allowed = expected or "auto, UUIDs of GPUs, a number of CPU shares, or fake:N with N at least 1"
        super().__init__(f"HEARTH_SLOTS={value!r}: expected {allowed}")
        self.value = value


class DevicesUnreadable(DeviceError):
    """``source`` could not be read, for ``reason``."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.source = source
        self.reason = reason
