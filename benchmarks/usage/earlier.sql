-- Roll-ups of the days before, whose requests are not kept here. Parameters are psycopg's.
INSERT INTO billing_usagerollup (
    starts_at, tenant_id, project_id, key_id, model_name, requests, errors, prediction_hits, bypassed_requests, prefix_hits,
    prompt_tokens, cached_prompt_tokens, completion_tokens, avoided_tokens, amount_pico, saved_prediction_pico,
    saved_prefix_pico, coalesced_requests)
SELECT
    quarter, (%(tenants)s::uuid[])[1 + t], (%(projects)s::uuid[])[1 + t * %(keys_each)s + k],
    (%(keys)s::uuid[])[1 + t * %(keys_each)s + k],
    'model-' || m, 100, 1, 20, 20, 30, 45000, 15000, 10000, 9000, 13000000000, 1000000, 1000000, 10
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz - interval '15 minutes', '15 minutes') AS quarter,
    generate_series(0, %(tenants_all)s - 1) AS t, generate_series(0, %(keys_each)s - 1) AS k,
    generate_series(0, %(models)s - 1) AS m
