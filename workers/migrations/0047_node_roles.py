"""Functions with which the portal makes and drops the database roles of nodes, and no others.

They run as the tables' owner, who needs CREATEROLE and the administration of ``hearth_node``; where it has neither, the
caller gets PostgreSQL's refusal. A role that they make can do less than the role that may call them.
"""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

#: A role of that name that is more than a node's role is left alone: a password for it would be a way to more rights.
PLAIN = """
    CREATE FUNCTION hearth_node_role(node text) RETURNS text
    LANGUAGE plpgsql STRICT STABLE SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        wanted text := 'hearth_node_' || node;
        role record;
    BEGIN
        IF node !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,50}$' THEN
            RAISE EXCEPTION '% is no name of a node', quote_literal(node) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT * INTO role FROM pg_roles WHERE rolname = wanted;
        IF FOUND AND (
            role.rolsuper OR role.rolcreaterole OR role.rolcreatedb OR role.rolreplication OR role.rolbypassrls
            OR ARRAY(SELECT roleid::regrole::text FROM pg_auth_members WHERE member = role.oid) <> ARRAY['hearth_node']
        ) THEN
            RAISE EXCEPTION '% has other rights than those of a node', wanted USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN wanted;
    END $$;
    REVOKE ALL ON FUNCTION hearth_node_role(text) FROM PUBLIC;
"""
MAKE = r"""
    CREATE FUNCTION hearth_make_node_role(node text, verifier text) RETURNS void
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE
        wanted text := public.hearth_node_role(node);
    BEGIN
        IF verifier !~ ('^SCRAM-SHA-256\$[0-9]{1,7}:[A-Za-z0-9+/]{8,64}={0,2}'
            || '\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$') THEN
            RAISE EXCEPTION 'the password is no SCRAM verifier' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('ALTER ROLE %I LOGIN PASSWORD %L', wanted, verifier);
        ELSE
            EXECUTE format(
                'CREATE ROLE %I LOGIN NOSUPERUSER NOBYPASSRLS IN ROLE hearth_node PASSWORD %L', wanted, verifier
            );
        END IF;
    END $$;
    REVOKE ALL ON FUNCTION hearth_make_node_role(text, text) FROM PUBLIC;
"""
DROP = """
    CREATE FUNCTION hearth_drop_node_role(node text) RETURNS void
    LANGUAGE plpgsql STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        EXECUTE format('DROP ROLE IF EXISTS %I', public.hearth_node_role(node));
    END $$;
    REVOKE ALL ON FUNCTION hearth_drop_node_role(text) FROM PUBLIC;
"""
BACK = """
    DROP FUNCTION hearth_drop_node_role(text);
    DROP FUNCTION hearth_make_node_role(text, text);
    DROP FUNCTION hearth_node_role(text);
"""


class Migration(migrations.Migration):
    """Functions only; ``grant_role`` lets the role that runs Hearth call them."""

    dependencies: ClassVar = [("workers", "0046_gpu_check")]
    operations: ClassVar[list[Operation]] = [migrations.RunSQL(PLAIN + MAKE + DROP, BACK)]
