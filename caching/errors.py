"""Errors of the caching room.

CachingError
├── NotReplayable    an answer that cannot be told as a stream, or a stream that cannot be told as an answer
└── FlightFailed     the request that was followed ended without an answer
"""


class CachingError(Exception):
    """Any refusal of this room."""


class NotReplayable(CachingError):
    """The answer has a part that the other shape cannot carry. ``args[0]`` names it."""


class FlightFailed(CachingError):
    """The run that was followed ended without an answer. ``args[0]`` is how many pieces it had told."""
