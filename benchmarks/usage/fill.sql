-- Requests of a part of a day, their roll-ups and their postings, as the drain stores them. Parameters are psycopg's.
-- pg_temp.tenant_of(number, tenants) says whose a request is. Of ten requests in turn five are misses, two hits, one coalesced, two bypassed; one of 200 misses failed.
INSERT INTO billing_usagerecord (
    id, tenant_id, project_id, key_id, purpose, endpoint, model_name, revision_id, replica_id, replica_generation,
    started_at, finished_at, state, http_status, stream, cache_result, cache_reason, route_reason,
    prompt_tokens, cached_prompt_tokens, completion_tokens, tokens_source,
    avoided_prompt_tokens, avoided_completion_tokens, avoided_engine_ms, price_version_id, currency, amount_pico,
    ttft_ms, duration_ms, client_request_id, error_code, finish_reason, end_user, tags)
SELECT
    (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n & 4095), 3, '0')
        || '8' || lpad(to_hex(n), 15, '0'))::uuid,
    (%(tenants)s::uuid[])[1 + t], (%(projects)s::uuid[])[1 + t * %(keys_each)s + n / 7 %% %(keys_each)s],
    (%(keys)s::uuid[])[1 + t * %(keys_each)s + n / 7 %% %(keys_each)s],
    'tenant', '/v1/chat/completions', 'model-' || m, '00000000-0000-0000-0000-000000000001',
    CASE WHEN ran THEN ('00000000-0000-0000-0000-00000000000' || 1 + n %% 8)::uuid END, CASE WHEN ran THEN 1 ELSE 0 END,
    at, at + interval '840 milliseconds',
    CASE WHEN failed THEN 'engine_error' ELSE 'complete' END, CASE WHEN failed THEN 502 ELSE 200 END, n %% 2 = 0,
    result, CASE WHEN result = 'bypass' THEN 'sampled' ELSE '' END, CASE WHEN ran THEN 'prefix' ELSE '' END,
    CASE WHEN ran THEN prompt ELSE 0 END, CASE WHEN ran THEN cached ELSE 0 END,
    CASE WHEN ran AND NOT failed THEN completion ELSE 0 END, CASE WHEN ran THEN 'engine' ELSE 'cache' END,
    CASE WHEN ran THEN 0 ELSE prompt END, CASE WHEN ran THEN 0 ELSE completion END, CASE WHEN ran THEN 0 ELSE 812.5 END,
    (%(prices)s::uuid[])[1 + m], 'USD',
    CASE WHEN ran AND NOT failed THEN prompt * %(prompt_pico)s + cached * %(cached_pico)s + completion * %(completion_pico)s
        ELSE 0 END,
    30 + n %% 37 * 7, 840.0, CASE WHEN n %% 10 = 0 THEN 'client-' || n ELSE '' END,
    CASE WHEN failed THEN 'engine_failed' ELSE '' END, CASE WHEN failed THEN '' ELSE 'stop' END,
    CASE WHEN n %% 2 = 0 THEN 'user-' || n %% 5000 ELSE '' END,
    CASE WHEN n %% 4 = 0 THEN '{"app": "search"}'::jsonb ELSE '{}' END
FROM (
    SELECT n, %(begin)s::timestamptz + (n - %(first)s) * (%(length)s::interval / %(rows)s) AS at,
        pg_temp.tenant_of(n, %(tenants_all)s) AS t, (n / 3 %% %(models)s)::int AS m,
        n / %(tenants_all)s %% 10 < 5 OR n / %(tenants_all)s %% 10 > 7 AS ran,
        CASE WHEN n / %(tenants_all)s %% 10 < 5 THEN 'miss' WHEN n / %(tenants_all)s %% 10 < 7 THEN 'hit'
            WHEN n / %(tenants_all)s %% 10 = 7 THEN 'coalesced' ELSE 'bypass' END AS result,
        n / %(tenants_all)s %% 200 = 3 AS failed,
        (n %% 900 + 1)::bigint AS prompt, (n %% 300)::bigint AS cached, (n %% 200 + 1)::bigint AS completion
    FROM generate_series(%(first)s, %(first)s + %(rows)s - 1) AS n
) AS each;

INSERT INTO billing_usagerollup (
    starts_at, tenant_id, project_id, key_id, model_name, requests, errors, prediction_hits, coalesced_requests,
    bypassed_requests, prefix_hits, prompt_tokens, cached_prompt_tokens, completion_tokens, avoided_tokens,
    avoided_engine_ms, amount_pico, saved_prediction_pico, saved_prefix_pico, latency_buckets, latency_counts)
SELECT
    starts_at, tenant_id, project_id, key_id, model_name, sum(requests), sum(errors), sum(hits), sum(coalesced),
    sum(bypassed), sum(prefix_hits), sum(prompt), sum(cached), sum(completion), sum(avoided), sum(avoided_ms), sum(pico),
    0, 0, array_agg(bucket), array_agg(requests)
FROM (
    SELECT
        to_timestamp(floor(extract(epoch FROM started_at) / 900) * 900) AS starts_at, tenant_id, project_id, key_id,
        model_name, floor(ln(ttft_ms / 0.1) / ln(1.1))::smallint AS bucket, count(*) AS requests,
        count(*) FILTER (WHERE state <> 'complete') AS errors, count(*) FILTER (WHERE cache_result = 'hit') AS hits,
        count(*) FILTER (WHERE cache_result = 'coalesced') AS coalesced,
        count(*) FILTER (WHERE cache_result = 'bypass') AS bypassed,
        count(*) FILTER (WHERE cached_prompt_tokens > 0) AS prefix_hits, sum(prompt_tokens) AS prompt,
        sum(cached_prompt_tokens) AS cached, sum(completion_tokens) AS completion,
        sum(avoided_prompt_tokens + avoided_completion_tokens) AS avoided, sum(round(avoided_engine_ms)) AS avoided_ms,
        sum(amount_pico) AS pico
    FROM billing_usagerecord WHERE id >= %(first_id)s AND id < %(behind_id)s
    GROUP BY 1, 2, 3, 4, 5, 6
) AS by_latency
GROUP BY 1, 2, 3, 4, 5;

CREATE TEMP TABLE posting AS
SELECT gen_random_uuid() AS id, tenant_id, 'usage:' || min(id::text) AS source, array_agg(id) AS usage_ids,
    sum(amount_pico) AS amount_pico
FROM billing_usagerecord WHERE id >= %(first_id)s AND id < %(behind_id)s AND amount_pico > 0
GROUP BY tenant_id, to_timestamp(floor(extract(epoch FROM started_at) / 900) * 900);
INSERT INTO billing_ledgertransaction (id, tenant_id, kind, source, usage_ids)
SELECT id, tenant_id, 'usage', source, usage_ids FROM posting;
INSERT INTO billing_ledgerentry (id, transaction_id, account_id, amount_pico)
SELECT gen_random_uuid(), posting.id, account.id, CASE WHEN kind = 'receivable' THEN amount_pico ELSE -amount_pico END
FROM posting JOIN billing_ledgeraccount AS account USING (tenant_id);
DROP TABLE posting;
