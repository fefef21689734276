"""The addresses of webhooks, deliveries and events, below ``/api/v1/`` and ``/api/v1/tenants/{tenant}/``."""

from __future__ import annotations

from django.urls import URLPattern, path

from portal.api.notifications import alerts, deliveries, mails, webhooks

_TENANT = "tenants/<slug:tenant>/"
urlpatterns: list[URLPattern] = [
    path("alerts", alerts.AlertsView.as_view()),
    path("mails", mails.MailsView.as_view()),
    path("event-types", deliveries.EventTypesView.as_view()),
    path("events", deliveries.PlatformEventsView.as_view()),
    path("webhooks", webhooks.OperatorWebhooksView.as_view()),
    path("webhooks/<uuid:webhook>", webhooks.OperatorWebhookView.as_view()),
    path("webhooks/<uuid:webhook>/rotate-secret", webhooks.OperatorRotateWebhookSecretView.as_view()),
    path("webhooks/<uuid:webhook>/resume", webhooks.OperatorResumeWebhookView.as_view()),
    path("webhooks/<uuid:webhook>/test", webhooks.OperatorTestWebhookView.as_view()),
    path("webhooks/<uuid:webhook>/replay", webhooks.OperatorReplayWebhookView.as_view()),
    path("webhooks/<uuid:webhook>/deliveries", deliveries.OperatorDeliveriesView.as_view()),
    path("webhooks/<uuid:webhook>/deliveries/<uuid:delivery>", deliveries.OperatorDeliveryView.as_view()),
    path(f"{_TENANT}events", deliveries.EventsView.as_view()),
    path(f"{_TENANT}webhooks", webhooks.WebhooksView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>", webhooks.WebhookView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/rotate-secret", webhooks.RotateWebhookSecretView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/resume", webhooks.ResumeWebhookView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/test", webhooks.TestWebhookView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/replay", webhooks.ReplayWebhookView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/deliveries", deliveries.DeliveriesView.as_view()),
    path(f"{_TENANT}webhooks/<uuid:webhook>/deliveries/<uuid:delivery>", deliveries.DeliveryView.as_view()),
]
