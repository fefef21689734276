"""The ``drain`` role: ``python -m billing.drain``. See :mod:`billing.drainer` for what it does."""

from __future__ import annotations

import logging
import os
import signal

import django


def main() -> None:
    """Drain this instance's log directory until SIGTERM or SIGINT. Raises WalDirectoryBusy."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    django.setup()
    from django.conf import settings

    from billing.drainer import Drain  # its models need the settings

    drain = Drain(settings.WAL_DIR, settings.NODE_NAME)
    signal.signal(signal.SIGTERM, drain.stop)
    signal.signal(signal.SIGINT, drain.stop)
    logging.getLogger(__name__).info("draining %s", settings.WAL_DIR)
    drain.run()


if __name__ == "__main__":
    main()
