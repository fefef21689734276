"""``/api/v1/tenants/{tenant}/invitations`` and ``/api/v1/operator-invitations``: links with which people join."""

from __future__ import annotations

from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from portal.access import invitation_mail
from portal.access.principal import Principal, tenant_for
from portal.access.rights import member_rights
from portal.api import pagination
from portal.api.authentication import OperatorOnly, principal_of
from portal.api.idempotency.view import ApiView
from portal.api.openapi_parameters import PAGE_PARAMETERS, error_responses, page_schema, reject_unknown_fields
from portal.reporting import member_names
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Invitation, Membership, User
from tenants.people import invitations
from tenants.people.invitations import Invited


class NewInvitationSerializer(serializers.Serializer[Invitation]):
    """What the link gives, and where it is sent."""

    role = serializers.ChoiceField(Membership.Role.choices)
    email = serializers.EmailField(max_length=254, default="", allow_blank=True, help_text="Empty: sent to nobody.")


class NewOperatorInvitationSerializer(NewInvitationSerializer):
    """The same for an operator."""

    role = serializers.ChoiceField(User.OperatorRole.choices)


class InvitationSerializer(serializers.Serializer[Invitation]):
    """An invitation without its link."""

    id = serializers.UUIDField()
    role = serializers.CharField()
    email = serializers.CharField()
    state = serializers.SerializerMethodField()
    created_by = serializers.CharField(help_text="A sign-in name. Members see `operator` for an operator.")
    accepted_by = serializers.CharField(help_text="Empty: by nobody.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()

    def get_state(self, invitation: Invitation) -> str:
        """Return `open`, `accepted`, `revoked` or `expired`."""
        return invitations.state_of(invitation)


class MadeInvitationSerializer(InvitationSerializer):
    """A new invitation with its link, which is shown only once."""

    link = serializers.CharField(help_text="Works once, for a week. Shown once.")
    was_sent = serializers.BooleanField(help_text="Whether a mail server took it.")


class InvitationsView(ApiView):
    """The invitations to a tenant."""

    @extend_schema(
        operation_id="list_invitations",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(InvitationSerializer, "InvitationList"), **error_responses(400, 403, 404)},
    )
    def get(self, request: Request, tenant: str) -> Response:
        """List invitations without their links, newest first. For operators, and owners and admins of the tenant."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        member_rights.require(principal, found)
        page = pagination.page_request(request)
        with as_tenant(TenantId(found.id)):
            rows = pagination.read_page(invitations.of(found), page)
        member_names.with_makers(rows, principal)
        return Response(pagination.page_document(rows, InvitationSerializer, page.limit))

    @extend_schema(
        operation_id="create_invitation",
        request=NewInvitationSerializer,
        responses={201: MadeInvitationSerializer, **error_responses(400, 403, 404, 409)},
    )
    def post(self, request: Request, tenant: str) -> Response:
        """Make an invitation. Its link is in this response only, and in the e-mail if there is an address.

        For operators, and owners and admins of the tenant. Only owners and operators invite owners.
        """
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        member_rights.require(principal, found)
        body = NewInvitationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        made = member_rights.invite(principal, found, body.validated_data["role"], body.validated_data["email"])
        return _made(request, principal, made)


class OperatorInvitationsView(ApiView):
    """The invitations of operators."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="list_operator_invitations",
        parameters=PAGE_PARAMETERS,
        responses={200: page_schema(InvitationSerializer, "OperatorInvitationList"), **error_responses(400, 403)},
    )
    def get(self, request: Request) -> Response:
        """List invitations without their links, newest first. Operators only."""
        page = pagination.page_request(request)
        rows = pagination.read_page(invitations.of(None), page)
        return Response(pagination.page_document(rows, InvitationSerializer, page.limit))

    @extend_schema(
        operation_id="create_operator_invitation",
        request=NewOperatorInvitationSerializer,
        responses={201: MadeInvitationSerializer, **error_responses(400, 403, 409)},
    )
    def post(self, request: Request) -> Response:
        """Invite an operator. The link is in this response only. For operators with the role `admin`."""
        body = NewOperatorInvitationSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        reject_unknown_fields(body)
        wanted, principal = body.validated_data, principal_of(request)
        made = invitations.invite(principal.actor, None, wanted["role"], email=wanted["email"])
        return _made(request, principal, made)


class OperatorInvitationView(ApiView):
    """One invitation of an operator."""

    permission_classes = (OperatorOnly,)

    @extend_schema(
        operation_id="revoke_operator_invitation",
        responses={200: InvitationSerializer, **error_responses(403, 404, 409)},
    )
    def delete(self, request: Request, invitation: UUID) -> Response:
        """Revoke an open invitation. Idempotent. For operators with the role `admin`."""
        return Response(InvitationSerializer(invitations.revoke(principal_of(request).actor, None, invitation)).data)


class InvitationView(ApiView):
    """One invitation."""

    @extend_schema(
        operation_id="revoke_invitation", responses={200: InvitationSerializer, **error_responses(403, 404, 409)}
    )
    def delete(self, request: Request, tenant: str, invitation: UUID) -> Response:
        """Revoke an open invitation. Idempotent."""
        principal = principal_of(request)
        found = tenant_for(principal, tenant)
        member_rights.require(principal, found)
        revoked = invitations.revoke(principal.actor, found, invitation)
        member_names.with_makers([revoked], principal)
        return Response(InvitationSerializer(revoked).data)


def _made(request: Request, principal: Principal, made: Invited) -> Response:
    link = invitation_mail.link_of(request._request, made.secret)
    was_sent = invitation_mail.send(principal, made.invitation, link)
    document = {**InvitationSerializer(made.invitation).data, "link": link, "was_sent": was_sent}
    return Response(document, status=status.HTTP_201_CREATED)
