"""One invoice: its lines, payments, documents and history; and for operators, what becomes of it.

A form that is refused is shown again with what was typed, and with what is wrong beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.errors import BadCredit, CreditRefused, InvoiceRefused
from billing.invoices import crediting, registry, states, steps
from billing.models import CreditRequest, Invoice, InvoiceLine, InvoicePayment
from portal.access import audit_actors
from portal.access.principal import Principal, tenant_for
from portal.formats import money
from portal.formats.table_csv import most
from portal.forms.billing.invoice import CreditPartForm, InvoiceForm, PayForm, UnpayForm, VoidForm
from portal.pages.base import form_action, operator_page, page, show
from portal.pages.tenant.invoices import bills_of
from portal.reporting.billing import invoice_list, month_usage
from tenants.models import AuditEntry, Tenant

#: The form of each action that has fields.
_FORMS: Final[Mapping[str, type[InvoiceForm]]] = {
    "pay": PayForm, "credit": CreditPartForm, "void": VoidForm, "unpay": UnpayForm,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """A payment of the page. ``stays``: why it is not taken back here."""

    payment: InvoicePayment
    amount: str
    stays: str = ""
    #: Its form, if that was refused, with what was typed and the errors.
    form: InvoiceForm | None = None


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, invoice: UUID) -> HttpResponse:
    """Show one invoice."""
    return _page(request, principal, slug, invoice)


@form_action("portal:tenant-invoices")
@operator_page
def change(request: HttpRequest, principal: Principal, slug: str, invoice: UUID) -> HttpResponse:
    """Send, pay or void an invoice, take a payment back, or credit a part of it."""
    tenant = tenant_for(principal, slug)
    found = registry.find(str(invoice), tenant.id)
    action = request.POST.get("action", "")
    form = _FORMS[action](request.POST, invoice=found) if action in _FORMS else None
    if form is not None and not form.is_valid():
        return _page(request, principal, slug, invoice, refused=(action, form))
    try:
        messages.success(request, _change(request, principal, found, action, form.cleaned_data if form else {}))
    except (InvoiceRefused, BadCredit, CreditRefused) as error:
        if form is not None and _has_form(registry.find(str(invoice), tenant.id), action):
            form.add_error(None, str(error))
            return _page(request, principal, slug, invoice, refused=(action, form))
        messages.error(request, gettext("Nothing was changed. %(problem)s") % {"problem": error})
    return redirect("portal:invoice", slug=slug, invoice=invoice)


def _has_form(found: Invoice, action: str) -> bool:
    """Return whether the page of an invoice as it is now has the form of an action."""
    if action == "pay":
        return found.state in states.UNPAID
    return found.state != states.VOID and (action != "void" or not _not_void(found))


def _page(
    request: HttpRequest,
    principal: Principal,
    slug: str,
    invoice: UUID,
    *,
    refused: tuple[str, InvoiceForm] | None = None,
) -> HttpResponse:
    """Show the invoice; ``refused``: a form that is shown as it was filled in, and its action."""
    actor = audit_actors.shown_actor(principal)
    with bills_of(request, principal, slug) as tenant:
        found = registry.find(str(invoice), tenant.id)
        entries = AuditEntry.objects.filter(tenant=tenant, object_kind="invoice", object_id=str(found.id))
        context = _figures(tenant, found) | {
            "row": invoice_list.row(found),
            "invoice": found,
            "usage": month_usage.of_invoice(tenant, found, most(request, "usage-project-key-model", month_usage.SHOWN)),
            "documents": list(found.documents.order_by("kind").defer("content")),
            "note": found.credit_note,
            "stripe": getattr(found, "stripe", None),
            "replaces": found.replaces,  # read here, as the tenant
            "replaced_by": getattr(found, "replaced_by", None),
            "history": list(entries.annotate(shown_actor=actor).order_by("id")),
        }
        payments = list(found.payments.select_related("undone").order_by("id"))
    context |= _changes(found, *(refused or ("", None))) if principal.is_operator else {}
    context["payments"] = [_payment(found, each, principal, *(refused or ("", None))) for each in payments]
    status = 400 if refused else 200
    return show(
        request, principal, "portal/invoice.html", context, active="tenant-invoices", tenant=tenant, status=status
    )


def _figures(tenant: Tenant, found: Invoice) -> dict[str, Any]:
    """Return the amounts of an invoice, its lines and its credit notes. Call it as the tenant."""
    links = chain(month_usage.line_links(tenant, found), repeat(""))
    notes = found.credit_notes.filter(is_partial=True).select_related("request").order_by("id")
    parts = ((_("Applied"), found.applied_cents), (_("Credited"), registry.credited_cents(found)))
    return {
        "lines": [
            (each, _price(each, found.currency), invoice_list.cents(each.amount_cents, found.currency), link)
            for each, link in zip(found.lines.order_by("position"), links, strict=False)
        ],
        "credit_notes": [(each, invoice_list.cents(each.total_cents, found.currency)) for each in notes],
        "amounts": [
            (name, invoice_list.cents(cents, found.currency))
            for name, cents in ((_("Net"), found.net_cents), (_("Tax"), found.tax_cents), *(p for p in parts if p[1]))
        ],
        "net": invoice_list.cents(found.net_cents, found.currency),
        "tax": invoice_list.cents(found.tax_cents, found.currency),
        "exact": money.in_full(int(found.exact_pico), found.currency),
    }


def _price(line: InvoiceLine, currency: str) -> str:
    return "" if line.unit_price_pico is None else money.price(line.unit_price_pico, line.unit, currency)


def _changes(found: Invoice, action: str, refused: InvoiceForm | None) -> dict[str, Any]:
    """Return what operators may do about an invoice: the forms, and why it cannot be void."""
    free = crediting.left(found).net_cents
    made: list[tuple[str, type[InvoiceForm]]] = [("pay", PayForm), ("credit", CreditPartForm), ("void", VoidForm)]
    return {
        **{
            f"{name}_form": refused if name == action and refused is not None else form(invoice=found)
            for name, form in made
        },
        "not_void": _not_void(found),
        "sends_mail": settings.EMAIL_IS_SENT,
        "key": f"page-{uuid4()}",  # what was refused made nothing, so each page has a new one
        "may_credit": bool(free),
        "left": invoice_list.cents(free, found.currency),
    }


def _payment(
    found: Invoice, payment: InvoicePayment, principal: Principal, action: str, refused: InvoiceForm | None
) -> Payment:
    is_refused = action == "unpay" and refused is not None and refused.data.get("reference") == payment.reference
    return Payment(
        payment=payment,
        amount=invoice_list.cents(payment.amount_cents, found.currency),
        stays=_problem(lambda: steps.require_recorded_by_people(found, payment)) if principal.is_operator else "",
        form=refused if is_refused else None,
    )


def _not_void(found: Invoice) -> str:
    """Return why an invoice cannot be void; empty: it can, or is."""
    return "" if found.state == states.VOID else _problem(lambda: steps.require_voidable(found))


def _problem(check: Callable[[], None]) -> str:
    """Return why a check refuses, and what to do; empty if it does not."""
    try:
        check()
    except InvoiceRefused as error:
        return f"{error.reason[:1].upper()}{error.reason[1:]}. {error.remedy}".strip()
    return ""


def _change(request: HttpRequest, principal: Principal, found: Invoice, action: str, values: Mapping[str, Any]) -> str:
    """Make the change that the form asks for; return what it did. Raises InvoiceRefused and the errors of credit."""
    match action:
        case "send":
            steps.send(principal.actor, found)
            return gettext("%(number)s is sent.") % {"number": found.number}
        case "pay":
            payment, new = steps.pay(
                principal.actor,
                found,
                reference=values["reference"],
                paid_on=values["paid_on"],
                amount_cents=values["amount"],
            )
            amount = invoice_list.cents(payment.amount_cents, found.currency)
            said = gettext("Recorded: %(amount)s.") if new else gettext("Recorded already: %(amount)s.")
            return said % {"amount": amount}
        case "unpay":
            found = steps.undo_recorded(principal.actor, found, values["reference"], values["reason"])
            is_open = invoice_list.cents(registry.open_cents(found), found.currency)
            said = gettext("The payment was taken back; %(open)s of %(number)s are open now.")
            return said % {"open": is_open, "number": found.number}
        case "void":
            note = steps.void(principal.actor, found, values["reason"])
            if note is None:
                return gettext("%(number)s is void.") % {"number": found.number}
            said = gettext("%(number)s is void, taken back by %(note)s.")
            return said % {"number": found.number, "note": note.number}
        case "credit":
            return _credit(principal, found, request.POST.get("key", ""), values)
        case _:
            raise InvoiceRefused(found.number, "choose what to do")


def _credit(principal: Principal, found: Invoice, key: str, values: Mapping[str, Any]) -> str:
    """Credit a part, or all that is left without an amount; return what was done."""
    amount, text = values["amount"], values["text"] or crediting.text_of_part(found)
    line = None if amount is None else crediting.Line(text=text, net_cents=amount)
    asked, _new = crediting.submit(principal.actor, found, key, values["reason"], None if line is None else [line])
    if asked.state == CreditRequest.State.PENDING:
        return gettext("It waits for a second person, who approves it on the tenant's page Billing.")
    if asked.state == CreditRequest.State.REJECTED:
        raise InvoiceRefused(found.number, "this credit note was rejected", "Send the form again.")
    amount_text = invoice_list.cents(asked.credit_note.total_cents, found.currency)
    return gettext("%(note)s credits %(amount)s.") % {"note": asked.credit_note.number, "amount": amount_text}
