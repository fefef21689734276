"""Tenants, their policies, projects, members, API keys and limits, and the audit log."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, TextChoices
from django.db.models.functions import Now

from tenants.caller_limits import (
    LARGEST_IDEMPOTENCY_BYTES_PER_HOUR,
    LARGEST_QUEUE_BYTES,
    LARGEST_WEIGHT,
    LONGEST_HEADER_NAME,
    LONGEST_QUEUE_SECONDS,
    LONGEST_SESSION_SECONDS,
    MOST_QUEUED_REQUESTS,
    MOST_SESSION_HEADERS,
)
from tenants.ids import new_id


class User(AbstractUser):
    """A person who signs in to the portal. ``is_staff``: an operator, who sees every tenant."""

    class OperatorRole(TextChoices):
        VIEWER = "viewer"
        OPERATOR = "operator"
        FINANCE = "finance"
        ADMIN = "admin"

    #: What an operator may change (``portal.access.rights.operator_rights``); without a meaning for everybody else.
    operator_role = models.CharField(
        max_length=16, choices=OperatorRole.choices, default=OperatorRole.ADMIN, db_default=OperatorRole.ADMIN
    )
    #: Of the IANA database, in which pages show times to this person; empty: that of the browser.
    time_zone = models.CharField(max_length=64, blank=True, default="", db_default="")
    #: Of settings.LANGUAGES, in which pages are shown to this person; empty: that of the browser.
    language = models.CharField(max_length=16, blank=True, default="", db_default="")

    @property
    def chosen_language(self) -> str:
        """The language of what is sent to this person: their choice, or else the installation's."""
        return self.language if self.language in dict(settings.LANGUAGES) else settings.LANGUAGE_CODE


class Tenant(models.Model):
    """A customer. Everything it owns has its id; it is archived, never deleted."""

    class State(TextChoices):
        ACTIVE = "active"
        SUSPENDED = "suspended"
        ARCHIVED = "archived"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=State.choices, default=State.ACTIVE)
    archived_at = models.DateTimeField(null=True, blank=True)
    #: Tenants of one group have agreed to share warm prefixes; empty: not shared.
    trust_group = models.CharField(max_length=63, blank=True, default="")
    #: Regions in which its requests may run; empty: all.
    allowed_regions = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    currency = models.CharField(max_length=3, default="USD")
    billing_timezone = models.CharField(max_length=63, default="UTC")
    #: The counter of what is left of its prepaid balance, which its requests may not exceed; None: it pays afterwards.
    prepaid_counter_id = models.UUIDField(null=True, blank=True)
    #: Since when its requests are refused because it has not paid; None: they are not. Not the operator's suspension.
    payment_overdue_since = models.DateTimeField(null=True, blank=True)
    #: Of its projects without their own; empty: none.
    cost_centre = models.CharField(max_length=64, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="tenant_archived_at_with_state",
                condition=Q(state="archived", archived_at__isnull=False) | (~Q(state="archived") & Q(archived_at=None)),
            ),
        )

    def __str__(self) -> str:
        return self.slug


def default_session_headers() -> list[str]:
    """Return the headers that name a session unless a policy says otherwise."""
    return ["x-session-id"]


