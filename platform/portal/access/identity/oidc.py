"""OpenID Connect with a tenant's provider, by django-allauth, with the checks that it leaves out.

allauth keeps the state in the session, uses it once, and sends the PKCE challenge. Added here: the issuer must be the
one that is configured, the ID token is always there and its signature is always verified, by algorithms with a public
key only, and it has the nonce of this sign-in. People are known by what is in that token alone.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import jwt
from allauth.socialaccount.models import SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthProcess, ProviderException
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from notifications.webhooks import addresses
from portal.access.identity.fetching import ProviderSession
from tenants.errors import BadName
from tenants.identity import providers
from tenants.identity.errors import SignInRefused
from tenants.identity.models import SignInProvider
from tenants.isolation import peppered

#: Signatures that only the owner of a private key can make. Without HS256, for which the client secret would do.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
#: How far the provider's clock may be off.
LEEWAY_SECONDS = 60
LONGEST_SUBJECT = 190
#: How long a provider's description and keys are used before they are fetched again.
CACHE_SECONDS = 300
SCOPES = ("openid", "profile", "email", "offline_access")


class Refused(ProviderException):  # type: ignore[misc]  # allauth has no types
    """The provider's answer is not accepted; the text says why, and holds nothing that it sent."""


def app_of(provider: SignInProvider) -> SocialApp:
    """Return the provider as allauth knows one. It is not stored. Raises ``peppered.Unreadable``."""
    return SocialApp(
        provider=OpenIDConnectProvider.id,
        provider_id=str(provider.id),
        name=provider.tenant.name,
        client_id=provider.client_id,
        secret=providers.secret_of(provider),
        settings={"server_url": provider.issuer, "oauth_pkce_enabled": True},
    )


class TenantProvider(OpenIDConnectProvider):  # type: ignore[misc]  # allauth has no types
    """A tenant's provider."""

    def get_oauth2_adapter(self, request: HttpRequest) -> TenantOAuth2Adapter:
        """Return what speaks to the provider."""
        return TenantOAuth2Adapter(request, self)

    def begin(self, request: HttpRequest, next_url: str | None) -> HttpResponse:
        """Send the browser to the provider. Only to sign in: nothing in the request connects another account."""
        nonce = secrets.token_urlsafe(24)
        response: HttpResponse = self.redirect(
            request, AuthProcess.LOGIN, next_url, auth_params={"nonce": nonce}, scope=self._scopes(request), nonce=nonce
        )
        return response

    def extract_uid(self, data: Mapping[str, Any]) -> str:
        """Return the subject."""
        subject: str = data["sub"]
        return subject

    def extract_extra_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Store nothing of the token."""
        return {}

    def extract_common_fields(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the person's names."""
        found = {"first_name": data.get("given_name"), "last_name": data.get("family_name")}
        return {key: value[:150] for key, value in found.items() if isinstance(value, str) and "\0" not in value}

    def extract_email_addresses(self, data: Mapping[str, Any]) -> list[Any]:
        """Return none: an address that a provider claims says nothing about who somebody is here."""
        return []

    def _scopes(self, request: HttpRequest) -> list[str]:
        """Ask for a refresh token in the way that this provider wants. Some refuse scopes that they do not know."""
        known = self.get_oauth2_adapter(request).openid_config.get("scopes_supported")
        return [each for each in SCOPES if not isinstance(known, list) or each in known or each == "openid"]


