// Describes the models of a pool for /v1/models, /health and /metrics.
import type { ModelEntry } from './adapters.js';
import { formatMetric } from './histogram.js';
import type { ModelPool, PooledModel } from './model-pool.js';

/** Returns an entry of /v1/models. `status` is as in llama.cpp's server. */
export function describePooled(
  { name: id, state, reason, served }: PooledModel,
  created: number,
): ModelEntry {
  const status = { value: state, ...(reason !== null && { reason }) };
  const max_model_len = served?.maxTokens ?? null;
  const common = { id, object: 'model', created, owned_by: 'ds', root: id, parent: null };
  return { ...common, max_model_len, status };
}

/** Returns the state of each model for /health. */
export const statesOf = ({ models }: ModelPool): Record<string, string> =>
  Object.fromEntries(models.map(({ name, state }) => [name, state]));

/** Returns the metrics of the models; the metrics of their engines are separate. */
export function poolMetrics({ models }: ModelPool): string[] {
  const rows: [string, 'gauge' | 'counter', string, (model: PooledModel) => number][] = [
    ['ds_model_loaded', 'gauge', '1 while it is loaded.', ({ served }) => (served ? 1 : 0)],
    ['ds_model_bytes', 'gauge', 'Bytes, estimated before its first load.', ({ bytes }) => bytes],
    ['ds_model_requests_waiting', 'gauge', 'Requests during a load.', ({ waiting }) => waiting],
    ['ds_model_loads_total', 'counter', 'Loads that succeeded.', ({ loads }) => loads],
    ['ds_model_load_failures_total', 'counter', 'Loads that failed.', ({ failures }) => failures],
  ];
  return rows.map(([name, type, help, value]) => {
    const lines = models.map(
      (model) => `${name}{model=${JSON.stringify(model.name)}} ${value(model)}`,
    );
    return formatMetric(name, type, help, lines);
  });
}
