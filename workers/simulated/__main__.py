"""Run a simulated engine: ``python -m workers.simulated --port 8000``; ``--help`` lists the options."""

import sys

from workers.simulated import import_delay, settings
from workers.simulated.http import server

if __name__ == "__main__":
    chosen = settings.read(sys.argv[1:])
    import_delay.take(chosen.import_seconds)
    server.run(chosen)