class TenantPolicy(models.Model):
    """One version of what a tenant may do. Rows are never changed; the highest version is in force."""

    class CacheMode(TextChoices):
        OFF = "off"
        DETERMINISTIC = "deterministic"
        ALL = "all"

    class Scope(TextChoices):
        TENANT = "tenant"
        PROJECT = "project"
        KEY = "key"

    class SessionAffinity(TextChoices):
        #: A session's request runs where that costs everybody least, which usually is its home.
        CHEAPEST = "cheapest"
        #: It runs at its home as long as that is ready.
        STRICT = "strict"

    class Priority(TextChoices):
        LOW = "low"
        STANDARD = "standard"
        HIGH = "high"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="policies")
    version = models.PositiveIntegerField()
    cache_mode = models.CharField(max_length=16, choices=CacheMode.choices, default=CacheMode.DETERMINISTIC)
    cache_ttl_seconds = models.PositiveIntegerField(default=3600)
    #: Largest size of one stored response, and of all the tenant's stored responses together, compressed.
    cache_entry_bytes = models.PositiveIntegerField(default=1 << 20, db_default=1 << 20)
    cache_quota_bytes = models.PositiveBigIntegerField(default=256 << 20, db_default=256 << 20)
    #: Responses that one key may store per minute; None: unlimited.
    cache_writes_per_minute = models.PositiveIntegerField(null=True, blank=True)
    #: The scope inside the tenant that shares stored responses and warm prefixes.
    cache_scope = models.CharField(max_length=16, choices=Scope.choices, default=Scope.TENANT)
    #: A new epoch makes the tenant's prefix caches on all engines, and its prediction cache, unreachable.
    salt_epoch = models.PositiveIntegerField(default=1)
    #: Longest time that a request waits for a replica; 0: none waits. Most clients and load balancers wait a minute for
    #: a first byte, and a warm start takes a few seconds.
    queue_seconds = models.PositiveIntegerField(default=60, db_default=60)
    #: Requests that wait in each gateway process; further ones are refused. More than a burst after scaling from zero.
    queue_requests = models.PositiveIntegerField(default=256, db_default=256)
    #: Bodies of these requests together, in each process, because they wait in memory: six of the largest.
    queue_bytes = models.PositiveBigIntegerField(default=64 << 20, db_default=64 << 20)
    #: Responses to requests with an Idempotency-Key that are stored in an hour, compressed; further requests run, but
    #: cannot be replayed. 64 MiB are about 60,000 chats, and 1.5 GiB of Redis for a whole day.
    idempotency_bytes_per_hour = models.PositiveBigIntegerField(default=64 << 20, db_default=64 << 20)
    #: Request headers that name a session, in lower case; the first one present counts.
    session_headers = ArrayField(
        models.CharField(max_length=LONGEST_HEADER_NAME),
        size=MOST_SESSION_HEADERS,
        default=default_session_headers,
        db_default=["x-session-id"],
        blank=True,
    )
    #: A session without a request for longer has no home; 0: no request belongs to a session. Engines have evicted a
    #: conversation's prefix after an hour as a rule.
    session_ttl_seconds = models.PositiveIntegerField(default=3600, db_default=3600)
    session_affinity = models.CharField(
        max_length=16,
        choices=SessionAffinity.choices,
        default=SessionAffinity.CHEAPEST,
        db_default=SessionAffinity.CHEAPEST,
    )
    #: While every replica is full, requests of a higher class are served before all of a lower one; within a class
    #: tenants share in proportion to their weights.
    priority = models.CharField(
        max_length=8, choices=Priority.choices, default=Priority.STANDARD, db_default=Priority.STANDARD
    )
    weight = models.PositiveSmallIntegerField(default=1, db_default=1)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant", "version"), name="policy_version_once"),
            models.CheckConstraint(
                name="policy_priority_known",
                # Not IN, which PostgreSQL writes in another way once it was dumped and restored.
                condition=Q(priority="low") | Q(priority="standard") | Q(priority="high"),
            ),
            models.CheckConstraint(name="policy_weight_in_range", condition=Q(weight__range=(1, LARGEST_WEIGHT))),
            models.CheckConstraint(
                name="policy_queue_seconds_in_range", condition=Q(queue_seconds__range=(0, LONGEST_QUEUE_SECONDS))
            ),
            models.CheckConstraint(
                name="policy_queue_requests_in_range", condition=Q(queue_requests__range=(0, MOST_QUEUED_REQUESTS))
            ),
            models.CheckConstraint(
                name="policy_queue_bytes_in_range", condition=Q(queue_bytes__range=(0, LARGEST_QUEUE_BYTES))
            ),
            models.CheckConstraint(
                name="policy_idempotency_bytes_in_range",
                condition=Q(idempotency_bytes_per_hour__range=(0, LARGEST_IDEMPOTENCY_BYTES_PER_HOUR)),
            ),
            models.CheckConstraint(
                name="policy_session_ttl_in_range",
                condition=Q(session_ttl_seconds__range=(0, LONGEST_SESSION_SECONDS)),
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} v{self.version}"


