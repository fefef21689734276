"""The context of a model, from what was deployed and what its engines say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast
from uuid import UUID

import pytest

from catalogue.registry import Catalogue, ServedModel
from gateway.control_plane.model_contexts import UNKNOWN_CONTEXT_TOKENS, ModelContexts, context
from tenants.ids import ReplicaId, RevisionId, TenantId
from workers.serving.endpoints import Endpoint

ACTIVE = cast(RevisionId, UUID(int=1))


def model(deployed: int) -> ServedModel:
    """Return a model that was deployed with this context."""
    return ServedModel(
        name="demo",
        owner_id=cast(TenantId, UUID(int=3)),
        owner_slug="platform",
        public=True,
        revision_id=ACTIVE,
        digest="d",
        context_length_tokens=deployed,
        created_at=0,
    )


def engine(context_tokens: int | None) -> Endpoint:
    """Return a ready replica whose engine says this."""
    return Endpoint(
        replica_id=cast(ReplicaId, UUID(int=4)),
        deployment="demo",
        model_name="demo",
        revision_id=ACTIVE,
        revision_digest="d",
        base_url="http://127.0.0.1:1",
        api_key="",
        generation=1,
        context_tokens=context_tokens,
    )


@pytest.mark.parametrize(
    ("deployed", "ready", "last", "found"),
    [
        (8192, [], {}, 8192),
        (8192, [engine(None)], {}, 8192),
        (8192, [engine(4096), engine(2048), engine(None)], {}, 2048),
        (2048, [engine(4096)], {}, 2048),
        (8192, [], {ACTIVE: 512}, 8192),
        (0, [engine(4096), engine(2048)], {ACTIVE: 512}, 2048),
        (0, [], {ACTIVE: 512}, 512),
        (0, [engine(None)], {}, UNKNOWN_CONTEXT_TOKENS),
    ],
)
def test_the_shortest_context_counts(
    deployed: int, ready: list[Endpoint], last: Mapping[RevisionId, int], found: int
) -> None:
    assert context(model(deployed), ready, last) == found


def test_an_alias_has_its_models_context_and_nothing_new_is_made_while_nothing_changes() -> None:
    demo = model(8192)
    catalogue = Catalogue(models={"demo": demo, "alias": demo})
    contexts = ModelContexts()
    first = contexts.apply(catalogue, {"demo": [engine(2048)]}, {})
    assert first.models["alias"] is first.models["demo"]
    assert first.models["demo"].context_length_tokens == 2048
    assert contexts.apply(catalogue, {"demo": [engine(2048)]}, {}) is first
    assert contexts.apply(catalogue, {}, {}).models["demo"] is demo
