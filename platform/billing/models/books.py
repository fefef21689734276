"""Prices, usage records, the double-entry ledger, roll-ups and what was spent of budgets.

Money is whole pico-dollars (10⁻¹² of the currency unit): N micro-dollars per million tokens are N pico-dollars per
token, so a request is priced exactly, without rounding.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Cast, Now

from tenants.ids import new_id


class PriceBook(models.Model):
    """A list of prices in one currency: the platform's, or one tenant's own."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200, unique=True)
    #: None: the platform's book, for every tenant without its own.
    tenant_id = models.UUIDField(null=True, blank=True, unique=True)
    currency = models.CharField(max_length=3, default="USD")

    def __str__(self) -> str:
        return self.name


class PriceVersion(models.Model):
    """Prices of one model from one moment on, in pico-dollars per token. Never changed once effective."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    book = models.ForeignKey(PriceBook, on_delete=models.PROTECT, related_name="versions")
    model_name = models.CharField(max_length=200)
    prompt_pico = models.BigIntegerField()
    cached_prompt_pico = models.BigIntegerField()
    completion_pico = models.BigIntegerField()
    #: Of prompt tokens that the engine writes to its cache, and of completion tokens that are reasoning; None: they
    #: cost what the others of the prompt and the completion cost.
    cache_write_pico = models.BigIntegerField(null=True, blank=True)
    reasoning_pico = models.BigIntegerField(null=True, blank=True)
    #: Price of one prediction hit, per request.
    prediction_hit_pico = models.BigIntegerField(default=0)
    #: Price of one coalesced response, per request.
    coalesced_pico = models.BigIntegerField(default=0, db_default=0)
    #: Price of each request that an engine runs, beside its tokens.
    request_pico = models.BigIntegerField(default=0, db_default=0)
    #: What tenants of these priorities pay for what engines do, in basis points of the prices above.
    low_priority_bp = models.PositiveIntegerField(default=10_000, db_default=10_000)
    high_priority_bp = models.PositiveIntegerField(default=10_000, db_default=10_000)
    effective_from = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("book", "model_name", "effective_from"), name="price_effective_once"),
            models.CheckConstraint(
                name="prices_not_negative",
                condition=Q(prompt_pico__gte=0)
                & Q(cached_prompt_pico__gte=0)
                & Q(completion_pico__gte=0)
                & Q(prediction_hit_pico__gte=0),
            ),
            models.CheckConstraint(name="coalesced_price_not_negative", condition=Q(coalesced_pico__gte=0)),
            models.CheckConstraint(name="request_price_not_negative", condition=Q(request_pico__gte=0)),
            models.CheckConstraint(
                name="class_prices_not_negative",
                condition=(Q(cache_write_pico=None) | Q(cache_write_pico__gte=0))
                & (Q(reasoning_pico=None) | Q(reasoning_pico__gte=0)),
            ),
        )

    def __str__(self) -> str:
        return f"{self.model_name} from {self.effective_from:%Y-%m-%d %H:%M}"


class UsageRecord(models.Model):
    """One request, once. Partitioned by its UUIDv7 id, which keeps the primary key global.

    ``prompt_tokens`` counts only uncached ones: with the cached ones they are what the engine reported as prompt, which
    the database checks where the engine did. Of the uncached ones ``cache_write_tokens`` went to its cache; of the
    completion ``reasoning_tokens`` were reasoning. Statements and prices have them as classes of their own.

    Ids are plain columns, because rows outlive what they name.
    """

    class State(models.TextChoices):
        COMPLETE = "complete"
        #: The engine rejected the request (4xx), which costs nothing; or its key was revoked or its budget spent.
        REFUSED = "refused"
        CLIENT_GONE = "client_gone"
        ENGINE_ERROR = "engine_error"
        INTERRUPTED = "interrupted"

    class Purpose(models.TextChoices):
        TENANT = "tenant"
        CANARY = "canary"
        RETRY = "retry"
        PREWARM = "prewarm"
        LOST = "lost"

    class TokensSource(models.TextChoices):
        ENGINE = "engine"
        CACHE = "cache"
        STREAMED = "streamed"
        ESTIMATED = "estimated"

    id = models.UUIDField(primary_key=True, editable=False)
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    purpose = models.CharField(max_length=16, choices=Purpose.choices, default=Purpose.TENANT)
    endpoint = models.CharField(max_length=64)
    model_name = models.CharField(max_length=200)
    revision_id = models.UUIDField()
    replica_id = models.UUIDField(null=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    state = models.CharField(max_length=16, choices=State.choices)
    http_status = models.PositiveSmallIntegerField()
    stream = models.BooleanField()
    #: hit, miss, coalesced or bypass; ``cache_reason`` is the reason for a bypass.
    cache_result = models.CharField(max_length=16)
    cache_reason = models.CharField(max_length=64, blank=True, default="")
    route_reason = models.CharField(max_length=16, blank=True, default="")
    prompt_tokens = models.PositiveIntegerField()
    cached_prompt_tokens = models.PositiveIntegerField()
    completion_tokens = models.PositiveIntegerField()
    tokens_source = models.CharField(max_length=16, choices=TokensSource.choices)
    #: For a prediction hit or a coalesced response: the tokens, in the classes above, that no engine had to process
    #: again, the engine time of the original request, and that request's id.
    avoided_prompt_tokens = models.PositiveIntegerField(default=0)
    avoided_cached_prompt_tokens = models.PositiveIntegerField(default=0)
    avoided_completion_tokens = models.PositiveIntegerField(default=0)
    avoided_engine_ms = models.FloatField(default=0.0)
    source_id = models.UUIDField(null=True)
    #: None until a price is known. Such a row is never billed as zero; it waits as unrated.
    price_version_id = models.UUIDField(null=True)
    currency = models.CharField(max_length=3, default="USD")
    amount_pico = models.BigIntegerField(null=True)
    saved_prediction_pico = models.BigIntegerField(default=0)
    saved_prefix_pico = models.BigIntegerField(default=0)
    ttft_ms = models.FloatField(null=True)
    duration_ms = models.FloatField()
    client_request_id = models.CharField(max_length=200, blank=True, default="")
    #: The error that the client received; empty without one, and in rows of earlier releases.
    error_code = models.CharField(max_length=64, blank=True, default="", db_default="")
    error_message = models.CharField(max_length=300, blank=True, default="", db_default="")
    #: 0: the request ran. Else it was refused, or failed, before it ran: the row stands for this many alike, and costs
    #: nothing without having a price.
    refusals = models.PositiveIntegerField(default=0, db_default=0)
    #: Prompt tokens that routing expected in the chosen replica's prefix cache, in the engine's tokens; the most on any
    #: replica; and the message, counted from 1, at which the prompt left that nearest warm prefix.
    predicted_cached_tokens = models.PositiveIntegerField(null=True)
    nearest_warm_tokens = models.PositiveIntegerField(null=True)
    diverged_message = models.PositiveIntegerField(null=True)
    #: How long it waited for a replica, or for room on one.
    queue_ms = models.FloatField(default=0.0, db_default=0.0)
    #: Its part in a comparison of routing policies, as ``catalogue.routing_policy`` writes it; empty without one.
    #: Why the engine's response ended, in OpenAI's words; empty if it was cut, or no engine wrote it.
    finish_reason = models.CharField(max_length=32, blank=True, default="", db_default="")
    #: Of a stream: the mean time per token after the first.
    tpot_ms = models.FloatField(null=True)
    traced = models.BooleanField(default=False, db_default=False)
    routing_split = models.CharField(max_length=24, blank=True, default="", db_default="")
    cache_write_tokens = models.PositiveIntegerField(default=0, db_default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0, db_default=0)
    reported_prompt_tokens = models.PositiveIntegerField(null=True)
    reported_completion_tokens = models.PositiveIntegerField(null=True)
    #: The caller's tags: at most 8 pairs of short texts.
    tags = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    #: Whom the caller serves with it, in the caller's words; empty if it does not say.
    end_user = models.CharField(max_length=200, blank=True, default="", db_default="")
    #: The engine process of the replica; 0: none, or a row of an earlier release.
    replica_generation = models.PositiveIntegerField(default=0, db_default=0)
    #: How many sequences the engine made of it, and how often it counted each prompt (``n``).
    sequences = models.PositiveSmallIntegerField(default=1, db_default=1)
    prompt_copies = models.PositiveSmallIntegerField(default=1, db_default=1)
    #: The tenant's priority when the request was accepted, which is part of its price.
    priority = models.CharField(max_length=8, default="standard", db_default="standard")

    class Meta:
        # Django cannot declare partitions: the migration creates the table (see 0001_initial).
        managed = False
        db_table = "billing_usagerecord"

    def __str__(self) -> str:
        return str(self.id)


class UsageExport(models.Model):
    """A file with all requests of one partition, without which the partition is not retired. Rows never change.

    Retiring sets ``retired_at``. A partition that late usage makes again is exported again.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    #: The name of its table, and the times (UTC) of its first request and behind its last.
    partition = models.CharField(max_length=63)
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    rows = models.PositiveBigIntegerField()
    file_bytes = models.PositiveBigIntegerField()
    #: Of the file, in hexadecimal digits.
    sha256 = models.CharField(max_length=64)
    #: The machine that wrote it, and where.
    node = models.CharField(max_length=253)
    path = models.CharField(max_length=1000)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        indexes = (models.Index(fields=("partition",), name="exports_by_partition"),)

    def __str__(self) -> str:
        return self.path


