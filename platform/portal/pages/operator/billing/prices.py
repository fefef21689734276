"""All price versions, newest first."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET, require_http_methods

from billing.errors import BadPriceFile
from billing.models import PriceVersion
from billing.months import previews
from billing.months.previews import Preview
from billing.pricing import price_file
from billing.pricing.price_file import Imported
from catalogue.models import Model
from portal.access.principal import Principal
from portal.formats import csv_export
from portal.formats.table_csv import most
from portal.pages.base import operator_page, show

#: Versions shown, newest first.
MAX_ROWS = 200
#: Tenants that a preview shows; the command shows all.
MAX_PREVIEWED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewDisplay:
    """What a file would change, and each tenant's last month at those prices."""

    imported: Imported
    months: list[Preview]


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the price versions and mark the current one of each model and book; with POST, preview or set a CSV file."""
    previewed, problem, text = None, "", ""
    if request.method == "POST":
        try:
            text = _file_of(request)
            done = _imported(request, principal, text)
        except BadPriceFile as error:
            problem = f"{error}."
        else:
            if isinstance(done, Imported):
                count = len(done.changes)
                messages.success(request, f"{count} prices set." if count else _("These prices are in force already."))
                return redirect("portal:prices")
            previewed = done
    versions = list(
        PriceVersion.objects.select_related("book").order_by("-effective_from", "-id")[
            : most(request, "prices", MAX_ROWS)
        ]
    )
    context = {
        "rows": _states(versions, timezone.now()),
        "columns": ",".join(price_file.HEADER),
        "fields": _fields(request),
        "models": Model.objects.filter(archived_at=None).order_by("name").values_list("name", flat=True),
        "left_out": max(0, len(previews.billed_tenants(timezone.now())) - MAX_PREVIEWED) if previewed else 0,
        "text": text,
        "confirm": "confirm" in request.POST,
        "previewed": previewed,
        "problem": problem,
    }
    return show(request, principal, "portal/prices.html", context, active="prices", status=400 if problem else 200)


@require_GET
@operator_page
def as_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the prices in force, as a file that can be changed and set."""
    header, *rows = price_file.in_force()
    return csv_export.attachment(request, "prices", header, rows)


def _fields(request: HttpRequest) -> list[tuple[str, str, str]]:
    """Return the name, the label and the value of each column: as typed, or in force for the model in the address."""
    values = {name: request.POST.get(name, "") for name in price_file.HEADER}
    if (name := request.GET.get("model", "")) and request.method == "GET":
        wanted = (cells for cells in price_file.in_force() if (cells[0], cells[-2]) == (name, ""))
        values = dict(zip(price_file.HEADER, next(wanted, (name,)), strict=False))
    return [(each, each.replace("_", " ").capitalize(), values.get(each, "")) for each in price_file.HEADER]


def _file_of(request: HttpRequest) -> str:
    """Return the file that was chosen, or the text or the price that was typed. Raises BadPriceFile."""
    if "model" in request.POST:
        row = io.StringIO()
        cells = [request.POST.get(name, "") for name in price_file.HEADER]
        csv.writer(row, lineterminator="\n").writerows([price_file.HEADER, cells])
        return row.getvalue()
    chosen = request.FILES.get("file")
    if chosen is None:
        return request.POST.get("csv", "")
    try:
        text: str = chosen.read(price_file.MAX_BYTES + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadPriceFile(None, "", "The file is no UTF-8 text") from None
    return text


def _imported(request: HttpRequest, principal: Principal, text: str) -> Imported | PreviewDisplay:
    """Set the prices, or preview them. Raises BadPriceFile."""
    dry_run = request.POST.get("action") != "import"
    rows = price_file.read(text)
    done = price_file.apply(principal.actor, rows, confirm="confirm" in request.POST, dry_run=dry_run)
    if not dry_run:
        return done
    now, names = timezone.now(), {row.model_name for row in rows}
    tenants = previews.billed_tenants(now)[:MAX_PREVIEWED]
    return PreviewDisplay(imported=done, months=list(previews.of_prices(done.table, names, done.latest, tenants, now)))


def _states(versions: list[PriceVersion], now: datetime) -> list[tuple[PriceVersion, str]]:
    """Return each version with its state: scheduled, current or past. ``versions`` are newest first."""
    current: set[tuple[object, str]] = set()
    states: list[tuple[PriceVersion, str]] = []
    for version in versions:
        scope = (version.book_id, version.model_name)
        if version.effective_from > now:
            states.append((version, "scheduled"))
        else:
            states.append((version, "past" if scope in current else "current"))
            current.add(scope)
    return states
