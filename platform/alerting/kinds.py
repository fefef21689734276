"""The kinds of alerts, with their thresholds: what each is about, how long it lasts before it is raised, what to do.

They are computed from PostgreSQL and from the disk of the machine that looks, so they need no Prometheus. The rules in
``docker/monitoring/rules.yaml`` are for those who have one: they see more, also while PostgreSQL is unavailable.
``tests/alerting/test_kinds.py`` holds the thresholds that both have to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from django.utils.translation import gettext_noop as _

#: A drain that is further behind, in seconds.
DRAIN_BEHIND_SECONDS = 60
#: A certificate that is valid for less, in seconds.
CERTIFICATE_SECONDS = 172_800
#: Of a model's requests in WINDOW, the share that the platform fails, and the fewest failures that count.
ERROR_SHARE = 0.05
FEWEST_ERRORS = 5
ERROR_WINDOW = timedelta(minutes=15)
#: Free space of the disk with HEARTH_DATA_DIR: less than this share, and less than these bytes.
FREE_SHARE = 0.10
FREE_BYTES = 20 << 30
#: Dunning that has not run through. It begins every ten minutes.
DUNNING_LATE = timedelta(hours=2)
#: Slots times seconds of a reserved hour that were not available. A replica that restarts takes less.
MISSING_SECONDS = 300
#: An hour is measured ten minutes after its end at the latest.
MEASURED = timedelta(hours=2, minutes=15)
#: How long a sign-in of the break-glass operator stays an alert.
BREAK_GLASS = timedelta(hours=1)
#: A node whose agent has not renewed its lease.
NODE_LOST_SECONDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind. ``patience``: how long it is seen before it is raised. ``action``: what to do."""

    name: str
    about: str
    patience: timedelta
    action: str
    severity: Literal["critical", "warning"]


KINDS: tuple[Kind, ...] = (
    Kind(
        name="replica-failing",
        about=_("A replica was given up after repeated failures, and is still wanted."),
        patience=timedelta(),
        action="`celery -A hearth fleet replicas` shows why; `fleet scale` tries again.",
        severity="warning",
    ),
    Kind(
        name="pool-full",
        about=_("A deployment has waited 5 minutes for slots of a pool."),
        patience=timedelta(minutes=5),
        action="Add a node, scale another deployment down, or lower the deployment's minimum.",
        severity="warning",
    ),
    Kind(
        name="node-lost",
        about=f"The agent of a node that is not drained has been silent for {NODE_LOST_SECONDS} s.",
        patience=timedelta(),
        action="Look at the machine and at its agent's log; `hearth node remove NODE` if it does not come back.",
        severity="critical",
    ),
    Kind(
        name="drain-behind",
        about=f"Usage has waited over {DRAIN_BEHIND_SECONDS} s for the database, for a minute.",
        patience=timedelta(minutes=1),
        action="Read the drain's log. Budgets go on counting from the log.",
        severity="warning",
    ),
    Kind(
        name="reconciliation-gap",
        about=_(
            "Engines' counters, usage and the books do not agree, over two comparisons, or Stripe's books and ours."
        ),
        patience=timedelta(hours=2),
        action="`hearth reconcile` names the engine process and the requests to look at, `hearth stripe status` the "
        "invoices.",
        severity="critical",
    ),
    Kind(
        name="payment-overdue",
        about=_("Requests of a tenant are refused because invoices are not paid."),
        patience=timedelta(),
        action="`hearth dunning status` shows its invoices; `hearth dunning grace` serves it until a day.",
        severity="warning",
    ),
    Kind(
        name="dunning",
        about=_("Dunning has not run through for two hours, or its last run could not look at some invoices."),
        patience=timedelta(minutes=15),  # a release that brings it begins after at most ten
        action="Read the log of the role background, and run `hearth dunning run`.",
        severity="warning",
    ),
    Kind(
        name="reservation-missing",
        about=_("In the last measured hour a tenant's reserved slots were not available for 5 slot minutes or more."),
        patience=timedelta(),
        action="`celery -A hearth fleet replicas` shows what its deployment lacks. The tenant is credited.",
        severity="warning",
    ),
    Kind(
        name="disk",
        about=_(
            "The disk of HEARTH_DATA_DIR on a machine with the role background is nearly full (less than 10 % and "
            "20 GiB free), or the usage log has a quarter of its limit."
        ),
        patience=timedelta(minutes=1),
        action="Free space. At the limit of the usage log no request is served.",
        severity="critical",
    ),
    Kind(
        name="certificate",
        about=_("The certificate of a node whose agent lives expires within two days."),
        patience=timedelta(minutes=10),
        action="Read the logs of its agent and of the control role, which has to sign the next one.",
        severity="critical",
    ),
    Kind(
        name="error-rate",
        about=_("The platform fails over 5 % of a model's requests, and at least 5, in up to half an hour."),
        patience=timedelta(minutes=1),
        action="Look at its replicas on the page Fleet, and at the failed requests on the page Requests.",
        severity="critical",
    ),
    Kind(
        name="break-glass-used",
        about=_("The break-glass operator signed in, within the last hour. One alert for each time."),
        patience=timedelta(),
        action="Ask who did it and why. Nobody did? `hearth manage operators break-glass` makes its secrets anew.",
        severity="critical",
    ),
)
BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
