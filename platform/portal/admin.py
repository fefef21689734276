"""The tables at ``/admin/``: read-only lists of the newest rows, with row counts that cost the same however large."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import Group
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import BinaryField, Field, JSONField, Model, QuerySet, TextField
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from portal.access.principal import principal_of_user
from tenants.models import User

#: Apps whose tables are shown.
OWN_APPS = (
    "tenants",
    "identity",
    "idempotency",
    "catalogue",
    "billing",
    "workers",
    "notifications",
    "alerting",
    "reconciliation",
    "reserved_capacity",
    "retention",
)
#: Apps of django-allauth, whose own tables there could be changed and show keys of sessions and second factors.
HIDDEN_APPS = ("account", "socialaccount", "mfa", "usersessions")
#: Columns that are never shown, besides all binary ones: password hashes, keys of
#: sessions, and headers that can hold credentials.
SECRET_COLUMNS = frozenset({"password", "headers", "response_headers", "session_key"})
#: Tables with more rows are counted by PostgreSQL's statistics.
EXACT_UP_TO = 10_000
ROWS_PER_PAGE = 100
#: Older rows are out of reach, because skipping them would read them.
MAX_PAGES = 100
MAX_COLUMNS = 10
_ESTIMATE = """
    SELECT coalesce(sum(greatest(part.reltuples, 0)), 0)::bigint
    FROM pg_partition_tree(%s::regclass) AS tree JOIN pg_class AS part ON part.oid = tree.relid WHERE tree.isleaf
"""
_ESTIMATE_OF_TABLE = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s::regclass"


class EstimatingPaginator(Paginator):  # type: ignore[type-arg]  # the class takes no parameter at run time
    """Counts at most EXACT_UP_TO rows, and takes PostgreSQL's estimate for larger tables."""

    @cached_property
    def count(self) -> int:
        """The number of rows; an estimate above EXACT_UP_TO."""
        rows: QuerySet[Model] = self.object_list  # type: ignore[assignment]  # a list is possible elsewhere
        counted: int = rows.order_by()[:EXACT_UP_TO].count()
        if counted < EXACT_UP_TO:
            return counted
        return max(counted, estimated_rows(rows.model._meta.db_table))

    @cached_property
    def num_pages(self) -> int:
        """The number of pages that can be opened."""
        return min(super().num_pages, MAX_PAGES)


def estimated_rows(table: str) -> int:
    """Return PostgreSQL's estimate from the last VACUUM or ANALYZE, of all partitions; 0 before the first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [table])
        kind = cursor.fetchone()
        cursor.execute(_ESTIMATE if kind == ("p",) else _ESTIMATE_OF_TABLE, [table])
        row = cursor.fetchone()
    return int(row[0]) if row else 0


class NewestFirst(ChangeList):
    """A list in the order of its primary key, whatever the address says: any other order would read the whole table."""

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        """Return the one order."""
        return ["-pk"]


class ReadOnlyTable(admin.ModelAdmin):  # type: ignore[type-arg]  # the class takes no parameter at run time
    """One table: the newest rows by primary key; no search, filter or sorting, which would read whole tables."""

    paginator = EstimatingPaginator
    list_per_page = ROWS_PER_PAGE
    list_max_show_all = 0
    show_full_result_count = False
    sortable_by = ()
    actions = None

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        """Return all columns but secret ones."""
        return [field.name for field in _shown(self.model)]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the first columns, without long texts."""
        columns = [field.name for field in _shown(self.model) if not isinstance(field, JSONField | TextField)]
        return columns[:MAX_COLUMNS]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list's class."""
        return NewestFirst

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Refuse filters in the address."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Say in the title whether the number of rows is an estimate."""
        plural = str(self.opts.verbose_name_plural)
        title = gettext("%(rows)s, newest first") % {"rows": f"{plural[:1].upper()}{plural[1:]}"}
        note = gettext("Counts above %(exact)s are PostgreSQL's estimates.") % {"exact": f"{EXACT_UP_TO:,}"}
        return super().changelist_view(request, {"title": title, "subtitle": note, **(extra_context or {})})

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether this is an operator."""
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this is an operator."""
        return isinstance(request.user, User) and principal_of_user(request.user).is_operator

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: changes go through pages, API and commands, which record them."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False, as above."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False, as above."""
        return False


def _shown(model: type[Model]) -> list[Field[Any, Any]]:
    return [
        field
        for field in model._meta.concrete_fields
        if not isinstance(field, BinaryField) and field.name not in SECRET_COLUMNS
    ]


admin.site.unregister(Group)
for _app in HIDDEN_APPS:
    for _model in apps.get_app_config(_app).get_models():
        if admin.site.is_registered(_model):
            admin.site.unregister(_model)
for _app in OWN_APPS:
    for _model in apps.get_app_config(_app).get_models():
        admin.site.register(_model, ReadOnlyTable)
