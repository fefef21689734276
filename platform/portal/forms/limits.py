"""The forms that set a limit and a budget."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.access.rights.limit_permissions import TargetNames
from portal.formats import money
from portal.forms.base import PageForm, TargetField, choice, whole_number
from tenants.models import ApiKey, Budget, Project
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LARGEST, LimitValues

_AMOUNT = re.compile(r"[0-9]{1,8}(\.[0-9]{1,12})?")
_PERIODS = tuple((value, _("all time") if value == "total" else value) for value in Budget.Period.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a limit or budget can be set for."""

    projects: Sequence[Project]
    keys: Sequence[ApiKey]
    models: Sequence[str]
    whole_tenant: bool
    currency: str


class _RuleForm(PageForm):
    """A form about a target and a model."""

    model = forms.CharField(label=_("Model"), required=False, widget=forms.Select)

    def __init__(self, data: Mapping[str, Any] | None = None, *, targets: Targets, **options: Any) -> None:
        super().__init__(data, **options)
        target = TargetField(_("For"))
        target.offer(targets.projects, targets.keys, whole_tenant=targets.whole_tenant)
        models = forms.Select(choices=[("", _("all models")), *((name, name) for name in targets.models)])
        self.fields["model"].widget = models
        # ``for`` is a word of Python and cannot be declared
        self.fields = {"for": target, **self.fields}

    def target(self) -> TargetNames:
        """Return the chosen target and model."""
        found: TargetNames = self.cleaned_data["for"]
        return replace(found, model=self.cleaned_data["model"])


class LimitForm(_RuleForm):
    """Requests and tokens of a target."""

    id_prefix = "limit"

    requests_per_minute = whole_number(_("Requests a minute"), LARGEST["requests_per_minute"], empty="unlimited")
    tokens_per_minute = whole_number(_("Tokens a minute"), LARGEST["tokens_per_minute"], empty="unlimited")
    concurrent_requests = whole_number(_("Requests at once"), LARGEST["concurrent_requests"], empty="unlimited")

    def clean(self) -> dict[str, Any]:
        """Require a number. Raises ValidationError."""
        if not self.errors and self.values() == LimitValues():
            raise ValidationError(_("Fill in at least one of requests a minute, tokens a minute and requests at once."))
        return self.cleaned_data

    def values(self) -> LimitValues:
        """Return the limit."""
        return LimitValues(**{name: self.cleaned_data[name] for name in LARGEST})


class BudgetForm(_RuleForm):
    """Money that a target may spend in a period."""

    id_prefix = "budget"

    period = choice(_("Period"), _PERIODS, required=False)
    limit = forms.CharField(
        label=_("Limit"),
        error_messages={"required": _("Enter an amount such as 25 or 0.50.")},
        widget=forms.TextInput({"inputmode": "decimal", "placeholder": "25.00"}),
    )
    action = choice(_("When used up"), (("block", _("refuse requests")), ("alert", _("only alert"))), required=False)
    alert_percents = forms.CharField(
        label=_("Alert at, in percent"),
        required=False,
        widget=forms.TextInput({"placeholder": "50 80 95"}),
        help_text=_("By e-mail and webhook."),
    )
    fields_of_errors = {"limit_pico": "limit"}

    def __init__(self, data: Mapping[str, Any] | None = None, *, targets: Targets) -> None:
        super().__init__(data, targets=targets, initial={"period": "month", "alert_percents": "50 80 95"})
        self.fields["limit"].label = gettext("Limit, %(currency)s") % {"currency": targets.currency}

    def clean_limit(self) -> int:
        """Return the amount in pico-units. Raises ValidationError."""
        text = self.cleaned_data["limit"]
        if not _AMOUNT.fullmatch(text):
            raise ValidationError(_("Enter an amount such as 25 or 0.50, with at most twelve decimals."))
        return int(Decimal(text) * money.PICO)

    def clean_alert_percents(self) -> list[int]:
        """Return the percentages. Raises ValidationError."""
        words = self.cleaned_data["alert_percents"].replace(",", " ").replace("%", " ").split()
        if not all(word.isascii() and word.isdigit() and 1 <= int(word[:4]) <= 100 for word in words):
            raise ValidationError(_("Enter whole numbers from 1 to 100, such as 50 80 95."))
        return [int(word) for word in words]

    def terms(self) -> BudgetTerms:
        """Return the budget's terms."""
        return BudgetTerms(
            limit_pico=self.cleaned_data["limit"],
            period=self.cleaned_data["period"] or Budget.Period.MONTH.value,
            action=self.cleaned_data["action"] or Budget.Action.BLOCK.value,
            alert_percents=self.cleaned_data["alert_percents"],
        )
