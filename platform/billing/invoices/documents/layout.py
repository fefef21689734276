"""The words and figures of a document in the order of the page, for HTML and PDF alike. Everything is text."""

from __future__ import annotations

from dataclasses import dataclass

from babel import Locale

from billing.invoices.content import Content, Party, Usage
from billing.invoices.documents import money_text
from billing.pricing import amounts

#: Rows of the appendix on a page; the CSV and the JSON have all.
MOST_USAGE_ROWS = 500
TITLES = {"invoice": "Invoice", "credit_note": "Credit note", "draft": "Draft invoice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table; ``strong`` for a total."""

    cells: tuple[str, ...]
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The parts of a document."""

    title: str
    number: str
    language: str
    seller: tuple[str, ...]
    buyer: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    notice: str
    lines: tuple[Row, ...]
    totals: tuple[Row, ...]
    notes: tuple[str, ...]
    footer: tuple[str, ...]
    usage: tuple[Row, ...]
    usage_note: str


def page(content: Content) -> Page:
    """Lay a document out."""
    usage, usage_note = _usage(content)
    return Page(
        title=TITLES[content.kind],
        number=content.number,
        language="en",
        seller=_address(content.seller),
        buyer=_address(content.buyer),
        facts=_facts(content),
        notice=_notice(content),
        lines=_lines(content),
        totals=_totals(content),
        notes=_notes(content),
        footer=_footer(content),
        usage=usage,
        usage_note=usage_note,
    )


def _address(party: Party) -> tuple[str, ...]:
    town = " ".join(filter(None, (party.postcode, party.city)))
    tax = f"Tax id {party.tax_id}" if party.tax_id else ""
    country = Locale("en").territories.get(party.country, party.country)
    return tuple(filter(None, (party.name, *party.address_lines, town, country, tax)))


def _facts(content: Content) -> tuple[tuple[str, str], ...]:
    facts = [
        (f"{TITLES[content.kind]} number", content.number),
        ("Date", content.issued_on.isoformat()),
        ("Period", f"{content.period_start.isoformat()} to {content.period_end.isoformat()}"),
    ]
    if content.timezone != "UTC":
        facts.append(("Time zone of the period", content.timezone))
    if content.kind != "credit_note":
        facts.append(("Due", content.due_on.isoformat()))
    if content.refers_to:
        name = "Takes back invoice" if content.kind == "credit_note" else "Replaces invoice"
        name = "Credits a part of invoice" if content.is_partial else name
        facts.append((name, content.refers_to))
    return tuple(facts)


def _notice(content: Content) -> str:
    if content.kind == "draft":
        return "This is a draft. It is no invoice and may change until the month is closed and the invoice is final."
    return f"Reason: {content.reason}" if content.reason else ""


def _lines(content: Content) -> tuple[Row, ...]:
    currency = content.currency
    return tuple(
        Row(
            cells=(
                str(position),
                line.description,
                "" if line.quantity is None else money_text.count(line.quantity),
                "" if line.unit_price_pico is None else money_text.price(line.unit_price_pico, line.unit, currency),
                money_text.amount(line.amount_cents, currency),
            )
        )
        for position, line in enumerate(content.lines, 1)
    )


def _totals(content: Content) -> tuple[Row, ...]:
    currency = content.currency
    tax = money_text.with_currency(content.tax_cents, currency)
    rows = [
        Row(cells=("Net", money_text.with_currency(content.net_cents, currency))),
        Row(cells=(f"Tax {money_text.percent(content.tax_rate_bp)}", tax)),
        Row(
            cells=("Total", money_text.with_currency(content.total_cents, currency)),
            strong=not content.applied,
        ),
    ]
    for each in content.applied:
        rows.append(Row(cells=(each.text, money_text.with_currency(-each.cents, currency))))
    if content.applied:
        rows.append(Row(cells=("Due", money_text.with_currency(content.due_cents, currency)), strong=True))
    return tuple(rows)


def _notes(content: Content) -> tuple[str, ...]:
    notes = [content.tax_note]
    if content.kind == "invoice":
        notes.append(_payment(content))
    rounded = (
        f"Each line is rounded to {_smallest(content.currency)}, half to even. Exactly, the lines sum to "
        f"{amounts.units(content.exact_pico, content.currency)} {content.currency}."
    )
    return tuple(filter(None, (*notes, rounded)))


def _smallest(currency: str) -> str:
    return "the cent" if amounts.digits(currency) == 2 else f"{amounts.of_minor(1, currency)} {currency}"


def _payment(content: Content) -> str:
    if content.due_cents <= 0:
        return "Nothing is to be paid."
    amount = money_text.with_currency(content.due_cents, content.currency)
    bic = f"BIC {content.bank.bic}" if content.bank.bic else ""
    account = ", ".join(filter(None, (content.bank.name, _iban(content.bank.iban), bic)))
    where = f" to {account}" if account else ""
    return f"Please pay {amount} by {content.due_on.isoformat()}{where}, with the reference {content.number}."


def _iban(iban: str) -> str:
    """Write it in groups of four, with spaces that do not break."""
    groups = [iban[place : place + 4] for place in range(0, len(iban), 4)]
    return "\u00a0".join(("IBAN", *groups)) if groups else ""


def _footer(content: Content) -> tuple[str, ...]:
    seller = content.seller
    return tuple(filter(None, (seller.name, seller.registration, seller.email)))


def _usage(content: Content) -> tuple[tuple[Row, ...], str]:
    if content.usage is None:
        return (), "The requests of this month are no longer kept, so their usage cannot be listed by key."
    found, currency = content.usage, content.currency
    if len(found) <= MOST_USAGE_ROWS:
        return tuple(_usage_row(each, currency) for each in found), ""
    largest = set(sorted(range(len(found)), key=lambda place: -found[place].amount_pico)[:MOST_USAGE_ROWS])
    shown = [each for place, each in enumerate(found) if place in largest]
    rest = [each for place, each in enumerate(found) if place not in largest]
    total = Usage(
        project=f"{len(rest)} more",
        key="",
        model="",
        requests=sum(each.requests for each in rest),
        prompt_tokens=sum(each.prompt_tokens for each in rest),
        cached_prompt_tokens=sum(each.cached_prompt_tokens for each in rest),
        completion_tokens=sum(each.completion_tokens for each in rest),
        amount_pico=sum(each.amount_pico for each in rest),
    )
    note = f"The {MOST_USAGE_ROWS} rows with the largest amounts; the CSV and JSON documents have all {len(found)}."
    return tuple(_usage_row(each, currency) for each in (*shown, total)), note


def _usage_row(each: Usage, currency: str) -> Row:
    return Row(
        cells=(
            each.project,
            each.key,
            each.model,
            money_text.count(each.requests),
            money_text.count(each.prompt_tokens),
            money_text.count(each.cached_prompt_tokens),
            money_text.count(each.completion_tokens),
            amounts.units(each.amount_pico, currency),
        )
    )
