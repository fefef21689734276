"""A tenant's billing account and credit. Operators change them; its owners and billing members read them."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop
from django.views.decorators.http import require_GET, require_http_methods

from billing import second_person
from billing.accounts import account, balance, credits, mail_addresses
from billing.accounts.credits import NewCredit
from billing.budgets import spending
from billing.dunning import cases
from billing.errors import BadCredit, CreditRefused, InvoiceRefused, StripeRefused, StripeUnavailable
from billing.invoices import crediting
from billing.models import CreditRequest
from billing.stripe import customers
from portal.access.principal import Principal, tenant_for
from portal.formats import csv_export, money
from portal.forms.billing.account import AccountForm
from portal.forms.billing.credit import CreditForm
from portal.pages.base import form_action, operator_page, page, show, submit
from portal.reporting.billing import credit_csv
from tenants import error_text
from tenants.database.rls import as_tenant
from tenants.errors import NotFound, TenantError
from tenants.ids import TenantId
from tenants.models import Tenant

#: Entries that the page shows; CSV and the API have all.
MAX_ENTRIES = 50


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show the account and the credit; let operators change the account."""
    tenant = _readable(request, principal, slug)
    with as_tenant(TenantId(tenant.id)):
        found = account.of(tenant)
    if request.method == "GET":
        return _show(request, principal, tenant, AccountForm(account=found))
    if not principal.is_operator:
        raise NotFound("page", request.path)
    form = AccountForm(request.POST, account=found)

    def change() -> str:
        account.change(principal.actor, tenant, **form.changes())
        return f"Saved. Invoices from now on have these details. {account.price_notice(tenant)}".rstrip()

    done = submit(request, form, change, back="portal:billing", slug=slug)
    return done if done is not None else _show(request, principal, tenant, form)


