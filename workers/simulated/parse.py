"""Parse a command line of the simulated engine, and start nothing: ``python -m workers.simulated.parse …``.

Ends with status 0 if the engine would accept it, and as argparse does if not: status 2, and the sentence on standard
error.
"""

import sys

from workers.simulated import settings

if __name__ == "__main__":
    settings.read(sys.argv[1:])
