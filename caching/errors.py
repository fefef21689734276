"""Errors of the caching package.

CachingError
├── NotReplayable    a response that cannot be replayed as a stream, or a stream that cannot be folded into a response
└── FlightFailed     the flight that was followed ended without a response
"""


class CachingError(Exception):
    """Base of this package's errors."""


class NotReplayable(CachingError):
    """The response has a part that the other form cannot represent. ``args[0]`` names it."""


class FlightFailed(CachingError):
    """The flight ended without a response. ``args[0]`` is the number of pieces it had sent."""
