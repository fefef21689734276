"""The id of the request that a process works on, for its log lines, and the logger of lines per request.

The id is the gateway's for inference, also in the engine (``X-Request-Id``), the inference worker and the drain; the
portal gives each of its requests one of its own.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

#: Empty outside of requests. Tasks and threads that a request starts have it too.
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")

#: One line per request, if HEARTH_LOG_REQUESTS asks for it. Never with a prompt, a response or a secret.
requests_log = logging.getLogger("hearth.requests")


class RequestIds(logging.Filter):
    """Gives each record the attribute ``request_id``: that of the call (``extra``), or of the current request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attribute; let every record pass."""
        if not hasattr(record, "request_id"):
            record.request_id = REQUEST_ID.get()
        return True


def logs_requests() -> bool:
    """Return whether each request is to be logged. Takes a tenth of a microsecond."""
    return requests_log.isEnabledFor(logging.INFO)