class LedgerAccount(models.Model):
    """An account of the double-entry ledger, one per tenant, kind and currency."""

    class Kind(models.TextChoices):
        RECEIVABLE = "receivable"
        REVENUE = "revenue"
        #: What rounding the lines of invoices to cents added, and what tax the platform owes.
        ROUNDING = "rounding"
        TAX = "tax"
        CASH = "cash"
        #: What the tenant has paid in advance and not used: deferred revenue.
        PREPAID = "prepaid"
        #: What it was given and has not used, and what was given.
        PROMOTION = "promotion"
        PROMOTION_COST = "promotion_cost"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=Kind.choices)
    currency = models.CharField(max_length=3)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "kind", "currency"), name="ledger_account_once"),)

    def __str__(self) -> str:
        return f"{self.kind} of {self.tenant_id}"


class LedgerTransaction(models.Model):
    """A posting whose entries sum to zero. ``source`` identifies it and is unique."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=16)
    source = models.CharField(max_length=200, unique=True)
    usage_ids = ArrayField(models.UUIDField(), default=list)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(fields=("tenant_id", "source"), name="ledger_by_tenant_and_source"),
            models.Index(fields=("tenant_id",), condition=~Q(kind="usage"), name="ledger_but_usage"),
        )

    def __str__(self) -> str:
        return self.source


class LedgerEntry(models.Model):
    """One side of a posting, debit positive. Triggers reject changes to entries and unbalanced transactions."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)

    class Meta:
        verbose_name_plural = "ledger entries"

    def __str__(self) -> str:
        return f"{self.account_id} {self.amount_pico}"


