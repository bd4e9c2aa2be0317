// `ds elastic`: the batch that the elasticity section chooses, and the numbers of ranks that divide
// it.
import { ConfigError } from '../config/config-error.js';
import { elasticBatch } from '../config/elasticity.js';
import { type DsConfig, readConfig, resolveConfig } from '../config/index.js';
import { triadKeys } from '../config/triad.js';
import type { ElasticFlags } from './tool-options.js';

/**
 * Returns the text for the elasticity section of `file`, enabled or not. Throws DS_CONFIG if the
 * section is absent or wrong, or excludes this number of ranks. Source: ds_elastic.
 */
export function elastic(file: string, { worldSize, json = false }: ElasticFlags): string {
  const section = readConfig(file).elasticity;
  if (!section) {
    const expected = 'a section with the allowed batch sizes';
    const hint = 'Such as { "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6] }.';
    throw new ConfigError({ ...at(file, ['elasticity']), expected, got: 'none', hint });
  }
  const asleep = { train_micro_batch_size_per_gpu: 1, elasticity: { ...section, enabled: false } };
  const { elasticity } = resolveConfig(asleep, { worldSize: 1 });
  const shared = elasticBatch(elasticity);
  if ('path' in shared) throw new ConfigError({ ...shared, ...at(file, shared.path) });
  const sizes = worldSize === undefined ? null : sizesFor(section, worldSize);
  if (json) {
    const found = { train_batch_size: shared.batch, data_ranks: shared.ranks };
    return JSON.stringify(sizes ? { ...found, for: { data_ranks: worldSize, ...sizes } } : found);
  }
  const lines = [
    `train_batch_size ${shared.batch}`,
    `shared out by ${shared.ranks.join(', ')} data ranks (${shared.ranks.length} numbers)`,
  ];
  if (elasticity.version === 0.2) lines.push('other numbers get a batch of their own');
  if (sizes) {
    const sizesText = triadKeys.map((key) => `${key} ${sizes[key]}`).join(', ');
    lines.push(`${worldSize} data ranks: ${sizesText}`);
  }
  return lines.join('\n');
}

const at = (file: string, path: readonly string[]) => ({
  file,
  location: null,
  path: path.join('.'),
});

/** The three batch sizes, by their keys. */
function sizesFor(section: NonNullable<DsConfig['elasticity']>, worldSize: number) {
  const awake = { elasticity: { ...section, enabled: true } };
  const config = resolveConfig(awake, { worldSize });
  return Object.fromEntries(triadKeys.map((key) => [key, config[key]]));
}
