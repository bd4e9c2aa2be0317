// Tensor parallelism: divides the layers of a model over the axis tp. This is the first step of a
// build.

import type { ResolvedConfig } from '../../../types/config.js';
import type { Distributed } from '../../comm/index.js';
import { AXIS } from '../../comm/mesh-shape.js';
import type { Module } from '../../nn/module.js';
import { Parameter } from '../../nn/parameter.js';
import { groupOf, type LayerStyle, parallelize, type TensorPlan } from '../../parallel/index.js';
import { type PartitionSpec, partitionSpecs } from '../../parallel/partition-specs.js';
import { isPart } from '../../runtime/box.js';
import { configError } from '../../runtime/input-errors.js';
import { otherMeshError } from '../ranks.js';
import { requireSameConfig } from './agreement.js';
import type { BuildInputs } from './clients.js';

/** Returns whether ranks along tp hold parts of the model instead of copies. */
export function isCutOver({ mesh }: Distributed, module: Module): boolean {
  return mesh.size(AXIS.tensor) > 1 && module.parameters().some(({ region }) => isPart(region));
}

/** Returns the number of ranks over which the configuration divides layers. */
export const tensorSize = ({
  autotp_size,
  tensor_parallel: other,
}: ResolvedConfig['tensor_parallel']): number => Math.max(1, autotp_size, other.tp_size);

/**
 * Divides the layers of the model over the axis tp, unless the caller has done so. The rules of
 * partition_config come first, then the model's own plan. Throws DS_CONFIG for another mesh,
 * without a plan, or if a rule matches nothing. Throws DS_ARGUMENT if the model cannot be divided,
 * and DS_COMM.
 */
export async function splitLayers({ module, config, job }: BuildInputs): Promise<void> {
  const { mesh } = job;
  const size = tensorSize(config.tensor_parallel);
  if (mesh.size(AXIS.sequence, AXIS.tensor) > 1) await requireSameConfig(job, config);
  if (size === 1) return;
  if (size !== mesh.size(AXIS.tensor))
    throw otherMeshError('tensor_parallel.autotp_size', AXIS.tensor, size, job);
  if (groupOf(module) || isCutOver(job, module)) return;
  const plan = planOf(module, config);
  parallelize(module, await mesh.axis(AXIS.tensor), plan);
}

/** Returns the rules of the configuration, followed by the rules of the model. */
function planOf(module: Module, config: ResolvedConfig): TensorPlan {
  const { partition_config: rules } = config.tensor_parallel;
  const modelPlan = rules?.use_default_specs === false ? null : ownPlan(module);
  if (!modelPlan && !rules) {
    throw configError(
      'tensor_parallel.autotp_size',
      'a model of nn.models, or a model with tensorPlan()',
      `a ${module.constructor.name}`,
      'Set tensor_parallel.partition_config, or call parallel.parallelize(model, group, plan).',
    );
  }
  const styles = partitionSpecs(rules?.layer_specs ?? []).flatMap((spec, index) =>
    findStyles(spec, index, module),
  );
  const others = modelPlan ? listOf(modelPlan.layers) : [];
  return { ...modelPlan, layers: [...styles, ...others] };
}

function ownPlan(module: Module): TensorPlan | null {
  const { tensorPlan } = module as { tensorPlan?: () => TensorPlan };
  return typeof tensorPlan === 'function' ? tensorPlan.call(module) : null;
}

type Entry = readonly [path: string | RegExp, style: LayerStyle | LayerStyle['style']];

const listOf = (layers: TensorPlan['layers']): readonly Entry[] =>
  Array.isArray(layers) ? layers : Object.entries(layers);

const STYLES = { row: 'row', column: 'column', skip: 'whole' } as const;

/**
 * Returns the modules with parameters that match a rule, each with its style. Throws DS_CONFIG if
 * no module matches.
 */
function findStyles(
  { patterns, type, parts }: PartitionSpec,
  index: number,
  module: Module,
): Entry[] {
  const named = [...module.namedModules()].filter(([path, module]) =>
    Object.entries(module).some(
      ([name, field]) =>
        field instanceof Parameter &&
        patterns.some((pattern) => pattern.matchesStart(`${path}.${name}`)),
    ),
  );
  const style = { style: STYLES[type], ...(parts > 1 ? { parts } : {}) };
  if (named.length > 0) return named.map(([path]) => [path, style]);
  throw configError(
    `tensor_parallel.partition_config.layer_specs.${index}`,
    'patterns that match the name of a parameter',
    patterns.map(({ source }) => source).join(', '),
    `Examples of names: ${[...module.namedParameters()]
      .slice(0, 3)
      .map(([name]) => name)
      .join(', ')}.`,
  );
}