class Membership(models.Model):
    """A user's role in a tenant."""

    class Role(TextChoices):
        OWNER = "owner"
        #: Everything but what is about owners and how the tenant's people sign in.
        ADMIN = "admin"
        BILLING = "billing"
        DEVELOPER = "developer"
        VIEWER = "viewer"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    #: Projects whose keys a developer may make and change; empty: all.
    project_ids = ArrayField(models.UUIDField(), default=list, db_default=[], blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("user", "tenant"), name="membership_once"),)

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} of {self.tenant_id}"


class Invitation(models.Model):
    """A link that makes one person a member of a tenant, or an operator where there is no tenant.

    Only an HMAC of its secret is stored, as of an API key (``tenants.people.invitations``).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    public_id = models.CharField(max_length=16, unique=True)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="invitations")
    role = models.CharField(max_length=16)
    #: To which the link was sent; empty: to none.
    email = models.CharField(max_length=254, blank=True, default="")
    secret_hmac = models.BinaryField(max_length=32)
    pepper_version = models.PositiveSmallIntegerField()
    #: Sign-in names of the persons who made and accepted it.
    created_by = models.CharField(max_length=200)
    accepted_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = (models.Index(F("tenant"), F("id").desc(), name="invitations_by_tenant"),)

    def __str__(self) -> str:
        return f"hi_{self.public_id}"


class Project(models.Model):
    """A division of a tenant: each key and its usage belong to exactly one project."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    slug = models.SlugField(max_length=63)
    name = models.CharField(max_length=200)
    #: Empty: its tenant's.
    cost_centre = models.CharField(max_length=64, blank=True, default="", db_default="")
    #: How long prompts and answers are kept (``tenants.content``); None: they are not.
    content_log_days = models.PositiveSmallIntegerField(null=True, blank=True)
    #: Those of earlier requests that are not written yet are not kept.
    content_erased_at = models.DateTimeField(null=True, blank=True)
    #: Stored bytes of what is kept.
    content_bytes = models.BigIntegerField(default=0, db_default=0, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("tenant", "slug"), name="project_slug_once_per_tenant"),)

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.slug}"


class ApiKey(models.Model):
    """A tenant's key. Only an HMAC of its secret is stored (``tenants.keys.key_format``)."""

    class Purpose(TextChoices):
        #: A program's.
        API = "api"
        #: The portal's playground, for the person in ``created_by`` (``tenants.keys.playground``).
        PLAYGROUND = "playground"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    public_id = models.CharField(max_length=16, unique=True)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="keys")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="keys")
    name = models.CharField(max_length=200)
    secret_hmac = models.BinaryField(max_length=32)
    pepper_version = models.PositiveSmallIntegerField()
    scopes = ArrayField(models.CharField(max_length=32), default=list, blank=True)
    #: Served model names it may call; empty: all that its tenant sees.
    allowed_models = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    #: Networks (CIDR) from which it may be used; empty: all addresses.
    allowed_networks = ArrayField(models.CharField(max_length=43), default=list, blank=True)
    #: The key that it replaces, which stays valid until its own ``expires_at``.
    rotated_from = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="rotated_to"
    )
    #: The key that created it, and the keys above that one: their limits and budgets apply to this key too. Rotation
    #: replaces a key by its successor here. Empty: a person created it.
    issuers = ArrayField(models.UUIDField(), default=list, db_default=[], blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: Written by the drain, at most once a minute.
    last_used_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL)
    purpose = models.CharField(max_length=16, choices=Purpose.choices, default=Purpose.API, db_default=Purpose.API)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("project", "created_by"),
                condition=Q(purpose="playground"),
                name="playground_key_once_per_member",
            ),
        )

    def __str__(self) -> str:
        return f"hk_{self.public_id}"


