"""``/v1/`` for Django."""

from django.urls import re_path

from gateway.views import serve

urlpatterns = [re_path(r"^.*$", serve)]
