"""What Stripe publishes and the stand-in enforces, each with its page.

It was written from these pages, not from observing Stripe. What they leave open, such as texts of errors, is our guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Secret and restricted keys, as bearer token or as basic authentication's user. docs.stripe.com/api/authentication
KEY = re.compile(r"(sk|rk)_test_[A-Za-z0-9_]{8,}")
#: An unknown version in Stripe-Version is refused. docs.stripe.com/api/versioning
VERSIONS = frozenset({"2026-10-28.endive"})
#: docs.stripe.com/api/idempotent_requests: at most 255 characters, kept for at least 24 hours; other parameters with
#: the same key are an error; status and body of the first request are repeated, those of 5xx too; nothing is kept of
#: parameters that fail validation; the repeat has the header Idempotent-Replayed.
LONGEST_KEY = 255
KEY_SECONDS = 24 * 3600
#: docs.stripe.com/currencies: with three decimals, the last must be 0; ISK and UGX count hundredths that must be 00.
STEPS_OF_CURRENCIES = {
    **dict.fromkeys(("bhd", "jod", "kwd", "omr", "tnd"), 10),
    **dict.fromkeys(("isk", "ugx"), 100),
}
#: docs.stripe.com/metadata
MOST_METADATA, LONGEST_METADATA_NAME, LONGEST_METADATA_VALUE = 50, 40, 500
#: docs.stripe.com/api/pagination: 1 to 100, 10 by default, newest first, starting_after and has_more.
PAGE, MOST_PAGE = 10, 100
#: docs.stripe.com/rate-limits: 25 requests a second in a sandbox, then 429.
REQUESTS_PER_SECOND = 25
#: docs.stripe.com/changelog/2016-02-22/no-more-than-250-invoice-items
MOST_ITEMS = 250
#: An invoice has the first ten of its lines. docs.stripe.com/api/invoices/object
SHOWN_LINES = 10
#: docs.stripe.com/api/invoices/create: custom fields, and their longest name and value.
MOST_CUSTOM_FIELDS, LONGEST_FIELD_NAME, LONGEST_FIELD_VALUE = 4, 40, 140
#: docs.stripe.com/invoicing/integration/workflow-transitions: from which states each call leads where, and its event.
STEPS = {
    "finalize": ({"draft"}, "open", "invoice.finalized"),
    "send": ({"open"}, "open", "invoice.sent"),
    "pay": ({"open", "uncollectible"}, "paid", "invoice.paid"),
    "void": ({"open", "uncollectible"}, "void", "invoice.voided"),
    "mark_uncollectible": ({"open"}, "uncollectible", "invoice.marked_uncollectible"),
}

_METADATA = {"metadata"}
#: What each call takes; another parameter is refused (parameter_unknown, docs.stripe.com/error-codes).
PARAMETERS: dict[str, set[str]] = {
    "POST customers": {"name", "email", "address", "description", *_METADATA},
    "POST customers/ID": {"name", "email", "address", "description", "invoice_settings", *_METADATA},
    "GET customers": {"limit", "starting_after", "created", "email"},
    "POST customers/ID/balance_transactions": {"amount", "currency", "description", *_METADATA},
    "GET customers/ID/balance_transactions": {"limit", "starting_after"},
    "POST invoiceitems": {"customer", "invoice", "amount", "currency", "description", *_METADATA},
    "GET invoiceitems": {"limit", "starting_after", "invoice", "customer", "pending"},
    "POST invoices": {
        *("customer", "currency", "collection_method", "days_until_due", "auto_advance", "description", "footer"),
        *("pending_invoice_items_behavior", "custom_fields", "default_tax_rates", *_METADATA),
    },
    "GET invoices": {"limit", "starting_after", "created", "customer", "status"},
    "POST invoices/ID/finalize": {"auto_advance"},
    "POST invoices/ID/send": set(),
    "POST invoices/ID/void": set(),
    "POST invoices/ID/mark_uncollectible": set(),
    "POST invoices/ID/pay": {"paid_out_of_band"},
    "GET invoice_payments": {"limit", "starting_after", "created", "invoice", "status", "payment"},
    #: docs.stripe.com/payments/save-and-reuse: a session in setup mode needs a currency.
    "POST checkout/sessions": {"mode", "customer", "currency", "success_url", "cancel_url", *_METADATA},
    "GET checkout/sessions": {"limit", "starting_after", "created", "customer", "status"},
    "POST payment_methods/ID/detach": set(),
    "POST credit_notes": {"invoice", "amount", "reason", *_METADATA},
}


@dataclass
class ApiError(Exception):
    """An answer 4xx or 5xx. docs.stripe.com/api/errors. ``kept``: whether an idempotency key keeps it."""

    status: int
    message: str
    type: str = "invalid_request_error"
    code: str = ""
    kept: bool = False


def unknown(what: str, identity: str) -> ApiError:
    """Return the answer for an object that does not exist."""
    return ApiError(404, f"No such {what}: '{identity}'", code="resource_missing")


def integer(params: dict[str, object], name: str) -> int:
    """Return an amount in the currency's smallest unit. Raises ApiError for any other text."""
    text = str(params.get(name, ""))
    if not re.fullmatch(r"-?[0-9]{1,15}", text):
        raise ApiError(400, f"Invalid integer: {text}", code="parameter_invalid_integer")
    return int(text)


def check_amount(amount: int, currency: object) -> int:
    """Return an amount that the currency has. Raises ApiError."""
    step = STEPS_OF_CURRENCIES.get(str(currency), 1)
    if amount % step:
        raise ApiError(400, f"Invalid amount: {amount} {currency} must be a multiple of {step}.")
    return amount


def check_metadata(found: object) -> dict[str, str]:
    """Return metadata. Raises ApiError beyond its limits."""
    metadata = found if isinstance(found, dict) else {}
    if len(metadata) > MOST_METADATA:
        raise ApiError(400, f"Metadata can have at most {MOST_METADATA} keys.")
    for name, value in metadata.items():
        if len(name) > LONGEST_METADATA_NAME or len(str(value)) > LONGEST_METADATA_VALUE:
            raise ApiError(400, f"Metadata {name[:50]} is too long.")
    return {name: str(value) for name, value in metadata.items()}
