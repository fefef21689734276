"""Roll-ups: sums of tenants' requests, by quarter of an hour, and by day for reports over long periods."""

from __future__ import annotations

from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Value

#: Key id of roll-ups that do not distinguish keys, and of refusals that were counted without their key.
NO_KEY = UUID(int=0)


class RollupSums(models.Model):
    """What a roll-up of any length has.

    ``avoided_…`` and ``saved_prediction_pico`` cover complete hits and coalesced responses. Milliseconds are rounded
    to whole ones per request.
    """

    id = models.BigAutoField(primary_key=True)
    starts_at = models.DateTimeField()
    model_name = models.CharField(max_length=200)
    requests = models.PositiveBigIntegerField(default=0)
    #: Failures of the platform. Sums of earlier releases include refusals and disconnected clients.
    errors = models.PositiveBigIntegerField(default=0)
    #: Requests that were refused; ``requests`` counts only those of them that an engine refused.
    refused_requests = models.PositiveBigIntegerField(default=0, db_default=0)
    prediction_hits = models.PositiveBigIntegerField(default=0)
    coalesced_requests = models.PositiveBigIntegerField(default=0, db_default=0)
    bypassed_requests = models.PositiveBigIntegerField(default=0, db_default=0)
    prefix_hits = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_prompt_tokens = models.PositiveBigIntegerField(default=0)
    predicted_cached_tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    #: Those of ``prompt_tokens`` and ``completion_tokens``, as in rows.
    cache_write_tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0, db_default=0)
    #: All three token classes together.
    avoided_tokens = models.PositiveBigIntegerField(default=0)
    avoided_engine_ms = models.PositiveBigIntegerField(default=0, db_default=0)
    #: Histograms of TTFT and TPOT (``billing.ledger.latency_buckets``): numbers of buckets, and the requests in each.
    latency_buckets = ArrayField(
        models.SmallIntegerField(), default=list, db_default=Value([], ArrayField(models.SmallIntegerField()))
    )
    latency_counts = ArrayField(
        models.IntegerField(), default=list, db_default=Value([], ArrayField(models.IntegerField()))
    )
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0, default=0)
    saved_prediction_pico = models.DecimalField(max_digits=38, decimal_places=0, default=0)
    saved_prefix_pico = models.DecimalField(max_digits=38, decimal_places=0, default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.model_name} {self.starts_at:%Y-%m-%d %H:%M}"


class KeyRollup(RollupSums):
    """What a roll-up has that distinguishes tenants, projects and keys."""

    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField(default=NO_KEY, db_default=NO_KEY)

    class Meta:
        abstract = True


class UsageRollup(KeyRollup):
    """Sums over 15 minutes, kept by the drain in the transaction that inserts the rows they sum."""

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("starts_at", "tenant_id", "project_id", "key_id", "model_name"), name="rollup_once_per_key"
            ),
        )
        indexes = (models.Index(F("tenant_id"), F("starts_at").desc(), name="rollup_by_tenant"),)


class DailySums(RollupSums):
    """Sums of a day in UTC, or of half an hour, for reports only: money is never decided by them.

    They count only while there is a :class:`FoldedDay` or :class:`FoldedHalfHour` (``billing.ledger.daily_rollups``).
    """

    #: Merged: each number once.
    latency_counts = ArrayField(
        models.BigIntegerField(), default=list, db_default=Value([], ArrayField(models.BigIntegerField()))
    )

    class Meta:
        abstract = True


class DailyRollup(DailySums, KeyRollup):
    """Sums of the roll-ups of a day, by tenant, project, key and model."""

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("starts_at", "tenant_id", "project_id", "key_id", "model_name"),
                name="daily_rollup_once",
            ),
        )
        indexes = (models.Index(F("tenant_id"), F("starts_at").desc(), name="daily_rollup_by_tenant"),)


class TenantRollup(DailySums):
    """Sums of a tenant by model: what its pages over days and months read."""

    tenant_id = models.UUIDField()

    class Meta:
        abstract = True


class DailyTenantRollup(TenantRollup):
    """Those of a day."""

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "starts_at", "model_name"), name="daily_tenant_rollup_once"),
        )
        indexes = (models.Index(fields=("starts_at",), name="daily_tenant_rollup_at"),)


class HalfHourlyTenantRollup(TenantRollup):
    """Those of half an hour."""

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant_id", "starts_at", "model_name"), name="half_hourly_tenant_rollup_once"
            ),
        )
        indexes = (models.Index(fields=("starts_at",), name="half_hourly_tenant_rollup_at"),)