class BoundSetter(TextChoices):
    """Who set a limit or budget, the highest first. Nobody below changes or removes it: ``policy.bound_setter``."""

    OPERATOR = "operator"
    OWNER = "owner"
    KEY = "key"


class Limit(models.Model):
    """A request limit of a tenant, project or key, for one model or for all models together.

    Without project and key it is the tenant's. All matching limits apply.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="limits")
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="limits")
    #: Served model name; empty: all models together.
    model_name = models.CharField(max_length=200, blank=True, default="")
    #: For each, None is unlimited and 0 admits nothing.
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    concurrent_requests = models.PositiveIntegerField(null=True, blank=True)
    set_by = models.CharField(
        max_length=8, choices=BoundSetter.choices, default=BoundSetter.OPERATOR, db_default=BoundSetter.OPERATOR
    )
    #: Public id of the key that set it; empty: a person did.
    set_by_key = models.CharField(max_length=16, blank=True, default="", db_default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "project", "key", "model_name"), nulls_distinct=False, name="limit_once"
            ),
            models.CheckConstraint(
                name="limit_of_one_subject", condition=Q(project__isnull=True) | Q(key__isnull=True)
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.model_name or 'all models'}"


class Budget(models.Model):
    """How much money a tenant, project or key may spend in a period.

    Periods begin in the tenant's billing time zone. ``billing`` stores what was spent.
    """

    class Period(TextChoices):
        DAY = "day"
        WEEK = "week"
        MONTH = "month"
        TOTAL = "total"

    class Action(TextChoices):
        #: Refuse requests that could exceed the limit.
        BLOCK = "block"
        ALERT = "alert"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="budgets")
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="budgets")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="budgets")
    #: Served model name; empty: all models together.
    model_name = models.CharField(max_length=200, blank=True, default="")
    #: Names that this model had before: usage keeps the name under which it ran.
    earlier_names = ArrayField(models.CharField(max_length=200), default=list, db_default=[], blank=True)
    period = models.CharField(max_length=8, choices=Period.choices, default=Period.MONTH)
    limit_pico = models.PositiveBigIntegerField()
    currency = models.CharField(max_length=3, default="USD")
    action = models.CharField(max_length=8, choices=Action.choices, default=Action.BLOCK)
    #: Percentages of the limit; reaching one raises an alert, once per period.
    alert_percents = ArrayField(models.PositiveSmallIntegerField(), default=list, blank=True)
    set_by = models.CharField(
        max_length=8, choices=BoundSetter.choices, default=BoundSetter.OPERATOR, db_default=BoundSetter.OPERATOR
    )
    #: Public id of the key that set it; empty: a person did.
    set_by_key = models.CharField(max_length=16, blank=True, default="", db_default="")
    archived_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "project", "key", "model_name", "period"),
                condition=Q(archived_at=None),
                nulls_distinct=False,
                name="budget_once",
            ),
            models.CheckConstraint(
                name="budget_of_one_subject", condition=Q(project__isnull=True) | Q(key__isnull=True)
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.period}"


class CacheSetting(models.Model):
    """Overrides of the tenant's prediction-cache policy for one project or key.

    Each field comes from the key's setting, else from its project's, else from the tenant's policy.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="cache_settings")
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="cache_settings")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="cache_settings")
    #: An empty mode, and None in the other fields, inherit from the level above.
    mode = models.CharField(max_length=16, choices=TenantPolicy.CacheMode.choices, blank=True, default="")
    ttl_seconds = models.PositiveIntegerField(null=True, blank=True)
    writes_per_minute = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("tenant", "project", "key"), nulls_distinct=False, name="cache_setting_once"
            ),
            models.CheckConstraint(
                name="cache_setting_of_one_subject",
                condition=Q(project__isnull=True, key__isnull=False) | Q(project__isnull=False, key__isnull=True),
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.mode or 'as above'}"


