"""An app whose second migration removes what the version before needs, for ``test_contracting_migrations``."""

from django.apps import AppConfig


class Contracting(AppConfig):
    name = "tests.tenants.contracting"
    label = "contracting"
