"""What django-allauth's second factors do here, and who must have one before anything else."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from uuid import UUID

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator

from tenants.identity import operator_sign_in, second_factor
from tenants.isolation import peppered
from tenants.models import User

_PURPOSE = b"hearth second factor 1"
_NOBODYS = UUID(int=0)
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    """The hooks of ``allauth.mfa``."""

    error_messages = DefaultMFAAdapter.error_messages | {
        "incorrect_code": "This code is not correct, or was used before."
    }

    def encrypt(self, text: str) -> str:
        """Seal the secret of an app or of recovery codes. Before the colon is the version of the pepper."""
        sealed, version = peppered.seal(_PURPOSE, _NOBODYS, text)
        return f"{version}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, encrypted_text: str) -> str:
        """Open it. Raises ``peppered.Unreadable``."""
        version, _, sealed = encrypted_text.partition(":")
        return peppered.unseal(_PURPOSE, _NOBODYS, base64.b64decode(sealed), int(version))

    def get_totp_issuer(self) -> str:
        """Return what an app shows beside the person's name."""
        return "Hearth"

    def _get_user_identifier(self, user: User) -> str:
        return user.get_username()

    def generate_authenticator_name(self, user: User, type: Authenticator.Type) -> str:
        """Return a name for a new passkey."""
        return f"Passkey {Authenticator.objects.filter(user_id=user.pk, type=type).count() + 1}"

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        """Return whether a factor may go: not the last one where one is required."""
        others = Authenticator.objects.filter(user=authenticator.user, type__in=FACTORS).exclude(pk=authenticator.pk)
        if others.exists():
            return True
        user = authenticator.user
        return not (second_factor.is_required_of(user) or operator_sign_in.is_break_glass(user))


def has_factor(user: User) -> bool:
    """Return whether somebody has an app or a passkey."""
    return bool(Authenticator.objects.filter(user_id=user.pk, type__in=FACTORS).exists())


def is_missing(user: User) -> bool:
    """Return whether somebody must set a second factor before anything else."""
    return bool(missing_among([user]))


def missing_among(users: Iterable[User]) -> set[int]:
    """Return the ids of those who must (two queries)."""
    required = second_factor.required_among(users)
    if not required:
        return set()
    factors = Authenticator.objects.filter(user_id__in=required, type__in=FACTORS)
    return required - set(factors.values_list("user_id", flat=True))


def is_code_right(user: User, code: str) -> bool:
    """Return whether this is a code of the person's app, or one of their recovery codes, which it uses up."""
    kept = Authenticator.objects.filter(user_id=user.pk).exclude(type=Authenticator.Type.WEBAUTHN)
    return any(each.wrap().validate_code(code) for each in kept)