class BootUsage(models.Model):
    """What the requests of one engine process took, by purpose, in the units of the engine's own counters.

    The drain adds to it in the transaction that inserts the rows. Rows whose tokens the engine itself reported are
    exact. The others (``cut_…``: the client left, the engine failed, the process died) have what was recorded of them.
    """

    id = models.BigAutoField(primary_key=True)
    replica_id = models.UUIDField()
    generation = models.PositiveIntegerField()
    purpose = models.CharField(max_length=16, choices=UsageRecord.Purpose.choices)
    requests = models.PositiveBigIntegerField(default=0)
    sequences = models.PositiveBigIntegerField(default=0)
    #: With the cached ones. A prompt counts once for each of ``n`` sequences, as engines count it.
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    #: Those of them with several sequences, for which engines report the cached tokens of one only.
    shared_requests = models.PositiveBigIntegerField(default=0)
    cut_requests = models.PositiveBigIntegerField(default=0)
    cut_sequences = models.PositiveBigIntegerField(default=0)
    cut_prompt_tokens = models.PositiveBigIntegerField(default=0)
    cut_completion_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "boot usage"
        constraints = (models.UniqueConstraint(fields=("replica_id", "generation", "purpose"), name="boot_usage_once"),)

    def __str__(self) -> str:
        return f"{self.replica_id}/{self.generation} {self.purpose}"


