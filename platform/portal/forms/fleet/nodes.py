"""The forms of the page *Nodes*: a token for a new machine, and the confirmation that a node is removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.forms.base import PageForm, choice, whole_number
from workers.errors import BadValue, NotFound, Refused, WorkerError
from workers.fleet import error_text
from workers.fleet.joining.node_tokens import DEFAULT_MINUTES, MOST_MINUTES
from workers.models import Pool


class NodeTokenForm(PageForm):
    """For which pool a token is, for how long, and for which name."""

    id_prefix = "token"

    pool = choice(_("Pool"), ())
    minutes = whole_number(
        _("Minutes"), MOST_MINUTES, smallest=1, required=True, help_text=_("For how long it is valid.")
    )
    node = forms.CharField(
        label=_("Name"),
        max_length=51,
        required=False,
        help_text=_("The only name to join with; a node that exists is replaced. Empty: any new name."),
    )
    portal = forms.CharField(
        label=_("Address of the portal"), max_length=300, help_text=_("Where the new machine reaches this portal.")
    )

    def __init__(self, data: Mapping[str, Any] | None = None, *, portal: str) -> None:
        super().__init__(data, initial={"minutes": DEFAULT_MINUTES, "portal": portal})
        pools = self.fields["pool"]
        assert isinstance(pools, forms.ChoiceField)
        names = Pool.objects.order_by("priority", "name").values_list("name", "region")
        pools.choices = [(name, f"{name} ({region})") for name, region in names]

    def refuse_worker(self, error: WorkerError) -> None:
        """Add an error of making the token, next to its field."""
        match error:
            case BadValue(what, _, allowed):
                self.add_error(
                    "portal" if what == "address of the portal" else "node",
                    gettext("Use %(allowed)s.") % {"allowed": allowed},
                )
            case Refused(_, _, why, instead):
                self.add_error(None, f"{why[:1].upper()}{why[1:]}; {instead}.")
            case NotFound():  # the pool went meanwhile
                self.add_error("pool", f"{error_text.words(error).capitalize()}.")
            case _:
                self.add_error(None, f"{error_text.words(error)}.")


class RemoveNodeForm(PageForm):
    """The name of the node to remove, typed again."""

    id_prefix = "remove"

    confirm = forms.CharField(label=_("Name of the node"), error_messages={"required": _("Enter the name.")})

    def __init__(self, data: Mapping[str, Any] | None = None, *, node: str) -> None:
        super().__init__(data)
        self._node = node
        self.fields["confirm"].help_text = gettext("Enter %(node)s.") % {"node": node}
        self.fields["confirm"].widget.attrs.update(autocomplete="off", spellcheck="false")

    def clean_confirm(self) -> str:
        """Return the name. Raises ValidationError unless it is the node's."""
        if self.cleaned_data["confirm"] != self._node:
            raise ValidationError(f"Enter {self._node} to remove this node.")
        return self._node
