"""Call a function that may hang, such as a query to a suspended database, with a time limit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import Error, connection

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class BoundedCall(Generic[Result]):
    """One database query, run in a separate thread, at most one run at a time.

    Calls during a run share its result. The connection is closed after each run.
    """

    def __init__(self, question: Callable[[], Result]) -> None:
        self._question = question
        self._changed = threading.Condition()
        self._asking = False
        self._asked = 0
        self._answer: Result | None = None

    def call(self, timeout_seconds: float) -> Result | None:
        """Return the result; None after the timeout or if the query failed."""
        with self._changed:
            if not self._asking:
                self._asking = True
                threading.Thread(target=self._run, name="bounded-call", daemon=True).start()
            before = self._asked
            if not self._changed.wait_for(lambda: self._asked > before, timeout_seconds):
                return None
            return self._answer

    def _run(self) -> None:
        answer: Result | None = None
        try:
            answer = self._question()
        except (Error, OSError) as error:
            log.info("no answer: %s: %s", type(error).__name__, error)
        except Exception:
            log.exception("a database query failed")
        finally:
            connection.close()
            with self._changed:
                self._asking = False
                self._asked += 1
                self._answer = answer
                self._changed.notify_all()


def database_answers() -> bool:
    """Return True when the database answers. Raises django.db.Error."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return bool(cursor.fetchone())
