"""What made the amount of a statement or an invoice: usage by project and key, each with its requests in the log.

For readers of the whole tenant: a member who is confined to projects has neither page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from billing.invoices.content import Usage
from billing.models import Invoice
from billing.reports import savings
from billing.reports.statements import Month, Statement
from portal.reporting.periods import Period
from tenants.ids import TenantId
from tenants.models import Tenant

#: Rows of a table, those with the largest amounts; the CSV has all.
SHOWN = 200
#: The end of a key's name on an invoice: what is visible of the key.
_PUBLIC = re.compile(r"\(hk_([0-9A-Za-z]+)\)\Z")
_HEADINGS = {"project": _("By project"), "key": _("By key")}
_TITLES = {"project": _("Project"), "key": _("Key"), "model": _("Model")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one project, or one key and model, used at list prices; ``link`` leads to its requests.

    ``key_link``: to all requests of the key in the second column.
    """

    names: tuple[str, ...]
    requests: int
    prompt_tokens: int
    completion_tokens: int
    amount_pico: int
    link: str
    key_link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows with the largest amounts, how many more there are, and where all of them are."""

    heading: str
    titles: tuple[str, ...]
    rows: tuple[Row, ...]
    more: int
    #: Of all rows.
    amount_pico: int
    #: The page Usage with the same rows, and its CSV; empty: it has none, and the table's own CSV has all rows.
    usage_url: str = ""
    csv_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of a month of a tenant, in its billing time zone."""

    slug: str
    start: datetime
    end: datetime

    @property
    def period(self) -> Period:
        """The month, as pages have it in their address."""
        return Period(start=self.start.astimezone(UTC), end=self.end.astimezone(UTC), preset=None)

    def link(self, **filters: object) -> str:
        """Return the address of those that the filters name."""
        chosen = urlencode({name: str(value) for name, value in filters.items() if value})
        return f"{reverse('portal:tenant-requests', args=[self.slug])}?{self.period.query}&{chosen}"

    def usage(self, by: str, *, csv: bool = False) -> str:
        """Return the address of the page Usage grouped so, or of its CSV."""
        page = reverse("portal:tenant-usage-by-csv" if csv else "portal:tenant-usage", args=[self.slug])
        return f"{page}?{self.period.query}&{urlencode({'by': by})}"


def of_month(month: Month) -> Requests:
    """Return the requests of a month."""
    return Requests(slug=month.tenant.slug, start=month.start, end=month.end)


def of_statement(tenant: Tenant, found: Statement) -> tuple[Table, ...]:
    """Return the usage of a statement's month by project and by key, from roll-ups. Call it as the tenant."""
    requests = Requests(slug=tenant.slug, start=found.start, end=found.end)
    return tuple(_grouped(tenant, requests, by) for by in ("project", "key"))


def of_invoice(tenant: Tenant, invoice: Invoice, shown: int) -> Table | None:
    """Return the usage that an invoice's document has, by project, key and model, up to ``shown`` rows; None: none."""
    rows: Sequence[Mapping[str, Any]] = invoice.document.get("usage") or ()
    if not rows:
        return None
    requests = Requests(slug=tenant.slug, start=invoice.closing.starts_at, end=invoice.closing.ends_at)
    found = [Usage(**each) for each in rows]
    found.sort(key=lambda each: (-each.amount_pico, each.project, each.key, each.model))
    return Table(
        heading=_("Usage"),
        titles=tuple(_TITLES.values()),
        rows=tuple(_of_invoice(each, requests) for each in found[:shown]),
        more=max(0, len(found) - shown),
        amount_pico=sum(each.amount_pico for each in found),
    )


def line_links(tenant: Tenant, invoice: Invoice) -> list[str]:
    """Return the address of the requests of each of an invoice's usage lines, in their order.

    The lines are those of its closed month; lines of the plan's terms follow them and have no requests.
    """
    own = Requests(slug=tenant.slug, start=invoice.closing.starts_at, end=invoice.closing.ends_at)
    return [
        (own if not adjusts else of_name(tenant, adjusts)).link(model=model)
        for model, adjusts in invoice.closing.lines.order_by("position").values_list("model_name", "adjusts_month")
    ]


def of_name(tenant: Tenant, name: str) -> Requests:
    """Return the requests of a month that is named as YYYY-MM."""
    year, number = map(int, name.split("-"))
    return of_month(Month(tenant=tenant, year=year, month=number))


def _grouped(tenant: Tenant, requests: Requests, by: Literal["project", "key"]) -> Table:
    groups = sorted(
        savings.grouped(requests.period, TenantId(tenant.id), by), key=lambda each: (-each.sums.amount_pico, each.name)
    )
    return Table(
        heading=_HEADINGS[by],
        titles=(_TITLES[by],),
        rows=tuple(
            Row(
                names=(each.name or gettext("earlier requests without a key"),),
                requests=each.sums.requests,
                prompt_tokens=each.sums.prompt_tokens + each.sums.cached_prompt_tokens,
                completion_tokens=each.sums.completion_tokens,
                amount_pico=each.sums.amount_pico,
                link=requests.link(**{by: each.id}) if each.id else "",
            )
            for each in groups[:SHOWN]
        ),
        more=max(0, len(groups) - SHOWN),
        csv_url=requests.usage(by, csv=True),
        usage_url=requests.usage(by),
        amount_pico=sum(each.sums.amount_pico for each in groups),
    )


def _of_invoice(each: Usage, requests: Requests) -> Row:
    public = _PUBLIC.search(each.key)
    # A key that is deleted has no name: the document has its id.
    key = f"hk_{public[1]}" if public else each.key
    return Row(
        names=(each.project, each.key, each.model),
        requests=each.requests,
        prompt_tokens=each.prompt_tokens + each.cached_prompt_tokens,
        completion_tokens=each.completion_tokens,
        amount_pico=each.amount_pico,
        link=requests.link(project=each.project, key=key, model=each.model),
        key_link=requests.link(key=key),
    )