class FinalStatement(models.Model):
    """A tenant's statement of a month as it was when the month's requests were retired. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    #: The month in the tenant's billing time zone at that time.
    year = models.PositiveSmallIntegerField()
    month = models.PositiveSmallIntegerField()
    #: It covers the requests with ids from ``first_id`` to before ``behind_id``.
    first_id = models.UUIDField()
    behind_id = models.UUIDField()
    #: ``billing.reports.statements.Statement``.
    document = models.JSONField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant_id", "year", "month"), name="final_statement_once"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.year}-{self.month:02}"


class BillingMonth(models.Model):
    """One closing of a tenant's month, with the lines it froze. A trigger refuses all changes but its reopening.

    A month without a row, or whose latest row was reopened, is open. Closing it again makes the next revision.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant_id = models.UUIDField()
    year = models.PositiveSmallIntegerField()
    month = models.PositiveSmallIntegerField()
    revision = models.PositiveSmallIntegerField()
    timezone = models.CharField(max_length=63)
    currency = models.CharField(max_length=3)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    #: It covers the requests with ids from ``first_id`` to before ``behind_id``.
    first_id = models.UUIDField()
    behind_id = models.UUIDField()
    #: How long after its end it had to stay open.
    grace_hours = models.PositiveSmallIntegerField()
    #: The sum of its lines and of its terms' lines, which is that of the ledger's postings.
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    #: ``billing.reports.statements.Statement`` without lines.
    document = models.JSONField()
    #: The tenant's when it was closed. None: an earlier release closed it.
    cost_centre = models.CharField(max_length=64, null=True)
    closed_at = models.DateTimeField(db_default=Now(), editable=False)
    closed_by = models.CharField(max_length=200)
    reopen_reason = models.CharField(max_length=500, blank=True, default="", db_default="")
    reopen_requested_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    reopen_requested_at = models.DateTimeField(null=True)
    reopened_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    reopened_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "year", "month", "revision"), name="month_revision_once"),
            models.UniqueConstraint(
                fields=("tenant_id", "year", "month"), condition=Q(reopened_at=None), name="month_closed_once"
            ),
            models.CheckConstraint(
                name="reopened_by_a_second_person",
                condition=Q(reopened_at=None)
                | (
                    Q(reopen_requested_at__isnull=False)
                    & ~Q(reopen_reason="")
                    & ~Q(reopened_by="")
                    & ~Q(reopened_by=F("reopen_requested_by"))
                ),
            ),
        )
        indexes = (models.Index(fields=("tenant_id", "behind_id"), name="months_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.name} r{self.revision}"

    @property
    def name(self) -> str:
        """The month as YYYY-MM."""
        return f"{self.year}-{self.month:02}"

    @property
    def state(self) -> str:
        """``closed``, or ``reopened``: it is open again, and these lines are history."""
        return "closed" if self.reopened_at is None else "reopened"


class MonthLine(models.Model):
    """One frozen line of a closing. Never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    closing = models.ForeignKey(BillingMonth, on_delete=models.PROTECT, related_name="lines")
    tenant_id = models.UUIDField()
    position = models.PositiveIntegerField()
    #: The closed month, as YYYY-MM, whose late requests this adjusts; empty: requests of the month itself.
    adjusts_month = models.CharField(max_length=7, blank=True, default="", db_default="")
    model_name = models.CharField(max_length=200)
    token_class = models.CharField(max_length=16)
    quantity = models.PositiveBigIntegerField()
    unit_price_pico = models.PositiveBigIntegerField()
    amount_pico = models.DecimalField(max_digits=38, decimal_places=0)
    #: Whose unit price it is, where those of priorities differ.
    priority = models.CharField(max_length=8, default="standard", db_default="standard")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("closing", "position"), name="month_line_once"),
            models.CheckConstraint(
                name="month_line_is_quantity_times_price",
                condition=Q(
                    amount_pico=Cast("quantity", models.DecimalField(max_digits=38, decimal_places=0))
                    * F("unit_price_pico")
                ),
            ),
        )

    def __str__(self) -> str:
        return f"{self.closing_id} {self.position}"


class LatePosting(models.Model):
    """A posting for requests of a month that was closed before. A trigger of the ledger makes it; it never changes."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    transaction = models.OneToOneField(LedgerTransaction, on_delete=models.PROTECT, related_name="late")
    tenant_id = models.UUIDField()
    #: Both as YYYY-MM: the month of the requests, and the month on whose statement they are an adjustment.
    month = models.CharField(max_length=7)
    billed_month = models.CharField(max_length=7)

    class Meta:
        indexes = (models.Index(fields=("tenant_id", "billed_month"), name="late_by_billed_month"),)

    def __str__(self) -> str:
        return f"{self.transaction_id} of {self.month} in {self.billed_month}"


class BudgetWindow(models.Model):
    """What was spent of a budget in one of its periods. The drain updates it in the transaction that inserts the rows.

    A new period is a new row, so no job has to reset anything. ``starts_at`` is 1970 for a budget without periods.
    """

    id = models.BigAutoField(primary_key=True)
    budget_id = models.UUIDField()
    tenant_id = models.UUIDField()
    starts_at = models.DateTimeField()
    spent_pico = models.DecimalField(max_digits=38, decimal_places=0, default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("budget_id", "starts_at"), name="budget_window_once"),
            models.CheckConstraint(name="spent_not_negative", condition=Q(spent_pico__gte=0)),
        )

    def __str__(self) -> str:
        return f"{self.budget_id} {self.starts_at:%Y-%m-%d}"


class BudgetAlert(models.Model):
    """A percentage of a budget was spent. Raised once per period and percentage, and never changed."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    budget_id = models.UUIDField()
    tenant_id = models.UUIDField()
    starts_at = models.DateTimeField()
    percent = models.PositiveSmallIntegerField()
    #: When the alert was raised.
    spent_pico = models.DecimalField(max_digits=38, decimal_places=0)
    limit_pico = models.PositiveBigIntegerField()
    raised_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("budget_id", "starts_at", "percent"), name="budget_alert_once"),)
        indexes = (models.Index(fields=("tenant_id", "-raised_at"), name="alerts_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.percent} % of {self.budget_id}"


class WalOffset(models.Model):
    """How far a writer's log is stored. The drain moves it in the transaction that inserts the rows it covers."""

    writer_id = models.UUIDField(primary_key=True, editable=False)
    node = models.CharField(max_length=253)
    segment = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    #: Everything that the writer had written before this moment is stored; None: the drain has not said so yet.
    caught_up_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"{self.writer_id} {self.segment}:{self.offset}"
