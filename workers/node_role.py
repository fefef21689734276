"""The database rights of a node: what its agent and its drain need, and no more.

Each node logs in with a role of its own, ``hearth_node_<name>``, a member of ``hearth_node``. It reads the fleet, and
writes only its own node's rows; of the usage it stores and reads only canaries, the probes that agents send. It cannot
read sessions, users, keys, tokens, deferred requests or tenants' usage, and cannot change models or deployments. A role
whose name is no node's may write nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.db import OperationalError, connection, transaction
from psycopg import sql

ROLE = "hearth_node"
PREFIX = f"{ROLE}_"
#: Longest wait for a table that is in use, and how often it is tried: whoever comes later waits behind it.
LOCK_TIMEOUT_SECONDS = 3.0
LOCK_RETRIES = 20

READ = (
    "django_migrations",
    "catalogue_model",
    "catalogue_modelrevision",
    "workers_pool",
    "workers_node",
    "workers_nodecertificate",
    "workers_slot",
    "workers_slotlease",
    "workers_placeholder",
    "workers_replica",
    "workers_replicaevent",
    "workers_engineboot",
    "workers_rollout",
    "workers_starttime",
    "workers_deployment",
    "workers_deploymentpool",
    "workers_gatewayload",
    "workers_scaledecision",
    "workers_weights",
    "workers_stagedweights",
    "workers_adapterload",
    "workers_secret",
    "workers_modelsecret",
    "workers_hubtoken",  # empty; agents of the version before read it
    "tenants_tenant",
    "tenants_project",
    "tenants_auditentry",
    "billing_usagerecord",
    "billing_bootusage",
    "billing_waloffset",
    "billing_pricebook",
    "billing_priceversion",
)
INSERT = (
    "workers_pool",
    "workers_node",
    "workers_slot",
    "workers_replicaevent",
    "workers_engineboot",
    "workers_starttime",
    "tenants_auditentry",
    "billing_usagerecord",
    "billing_bootusage",
    "billing_waloffset",
)
#: Tables of which it may set only some columns in a new row.
INSERT_COLUMNS: Mapping[str, str] = {"workers_nodecertificate": "node_id, request"}
DELETE = ("billing_waloffset",)
_PROCESS = "pid, pid_start_ticks, boot_id"
#: The columns of each table that a node may change.
UPDATE: Mapping[str, str] = {
    "workers_node": (
        "address, boot_id, epoch, agent_pid, lease_expires_at, cordoned, engine_key, fetching_epoch, engines, "
        "engines_epoch, metrics, gpu_check"
    ),
    "workers_nodecertificate": "request",
    "workers_slot": "index, memory_bytes, health, fault, quarantined_at, reading, read_at",
    "workers_slotlease": "released_at",
    "workers_placeholder": f"level, state, state_since, reason, {_PROCESS}, memory_bytes, warm_seconds",
    # cached_blocks is for agents of the version before, which go on while an upgrade runs.
    "workers_replica": (
        f"desired_state, leaving, state, state_since, generation, tls_generation, host, port, {_PROCESS}, attempts, "
        "next_attempt_at, last_error, reserved_at, start_level, start_note, startup_seconds, drain_deadline, "
        "running_requests, waiting_requests, kv_usage, ttft_seconds, tpot_seconds, prefix_hit_share, "
        "cache_tokens, host_cache_tokens, max_requests, context_tokens, cached_blocks, "
        "observed_at, engine_key"
    ),
    "workers_engineboot": (
        'ended_at, "end", counted_at, prompt_tokens, cached_prompt_tokens, completion_tokens, finished_sequences, '
        "open_sequences"
    ),
    "workers_weights": "state, state_since, bytes_done, bytes_total, folder, error, attempts, next_attempt_at",
    "workers_stagedweights": "bytes_total, bytes_resident, note, measured_at",
    "workers_adapterload": "state, state_since, generation, engine_name, error, attempts, next_attempt_at",
    "billing_bootusage": (
        "requests, sequences, prompt_tokens, cached_prompt_tokens, completion_tokens, shared_requests, cut_requests, "
        "cut_sequences, cut_prompt_tokens, cut_completion_tokens"
    ),
    "billing_waloffset": 'node, segment, "offset", updated_at, caught_up_at',
}

_OWN_NODE = f"(SELECT id FROM workers_node WHERE '{PREFIX}' || name = current_user AND removed_at IS NULL)"
_OWN_REPLICAS = f"(SELECT id FROM workers_replica WHERE node_id = {_OWN_NODE})"
#: Whose files the node fetches.
_FETCHED_MODELS = (
    "(SELECT revision.model_id FROM catalogue_modelrevision revision "
    f"JOIN workers_weights weights ON weights.revision_id = revision.id WHERE weights.node_id = {_OWN_NODE})"
)
_PLATFORM = "(SELECT id FROM tenants_tenant WHERE slug = 'platform')"
_DECLARED = "action = 'cluster.secrets_declared'"
# Not IN, which PostgreSQL writes in another way once it was dumped and restored.
_ABOUT_NODES = "(object_kind = 'node' OR object_kind = 'pool')"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a node may do with the rows of a table, beyond the policies that hold for every role."""

    table: str
    command: str
    condition: str

    @property
    def name(self) -> str:
        """Its name in the database, unique within the table."""
        return f"node_{self.command.lower()}"

    def sql(self) -> str:
        """Return the statement that creates it."""
        clause = "WITH CHECK" if self.command == "INSERT" else "USING"
        return (
            f"CREATE POLICY {self.name} ON {self.table} AS RESTRICTIVE FOR {self.command} TO {ROLE} "
            f"{clause} ({self.condition})"
        )


