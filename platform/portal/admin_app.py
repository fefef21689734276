"""Django's registration of the tables at ``/admin/``, apart from ``apps.py``, which may name only one app."""

from django.contrib.admin.apps import AdminConfig


class TablesConfig(AdminConfig):
    """Django's admin with the portal's own site."""

    default_site = "portal.admin_site.OperatorSite"