class TenantOAuth2Adapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth has no types
    """Speaks to a tenant's provider."""

    #: The nonce of the sign-in that this request completes.
    nonce = ""

    def __init__(self, request: HttpRequest, provider: TenantProvider) -> None:
        super().__init__(request, provider.app.provider_id)
        self.provider = provider

    def get_provider(self) -> TenantProvider:
        """Return the provider."""
        return self.provider

    @property
    def openid_config(self) -> dict[str, Any]:
        """Return the discovery document. Raises Refused if it is another issuer's, ProviderUnavailable."""
        if not hasattr(self, "_openid_config"):
            issuer = str(self.provider.app.settings["server_url"])
            self._openid_config = _cached("discovery", issuer, lambda: discover(issuer))
        return self._openid_config

    @property
    def basic_auth(self) -> bool:
        """Return whether the client secret is sent in a header, which is what a provider wants that names no way."""
        return "client_secret_post" not in self.openid_config.get("token_endpoint_auth_methods_supported", ())

    def complete_login(self, request: HttpRequest, app: SocialApp, token: Any, **more: Any) -> SocialLogin:
        """Return who signs in. Raises Refused."""
        response = more["response"]
        claims = self.claims_of(response.get("id_token") if isinstance(response, dict) else None)
        if not self.nonce or not secrets.compare_digest(str(claims.get("nonce")).encode(), self.nonce.encode()):
            raise Refused("its token was made for another sign-in")
        login = self.provider.sociallogin_from_response(request, claims)
        login.claims = claims
        return login

    def claims_of(self, id_token: object) -> dict[str, Any]:
        """Return what a verified ID token says. Raises Refused, ProviderUnavailable."""
        if not isinstance(id_token, str):
            raise Refused("it sent no ID token")
        client_id: str = self.provider.app.client_id
        try:
            try:
                claims = self._decoded(id_token)
            except (Refused, jwt.InvalidSignatureError):  # the provider may have other keys now
                claims = self._decoded(id_token, refresh=True)
        except jwt.InvalidAudienceError:
            raise Refused("its token is for another application") from None
        except jwt.InvalidIssuerError:
            raise Refused("its token names another issuer") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Refused("its token is not valid") from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else client_id) != client_id:
            raise Refused("its token is for another application")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= LONGEST_SUBJECT or not subject.isprintable():
            raise Refused("its token names nobody")
        return claims

    def _decoded(self, id_token: str, *, refresh: bool = False) -> dict[str, Any]:
        """Return the claims. Raises jwt.PyJWTError, ValueError, TypeError, RecursionError, Refused."""
        jwks_uri: str = self.openid_config["jwks_uri"]
        keys = _cached("keys", jwks_uri, lambda: fetch_json(jwks_uri), refresh=refresh)
        claims: dict[str, Any] = jwt.decode(
            id_token,
            _key_of(id_token, keys),
            algorithms=ALGORITHMS,
            audience=self.provider.app.client_id,
            issuer=self.provider.app.settings["server_url"],
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
        return claims


class Callback(OAuth2CallbackView):  # type: ignore[misc]  # allauth has no types
    """Completes a sign-in whose state is in this browser's session."""

    def _get_state(self, request: HttpRequest, provider: TenantProvider) -> tuple[Any, Any]:
        state, response = super()._get_state(request, provider)
        self.adapter.nonce = str((state or {}).get("nonce", ""))
        return state, response


def provider_of(request: HttpRequest, row: SignInProvider) -> TenantProvider:
    """Return the provider for allauth. Raises SignInRefused if its secret cannot be read."""
    try:
        return TenantProvider(request, app=app_of(row))
    except peppered.Unreadable:
        raise SignInRefused("the client secret cannot be read; set it again") from None


def discover(issuer: str) -> dict[str, Any]:
    """Return an issuer's discovery document. Raises Refused, ProviderUnavailable."""
    found = fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if found.get("issuer") != issuer:
        raise Refused("its discovery document names another issuer")
    for endpoint in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
        try:
            addresses.check_url(str(found.get(endpoint)))
        except BadName:
            raise Refused(f"the {endpoint} of its discovery document is not an allowed address") from None
    methods = found.get("token_endpoint_auth_methods_supported", [])
    if not isinstance(methods, list):
        raise Refused("its discovery document is not valid")
    return found


def fetch_json(url: str) -> dict[str, Any]:
    """Return the JSON object at an address. Raises Refused, ProviderUnavailable."""
    with ProviderSession() as session:
        answer = session.get(url)
    try:
        found = answer.json() if answer.status_code < 300 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused("an answer of it is not the JSON that OpenID Connect describes")
    return found


def refreshed(provider: TenantProvider, refresh_token: str) -> dict[str, Any]:
    """Return the token endpoint's answer to a refresh token. Raises Refused if it says no, ProviderUnavailable."""
    adapter = provider.get_oauth2_adapter(provider.request)
    data = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    auth = (provider.app.client_id, provider.app.secret) if adapter.basic_auth else None
    if auth is None:
        data |= {"client_id": provider.app.client_id, "client_secret": provider.app.secret}
    with ProviderSession() as session:
        answer = session.request("POST", adapter.access_token_url, data=data, auth=auth)
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        found = None
    if answer.status_code >= 400 or not isinstance(found, dict) or "access_token" not in found:
        raise Refused("it does not confirm the session")
    return found


def _key_of(id_token: str, keys: Mapping[str, Any]) -> Any:
    """Return the public key that the token's header names; the only one if it names none. Raises Refused."""
    kid = jwt.get_unverified_header(id_token).get("kid")
    usable = [each for each in jwt.PyJWKSet.from_dict(dict(keys)).keys if each.public_key_use in (None, "sig")]
    fitting = [each for each in usable if each.key_id == kid] if kid else usable
    if len(fitting) != 1:
        raise Refused("its token is not signed with a key of it")
    return fitting[0].key


def _cached(what: str, address: str, fetch: Callable[[], dict[str, Any]], *, refresh: bool = False) -> dict[str, Any]:
    """Return what is at an address of a provider, fetched by this process within CACHE_SECONDS."""
    key = f"hearth:provider:{what}:{hashlib.sha256(address.encode()).hexdigest()}"
    found: dict[str, Any] | None = None if refresh else cache.get(key)
    if found is None:
        found = fetch()
        cache.set(key, found, CACHE_SECONDS)
    return found
