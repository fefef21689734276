-- Quarter-hourly roll-ups of days whose requests are not kept. Each quarter has ``draws`` rows of about 40 requests, more
-- of them of large tenants. Parameters are psycopg's.
INSERT INTO billing_usagerollup (
    starts_at, tenant_id, project_id, key_id, model_name, requests, errors, prediction_hits, bypassed_requests, prefix_hits,
    prompt_tokens, cached_prompt_tokens, completion_tokens, avoided_tokens, amount_pico, saved_prediction_pico,
    saved_prefix_pico, coalesced_requests, latency_buckets, latency_counts)
SELECT
    quarter, (%(tenants)s::uuid[])[1 + t], project, key, 'model-' || m, 40 * draws, draws, 8 * draws, 8 * draws, 12 * draws,
    18000 * draws, 6000 * draws, 4000 * draws, 3600 * draws, 5200000000::bigint * draws, 400000::bigint * draws,
    400000::bigint * draws, 4 * draws,
    ARRAY[56 + t %% 5, 61 + t %% 3, 64, 66, 68, 71, 74, 258, 261, 264],
    ARRAY[4, 9, 11, 7, 5, 3, 1, 9, 20, 7]
FROM (
    SELECT quarter, t, (%(projects)s::uuid[])[1 + t * %(keys_each)s + k] AS project,
        (%(keys)s::uuid[])[1 + t * %(keys_each)s + k] AS key, m, count(*) AS draws
    FROM (
        SELECT quarter, pg_temp.tenant_of(number, %(tenants_all)s) AS t, number / 7 %% %(keys_each)s AS k,
            number / 3 %% %(models)s AS m
        FROM (
            SELECT quarter, (extract(epoch FROM quarter) / 900)::bigint * %(draws)s + draw AS number
            FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz - interval '15 minutes', '15 minutes') AS quarter,
                generate_series(0, %(draws)s - 1) AS draw
        ) AS numbered
    ) AS drawn
    GROUP BY 1, 2, 3, 4, 5
) AS summed
