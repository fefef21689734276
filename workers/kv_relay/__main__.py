"""Run the KV relay of a node; the node's agent starts it."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from workers.kv_relay.relay import RelayPaths, serve


def main() -> int:
    """Serve until neither an agent nor an engine is left; return 1 if the node has a relay already."""
    parser = argparse.ArgumentParser(prog="python -m workers.kv_relay", description=__doc__)
    parser.add_argument("--node", required=True, help="name of the node")
    parser.add_argument("--registry", required=True, type=Path, help="folder of the agent's engine records")
    parser.add_argument("--sockets", required=True, type=Path, help="folder of the engines' sockets, mode 0700")
    parser.add_argument("--agent-lock", required=True, type=Path, help="file that a running agent keeps locked")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    paths = RelayPaths(
        node=options.node, registry=options.registry, sockets=options.sockets, agent_lock=options.agent_lock
    )
    try:
        return 0 if serve(paths) else 1
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