class DailyPlatformRollup(DailySums):
    """Sums of all tenants by model on a day: what pages of the platform over days and months read."""

    class Meta:
        constraints = (models.UniqueConstraint(fields=("starts_at", "model_name"), name="daily_platform_rollup_once"),)


class HalfHourlyPlatformRollup(DailySums):
    """Those of half an hour."""

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("starts_at", "model_name"), name="half_hourly_platform_rollup_once"),
        )


class DailyBypassRollup(models.Model):
    """How many requests of all tenants bypassed the prediction cache on a day, by reason."""

    id = models.BigAutoField(primary_key=True)
    starts_at = models.DateTimeField()
    reason = models.CharField(max_length=64)
    requests = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("starts_at", "reason"), name="daily_bypass_rollup_once"),)

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d} {self.reason}"


class DailyCharge(models.Model):
    """What a tenant's requests of a day in UTC were charged for: what statements of open months are made of.

    It counts only while the :class:`FoldedDay` has ``has_charges`` (``billing.ledger.daily_charges``). The columns are
    those of requests, or sums over some of them: ``engine_ms`` and ``avoided_…`` over complete responses,
    ``stream…`` over streams that say how long engines needed for a prompt.
    """

    id = models.BigAutoField(primary_key=True)
    starts_at = models.DateTimeField()
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    model_name = models.CharField(max_length=200)
    price_version_id = models.UUIDField(null=True)
    currency = models.CharField(max_length=3)
    #: ``unrated``, ``prediction_hit``, ``coalesced``, ``free`` or ``tokens``.
    charge = models.CharField(max_length=16)
    priority = models.CharField(max_length=8)
    requests = models.BigIntegerField()
    paid_requests = models.BigIntegerField()
    engine_ms = models.BigIntegerField()
    prompt_tokens = models.BigIntegerField()
    cached_prompt_tokens = models.BigIntegerField()
    completion_tokens = models.BigIntegerField()
    cache_write_tokens = models.BigIntegerField()
    reasoning_tokens = models.BigIntegerField()
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    saved_prediction_pico = models.DecimalField(max_digits=38, decimal_places=0)
    saved_prefix_pico = models.DecimalField(max_digits=38, decimal_places=0)
    avoided_prompt_tokens = models.BigIntegerField()
    avoided_cached_prompt_tokens = models.BigIntegerField()
    avoided_completion_tokens = models.BigIntegerField()
    streams = models.BigIntegerField()
    stream_tokens = models.BigIntegerField()
    stream_tokens_squared = models.DecimalField(max_digits=38, decimal_places=0)
    stream_ns = models.DecimalField(max_digits=38, decimal_places=0)
    stream_tokens_ns = models.DecimalField(max_digits=38, decimal_places=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=(
                    *("tenant_id", "starts_at", "project_id", "model_name", "price_version_id", "currency"),
                    *("charge", "priority"),
                ),
                name="daily_charge_once",
                nulls_distinct=False,
            ),
        )
        indexes = (models.Index(fields=("starts_at",), name="daily_charge_at"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model_name} {self.charge} {self.starts_at:%Y-%m-%d}"


class FoldedDay(models.Model):
    """A day in UTC whose daily roll-ups equal its roll-ups. A batch that adds to these removes it.

    ``folded_at`` is null while they are made, so that such a batch is noticed.
    """

    starts_at = models.DateTimeField(primary_key=True)
    folded_at = models.DateTimeField(null=True)
    #: Whether there are sums by tenant and of all tenants too, which the release before does not make.
    is_summed = models.BooleanField(default=False, db_default=False)
    #: Whether its charges are summed for statements.
    has_charges = models.BooleanField(default=False, db_default=False)

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d}"


class FoldedHalfHour(models.Model):
    """Half an hour of a day that is not folded yet whose sums by tenant and of all tenants equal its roll-ups."""

    starts_at = models.DateTimeField(primary_key=True)
    folded_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d %H:%M}"


class BypassRollup(models.Model):
    """How many requests bypassed the prediction cache in 15 minutes, by reason. Maintained like UsageRollup."""

    id = models.BigAutoField(primary_key=True)
    starts_at = models.DateTimeField()
    tenant_id = models.UUIDField()
    reason = models.CharField(max_length=64)
    requests = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "starts_at", "reason"), name="bypass_rollup_once"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.starts_at:%Y-%m-%d %H:%M} {self.reason}"
