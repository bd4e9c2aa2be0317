// `ds elastic`: prints the batch size that the elasticity section chooses, and the numbers of ranks
// that divide it.
import { ConfigError } from '../config/config-error.js';
import { elasticBatch } from '../config/elasticity.js';
import { type DsConfig, readConfig, resolveConfig } from '../config/index.js';
import { triadKeys } from '../config/triad.js';
import type { ElasticFlags } from './tool-options.js';

/**
 * Returns a description of the elasticity section of `file`, whether enabled or not. Throws
 * DS_CONFIG if the section is absent or wrong, or excludes this number of ranks. Source:
 * ds_elastic.
 */
export function describeElasticity(
  file: string,
  { worldSize, json = false }: ElasticFlags,
): string {
  const section = readConfig(file).elasticity;
  if (!section) {
    const expected = 'a section with the allowed batch sizes';
    const hint = 'Such as { "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6] }.';
    throw new ConfigError({ ...locate(file, ['elasticity']), expected, got: 'none', hint });
  }
  const disabledConfig = {
    train_micro_batch_size_per_gpu: 1,
    elasticity: { ...section, enabled: false },
  };
  const { elasticity } = resolveConfig(disabledConfig, { worldSize: 1 });
  const batch = elasticBatch(elasticity);
  if ('path' in batch) throw new ConfigError({ ...batch, ...locate(file, batch.path) });
  const sizes = worldSize === undefined ? null : resolveSizes(section, worldSize);
  if (json) {
    const result = { train_batch_size: batch.batch, data_ranks: batch.ranks };
    return JSON.stringify(sizes ? { ...result, for: { data_ranks: worldSize, ...sizes } } : result);
  }
  const lines = [
    `train_batch_size ${batch.batch}`,
    `for ${batch.ranks.join(', ')} data ranks (${batch.ranks.length} choices)`,
  ];
  if (elasticity.version === 0.2) lines.push('other numbers of data ranks get another batch size');
  if (sizes) {
    const sizesText = triadKeys.map((key) => `${key} ${sizes[key]}`).join(', ');
    lines.push(`${worldSize} data ranks: ${sizesText}`);
  }
  return lines.join('\n');
}

const locate = (file: string, path: readonly string[]) => ({
  file,
  location: null,
  path: path.join('.'),
});

/** Returns the three batch sizes for `worldSize` ranks, by key. */
function resolveSizes(section: NonNullable<DsConfig['elasticity']>, worldSize: number) {
  const enabledConfig = { elasticity: { ...section, enabled: true } };
  const config = resolveConfig(enabledConfig, { worldSize });
  return Object.fromEntries(triadKeys.map((key) => [key, config[key]]));
}
