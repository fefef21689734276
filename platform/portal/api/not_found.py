"""The 404 of unknown paths below ``/api/v1/``: an error in JSON, never a page."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.idempotency.view import ApiView


@extend_schema(exclude=True)
class NothingHere(ApiView):
    """Respond 404 to every method."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        """Raise NotFound before the method is checked."""
        raise NotFound("This path does not exist; see /api/v1/openapi.json.", "unknown_path")

    def get(self, request: Request, rest: str) -> Response:
        """Never reached; REST framework needs it to know that GET exists."""
        raise NotFound
