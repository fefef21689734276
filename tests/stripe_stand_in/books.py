"""The stand-in's objects and what calls do to them, as Stripe's pages in ``rules`` say."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.stripe_stand_in import rules
from tests.stripe_stand_in.rules import ApiError, check_amount, check_metadata, integer, unknown

Object = dict[str, Any]
_PREFIXES = {
    "customer": "cus",
    "invoice": "in",
    "invoiceitem": "ii",
    "invoice_payment": "inpay",
    "credit_note": "cn",
    "customer_balance_transaction": "cbtxn",
    "event": "evt",
    "tax_rate": "txr",
    "payment_intent": "pi",
    "refund": "re",
    "dispute": "du",
    "checkout.session": "cs_test",
    "setup_intent": "seti",
    "payment_method": "pm",
}


class Books:
    """One account in test mode. ``events``: what happened, as webhooks have it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.account: Object = {"id": "acct_" + secrets.token_hex(8), "object": "account"}
        self.objects: dict[str, Object] = {}
        self.events: list[Object] = []
        self.numbers = 0

    def make(self, kind: str, **values: Any) -> Object:
        """Create an object with an id of its kind."""
        identity = f"{_PREFIXES[kind]}_{secrets.token_hex(12)}"
        made = {"id": identity, "object": kind, "created": int(self.clock()), "livemode": False, **values}
        self.objects[identity] = made
        return made

    def get(self, kind: str, identity: str) -> Object:
        """Return an object. Raises ApiError."""
        found = self.objects.get(identity)
        if found is None or found["object"] != kind:
            raise unknown(kind, identity)
        return found

    def of_kind(self, kind: str, **values: Any) -> list[Object]:
        """Return the objects of a kind with these values, the newest first."""
        found = [each for each in self.objects.values() if each["object"] == kind]
        return [each for each in reversed(found) if all(each.get(name) == value for name, value in values.items())]

    def emit(self, kind: str, about: Object) -> Object:
        """Record an event about an object, as it is now."""
        event = {
            "id": f"evt_{secrets.token_hex(12)}",
            "object": "event",
            "type": kind,
            "created": int(self.clock()),
            "livemode": False,
            "data": {"object": dict(about)},
        }
        self.events.append(event)
        return event

    def customer(self, params: Object) -> Object:
        """Create a customer."""
        return self.make("customer", **_named(params), metadata=check_metadata(params.get("metadata")), balance=0)

    def change_customer(self, identity: str, params: Object) -> Object:
        """Change a customer; metadata is merged."""
        found = self.get("customer", identity)
        found["metadata"] |= check_metadata(params.get("metadata"))
        found.update(_named(params))
        if method := params.get("invoice_settings", {}).get("default_payment_method"):
            if self.get("payment_method", method)["customer"] != identity:
                raise ApiError(400, "The customer does not have this payment method.", code="resource_missing")
            found["invoice_settings"] = {"default_payment_method": method}
        return found

    def session(self, params: Object) -> Object:
        """Make a page on which a customer saves a payment method (docs.stripe.com/payments/save-and-reuse)."""
        if params.get("mode") != "setup" or not params.get("currency"):
            raise ApiError(400, "The stand-in has sessions in setup mode, which need a currency.")
        made = self.make(
            "checkout.session",
            mode="setup",
            status="open",
            customer=self.get("customer", str(params.get("customer", "")))["id"],
            setup_intent=self.make(
                "setup_intent", status="requires_payment_method", payment_method=None, customer=params["customer"]
            )["id"],
            success_url=params["success_url"],
            metadata=check_metadata(params.get("metadata")),
        )
        made["url"] = f"https://checkout.stripe.invalid/c/pay/{made['id']}"
        return made

    def save_method(self, identity: str, last4: str = "4242", *, declines: bool = False) -> Object:
        """Let the customer save a card on a session's page; ``declines``: its bank refuses every charge."""
        session = self.get("checkout.session", identity)
        card = {"brand": "visa", "last4": last4, "exp_month": 7, "exp_year": 2031}
        method = self.make("payment_method", type="card", card=card, customer=session["customer"], declines=declines)
        self._complete(session, method, "succeeded")
        return method

    def save_bank_account(self, identity: str) -> Object:
        """Let the customer save a bank account on a session's page, which micro-deposits verify days later.

        docs.stripe.com/api/setup_intents/verify_microdeposits: until then the setup intent requires an action, and the
        payment method is attached once it succeeds (docs.stripe.com/api/setup_intents/object).
        """
        session = self.get("checkout.session", identity)
        bank = {"bank_name": "STRIPE TEST BANK", "last4": "6789"}
        method = self.make("payment_method", type="us_bank_account", us_bank_account=bank, customer=None)
        self._complete(session, method, "requires_action")
        return method

    def verify(self, identity: str) -> None:
        """Let the customer verify the bank account of a session."""
        session = self.get("checkout.session", identity)
        intent = self.get("setup_intent", session["setup_intent"])
        intent["status"] = "succeeded"
        self.get("payment_method", intent["payment_method"])["customer"] = session["customer"]
        self.emit("setup_intent.succeeded", intent)

    def _complete(self, session: Object, method: Object, status: str) -> None:
        intent = self.get("setup_intent", session["setup_intent"])
        intent.update(status=status, payment_method=method["id"])
        session["status"] = "complete"
        self.emit("checkout.session.completed", session)
        if status == "succeeded":
            self.emit("setup_intent.succeeded", intent)

    def detach(self, identity: str) -> Object:
        """Remove a payment method from its customer, also as its default."""
        found = self.get("payment_method", identity)
        customer, found["customer"] = self.get("customer", found["customer"]), None
        if customer.get("invoice_settings", {}).get("default_payment_method") == identity:
            customer["invoice_settings"] = {"default_payment_method": None}
        self.emit("payment_method.detached", found)
        return found

    def collect(self) -> None:
        """Let Stripe charge the open invoices that it collects by itself.

        docs.stripe.com/invoicing/integration/automatic-advancement-collection
        """
        for found in self.of_kind("invoice", status="open", collection_method="charge_automatically"):
            if not found["auto_advance"]:
                continue
            customer = self.get("customer", found["customer"])
            method = customer.get("invoice_settings", {}).get("default_payment_method")
            found["attempt_count"] += 1
            if method is None or self.get("payment_method", method)["declines"]:
                self.emit("invoice.payment_failed", found)
            else:
                self.pay(found["id"])

    def balance(self, identity: str, params: Object) -> Object:
        """Add to a customer's balance: below zero is credit (docs.stripe.com/billing/customer/balance)."""
        found = self.get("customer", identity)
        amount = check_amount(integer(params, "amount"), params["currency"])
        self._one_currency(found, params["currency"])
        found["balance"] += amount
        return self.make(
            "customer_balance_transaction",
            customer=identity,
            amount=amount,
            currency=params["currency"],
            metadata=check_metadata(params.get("metadata")),
        )

    def invoice(self, params: Object) -> Object:
        """Create a draft."""
        customer = self.get("customer", str(params.get("customer", "")))
        fields = _listed(params.get("custom_fields"))
        if len(fields) > rules.MOST_CUSTOM_FIELDS or any(
            len(each["name"]) > rules.LONGEST_FIELD_NAME or len(each["value"]) > rules.LONGEST_FIELD_VALUE
            for each in fields
        ):
            raise ApiError(400, "Too many custom fields, or too long ones.")
        method = params.get("collection_method", "charge_automatically")
        if method == "send_invoice" and "days_until_due" not in params:
            raise ApiError(400, "You must pass either due_date or days_until_due.")
        if method == "charge_automatically" and "days_until_due" in params:
            raise ApiError(400, "You cannot set days_until_due of an invoice that is charged automatically.")
        self._one_currency(customer, params["currency"])
        rates = [self.get("tax_rate", each) for each in _listed(params.get("default_tax_rates"))]
        made = self.make(
            "invoice",
            customer=customer["id"],
            currency=params["currency"],
            collection_method=method,
            days_until_due=int(params.get("days_until_due", 0)),
            auto_advance=params.get("auto_advance") == "true",
            status="draft",
            number=None,
            description=params.get("description"),
            footer=params.get("footer"),
            custom_fields=fields,
            default_tax_rates=rates,
            metadata=check_metadata(params.get("metadata")),
            hosted_invoice_url=None,
            invoice_pdf=None,
            due_date=None,
            starting_balance=0,
            amount_paid=0,
            attempt_count=0,
            pre_payment_credit_notes_amount=0,
            post_payment_credit_notes_amount=0,
            status_transitions={
                "finalized_at": None,
                "paid_at": None,
                "voided_at": None,
                "marked_uncollectible_at": None,
            },
        )
        self._sum(made)
        self.emit("invoice.created", made)
        return made

    def item(self, params: Object) -> Object:
        """Add an item to a draft."""
        invoice = self.get("invoice", str(params.get("invoice", "")))
        if invoice["status"] != "draft":
            raise ApiError(400, "Items can be added to draft invoices only.", code="invoice_not_editable")
        if params.get("currency") != invoice["currency"]:
            raise ApiError(400, "The currency of the item must be that of the invoice.")
        if len(self.of_kind("invoiceitem", invoice=invoice["id"])) >= rules.MOST_ITEMS:
            raise ApiError(400, f"An invoice can have at most {rules.MOST_ITEMS} items.")
        made = self.make(
            "invoiceitem",
            customer=params["customer"],
            invoice=invoice["id"],
            amount=check_amount(integer(params, "amount"), params["currency"]),
            currency=params["currency"],
            description=params.get("description"),
            metadata=check_metadata(params.get("metadata")),
        )
        self._sum(invoice)
        return made

    def delete(self, identity: str) -> Object:
        """Delete a draft."""
        found = self.get("invoice", identity)
        if found["status"] != "draft":
            raise ApiError(400, "Only drafts can be deleted.", code="invoice_not_editable")
        for each in self.of_kind("invoiceitem", invoice=identity):
            del self.objects[each["id"]]
        del self.objects[identity]
        self.emit("invoice.deleted", found)
        return {"id": identity, "object": "invoice", "deleted": True}

    def step(self, identity: str, name: str, params: Object) -> Object:
        """Take an invoice to its next state."""
        found = self.get("invoice", identity)
        before, after, event = rules.STEPS[name]
        if found["status"] not in before:
            raise ApiError(400, f"This invoice is {found['status']}: it cannot be changed by {name}.")
        if name == "pay" and params.get("paid_out_of_band") != "true":
            found["attempt_count"] += 1
            self.emit("invoice.payment_failed", found)
            raise ApiError(402, "Your card was declined.", type="card_error", code="card_declined", kept=True)
        if name == "send" and found["collection_method"] != "send_invoice":
            raise ApiError(400, "You can only manually send an invoice if its collection method is send_invoice.")
        found["status"] = after
        if name == "finalize":
            found["auto_advance"] = params.get("auto_advance") in {"true", "True"}
            self._finalize(found)
        elif name != "send":
            found["status_transitions"][_MOMENTS[name]] = int(self.clock())
        if name == "void":
            # docs.stripe.com/changelog/2019-12-03/customer-balances-returned-voided-invoices
            self.get("customer", found["customer"])["balance"] += found.get("applied_balance", 0)
        self.emit(event, found)
        if found["status"] == "open" and name == "finalize" and found["amount_due"] == 0:
            self._paid(found)
        return found

    def pay(self, identity: str, amount: int | None = None, at: int | None = None) -> Object:
        """Let the customer pay on the hosted page, all or a part; return the payment."""
        found = self.get("invoice", identity)
        assert found["status"] in {"open", "uncollectible"}
        paid = found["amount_remaining"] if amount is None else amount
        moment = int(self.clock()) if at is None else at
        payment = self.make(
            "invoice_payment",
            invoice=identity,
            amount_paid=paid,
            amount_requested=paid,
            currency=found["currency"],
            status="paid",
            payment={"type": "payment_intent", "payment_intent": f"pi_{secrets.token_hex(12)}"},
            status_transitions={"paid_at": moment, "canceled_at": None},
        )
        found["amount_paid"] += paid
        self._sum(found)
        if found["amount_remaining"] <= 0:
            self._paid(found)
        return payment

    def credit_note(self, params: Object) -> Object:
        """Credit a part of an open invoice (docs.stripe.com/invoicing/dashboard/credit-notes)."""
        found, amount = self.get("invoice", str(params["invoice"])), integer(params, "amount")
        if found["status"] not in {"open", "paid"}:
            raise ApiError(400, "Only open and paid invoices can be credited.")
        name = "pre_payment_credit_notes_amount" if found["status"] == "open" else "post_payment_credit_notes_amount"
        found[name] += amount
        self._sum(found)
        note = self.make("credit_note", invoice=found["id"], amount=amount, currency=found["currency"])
        self.emit("credit_note.created", note)
        if found["status"] == "open" and found["amount_remaining"] <= 0:
            self._paid(found)
        return note

    def refund(self, payment: Object, amount: int) -> Object:
        """Refund a part of a payment; the invoice stays paid (docs.stripe.com/refunds)."""
        made = self._of_payment("refund", payment, amount, status="succeeded")
        self.emit("refund.created", made)
        return made

    def dispute(self, payment: Object) -> Object:
        """Let the customer's bank take a payment back (docs.stripe.com/disputes)."""
        made = self._of_payment("dispute", payment, payment["amount_paid"], status="needs_response")
        self.emit("charge.dispute.created", made)
        return made

    def fail(self, refund: Object) -> None:
        """Let the customer's bank not take a refund, which is on the account's balance again.

        https://docs.stripe.com/refunds#failed-refunds; events: docs.stripe.com/changelog/acacia/2024-10-28
        """
        refund["status"] = "failed"
        for kind in ("refund.updated", "charge.refund.updated", "refund.failed"):
            self.emit(kind, refund)

    def close(self, dispute: Object, status: str) -> None:
        """Let a dispute be won or lost (docs.stripe.com/disputes/responding)."""
        dispute["status"] = status
        if status == "won":
            self.emit("charge.dispute.funds_reinstated", dispute)
        self.emit("charge.dispute.closed", dispute)

    def _of_payment(self, kind: str, payment: Object, amount: int, status: str) -> Object:
        intent = payment["payment"]["payment_intent"]
        check_amount(amount, payment["currency"])
        return self.make(kind, amount=amount, currency=payment["currency"], payment_intent=intent, status=status)

    def lines(self, invoice: Object) -> list[Object]:
        """Return the lines of an invoice, in the order of its items."""
        return list(reversed(self.of_kind("invoiceitem", invoice=invoice["id"])))

    def _finalize(self, found: Object) -> None:
        self.numbers += 1
        found["number"] = f"STAND-{self.numbers:04}"
        found["hosted_invoice_url"] = f"https://invoice.stripe.invalid/i/{found['id']}"
        found["invoice_pdf"] = f"https://pay.stripe.invalid/invoice/{found['id']}/pdf"
        moment = int(self.clock())
        found["status_transitions"]["finalized_at"] = moment
        if found["collection_method"] == "send_invoice":
            found["due_date"] = moment + found["days_until_due"] * 86400
        customer = self.get("customer", found["customer"])
        found["starting_balance"] = customer["balance"]
        used = max(-found["total"], min(0, customer["balance"])) if customer["balance"] < 0 else customer["balance"]
        customer["balance"] -= used
        found["applied_balance"] = used
        self._sum(found)

    def _paid(self, found: Object) -> None:
        found["status"] = "paid"
        found["status_transitions"]["paid_at"] = int(self.clock())
        self.emit("invoice.paid", found)

    def _sum(self, found: Object) -> None:
        items = self.lines(found)
        subtotal = sum(each["amount"] for each in items)
        rates = found["default_tax_rates"]
        # Stripe computes tax by line or in total, as its account is set; here in total, half away from zero.
        tax = sum(
            int((Decimal(subtotal) * Decimal(str(rate["percentage"])) / 100).quantize(Decimal(1), ROUND_HALF_UP))
            for rate in rates
        )
        due = subtotal + tax + found.get("applied_balance", 0) - found["pre_payment_credit_notes_amount"]
        found.update(
            subtotal=subtotal,
            total=subtotal + tax,
            total_excluding_tax=subtotal,
            amount_due=max(0, due),
            amount_remaining=max(0, due - found["amount_paid"]),
            lines={
                "object": "list",
                "data": items[: rules.SHOWN_LINES],
                "has_more": len(items) > rules.SHOWN_LINES,
                "total_count": len(items),
            },
        )

    def _one_currency(self, customer: Object, currency: str) -> None:
        """A customer's invoices have one currency (docs.stripe.com/invoicing/multi-currency-customers)."""
        known = customer.setdefault("currency", currency)
        if known != currency:
            raise ApiError(400, f"You cannot combine currencies on a single customer: {known} and {currency}.")


_MOMENTS = {"pay": "paid_at", "void": "voided_at", "mark_uncollectible": "marked_uncollectible_at"}


def _named(params: Object) -> Object:
    return {name: params[name] for name in ("name", "email", "address", "description") if name in params}


def _listed(found: Any) -> list[Any]:
    return [found[str(at)] for at in range(len(found))] if isinstance(found, dict) else []
