"""``python -m workers.simulated --port 8000``: see ``--help`` for what can be set."""

import sys

from workers.simulated import server, settings

if __name__ == "__main__":
    server.run(settings.read(sys.argv[1:]))
