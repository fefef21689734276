"""Django's settings. Addresses and secrets come from ``hearth.environment``, policy from the database."""

from __future__ import annotations

from typing import Any

from hearth import email_url, environment, paths, service_urls
from hearth.instance import health_ports
from hearth.instance.instance import from_environment
from hearth.secrets import load_or_ephemeral
from tenants import redis_address

ENVIRONMENT = environment.read()
ROOT = paths.ROOT
DATA_DIR = ENVIRONMENT.data_dir
ROLE = ENVIRONMENT.role
SECRETS = load_or_ephemeral(DATA_DIR)

SECRET_KEY = SECRETS.django_secret_key
SECRET_KEY_FALLBACKS = list(SECRETS.django_secret_key_fallbacks)
DEBUG = ENVIRONMENT.debug
ALLOWED_HOSTS = list(ENVIRONMENT.allowed_hosts)
GATEWAY_PORT = ENVIRONMENT.port

INSTALLED_APPS = [
    "portal.admin_app.TablesConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.mfa",
    "allauth.usersessions",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "tenants",
    "tenants.identity",
    "tenants.idempotency",
    "catalogue",
    "notifications",
    "reserved_capacity",
    "billing",
    "workers",
    "retention",
    "reconciliation",
    "alerting",
    "gateway",
    "portal",
]

MIDDLEWARE = [
    "gateway.views.closing",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.access.requests.request_ids.add",
    "portal.access.requests.response_headers.add",
    "portal.access.confinement.end_with_request",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "portal.access.identity.provider_sessions.Confirm",
    "portal.access.requests.languages.LocaleMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "hearth.urls"
ASGI_APPLICATION = "hearth.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASE_URL = service_urls.database_url(ENVIRONMENT, SECRETS.database_passwords)
DATABASES: dict[str, dict[str, Any]] = {
    "default": service_urls.django_database(
        DATABASE_URL,
        role=ROLE,
        # Under ASGI each request has a thread of its own. A connection kept by it would stay open and unused.
        kept_seconds=0 if ROLE in ("portal", "all") else 60,
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"
LOGIN_URL = "/portal/login/"
LOGIN_REDIRECT_URL = "/portal/"
LOGOUT_REDIRECT_URL = LOGIN_URL

# Signing in, by django-allauth (docs/identity.md). People are added by owners and operators: nobody signs up.
ACCOUNT_ADAPTER = "portal.access.identity.account.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "optional"
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_CONFIRM_EMAIL_ON_GET = False
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_REAUTHENTICATION_METHODS = {"password", "mfa"}
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if ENVIRONMENT.tls_proxy else "http"
ACCOUNT_FORMS = {"reset_password": "portal.access.identity.account.ResetForm"}
SOCIALACCOUNT_ADAPTER = "portal.access.identity.social.SocialAdapter"
SOCIALACCOUNT_EMAIL_VERIFICATION = "none"
SOCIALACCOUNT_STORE_TOKENS = False
# Wrong passwords are counted by ``portal.access.requests.login_throttle``, for all processes together.
# Codes of a second factor are counted by allauth: five wrong ones in five minutes for a person.
ACCOUNT_RATE_LIMITS = {"login": "", "login_failed": "5/300s/key"}
MFA_ADAPTER = "portal.access.identity.mfa.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_ALLOW_UNVERIFIED_EMAIL = True
#: An app whose clock is half a minute off still works.
MFA_TOTP_TOLERANCE = 1

REDIS_LIMITS_URL = service_urls.redis_url(ENVIRONMENT, ENVIRONMENT.redis_limits_url)
REDIS_CACHE_URL = service_urls.redis_url(ENVIRONMENT, ENVIRONMENT.redis_cache_url)
# What live pages show, from the one process that reads it to all that serve a viewer.
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [redis_address.channel_layer(REDIS_CACHE_URL)], "prefix": "hearth.live"},
    }
}
REDIS_TIMEOUT_SECONDS = ENVIRONMENT.redis_timeout_ms / 1000

LANGUAGE_CODE = "en"
#: What *Profile* offers. CONTRIBUTING.md says how to add one.
LANGUAGES = [("en", "English")]
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True
STATIC_URL = "/static/"
# npm puts the packages of package-lock.json there; only the folders the pages load are offered.
STATICFILES_DIRS = [
    ROOT / "platform" / "portal" / "static",
    *[
        (f"vendor/{package.name}", package / "dist")
        for package in sorted((ROOT / "node_modules").glob("*"))
        if package.name in {"htmx.org", "uplot"} and (package / "dist").is_dir()
    ],
]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# Cookies know no ports: instances side by side on one host would sign each other out.
SESSION_COOKIE_NAME = f"hearth-session-{GATEWAY_PORT}"
CSRF_COOKIE_NAME = f"hearth-csrf-{GATEWAY_PORT}"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
if ENVIRONMENT.tls_proxy:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    #: A month: long enough to protect a browser that comes back, short enough to be undone.
    # A year, as browsers' preload lists want. Without subdomains, which may serve something else without TLS.
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.authentication.BearerAuthentication",
        "portal.api.authentication.PortalSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["portal.api.authentication.MayRead"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.access.rights.change_limit.ChangeLimit"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "portal.api.errors.handle",
    # ``?format=csv`` is read by the views that have a CSV, not by content negotiation
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Hearth",
    "DESCRIPTION": "Multi-tenant LLM inference: the inference API under /v1 and the management API under /api/v1.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {
        "persistAuthorization": False,
        "docExpansion": "none",
        "filter": True,
        "validatorUrl": None,
    },
}