class CachePurge(models.Model):
    """A purge of stored responses: those to requests accepted before this row's id, a UUIDv7, are not served.

    It covers all of the tenant's responses, or those of one model, of the key that stored them, or of one request. Rows
    are never changed; a purge older than the longest time to live has no effect.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="cache_purges")
    #: Served model name; empty: all models.
    model_name = models.CharField(max_length=200, blank=True, default="")
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="cache_purges")
    request_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("tenant"), F("id").desc(), name="purges_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.id}"


class OperatorToken(models.Model):
    """An operator's bearer token for ``/api/v1/``: format and storage of an API key, prefix ``ho_``."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    public_id = models.CharField(max_length=16, unique=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=200)
    secret_hmac = models.BinaryField(max_length=32)
    pepper_version = models.PositiveSmallIntegerField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"ho_{self.public_id}"


class ScrapeToken(models.Model):
    """A bearer token with which Prometheus finds what to scrape, and nothing else: format of an API key, ``hs_``."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    public_id = models.CharField(max_length=16, unique=True)
    name = models.CharField(max_length=200)
    secret_hmac = models.BinaryField(max_length=32)
    pepper_version = models.PositiveSmallIntegerField()
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"hs_{self.public_id}"


class AuditEntry(models.Model):
    """One change: who, what, before and after. A trigger rejects changes to rows and their removal."""

    class ActorKind(TextChoices):
        USER = "user"
        KEY = "key"
        SYSTEM = "system"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    actor_kind = models.CharField(max_length=8, choices=ActorKind.choices)
    actor = models.CharField(max_length=200)
    #: Whether an operator acted, in the portal or a shell. None: written before this was recorded.
    by_operator = models.BooleanField(null=True)
    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="audit_entries")
    action = models.CharField(max_length=64)
    object_kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=64)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (models.Index(F("tenant"), F("id").desc(), name="audit_by_tenant"),)
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.action} {self.object_kind} {self.object_id}"


class ContentEntry(models.Model):
    """A request's prompt and answer, sealed for its tenant (``tenants.content``). The id is the request's."""

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    sealed = models.BinaryField()
    pepper_version = models.PositiveSmallIntegerField()
    #: Of ``sealed``.
    bytes = models.PositiveIntegerField()
    #: Whom the request served, as a MAC with a key of the tenant's (``tenants.content``); None: it does not say.
    end_user_mac = models.BinaryField(null=True)

    class Meta:
        indexes = (models.Index(fields=("project", "id"), include=("bytes",), name="content_by_project"),)
        verbose_name_plural = "content entries"

    def __str__(self) -> str:
        return str(self.id)


class PolicyEpoch(models.Model):
    """One row with one number, raised by every change that gateways must load (see ``tenants.policy_epoch``)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    value = models.BigIntegerField(default=1)

    class Meta:
        constraints = (models.CheckConstraint(name="policy_epoch_is_one_row", condition=Q(id=1)),)

    def __str__(self) -> str:
        return str(self.value)


class PolicyChange(models.Model):
    """What one epoch changed, so that gateways read that and nothing else (see ``tenants.policy_epoch``).

    One of a key, a tenant (its rules, not its keys) or, if both are None, models and prices. An epoch without rows
    may have changed anything. Ids are no foreign keys: rows are written at every change and removed soon.
    """

    id = models.BigAutoField(primary_key=True)
    epoch = models.BigIntegerField()
    changed_tenant = models.UUIDField(null=True)
    changed_key = models.UUIDField(null=True)

    class Meta:
        indexes = (models.Index(fields=["epoch"], name="policy_changes_by_epoch"),)

    def __str__(self) -> str:
        return f"{self.epoch} {self.changed_key or self.changed_tenant or 'models'}"
