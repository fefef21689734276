"""What an operator of an empty installation does until the first request: read from what is there, not from flags."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from billing.models import UsageRollup
from billing.pricing import prices
from catalogue.models import Model
from tenants.ids import PLATFORM_SLUG
from tenants.models import ApiKey, Tenant
from workers.models import Deployment, Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do. ``url`` and ``link`` lead to its form; ``note`` says what there is, or why it waits."""

    key: str
    title: str
    is_done: bool
    note: str
    url: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    """The steps in their order, and the model that the first request may call; empty while there is none."""

    steps: tuple[Step, ...]
    model: str

    @property
    def next(self) -> Step | None:
        """Return the first step that is not done; None if only the request is left."""
        return next((step for step in self.steps if not step.is_done), None)


def read() -> FirstSteps | None:
    """Return the steps; None once a tenant has sent a request, which is the end of all of them."""
    own = Tenant.objects.filter(slug=PLATFORM_SLUG).values("id")
    if UsageRollup.objects.exclude(tenant_id__in=own).exists():
        return None
    served = list(
        Deployment.objects.filter(archived_at=None, max_replicas__gt=0, revision__model__archived_at=None)
        .order_by("name")
        .values_list("revision__model__name", flat=True)
    )
    priced = prices.priced(served)
    tenants = Tenant.objects.filter(state=Tenant.State.ACTIVE).exclude(slug=PLATFORM_SLUG)
    newest = tenants.order_by("-id").first()
    keys = ApiKey.objects.filter(tenant__in=tenants, revoked_at=None, scopes__contains=["inference"])
    has_key = keys.filter(Q(expires_at=None) | Q(expires_at__gt=Now())).exists()
    steps = (
        _model_step(served),
        Step(
            key="price",
            title=_("Set its price"),
            is_done=bool(priced),
            note=gettext("%(models)s has one.") % {"models": ", ".join(sorted(priced))}
            if priced
            else _("Usage without a price stays unrated."),
            url=reverse("portal:prices"),
            link=_("Prices"),
        ),
        Step(
            key="tenant",
            title=_("Create a tenant"),
            is_done=newest is not None,
            note=f"{newest.name}." if newest is not None else _("A team, an application or a customer."),
            url=f"{reverse('portal:tenants')}",
            link=_("Tenants"),
        ),
        Step(
            key="key",
            title=_("Make a key for it"),
            is_done=has_key,
            note=_("There is one.") if has_key else _("Its secret is shown once: keep it for the request."),
            url=reverse("portal:tenants") if newest is None else reverse("portal:keys", args=[newest.slug]),
            link=_("Tenants") if newest is None else gettext("Keys of %(slug)s") % {"slug": newest.slug},
        ),
    )
    return FirstSteps(steps=steps, model=_callable(served, priced))


def _model_step(served: list[str]) -> Step:
    ready = set(
        Replica.objects.filter(
            state=Replica.State.READY, desired_state=Replica.Desired.RUNNING, revision__model__name__in=served
        ).values_list("revision__model__name", flat=True)
    )
    if ready:
        note = gettext("%(models)s answers.") % {"models": ", ".join(sorted(ready))}
    elif served:
        note = gettext("%(models)s is deployed, and no replica is ready yet: see Fleet.") % {
            "models": ", ".join(served)
        }
    else:
        note = _("Its size is checked before it starts.")
    url = reverse("portal:fleet") if served else reverse("portal:model-deploy")
    return Step(
        key="model",
        title=_("Serve a model"),
        is_done=bool(served),
        note=note,
        url=url,
        link=_("Fleet") if served else _("Deploy a model"),
    )


def _callable(served: list[str], priced: set[str]) -> str:
    """Return the model for the first request: public ones, and those with a price, come first."""
    public = set(
        Model.objects.filter(name__in=served, visibility=Model.Visibility.PUBLIC).values_list("name", flat=True)
    )
    return min(served, key=lambda name: (name not in public, name not in priced, name), default="")
