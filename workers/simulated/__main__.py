"""``python -m workers.simulated --port 8000``: see ``--help`` for what can be set."""

import sys

from workers.simulated import imports, server, settings

if __name__ == "__main__":
    chosen = settings.read(sys.argv[1:])
    imports.take(chosen.import_seconds)
    server.run(chosen)
