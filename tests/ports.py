"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 10_000
#: Ports that an instance takes in a row: gateway, portal, and the vitals of eight roles.
INSTANCE_PORTS = 10


def free_ports(count: int) -> int:
    """Return the first of ``count`` free TCP ports in a row.

    Below those that the kernel gives to connections and to programs that take any port, so that they are still free
    when they are needed.
    """
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(LOWEST, max(highest, 2 * LOWEST) - count)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
