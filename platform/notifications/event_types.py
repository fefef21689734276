"""The types of events: what each one means, what its data holds, and who gets an e-mail.

A name is ``hearth.<noun>.<past verb>.v<number>``. Data never changes its meaning under one name: what a receiver could
misread gets the next number. It holds no prompt, no response and no secret. Amounts of money are decimal text in units
of the currency, such as ``"12.34"``, because JSON numbers lose digits; moments are RFC 3339 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext_noop as _

from notifications.errors import UnknownEventType
from tenants.models import Membership

_NAME = re.compile(r"hearth\.[a-z]+(?:_[a-z]+)*\.[a-z]+(?:_[a-z]+)*\.v[1-9][0-9]*")
OWNER, ADMIN = Membership.Role.OWNER, Membership.Role.ADMIN
BILLING, DEVELOPER = Membership.Role.BILLING, Membership.Role.DEVELOPER


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One type of event. ``fields``: the names in its data, each with its meaning; all of them are always there.

    ``mail_roles``: the members of the tenant who get an e-mail. ``mail_operators``: operators do, of an event that is
    no tenant's. ``is_optional``: a person may refuse the e-mail.
    """

    name: str
    about: str
    fields: Mapping[str, str]
    about_whom: Literal["tenant", "platform", "either"] = "tenant"
    mail_roles: tuple[str, ...] = ()
    mail_operators: bool = False
    is_optional: bool = True

    def __post_init__(self) -> None:
        """Check the name. Raises ValueError."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name} is not hearth.<noun>.<past verb>.v<number>")


_OF_BUDGETS = {
    "budget": "Id of the budget.",
    "project": "Slug of the project that it limits; null: none.",
    "key": "Id of the API key that it limits; null: none.",
    "model": "The model that it limits; empty: all together.",
    "period": "day, week, month or total.",
    "period_from": "Beginning of the period.",
    "action": "block: requests that could exceed the budget are refused; alert: none is.",
    "spent": "What was spent.",
    "limit": "The budget.",
    "currency": "Currency of both.",
}
BUDGET_THRESHOLD_REACHED = EventType(
    name="hearth.budget_threshold.reached.v1",
    about=_("A percentage of a budget was spent. Once per percentage and period."),
    fields=_OF_BUDGETS | {"percent": "The percentage."},
    mail_roles=(OWNER, ADMIN, BILLING),
)
BUDGET_EXHAUSTED = EventType(
    name="hearth.budget.exhausted.v1",
    about=_("99 % or more of a budget that blocks was spent, so requests are refused. Once per period."),
    fields=_OF_BUDGETS,
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
_OF_BALANCES = {
    "left": "What is left; negative where more was used than paid in.",
    "daily": "What the tenant used in a day, on average over the last 7.",
    "currency": "Currency of both.",
}
BALANCE_LOW = EventType(
    name="hearth.balance.low.v1",
    about=_("A prepaid balance lasts for less than 3 days at the pace of the last 7. Once, until credit is added."),
    fields=_OF_BALANCES,
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
BALANCE_EXHAUSTED = EventType(
    name="hearth.balance.exhausted.v1",
    about=_("A prepaid balance is spent, so requests are refused. Once, until credit is added."),
    fields=_OF_BALANCES,
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
_OF_INVOICES = {
    "invoice": "Id of the invoice.",
    "number": "Its number.",
    "month": "The month that it is for, as YYYY-MM.",
    "currency": "Currency of the amounts.",
    "total": "Its total with tax.",
    "due": "What is to be paid, after credit, credit notes and payments of an earlier invoice of the month.",
    "issued_on": "Its date.",
    "due_on": "When it is to be paid.",
}
INVOICE_FINALIZED = EventType(
    name="hearth.invoice.finalized.v1",
    about=_("An invoice became final: it has a number, and its documents are ready."),
    fields=_OF_INVOICES,
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
BILLING_ADDRESS_ADDED = EventType(
    name="hearth.billing_address.added.v1",
    about=_("An e-mail address was entered for invoices, and waits until its owner or an operator confirms it."),
    fields={"address": "The address. It gets a link by e-mail, and nothing else before it is confirmed."},
    is_optional=False,
)
INVOICE_SENT = EventType(
    name="hearth.invoice.sent.v1",
    about=_("An invoice was sent by e-mail, with its PDF. Each time that somebody sends it."),
    fields=_OF_INVOICES | {"sent_at": "When."},
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
INVOICE_PAID = EventType(
    name="hearth.invoice.paid.v1",
    about=_("All of an invoice is paid."),
    fields=_OF_INVOICES,
    mail_roles=(OWNER, ADMIN, BILLING),
)
INVOICE_OVERDUE = EventType(
    name="hearth.invoice.overdue.v1",
    about=_("An invoice was not paid in time. Once."),
    fields=_OF_INVOICES,
    mail_roles=(OWNER, ADMIN, BILLING),
)
INVOICE_VOIDED = EventType(
    name="hearth.invoice.voided.v1",
    about=_("An invoice was taken back by a credit note."),
    fields=_OF_INVOICES,
    mail_roles=(OWNER, ADMIN, BILLING),
)
INVOICE_CREDITED = EventType(
    name="hearth.invoice.credited.v1",
    about=_("A credit note took a part of an invoice back."),
    fields=_OF_INVOICES
    | {
        "credit_note": "Number of the credit note.",
        "credited": "Its amount with tax.",
        "open": "What is still to be paid of the invoice.",
        "to_credit": "What had been paid already and is credit now.",
        "reason": "Why.",
    },
    mail_roles=(OWNER, ADMIN, BILLING),
)
PAYMENT_FAILED = EventType(
    name="hearth.payment.failed.v1",
    about=_("A payment of an invoice failed, such as a card that was declined."),
    fields=_OF_INVOICES | {"reference": "The attempt's own id.", "reason": "Why it failed."},
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
INVOICE_REMINDED = EventType(
    name="hearth.invoice.reminded.v1",
    about=_("An invoice is still not paid: a reminder, a second one, or the last notice. Each once."),
    fields=_OF_INVOICES
    | {
        "step": "reminder, second_reminder or notice.",
        "open": "What is still to be paid.",
        "days_late": "For how many days; 0: a payment failed before it was due.",
        "suspends_on": "After a notice: from when on requests are refused; null: they are not.",
    },
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
PAYMENT_SUSPENSION_BEGUN = EventType(
    name="hearth.payment_suspension.begun.v1",
    about=_("Requests of the tenant are refused, because invoices were not paid."),
    fields={"since": "Since when.", "invoices": "Numbers of the invoices."},
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
PAYMENT_SUSPENSION_LIFTED = EventType(
    name="hearth.payment_suspension.lifted.v1",
    about=_("Requests of the tenant are served again: the invoices are paid or void, or an operator granted a grace."),
    fields={"since": "Since when they were refused.", "lifted_at": "Until when."},
    mail_roles=(OWNER, ADMIN, BILLING),
    is_optional=False,
)
KEY_EXPIRY_ANNOUNCED = EventType(
    name="hearth.key_expiry.announced.v1",
    about=_("An API key expires within 7 days, and again within one day."),
    fields={
        "key": "Id of the key.",
        "public_id": "How the key begins: hk_…",
        "name": "Its name.",
        "project": "Slug of its project.",
        "expires_at": "When it expires.",
        "days": "7 or 1: within so many days.",
    },
    mail_roles=(OWNER, ADMIN, DEVELOPER),
)

MODEL_RETIREMENT_ANNOUNCED = EventType(
    name="hearth.model_retirement.announced.v1",
    about=_("A model that the tenant may call retires at a date: requests after it are refused. Once per date."),
    fields={
        "model": "The model.",
        "retires_at": "From when on its requests are refused.",
        "replacement": "The model or alias to call instead; null: nobody has said.",
    },
)

WEBHOOK_ENDPOINT_TESTED = EventType(
    name="hearth.webhook_endpoint.tested.v1",
    about=_("Somebody asked for a test. Only that endpoint gets it, whatever types it has chosen."),
    fields={"endpoint": "Id of the endpoint.", "requested_by": "Who asked."},
    about_whom="either",
)

WEBHOOK_ENDPOINT_DISABLED = EventType(
    name="hearth.webhook_endpoint.disabled.v1",
    about=_("A webhook endpoint failed for days and gets nothing any more, until somebody resumes it."),
    fields={
        "endpoint": "Id of the endpoint.",
        "url": "Its URL, without its query.",
        "failing_since": "When the first of the failures was.",
    },
    about_whom="either",
    mail_roles=(OWNER, ADMIN),
    mail_operators=True,
)

_OF_ALERTS = {
    "alert": "Id of the alert, the same when it is resolved.",
    "kind": "The kind, as in the list of alerts.",
    "about": "What it is about, such as `node n2`.",
    "summary": "What is wrong, in a sentence.",
    "severity": "critical or warning.",
    "action": "What to do.",
    "raised_at": "When it was raised.",
}
ALERT_RAISED = EventType(
    name="hearth.alert.raised.v1",
    about=_("Something needs an operator. Once, until it is resolved."),
    fields=_OF_ALERTS,
    about_whom="platform",
    mail_operators=True,
)
ALERT_RESOLVED = EventType(
    name="hearth.alert.resolved.v1",
    about=_("What an alert was about is well again."),
    fields=_OF_ALERTS,
    about_whom="platform",
    mail_operators=True,
)

#: In the order of the documentation.
EVENT_TYPES: tuple[EventType, ...] = (
    BUDGET_THRESHOLD_REACHED,
    BUDGET_EXHAUSTED,
    BALANCE_LOW,
    BALANCE_EXHAUSTED,
    BILLING_ADDRESS_ADDED,
    INVOICE_FINALIZED,
    INVOICE_SENT,
    INVOICE_PAID,
    INVOICE_OVERDUE,
    INVOICE_VOIDED,
    INVOICE_CREDITED,
    PAYMENT_FAILED,
    INVOICE_REMINDED,
    PAYMENT_SUSPENSION_BEGUN,
    PAYMENT_SUSPENSION_LIFTED,
    KEY_EXPIRY_ANNOUNCED,
    MODEL_RETIREMENT_ANNOUNCED,
    ALERT_RAISED,
    ALERT_RESOLVED,
    WEBHOOK_ENDPOINT_DISABLED,
    WEBHOOK_ENDPOINT_TESTED,
)
BY_NAME: Mapping[str, EventType] = {each.name: each for each in EVENT_TYPES}


def find(name: str) -> EventType:
    """Return the type of that name. Raises UnknownEventType."""
    if name not in BY_NAME:
        raise UnknownEventType(name)
    return BY_NAME[name]
