"""Record canaries in the usage log, as requests of the tenant ``platform``."""

from __future__ import annotations

from typing import cast
from uuid import UUID

from django.conf import settings

from billing.wal.records import End, Start
from billing.wal.writer import WalWriter
from tenants.ids import PLATFORM_SLUG, KeyId, ProjectId, TenantId
from tenants.models import Project
from workers.serving.canary import Canary, CanaryResult

#: Canaries are sent without an API key.
NO_KEY = cast(KeyId, UUID(int=0))
BYPASS = "canary"


class CanaryLog:
    """Writes START before and END after each canary, so that engine counters and usage agree. Thread-safe."""

    def __init__(self, wal: WalWriter, project: Project) -> None:
        self._wal = wal
        self._tenant_id = cast(TenantId, project.tenant_id)
        self._project_id = cast(ProjectId, project.id)

    def begin(self, canary: Canary) -> None:
        """Record the START of a canary. Raises WalError; the canary must then not be sent."""
        self._wal.append(
            Start(
                request_id=canary.request_id,
                tenant_id=self._tenant_id,
                project_id=self._project_id,
                key_id=NO_KEY,
                purpose="canary",
                endpoint=canary.endpoint,
                model_name=canary.model_name,
                revision_id=canary.revision_id,
                started_at_ns=canary.started_at_ns,
                stream=False,
                prompt_tokens_estimate=1,
                client_request_id="",
                replica_id=canary.replica_id,
                cache_result="bypass",
                cache_reason=BYPASS,
                route_reason="",
                replica_generation=canary.generation,
            )
        )

    def end(self, canary: Canary, result: CanaryResult) -> None:
        """Record the END of a canary. Raises WalError; the START alone then becomes an interrupted row."""
        duration_ms = max(0.0, (result.finished_at_ns - canary.started_at_ns) / 1e6)
        self._wal.append(
            End(
                request_id=canary.request_id,
                finished_at_ns=result.finished_at_ns,
                state="complete" if result.answered else "engine_error",
                http_status=result.status,
                cache_result="bypass",
                cache_reason=BYPASS,
                route_reason="",
                replica_id=canary.replica_id,
                prompt_tokens=result.prompt_tokens,
                cached_prompt_tokens=result.cached_prompt_tokens,
                completion_tokens=result.completion_tokens,
                tokens_source="engine",
                avoided_prompt_tokens=0,
                avoided_completion_tokens=0,
                ttft_ms=None,
                duration_ms=duration_ms,
            )
        )

    def close(self) -> None:
        """Sync and close the log."""
        self._wal.close()


def open_log(role: str) -> CanaryLog:
    """Open the usage log of a role. Raises WalError, or Project.DoesNotExist before the first bootstrap."""
    project = Project.objects.get(tenant__slug=PLATFORM_SLUG, slug="default")
    return CanaryLog(WalWriter(settings.WAL_DIR, role, settings.WAL_SYNC), project)
