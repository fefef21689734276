"""Keys that are created at the same time are counted one after the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from tenants import caps
from tenants.errors import NotAllowed
from tenants.keys import keys
from tenants.models import ApiKey, PolicyEpoch
from tests.tenants.customers import OPERATOR, create


@pytest.mark.django_db(transaction=True)
def test_of_many_created_at_once_no_more_come_about(monkeypatch: pytest.MonkeyPatch) -> None:
    PolicyEpoch.objects.get_or_create(id=1)  # a flush deletes it
    acme = create("acme")
    monkeypatch.setattr(caps, "LIVE_KEYS", 4)

    def issue(number: int) -> bool:
        try:
            keys.issue(OPERATOR, acme.project, name=str(number))
        except NotAllowed:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(issue, range(8))) == 3
    assert ApiKey.objects.count() == 4
