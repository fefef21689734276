"""Errors of the routing package.

RoutingError
├── BadMessage   another host sent what cannot be read
├── NoReplica    there is no candidate to choose from
└── NotShared    this process cannot use the memory that the others share
"""


class RoutingError(Exception):
    """Base of this package's errors."""


class BadMessage(RoutingError):
    """Another host sent what cannot be read."""


class NoReplica(RoutingError):
    """No replica can take the request."""


class NotShared(RoutingError):
    """This process cannot use the memory that the others share."""
