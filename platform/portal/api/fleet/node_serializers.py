"""What ``/api/v1/fleet`` answers about a node beside its slots: its certificate, and what `hearth gpu-check` found."""

from __future__ import annotations

from rest_framework import serializers

from workers.devices.gpu_report import CheckResult, GpuReport
from workers.fleet.status.certificate_status import CertificateStatus


class CertificateSerializer(serializers.Serializer[CertificateStatus]):
    """A node's newest certificate."""

    expires_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="Null until its first request is signed."
    )
    problem = serializers.CharField(read_only=True, help_text="What is wrong with it; empty if nothing.")


class CheckResultSerializer(serializers.Serializer[CheckResult]):
    """What one check of `hearth gpu-check` found."""

    check = serializers.CharField(read_only=True)
    verdict = serializers.ChoiceField(choices=("pass", "fail", "untried"), read_only=True)
    text = serializers.CharField(read_only=True)


class GpuReportSerializer(serializers.Serializer[GpuReport]):
    """What `hearth gpu-check` last found on a node."""

    made_at = serializers.DateTimeField(read_only=True)
    devices = serializers.CharField(read_only=True, help_text="`GPU`, `fake device` or `share of a CPU`.")
    engine = serializers.CharField(read_only=True, help_text="The version that it tried, or `none`.")
    checks = CheckResultSerializer(many=True, read_only=True)
