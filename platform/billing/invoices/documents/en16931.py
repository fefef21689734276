"""The invoice as EN 16931 has it, in UN/CEFACT's Cross Industry Invoice syntax, written and checked by drafthorse.

Field numbers (BT-…) are those of EN 16931-1. A line is a quantity at a price for a million tokens, or for one request;
what the plan's terms take off is a negative quantity, because prices may not be negative (BR-27).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from drafthorse.models.accounting import ApplicableTradeTax
from drafthorse.models.document import Document
from drafthorse.models.note import IncludedNote
from drafthorse.models.party import TaxRegistration
from drafthorse.models.payment import PaymentMeans, PaymentTerms
from drafthorse.models.tradelines import LineItem
from lxml import etree

from billing.errors import InvoiceRefused
from billing.invoices.content import Content, Line, Party
from billing.pricing.amounts import decimal_of_minor

PROFILE = "urn:cen.eu:en16931:2017"
_SCHEMA = "FACTUR-X_EN16931"
#: UNTDID 1001: commercial invoice, credit note.
_TYPES = {"invoice": "380", "draft": "380", "credit_note": "381"}
#: UN/ECE Recommendation 20: "one".
_ONE = "C62"
_MILLION = 10**6
#: UNTDID 4461: SEPA credit transfer, credit transfer, not defined.
_SEPA, _TRANSFER, _UNDEFINED = "58", "30", "1"


def category(content: Content) -> str:
    """Return the tax category (UNTDID 5305): standard, reverse charge, exempt or zero rated.

    Without a rate, the tax note decides: one that names the reverse charge, any other reason, or none.
    """
    if content.tax_rate_bp:
        return "S"
    if "reverse charge" in content.tax_note.lower():
        return "AE"
    return "E" if content.tax_note else "Z"


def render(content: Content) -> bytes:
    """Return the XML. Raises InvoiceRefused if it does not follow the schema."""
    document = Document()
    document.context.guideline_parameter.id = PROFILE
    document.header.id = content.number
    document.header.type_code = _TYPES[content.kind]
    document.header.issue_date_time = content.issued_on
    for text in filter(None, (content.reason, content.tax_note if content.tax_rate_bp else "")):
        note = IncludedNote()
        note.content = text
        document.header.notes.add(note)
    _party(document.trade.agreement.seller, content.seller)
    _party(document.trade.agreement.buyer, content.buyer)
    if content.seller.registration:
        document.trade.agreement.seller.legal_organization.id = content.seller.registration
    for position, line in enumerate(content.lines, 1):
        document.trade.items.add(_line(position, line, content))
    _settlement(document.trade.settlement, content)
    try:
        xml: bytes = document.serialize(schema=_SCHEMA)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise InvoiceRefused(content.number, f"its EN 16931 document is not valid: {error}") from error
    return xml


def _party(party: Any, given: Party) -> None:
    party.name = given.name
    address = party.address
    for name, text in zip(("line_one", "line_two", "line_three"), given.address_lines, strict=False):
        setattr(address, name, text)
    if given.postcode:
        address.postcode = given.postcode
    if given.city:
        address.city_name = given.city
    if given.country:
        address.country_id = given.country
    if given.email:
        party.electronic_address.uri_ID = ("EM", given.email)
    if given.tax_id:
        party.tax_registrations.add(TaxRegistration(id=("VA", given.tax_id)))


def _line(position: int, line: Line, content: Content) -> LineItem:
    item = LineItem()
    item.document.line_id = str(position)
    item.product.name = line.description
    quantity: int
    price: Decimal | str
    if line.quantity is None or line.unit_price_pico is None:
        quantity, price, basis = (-1 if line.amount_cents < 0 else 1), _money(abs(line.amount_cents), content), 1
    else:
        basis = _MILLION if line.unit == "token" else 1
        quantity, price = line.quantity, f"{Decimal(line.unit_price_pico) * basis / 10**12:f}"
    item.agreement.net.amount = price
    item.agreement.net.basis_quantity = (Decimal(basis), _ONE)
    item.delivery.billed_quantity = (Decimal(quantity), _ONE)
    item.settlement.trade_tax.type_code = "VAT"
    item.settlement.trade_tax.category_code = category(content)
    item.settlement.trade_tax.rate_applicable_percent = _percent(content)
    item.settlement.monetary_summation.total_amount = _money(line.amount_cents, content)
    return item


def _settlement(settlement: Any, content: Content) -> None:
    settlement.payment_reference = content.number
    settlement.currency_code = content.currency
    if content.due_cents > 0 and content.kind != "credit_note":
        settlement.payment_means.add(_payment_means(content))
        settlement.terms.add(PaymentTerms(due=content.due_on))
    tax = ApplicableTradeTax()
    tax.calculated_amount = _money(content.tax_cents, content)
    tax.type_code = "VAT"
    tax.basis_amount = _money(content.net_cents, content)
    tax.category_code = category(content)
    if category(content) in {"AE", "E"}:
        tax.exemption_reason = content.tax_note
    tax.rate_applicable_percent = _percent(content)
    settlement.trade_tax.add(tax)
    settlement.period.start = content.period_start
    settlement.period.end = content.period_end
    if content.refers_to:
        settlement.invoice_referenced_document.issuer_assigned_id = content.refers_to
        settlement.invoice_referenced_document.issue_date_time = content.refers_to_issued_on
    sums = settlement.monetary_summation
    sums.line_total = _money(content.net_cents, content)
    sums.tax_basis_total = _money(content.net_cents, content)
    sums.tax_total = (_money(content.tax_cents, content), content.currency)
    sums.grand_total = _money(content.total_cents, content)
    if content.applied_cents:
        sums.prepaid_total = _money(content.applied_cents, content)
    sums.due_amount = _money(content.due_cents, content)


def _payment_means(content: Content) -> PaymentMeans:
    means = PaymentMeans()
    if not content.bank.iban:
        means.type_code = _UNDEFINED
        return means
    means.type_code = _SEPA if content.currency == "EUR" else _TRANSFER
    means.payee_account.iban = content.bank.iban
    if content.bank.bic:
        means.payee_institution.bic = content.bank.bic
    return means


def _money(cents: int, content: Content) -> Decimal:
    return decimal_of_minor(cents, content.currency)


def _percent(content: Content) -> Decimal:
    return Decimal(content.tax_rate_bp).scaleb(-2)
