"""What a stolen node can do with its database address: read the fleet, write its own rows, nothing of tenants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.utils import timezone
from psycopg.errors import InsufficientPrivilege

from billing.budgets import spending
from billing.drain import batch
from billing.drain.batch import Position
from billing.models import BootUsage, UsageRecord, WalOffset
from catalogue.models import Model, ModelRevision
from hearth import canary_log
from hearth.instance.start_options import PoolOptions
from hearth.provisioning import cluster
from hearth.provisioning.secrets_transfer import NODE_SECRETS
from tenants.audit import SYSTEM, record
from tenants.ids import TenantId, new_id
from tenants.models import AuditEntry
from tests.billing.usage_records import row_at, store
from tests.tenants import customers
from tests.tenants.customers import Customer
from tests.workers.agent_processes import node_urls
from tests.workers.conftest import Fleet, add_node
from workers import node_role
from workers.models import DeferredRequest, EngineBoot, Node, Replica, Slot, Weights
from workers.weights import hub_tokens

pytestmark = pytest.mark.django_db(transaction=True)

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def acme() -> Customer:
    """A tenant."""
    return customers.create("acme")


@pytest.fixture
def stolen(fleet: Fleet) -> Iterator[Connection]:
    """A connection with nothing but the address of the node n1; each statement is a transaction of its own."""
    urls = node_urls()
    if not urls:
        pytest.skip("DATABASE_URL names a server whose other roles are unknown here")
    with psycopg.connect(urls["DATABASE_URL"], autocommit=True) as made:
        yield made
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")  # Django's flush does not


def refused(stolen: Connection, statement: str, *values: object) -> None:
    with pytest.raises(InsufficientPrivilege):
        stolen.execute(statement.encode(), values)


def changed(stolen: Connection, statement: str, *values: object) -> int:
    return stolen.execute(statement.encode(), values).rowcount


def test_a_node_reads_no_session_user_key_token_or_body(stolen: Connection, acme: Customer) -> None:
    SessionStore().create()
    DeferredRequest.objects.create(
        tenant=acme.tenant,
        project=acme.project,
        key=acme.key,
        endpoint="/v1/completions",
        body=b"ACME-SECRET-PROMPT",
        expires_at=timezone.now(),
    )
    for column, table in (
        ("session_key", "django_session"),
        ("body", "workers_deferredrequest"),
        ("password", "tenants_user"),
        ("secret_hmac", "tenants_apikey"),
        ("secret_hmac", "tenants_operatortoken"),
        ("secret_hmac", "tenants_scrapetoken"),
        ("amount_pico", "billing_usagerollup"),
    ):
        refused(stolen, f"SELECT {column} FROM {table}")
        refused(stolen, f"DELETE FROM {table}")
    refused(stolen, "INSERT INTO tenants_user (username) VALUES ('thief')")
    refused(stolen, "SET ROLE hearth_app")
    refused(stolen, "SET ROLE hearth_tenant")


def test_a_node_has_no_right_that_its_list_does_not_name(stolen: Connection) -> None:
    readable = stolen.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')"
        " AND has_any_column_privilege(oid, 'SELECT, INSERT, UPDATE, REFERENCES')"
    ).fetchall()
    assert {name for (name,) in readable} == {*node_role.READ}
    free = stolen.execute(
        "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND NOT relrowsecurity ORDER BY 1",
        [[*node_role.INSERT, *node_role.UPDATE, *node_role.DELETE]],
    ).fetchall()
    assert free == [("workers_pool",)]


def test_of_tenants_a_node_sees_the_platform_and_its_canaries_only(stolen: Connection, acme: Customer) -> None:
    moment = timezone.now()
    store(row_at(moment, TenantId(acme.tenant.id)))
    platform = TenantId(UUID(str(stolen.execute("SELECT id FROM tenants_tenant").fetchall()[0][0])))
    store(row_at(moment, platform, purpose="canary"))
    assert stolen.execute("SELECT slug FROM tenants_tenant").fetchall() == [("platform",)]
    assert stolen.execute("SELECT tenant_id FROM tenants_project").fetchall() == [(platform,)]
    assert stolen.execute("SELECT tenant_id, purpose FROM billing_usagerecord").fetchall() == [(platform, "canary")]
    assert AuditEntry.objects.filter(tenant=acme.tenant).exists()
    seen = stolen.execute("SELECT DISTINCT tenant_id, object_kind FROM tenants_auditentry ORDER BY 2").fetchall()
    assert seen == [(None, "node"), (None, "pool")]
    for owner, purpose in ((acme.tenant.id, "canary"), (platform, "tenant")):
        refused(stolen, _USAGE, new_id(), owner, new_id(), new_id(), purpose, new_id(), moment, moment)
    assert changed(stolen, _USAGE, new_id(), platform, new_id(), new_id(), "canary", new_id(), moment, moment) == 1


def test_a_node_writes_no_model_deployment_or_secret_of_the_cluster(stolen: Connection, fleet: Fleet) -> None:
    fleet.deploy(1)
    refused(stolen, "UPDATE catalogue_modelrevision SET engine_args = '{--trust-remote-code}'")
    refused(stolen, "UPDATE catalogue_modelrevision SET source = '/tmp/mine'")
    refused(stolen, "UPDATE workers_deployment SET desired_replicas = 9")
    refused(stolen, "UPDATE workers_replica SET revision_id = %s", new_id())
    refused(stolen, "DELETE FROM workers_replica")
    refused(stolen, _DECLARE, new_id(), "cluster.secrets_declared", "system", "cluster")
    refused(stolen, _DECLARE, new_id(), "node.added", "user", "node")
    assert changed(stolen, _DECLARE, new_id(), "node.added", "system", "node") == 1
    record(SYSTEM, "cluster.secrets_declared", ("cluster", "secrets"), after={"engine_key": "1"})
    declared = "SELECT after FROM tenants_auditentry WHERE object_kind = 'cluster'"
    assert stolen.execute(declared).fetchall() == [({"engine_key": "1"},)]
    assert ModelRevision.objects.get().engine_args == fleet.revision.engine_args


def test_a_node_writes_its_own_rows_and_no_others(stolen: Connection, fleet: Fleet) -> None:
    other = add_node(fleet.pool, "n2")
    deployment = fleet.deploy(0)
    for node in (fleet.node, other):
        Replica.objects.create(deployment=deployment, revision=fleet.revision, node=node)
        WalOffset.objects.create(writer_id=new_id(), node=node.name, segment=1, offset=1)
    (theirs,) = Replica.objects.filter(node=other)
    assert changed(stolen, "UPDATE workers_replica SET host = '192.0.2.1', port = 80") == 1
    assert changed(stolen, "UPDATE workers_node SET epoch = epoch + 1") == 1
    assert changed(stolen, "UPDATE workers_slot SET health = 'gone'") == Slot.objects.filter(node=fleet.node).count()
    assert changed(stolen, "DELETE FROM billing_waloffset") == 1
    refused(
        stolen, "INSERT INTO billing_waloffset (writer_id, node, segment, \"offset\") VALUES (%s, 'n2', 9, 9)", new_id()
    )
    refused(stolen, "INSERT INTO workers_node (id, name, pool_id) VALUES (%s, 'n3', %s)", new_id(), fleet.pool.id)
    refused(
        stolen,
        "INSERT INTO workers_replicaevent (id, replica_id, from_state, to_state, reason) VALUES (%s, %s, '', '', '')",
        new_id(),
        theirs.id,
    )
    for replica in Replica.objects.all():
        EngineBoot.objects.create(replica=replica, generation=1)
        BootUsage.objects.create(replica_id=replica.id, generation=1, purpose="canary")
        BootUsage.objects.create(replica_id=replica.id, generation=1, purpose="tenant")
    assert changed(stolen, "UPDATE workers_engineboot SET prompt_tokens = 9") == 1
    assert changed(stolen, "UPDATE billing_bootusage SET prompt_tokens = 9") == 1
    refused(stolen, _BOOT, new_id(), theirs.id)
    refused(stolen, "UPDATE workers_engineboot SET whole = true")
    refused(stolen, "DELETE FROM workers_engineboot")
    theirs.refresh_from_db()
    assert (theirs.host, theirs.port) == ("", None)
    assert Node.objects.get(name="n2").epoch == other.epoch
    assert WalOffset.objects.get().node == "n2"


def test_a_node_reads_the_tokens_of_models_that_it_fetches_only(stolen: Connection, fleet: Fleet) -> None:
    other = Model.objects.create(name="other", owner=fleet.revision.model.owner)
    for model in (fleet.revision.model, other):
        hub_tokens.store(SYSTEM, model, "hf_token")
    elsewhere = ModelRevision.objects.create(
        model=other, source="org/other", digest="1" * 64, engine="vllm", context_length_tokens=64
    )
    Weights.objects.create(node=add_node(fleet.pool, "n2"), revision=elsewhere)
    shared = (
        "SELECT link.model_id, name FROM workers_secret secret JOIN workers_modelsecret link ON secret_id = secret.id"
    )
    assert stolen.execute(shared).fetchall() == []
    assert stolen.execute("SELECT name FROM workers_secret").fetchall() == []
    own = Weights.objects.create(node=fleet.node, revision=fleet.revision)
    assert stolen.execute(shared).fetchall() == [(fleet.revision.model_id, "hub-tiny-chat")]
    assert stolen.execute("SELECT name FROM workers_secret").fetchall() == [("hub-tiny-chat",)]
    assert changed(stolen, "UPDATE workers_weights SET error = 'mine'") == 1
    assert Weights.objects.get(error="mine") == own
    for statement in ("UPDATE workers_secret SET sealed = ''", "DELETE FROM workers_weights"):
        refused(stolen, statement)
    refused(stolen, "UPDATE workers_weights SET revision_id = %s", elsewhere.id)


def test_a_node_joins_stores_its_canaries_and_leaves_with_these_rights(
    stolen: Connection, fleet: Fleet, tmp_path: Path
) -> None:
    cluster.declare_secrets()
    Node.objects.filter(name="n1").update(lease_expires_at=None)
    deployment = fleet.deploy(1)
    own = Replica.objects.create(deployment=deployment, revision=fleet.revision, node=fleet.node)
    platform = TenantId(UUID(str(stolen.execute("SELECT id FROM tenants_tenant").fetchall()[0][0])))
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE hearth_node_n1")
        try:
            cluster.check_servers()
            cluster.check_secrets(NODE_SECRETS)
            assert cluster.join("n1", PoolOptions()) == fleet.pool
            canary_log.open_log("agent").close()
            canary = msgspec.structs.replace(
                row_at(timezone.now(), platform, purpose="canary"), replica_id=own.id, replica_generation=1
            )
            position = {new_id(): Position(1, 9)}
            assert batch.store([canary], position, node="n1") == 1
            assert batch.store([canary], position, node="n1") == 0
            assert not spending.may_be_counted()
            assert cluster.leave("n1", tmp_path) == 1
            cluster.rejoin("n1", tmp_path)
            Node.objects.filter(name="n1").update(boot_id="")
        finally:
            cursor.execute("RESET ROLE")
    assert UsageRecord.objects.get().purpose == "canary"
    assert not Node.objects.get(name="n1").cordoned
    with connection.cursor() as cursor:
        Node.objects.filter(name="n1").update(name="n0")
        cursor.execute("SET ROLE hearth_node_n1")
        try:
            assert cluster.join("n1", PoolOptions(pool="new", pool_kind="cpu")).name == "new"
        finally:
            cursor.execute("RESET ROLE")
    assert Node.objects.get(name="n1").pool.name == "new"


def test_a_role_that_is_no_nodes_writes_nothing(stolen: Connection, fleet: Fleet) -> None:
    Node.objects.filter(name="n1").update(name="renamed")
    assert changed(stolen, "UPDATE workers_node SET epoch = epoch + 1") == 0
    assert changed(stolen, "UPDATE workers_slot SET health = 'gone'") == 0


_USAGE = """
    INSERT INTO billing_usagerecord (id, tenant_id, project_id, key_id, purpose, endpoint, model_name, revision_id,
        started_at, finished_at, state, http_status, stream, cache_result, prompt_tokens, cached_prompt_tokens,
        completion_tokens, tokens_source, currency, duration_ms)
    VALUES (%s, %s, %s, %s, %s, '/v1/completions', 'demo', %s, %s, %s, 'complete', 200, false, 'bypass', 1, 0, 1,
        'engine', 'USD', 1)
"""
_BOOT = """
    INSERT INTO workers_engineboot (id, replica_id, generation, "end", whole, prompt_tokens, completion_tokens,
        finished_sequences, open_sequences)
    VALUES (%s, %s, 2, '', true, 0, 0, 0, 0)
"""
_DECLARE = """
    INSERT INTO tenants_auditentry (id, action, actor_kind, actor, object_kind, object_id)
    VALUES (%s, %s, %s, 'hearth', %s, '1')
"""
