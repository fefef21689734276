"""What live pages show. Each topic is read once for all its viewers, however many processes serve them."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.conf import settings
from django.template.loader import render_to_string
from django.utils import timezone, translation

from portal.fleet.fragments import fleet_fragments, within
from portal.pages.usage import home_figures, overview_figures
from portal.reporting import periods
from portal.reporting.periods import Period
from tenants.database import rls
from tenants.ids import TenantId
from tenants.models import Tenant
from workers.fleet.status import inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One reading of a topic, as HTML that htmx swaps in by element id (out-of-band swaps)."""

    #: Replaces everything, for a page that was drawn at another moment.
    whole: str
    #: HTML by element id; other ids than before mean that ``whole`` is to be sent.
    parts: dict[str, str]

    def since(self, before: Shown | None) -> str:
        """Return the HTML that brings a page from ``before`` to this; empty if nothing changed."""
        if before is None or before.parts.keys() != self.parts.keys():
            return self.whole
        return "\n".join(html for name, html in self.parts.items() if before.parts[name] != html)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What is read, and how often."""

    #: Letters, digits, hyphens and dots: part of the names of a Redis key and of a channel group.
    name: str
    seconds: float
    read: Callable[[], Shown]
    #: None: for operators only.
    tenant_id: TenantId | None = None


def in_language(topic: Topic, language: str) -> Topic:
    """Return the same topic, read in a language. Its viewers are those who read that language."""
    if language == settings.LANGUAGE_CODE:
        return topic

    def read() -> Shown:
        with translation.override(language):
            return topic.read()

    return replace(topic, name=f"{topic.name}.{language}", read=read)


def _read_fleet() -> Shown:
    fleet = inventory.read()
    parts = fleet_fragments(fleet)
    context = {"fleet": fleet, "parts": within(parts), "swap": True}
    return Shown(whole=render_to_string("portal/parts/fleet.html", context), parts=parts)


FLEET = Topic(name="fleet", seconds=1.0, read=_read_fleet)

#: Presets whose newest part a reader sees change; the others are read less often.
SHORT_PRESETS = ("1h", "6h", "24h")
SHORT_SECONDS = 5.0
LONG_SECONDS = 60.0


def usage_of_all(preset: str, zone: str, base_url: str) -> Topic:
    """Return the overview of a preset period, in a time zone. Raises BadQuery.

    ``base_url`` is the inference API's, as the reader's browser names the host: another one has a topic of its own.
    """
    period_at(preset, zone)

    def read() -> Shown:
        return _figures("overview", overview_figures(period_at(preset, zone), base_url))

    return _usage(f"all-{_digest(base_url)}", preset, zone, read, None)


def usage_of_tenant(tenant: Tenant, preset: str, zone: str, projects: Set[UUID] | None = None) -> Topic:
    """Return a tenant's home page of a preset period, in a time zone. Raises BadQuery.

    ``projects`` are those of a confined member; None: all. Viewers of the same ones share a topic.
    """
    period_at(preset, zone)
    confined = {} if projects is None else {TenantId(tenant.id): projects}

    def read() -> Shown:
        with rls.confined_to(confined):
            return _figures("home", home_figures(tenant, period_at(preset, zone)))

    whose = tenant.id.hex
    if projects is not None:
        whose += f"-{_digest(','.join(sorted(map(str, projects))))}"
    return _usage(whose, preset, zone, read, TenantId(tenant.id))


def period_at(preset: str, zone: str) -> Period:
    """Return a preset period that ends now. Raises BadQuery."""
    return periods.parse({"period": preset}, timezone.now(), periods.DEFAULT_PRESET, periods.zone_named(zone))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _usage(whose: str, preset: str, zone: str, read: Callable[[], Shown], tenant_id: TenantId | None) -> Topic:
    place = (periods.zone_named(zone) or periods.UTC_ZONE).key.replace("/", ".").replace("+", "_")
    seconds = SHORT_SECONDS if preset in SHORT_PRESETS else LONG_SECONDS
    return Topic(name=f"usage.{whose}.{preset}.{place}", seconds=seconds, read=read, tenant_id=tenant_id)


def _figures(page: str, context: dict[str, Any]) -> Shown:
    html = render_to_string(f"portal/parts/{page}_figures.html", context | {"swap": True})
    return Shown(whole=html, parts={"figures": html})
