"""``/v1/`` for Django."""

from django.urls import re_path

from gateway.views import journey

urlpatterns = [re_path(r"^.*$", journey)]