# Celery reads these through ``namespace="CELERY"``.
_REDIS_BROKER_URL = service_urls.redis_url(ENVIRONMENT, ENVIRONMENT.redis_broker_url)
CELERY_BROKER_URL, _BROKER_OPTIONS = redis_address.kombu(_REDIS_BROKER_URL)
CELERY_BROKER_USE_SSL = redis_address.kombu_tls(_REDIS_BROKER_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "socket_timeout": 10,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "global_keyprefix": "hearth.celery.",
    **_BROKER_OPTIONS,
}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_DEFAULT_QUEUE = "control"
CELERY_TIMEZONE = "UTC"

TRUSTED_PROXIES = ENVIRONMENT.trusted_proxies
CONNECTIONS = ENVIRONMENT.connections
MAX_BODY_BYTES = ENVIRONMENT.max_body_bytes
ENGINE_TIMEOUT_SECONDS = ENVIRONMENT.engine_timeout_seconds
CACHE_FIRST_LEVEL_BYTES = ENVIRONMENT.cache_first_level_bytes
WEBHOOK_NETWORKS = ENVIRONMENT.webhook_networks
STRIPE_API = ENVIRONMENT.stripe_api
_EMAIL = email_url.parse(ENVIRONMENT.email_url)
#: Whether e-mails go anywhere.
EMAIL_IS_SENT = bool(ENVIRONMENT.email_url)
EMAIL_BACKEND = _EMAIL.backend
EMAIL_HOST, EMAIL_PORT = _EMAIL.host, _EMAIL.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _EMAIL.user, _EMAIL.password
EMAIL_USE_TLS, EMAIL_USE_SSL = _EMAIL.use_starttls, _EMAIL.use_tls
EMAIL_FILE_PATH = _EMAIL.folder
EMAIL_TIMEOUT = 10
EMAIL_SUBJECT_PREFIX = ""
DEFAULT_FROM_EMAIL = ENVIRONMENT.email_from
MEDIA_DOMAINS = ENVIRONMENT.media_domains
API_URL = ENVIRONMENT.api_url
PORTAL_URL = service_urls.portal_url(ENVIRONMENT)
TENANT_DOCUMENTATION = ROOT / "docs" / "tenants"
#: The portal's playground and its API reference call the gateway from the browser.
CORS_ORIGINS = (*ENVIRONMENT.cors_origins, *service_urls.portal_origins(ENVIRONMENT))
#: Empty: no request is traced.
TRACES_URL = "" if ENVIRONMENT.traces_exporter == "none" else f"{ENVIRONMENT.otlp_endpoint.rstrip('/')}/v1/traces"
TRACES_RATIO = ENVIRONMENT.traces_sampler_arg
SEND_TIMEOUT_SECONDS = ENVIRONMENT.send_timeout_seconds
WAL_DIR = DATA_DIR / "wal"
WAL_MAX_BYTES = ENVIRONMENT.wal_max_bytes
WAL_SYNC = ENVIRONMENT.wal_sync
CREDIT_APPROVAL_ABOVE = ENVIRONMENT.credit_approval_above
MONTH_GRACE_HOURS = ENVIRONMENT.month_grace_hours
USAGE_EXPORT_DIR = ENVIRONMENT.usage_export_dir or DATA_DIR / paths.USAGE_EXPORTS
NODE_NAME = ENVIRONMENT.node
NODE_ADDRESS = ENVIRONMENT.node_address
METRICS_ADDRESSES = health_ports.addresses(from_environment(), NODE_ADDRESS)
ENGINE_PORTS = ENVIRONMENT.engine_ports
ENGINE_TLS = ENVIRONMENT.engine_tls
NODE_DATABASE_URL = ENVIRONMENT.node_database_url
NODE_REDIS_URL = ENVIRONMENT.node_redis_url
ROUTING_MEMORY = paths.routing_memory(DATA_DIR)
ROUTING_BYTES = ENVIRONMENT.routing_bytes
GATEWAY_SOCKETS_DIR = paths.gateway_sockets_dir(DATA_DIR)
SLOTS = ENVIRONMENT.slots
LOG_REQUESTS = ENVIRONMENT.log_requests
ENGINE_USER = ENVIRONMENT.engine_user
ENGINE_ENVIRONMENT = ENVIRONMENT.engine_environment
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"()": "hearth.log_format.LineFormatter", "format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "hearth.log_format.JsonFormatter", "role": ROLE, "node": ENVIRONMENT.node},
    },
    "filters": {"request_ids": {"()": "tenants.request_log.RequestIds"}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": ENVIRONMENT.log_format,
            "filters": ["request_ids"],
        }
    },
    "loggers": {"hearth.requests": {"level": "INFO" if ENVIRONMENT.log_requests else "WARNING"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
