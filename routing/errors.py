"""Errors of the routing room.

RoutingError
└── NoReplica    no candidate is left to choose from
"""


class RoutingError(Exception):
    """Any refusal of this room."""


class NoReplica(RoutingError):
    """There is no replica to send the request to."""
