#!/usr/bin/env bash
# Run once by the image of PostgreSQL, on an empty data directory: Hearth's roles, none of them a superuser, and database.
set -euo pipefail

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --set owner_password="$HEARTH_OWNER_PASSWORD" \
    --set app_password="$HEARTH_APP_PASSWORD" --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
-- CREATEROLE and the administration of hearth_node: functions of this owner make the roles of nodes that join.
CREATE ROLE hearth_owner LOGIN PASSWORD :'owner_password' NOSUPERUSER NOBYPASSRLS CREATEROLE;
CREATE ROLE hearth_app LOGIN PASSWORD :'app_password' NOSUPERUSER NOBYPASSRLS;
CREATE ROLE hearth_tenant NOLOGIN;
CREATE ROLE hearth_node NOLOGIN;
GRANT hearth_tenant TO hearth_app, hearth_owner WITH INHERIT FALSE, SET TRUE;
GRANT hearth_node TO hearth_owner WITH ADMIN TRUE, INHERIT FALSE, SET FALSE;
CREATE DATABASE hearth OWNER hearth_owner;
SQL
