"""Sign-in providers of tenants, the people who come from them, and their sessions."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from tenants.ids import new_id
from tenants.models import Tenant, User


class SignInProvider(models.Model):
    """An OpenID Connect provider whose people become members of one tenant.

    Another issuer is another row with another id: people are known by (id, subject).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    tenant = models.OneToOneField(Tenant, on_delete=models.PROTECT, related_name="sign_in_provider")
    issuer = models.CharField(max_length=500)
    client_id = models.CharField(max_length=190)
    secret_sealed = models.BinaryField()
    pepper_version = models.PositiveSmallIntegerField()
    groups_claim = models.CharField(max_length=100, default="groups")
    #: Pairs of a group and a role, in order: the first group that a person has decides.
    roles = models.JSONField(default=list)
    #: The role of people without such a group; empty: they do not become members.
    default_role = models.CharField(max_length=16, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.issuer}"


class ProviderMember(models.Model):
    """A person who signs in through a tenant's provider. They belong to that tenant alone, for good."""

    user = models.OneToOneField(User, primary_key=True, on_delete=models.CASCADE, related_name="provider_member")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    #: None: the tenant has another provider now, or none.
    provider = models.ForeignKey(SignInProvider, null=True, on_delete=models.SET_NULL, related_name="members")
    signed_in_at = models.DateTimeField()
    #: When the provider last refused them; None: never since they signed in.
    refused_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.user_id} of {self.tenant_id}"


class ProviderSession(models.Model):
    """A session of a provider's member, which lasts only as long as the provider confirms it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    session_key = models.CharField(max_length=40, unique=True)
    member = models.ForeignKey(ProviderMember, on_delete=models.CASCADE, related_name="sessions")
    #: What proves to the provider who asks; None: it gave none, and the session ends when it is due.
    refresh_sealed = models.BinaryField(null=True)
    pepper_version = models.PositiveSmallIntegerField()
    confirmed_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"session of {self.member_id}"


class OperatorSignIn(models.Model):
    """How operators sign in: one row, with id 1. Without it, with a password or through the operators' provider."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    #: No operator signs in with a password or a passkey, except the break-glass operator.
    provider_only = models.BooleanField(default=False, db_default=False)
    break_glass = models.OneToOneField(User, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_operator_sign_in"),)

    def __str__(self) -> str:
        return "how operators sign in"


class SecondFactorRule(models.Model):
    """That a tenant's members must have a second factor; without tenant, that operators must."""

    tenant = models.ForeignKey(Tenant, null=True, on_delete=models.PROTECT, related_name="second_factor_rules")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("tenant",), nulls_distinct=False, name="second_factor_rule_once"),
        )

    def __str__(self) -> str:
        return str(self.tenant_id or "operators")
