"""What is answered at ``/api/v1/`` paths that nothing serves: the same envelope, never a page."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


@extend_schema(exclude=True)
class NothingHere(APIView):
    """Refuse every method alike."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        """Refuse before the method is looked at."""
        raise NotFound("Nothing is served here; /api/v1/openapi.json lists what is.", "unknown_path")

    def get(self, request: Request, rest: str) -> Response:
        """Never reached; tells REST framework which methods there are."""
        raise NotFound
