"""The Celery app: ``celery -A hearth worker | beat | inspect …``.

Queues: ``control`` for reconcile and maintenance of the fleet and of billing, ``inference`` for deferred requests,
``background`` for what is sent out and other work that may take a while, and ``node.<name>`` for each agent. Beat
schedules all periodic work. A second beat does no harm: every task is idempotent, and reconcile runs under a lock
in the database.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from celery import Celery

from hearth import environment
from hearth.health import celery_roles
from hearth.paths import agent_sockets_dir
from workers.agent import (
    bootstep,
    remote_control,  # noqa: F401 - registers the operators' commands
    tasks,  # noqa: F401 - registers the agents' own task
)
from workers.serving.canary import OPENED

if TYPE_CHECKING:
    from workers.serving.canary import CanarySink

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hearth.settings")
# Django's checks load the portal's and the gateway's URLs, which a worker does not serve: a second of each start.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

# At INFO Celery logs every task twice: 86,000 lines a day with a tick every two seconds. Failures are logged as errors.
for noisy in ("celery.worker.strategy", "celery.app.trace", "celery.beat"):
    logging.getLogger(noisy).setLevel(logging.WARNING)

app = Celery("hearth")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Beat sends tasks by name, and an agent runs its own alone: neither needs the 20 MiB that all the others import.
if environment.read().role not in {"agent", "beat"}:
    app.autodiscover_tasks()


def _open_canary_log(role: str) -> CanarySink:
    """Open a role's log for its first canary, once Celery has set Django up."""
    from hearth.canary_log import open_log

    return open_log(role)


OPENED.opener = partial(_open_canary_log, "control")
bootstep.install(app, partial(_open_canary_log, "agent"), agent_sockets_dir(environment.read().data_dir))
celery_roles.install(app)

RECONCILE_SECONDS = 2.0
TEND_DEFERRED_SECONDS = 3.0
SEND_SECONDS = 2.0
WATCH_SECONDS = 30.0
SEND_MAIL_SECONDS = 10.0
PROCESS_STRIPE_SECONDS = 30.0
ADVANCE_RUNS_SECONDS = 10.0
CONFIRM_SESSIONS_SECONDS = 60.0
END_SUPPORT_VIEWS_SECONDS = 30.0

app.conf.beat_schedule = {
    # A tick that waited longer than its period only repeats the next one.
    "reconcile": {
        "task": "workers.tasks.reconcile",
        "schedule": RECONCILE_SECONDS,
        "options": {"queue": "control", "expires": RECONCILE_SECONDS},
    },
    "deferred": {
        "task": "gateway.tasks.tend_deferred",
        "schedule": TEND_DEFERRED_SECONDS,
        "options": {"queue": "control", "expires": TEND_DEFERRED_SECONDS},
    },
}
if find_spec("billing.tasks") is not None:
    app.conf.beat_schedule["reserved"] = {
        "task": "workers.tasks.measure_reserved",
        "schedule": 600.0,
        "options": {"queue": "control", "expires": 600.0},
    }
    app.conf.beat_schedule["retention"] = {
        "task": "retention.tasks.maintain",
        "schedule": 3600.0,
        "options": {"queue": "control", "expires": 3600.0},
    }
    app.conf.beat_schedule["usage"] = {
        "task": "reconciliation.tasks.compare",
        "schedule": 3600.0,
        "options": {"queue": "control", "expires": 3600.0},
    }
    app.conf.beat_schedule["promotions"] = {
        "task": "billing.tasks.expire_promotions",
        "schedule": 60.0,
        "options": {"queue": "control", "expires": 60.0},
    }
    app.conf.beat_schedule["overdue"] = {
        "task": "billing.tasks.note_overdue_invoices",
        "schedule": 3600.0,
        "options": {"queue": "control", "expires": 3600.0},
    }
    app.conf.beat_schedule["dunning"] = {
        "task": "billing.tasks.dun",
        "schedule": 600.0,
        "options": {"queue": "background", "expires": 600.0},
    }
    app.conf.beat_schedule["stripe"] = {
        "task": "billing.tasks.process_stripe",
        "schedule": PROCESS_STRIPE_SECONDS,
        "options": {"queue": "background", "expires": PROCESS_STRIPE_SECONDS},
    }
    app.conf.beat_schedule["runs"] = {
        "task": "billing.tasks.advance_runs",
        "schedule": ADVANCE_RUNS_SECONDS,
        "options": {"queue": "background", "expires": ADVANCE_RUNS_SECONDS},
    }
    app.conf.beat_schedule["stripe-comparison"] = {
        "task": "billing.tasks.compare_stripe",
        "schedule": 3600.0,
        "options": {"queue": "background", "expires": 3600.0},
    }
    app.conf.beat_schedule["billing"] = {
        "task": "billing.tasks.maintain",
        "schedule": 3600.0,
        "options": {"queue": "control", "expires": 3600.0},
    }
    app.conf.beat_schedule["days"] = {
        "task": "billing.tasks.fold_days",
        "schedule": 600.0,
        "options": {"queue": "background", "expires": 600.0},
    }
    app.conf.beat_schedule["notifications"] = {
        "task": "notifications.tasks.send",
        "schedule": SEND_SECONDS,
        "options": {"queue": "background", "expires": SEND_SECONDS},
    }
    app.conf.beat_schedule["old-notifications"] = {
        "task": "notifications.tasks.maintain",
        "schedule": 3600.0,
        "options": {"queue": "background", "expires": 3600.0},
    }
    app.conf.beat_schedule["alerts"] = {
        "task": "alerting.tasks.watch",
        "schedule": WATCH_SECONDS,
        "options": {"queue": "background", "expires": WATCH_SECONDS},
    }
    app.conf.beat_schedule["mail"] = {
        "task": "notifications.tasks.send_mail",
        "schedule": SEND_MAIL_SECONDS,
        "options": {"queue": "background", "expires": SEND_MAIL_SECONDS},
    }
    app.conf.beat_schedule["support-views"] = {
        "task": "portal.tasks.end_support_views",
        "schedule": END_SUPPORT_VIEWS_SECONDS,
        "options": {"queue": "background", "expires": END_SUPPORT_VIEWS_SECONDS},
    }
    app.conf.beat_schedule["provider-sessions"] = {
        "task": "portal.tasks.confirm_sessions",
        "schedule": CONFIRM_SESSIONS_SECONDS,
        "options": {"queue": "background", "expires": CONFIRM_SESSIONS_SECONDS},
    }
