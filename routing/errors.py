"""Errors of the routing package.

RoutingError
└── NoReplica    there is no candidate to choose from
"""


class RoutingError(Exception):
    """Base of this package's errors."""


class NoReplica(RoutingError):
    """No replica can take the request."""