@form_action("portal:billing")
@operator_page
def confirm_email(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Have invoices sent to an address of the account that its owner has not confirmed."""
    tenant = tenant_for(principal, slug)
    try:
        mail_addresses.confirm(principal.actor, tenant, request.POST.get("address", ""))
    except TenantError as error:
        messages.error(request, f"Nothing was changed. {error_text.words(error)}")
    else:
        messages.success(request, gettext_noop("Confirmed. E-mails about invoices go to this address from now on."))
    return redirect("portal:billing", slug=slug)


@form_action("portal:billing")
@operator_page
def change_credit(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Change the tenant's credit."""
    tenant = tenant_for(principal, slug)
    form = CreditForm(request.POST, tenant=tenant)
    if form.is_valid():
        try:
            asked, _ = credits.submit(principal.actor, tenant, form.cleaned_data["key"], form.wanted())
        except BadCredit as error:
            field = form.fields_of_errors.get(error.field, error.field)
            form.add_error(field if field in form.fields else None, f"{error.problem[:1].upper()}{error.problem[1:]}.")
        except CreditRefused as error:
            form.add_error(None, f"{error.reason[:1].upper()}{error.reason[1:]}. {error.remedy}".rstrip())
        except TenantError as error:
            form.add_error(None, error_text.words(error))
        else:
            messages.success(request, _said(asked))
            return redirect("portal:billing", slug=slug)
    with as_tenant(TenantId(tenant.id)):
        account_form = AccountForm(account=account.of(tenant))
    return _show(request, principal, tenant, account_form, form)


@form_action("portal:billing")
@operator_page
def decide_credit(request: HttpRequest, principal: Principal, slug: str, identity: UUID) -> HttpResponseBase:
    """Approve or reject a change that another operator asked for."""
    tenant = tenant_for(principal, slug)
    decide = crediting.approve if request.POST.get("action") == "approve" else credits.reject
    try:
        decided = decide(principal.actor, tenant, identity)
    except (CreditRefused, InvoiceRefused, TenantError) as error:
        text = error_text.words(error) if isinstance(error, TenantError) else str(error)
        messages.error(request, f"Nothing was changed. {text}")
    else:
        messages.success(
            request, gettext_noop("Approved and posted.") if decided.state == "posted" else gettext_noop("Rejected.")
        )
    return redirect("portal:billing", slug=slug)


@form_action("portal:billing")
@operator_page
def reverse_credit(request: HttpRequest, principal: Principal, slug: str, identity: UUID) -> HttpResponseBase:
    """Take an entry back by another one."""
    tenant = tenant_for(principal, slug)
    wanted = NewCredit(kind=CreditRequest.Kind.REVERSAL, refers_to=identity, reason=request.POST.get("reason", ""))
    try:
        asked, _ = credits.submit(principal.actor, tenant, request.POST.get("key", ""), wanted)
    except (BadCredit, CreditRefused, TenantError) as error:
        text = error_text.words(error) if isinstance(error, TenantError) else str(error)
        messages.error(request, f"Nothing was changed. {text}")
    else:
        messages.success(request, _said(asked))
    return redirect("portal:billing", slug=slug)


@form_action("portal:billing")
@page
def payment_method(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Lead a tenant's people to Stripe's page on which they save a payment method, or remove the saved one."""
    tenant = _readable(request, principal, slug)
    if principal.is_operator:
        raise NotFound("page", request.path)
    try:
        if request.POST.get("action") == "remove":
            customers.remove(principal.actor, tenant)
            messages.success(request, "The payment method is removed, at Stripe too.")
            return redirect("portal:billing", slug=slug)
        back = request.build_absolute_uri(reverse("portal:billing", kwargs={"slug": slug}))
        url = customers.begin_saving(principal.actor, tenant, back)
    except (StripeRefused, StripeUnavailable) as error:
        messages.error(request, f"Nothing was changed. {error}")
        return redirect("portal:billing", slug=slug)
    with as_tenant(TenantId(tenant.id)):
        form = AccountForm(account=account.of(tenant))
    return _show(request, principal, tenant, form, saving_url=url)


@require_GET
@page
def credit_as_csv(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Download the history of the tenant's credit."""
    tenant = _readable(request, principal, slug)
    with as_tenant(TenantId(tenant.id)):
        rows = list(credit_csv.csv_rows(credits.history(tenant)))
    return csv_export.attachment(request, f"credit-{tenant.slug}", credit_csv.CSV_HEADER, rows)


def _readable(request: HttpRequest, principal: Principal, slug: str) -> Tenant:
    """Return the tenant. Raises NotFound for a principal that may not see its money."""
    tenant = tenant_for(principal, slug)
    if not principal.handles_bills_of(tenant.id):
        raise NotFound("page", request.path)
    return tenant


def _said(asked: CreditRequest) -> str:
    amount = money.in_full(int(asked.amount_pico), asked.currency)
    if asked.state == CreditRequest.State.PENDING:
        return f"{amount} waits until a second operator approves it."
    if asked.state == CreditRequest.State.REJECTED:
        return f"{amount} was rejected before; nothing was posted. Ask for it again on a page that you load anew."
    return f"Posted: {amount}."


def _show(
    request: HttpRequest,
    principal: Principal,
    tenant: Tenant,
    form: AccountForm,
    credit_form: CreditForm | None = None,
    saving_url: str = "",
) -> HttpResponse:
    connection = customers.account_to_save_in()
    with as_tenant(TenantId(tenant.id)):
        found = account.of(tenant)
        has, entries = balance.of(tenant.id), list(credits.history(tenant)[: MAX_ENTRIES + 1])
        late = cases.read(timezone.now(), tenant=tenant)
        method = customers.with_method(tenant, connection)
        available = [spending.available_pico(each) for each in spending.prepaid_balances([tenant.id])]
    credit_form = credit_form or CreditForm(tenant=tenant)
    context = {
        "account": found,
        "details": found.details,
        "method": method,
        "charged_by": connection.issuer.legal_name if connection else "",
        "saving_url": saving_url,
        "late": late,
        "form": form,
        "balance": has,
        "available_pico": next(iter(available), None),
        "entries": entries[:MAX_ENTRIES],
        "has_more": len(entries) > MAX_ENTRIES,
        "reversible": CreditRequest.Kind.values,
        "credit_form": credit_form,
        "pending": credits.pending(tenant) if principal.is_operator else (),
        "reversal_key": str(uuid4()),
        "me": second_person.person(principal.actor),
    }
    status = 400 if form.errors or credit_form.errors else 200
    return show(request, principal, "portal/billing.html", context, active="billing", tenant=tenant, status=status)
