"""Addresses below ``/portal/`` whose names django-allauth fixes, so they are in no namespace."""

from __future__ import annotations

from allauth.account import views as account
from allauth.usersessions.views import list_usersessions
from django.urls import URLPattern, path, re_path

from portal.pages.identity import company, sessions, sign_in
from portal.pages.identity.own_page import entrance, own_page

urlpatterns: list[URLPattern] = [
    path("login/", sign_in.SignInView.as_view(), name="account_login"),
    path("company-login/", company.choose, name="company_login"),
    path("login/back/<uuid:provider_id>/", company.complete, name="openid_connect_callback"),
    path("login/<slug:slug>/", company.entrance, name="tenant_login"),
    path("login/<slug:slug>/begin/", company.begin, name="tenant_login_begin"),
    path("logout/", sign_in.sign_out, name="account_logout"),
    path("account/inactive/", account.account_inactive, name="account_inactive"),
    path("account/confirm-password/", own_page(account.reauthenticate), name="account_reauthenticate"),
    path("account/password/", own_page(account.password_change), name="account_change_password"),
    path("account/sessions/", own_page(list_usersessions), name="usersessions_list"),
    path("account/sessions/<int:session>/end/", sessions.end, name="session_end"),
    path("account/e-mail/", own_page(account.email), name="account_email"),
    path("password-reset/", entrance(account.password_reset), name="account_reset_password"),
    path("password-reset/sent/", account.password_reset_done, name="account_reset_password_done"),
    path("password-reset/done/", account.password_reset_from_key_done, name="account_reset_password_from_key_done"),
    re_path(
        r"^password-reset/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$",
        account.password_reset_from_key,
        name="account_reset_password_from_key",
    ),
    re_path(r"^confirm-e-mail/(?P<key>[-:\w]+)/$", account.confirm_email, name="account_confirm_email"),
]