def policies() -> Iterator[Policy]:
    """Yield the policies of the node's role. All of these tables have row-level security."""
    own_name = f"'{PREFIX}' || name = current_user AND removed_at IS NULL"
    own = f"node_id = {_OWN_NODE}"
    for command in ("INSERT", "UPDATE"):
        yield Policy("workers_node", command, own_name)
        yield Policy("workers_slot", command, own)
        yield Policy("workers_nodecertificate", command, own)
    yield Policy("workers_placeholder", "UPDATE", own)
    yield Policy("workers_replica", "UPDATE", own)
    yield Policy("workers_weights", "UPDATE", own)
    yield Policy("workers_stagedweights", "UPDATE", own)
    yield Policy("workers_adapterload", "UPDATE", f"replica_id IN {_OWN_REPLICAS}")
    yield Policy("workers_hubtoken", "SELECT", f"model_id IN {_FETCHED_MODELS}")
    yield Policy("workers_modelsecret", "SELECT", f"model_id IN {_FETCHED_MODELS}")
    own_secrets = f"(SELECT secret_id FROM workers_modelsecret WHERE model_id IN {_FETCHED_MODELS})"
    yield Policy("workers_secret", "SELECT", f"id IN {own_secrets}")
    yield Policy("workers_slotlease", "UPDATE", f"slot_id IN (SELECT id FROM workers_slot WHERE node_id = {_OWN_NODE})")
    yield Policy("workers_replicaevent", "INSERT", f"replica_id IN {_OWN_REPLICAS}")
    for command in ("INSERT", "UPDATE"):
        yield Policy("workers_engineboot", command, f"replica_id IN {_OWN_REPLICAS}")
    yield Policy("billing_bootusage", "ALL", f"purpose = 'canary' AND replica_id IN {_OWN_REPLICAS}")
    yield Policy("workers_starttime", "INSERT", f"replica_id IN {_OWN_REPLICAS}")
    yield Policy("billing_waloffset", "ALL", f"'{PREFIX}' || node = current_user")
    yield Policy("billing_usagerecord", "ALL", f"purpose = 'canary' AND tenant_id = {_PLATFORM}")
    yield Policy("billing_pricebook", "SELECT", "tenant_id IS NULL")
    yield Policy("billing_priceversion", "SELECT", "book_id IN (SELECT id FROM billing_pricebook)")
    yield Policy("tenants_tenant", "SELECT", "slug = 'platform'")
    yield Policy("tenants_project", "SELECT", f"tenant_id = {_PLATFORM}")
    # It reads the entries that it writes, because an INSERT returns them.
    yield Policy("tenants_auditentry", "SELECT", f"tenant_id IS NULL AND ({_DECLARED} OR {_ABOUT_NODES})")
    yield Policy("tenants_auditentry", "INSERT", f"tenant_id IS NULL AND actor_kind = 'system' AND {_ABOUT_NODES}")


def exists() -> bool:
    """Return whether this database server has the nodes' role."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", [ROLE])
        return cursor.fetchone() is not None


def grant() -> None:
    """Give the nodes' role exactly these rights in this database. Idempotent. Run it as the tables' owner.

    A policy that is there and has not changed is left alone, because replacing one locks its table against everybody.
    Raises OperationalError if a table stays in use.
    """
    for policy in policies():
        _renew(policy)
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in _grants():
            cursor.execute(statement)


def _renew(policy: Policy) -> None:
    for attempt in range(1, LOCK_RETRIES + 1):
        try:
            _replace(policy)
            return
        except OperationalError:
            if attempt == LOCK_RETRIES:
                raise


@transaction.atomic
def _replace(policy: Policy) -> None:
    """Create the policy if it is missing or another one. Its comment is the statement that made it."""
    statement = policy.sql()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT obj_description(oid, 'pg_policy') FROM pg_policy WHERE polrelid = %s::regclass AND polname = %s",
            [policy.table, policy.name],
        )
        if cursor.fetchone() == (statement,):
            return
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS:g}s'")
        cursor.execute(f"DROP POLICY IF EXISTS {policy.name} ON {policy.table}")
        cursor.execute(statement)
        made = sql.SQL("COMMENT ON POLICY {} ON {} IS {}")
        cursor.execute(made.format(sql.Identifier(policy.name), sql.Identifier(policy.table), sql.Literal(statement)))


def _grants() -> Iterator[str]:
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {ROLE}"
    yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {ROLE}"
    yield f"GRANT USAGE ON SCHEMA public TO {ROLE}"
    yield f"GRANT SELECT ON {', '.join(READ)} TO {ROLE}"
    yield f"GRANT INSERT ON {', '.join(INSERT)} TO {ROLE}"
    for table, columns in INSERT_COLUMNS.items():
        yield f"GRANT INSERT ({columns}) ON {table} TO {ROLE}"
    yield f"GRANT DELETE ON {', '.join(DELETE)} TO {ROLE}"
    for table, columns in UPDATE.items():
        yield f"GRANT UPDATE ({columns}) ON {table} TO {ROLE}"
