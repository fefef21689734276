"""The context of each model as its engines have it, which may be shorter than the one that was deployed.

An engine whose context is its model's own fits it to the memory that it finds, so replicas may differ. A request must
fit wherever it goes: the shortest context counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from catalogue.registry import Catalogue, ServedModel
from tenants.ids import RevisionId
from workers.serving.endpoints import Endpoint
from workers.serving.model_facts import states

#: The context of a model whose engines have never said theirs. Estimates of tokens and costs must not be too low.
UNKNOWN_CONTEXT_TOKENS = 1 << 20


class ModelContexts:
    """Gives each model of a catalogue its context. Returns the same objects while nothing changes."""

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None
        self._contexts: Mapping[str, int] = {}
        self._result = Catalogue(models={})

    def apply(
        self, catalogue: Catalogue, ready: Mapping[str, Sequence[Endpoint]], last: Mapping[RevisionId, int]
    ) -> Catalogue:
        """Return the catalogue with the contexts of now. ``ready`` is by model name; ``last``: see :func:`context`."""
        models = {model.name: model for model in catalogue.models.values()}
        contexts = {name: context(model, ready.get(name, ()), last) for name, model in models.items()}
        if catalogue is not self._catalogue or contexts != self._contexts:
            fitted = {name: fit(model, contexts[name]) for name, model in models.items()}
            self._result = Catalogue(models={name: fitted[model.name] for name, model in catalogue.models.items()})
            self._catalogue, self._contexts = catalogue, contexts
        return self._result


def context(model: ServedModel, ready: Sequence[Endpoint], last: Mapping[RevisionId, int]) -> int:
    """Return the context of a model as ``states.context_of``, UNKNOWN_CONTEXT_TOKENS if no engine has said it."""
    return states.context_of(model, (each.context_tokens for each in ready), last) or UNKNOWN_CONTEXT_TOKENS


def fit(model: ServedModel, context_tokens: int) -> ServedModel:
    """Return the model with this context; itself if that is its context."""
    if model.context_length_tokens == context_tokens:
        return model
    return replace(model, context_length_tokens=context_tokens)
