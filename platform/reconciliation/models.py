"""What the last comparisons found: of each engine process, and of the books."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from workers.models import EngineBoot


class BootResult(models.Model):
    """How the counters of one engine process compare with the usage of its requests."""

    class State(models.TextChoices):
        RUNNING = "running"
        #: It ended a short while ago: its last requests may not be stored yet.
        SETTLING = "settling"
        EQUAL = "equal"
        #: Requests were cut short. What the engine counted beyond the rows is at most what they could have taken.
        BOUNDED = "bounded"
        #: It was killed, and what nobody received is in the books as lost.
        LOST = "lost"
        GAP = "gap"
        #: It ran before its counters were kept.
        PARTIAL = "partial"

    boot = models.OneToOneField(EngineBoot, on_delete=models.CASCADE, primary_key=True, related_name="result")
    state = models.CharField(max_length=16, choices=State.choices)
    #: Tokens that nothing explains: positive where the engine counted more than is stored, negative where less.
    gap_tokens = models.BigIntegerField(default=0)
    #: What the engine counted beyond the exact rows, and the most that requests cut short could have taken of it.
    unattributed_tokens = models.BigIntegerField(default=0)
    allowed_tokens = models.BigIntegerField(default=0)
    lost_tokens = models.BigIntegerField(default=0)
    note = models.CharField(max_length=500, blank=True, default="")
    #: For a running process: what was counted and stored at ``marked_at``, which the next comparison starts from.
    marked_at = models.DateTimeField(null=True, blank=True)
    marked_counted_tokens = models.BigIntegerField(default=0)
    marked_used_tokens = models.BigIntegerField(default=0)
    compared_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=("state",), name="boot_results_by_state"),)

    def __str__(self) -> str:
        return f"{self.boot_id} {self.state}"


class BookGap(models.Model):
    """A tenant's month in which the ledger, or the roll-ups, do not equal the usage rows. Gone once they do.

    Or one whose daily or half-hourly roll-ups do not equal its roll-ups, which ``usage_pico`` has then; those of all
    tenants together have the tenant id 0, and so have daily counts of bypasses, whose tokens are requests.

    Or one whose frozen lines do not equal the postings on its statement: then ``usage_pico`` is what these sum to, and
    the month is in the tenant's time zone. Or one whose invoice differs from the ledger or its closed month.

    Or the month in which a check of the ledger found that something of a tenant is not as it should be
    (``usage_pico``): the first thing that differs, as the command ``hearth ledger verify`` lists all.
    """

    class Book(models.TextChoices):
        LEDGER = "ledger"
        ROLLUPS = "roll-ups"
        DAYS = "daily roll-ups"
        BYPASSES = "daily bypasses"
        MONTHS = "closed month"
        INVOICES = "invoice"
        #: What ``hearth ledger verify`` checks, one for each of its checks.
        BALANCED = "balanced"
        OWN_ACCOUNTS = "own-accounts"
        ONE_CURRENCY = "one-currency"
        POSTED_ONCE = "posted-once"
        ALL_POSTED = "all-posted"
        AS_CHARGED = "as-charged"
        CREDIT_POSTED = "credit-posted"
        UNUSED_CREDIT = "unused-credit"
        NOT_BELOW_ZERO = "not-below-zero"
        RETURNED = "returned"

    id = models.BigAutoField(primary_key=True)
    tenant_id = models.UUIDField()
    #: As YYYY-MM, in UTC: the month of the requests' ids.
    month = models.CharField(max_length=7)
    book = models.CharField(max_length=16, choices=Book.choices)
    #: Empty for roll-ups, which do not distinguish currencies.
    currency = models.CharField(max_length=3, blank=True, default="")
    usage_pico = models.DecimalField(max_digits=38, decimal_places=0)
    book_pico = models.DecimalField(max_digits=38, decimal_places=0)
    usage_tokens = models.BigIntegerField(default=0)
    book_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant_id", "month", "book", "currency"), name="book_gap_once"),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.month} {self.book}"


class Comparison(models.Model):
    """One comparison of everything. ``finished_at`` None: it runs, or its process died. Old ones are deleted."""

    id = models.BigAutoField(primary_key=True)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    boots = models.PositiveIntegerField(default=0)
    boot_gaps = models.PositiveIntegerField(default=0)
    #: Without signs.
    gap_tokens = models.PositiveBigIntegerField(default=0)
    lost_tokens = models.PositiveBigIntegerField(default=0)
    #: Tenants' months of both books that were compared, and that differ.
    books = models.PositiveIntegerField(default=0)
    book_gaps = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"
