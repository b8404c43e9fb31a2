-- How lives ended, computed anew from all of them with every run.
CREATE MATERIALIZED VIEW outcomes AS
SELECT
  stream,
  subscription,
  outcome,
  count(*) AS lives,
  sum(attempts) AS attempts,
  round(avg(wait_ms), 3) AS average_wait_ms,
  round(avg(processing_ms), 3) AS average_processing_ms
FROM lifecycle
GROUP BY stream, subscription, outcome
