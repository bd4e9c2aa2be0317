// The optimizer section of a configuration to the optimizer it names.
import type { ResolvedOptimizer } from '../../types/config.js';
import { DsError } from '../errors.js';
import { type AdamGroup, AdamW } from '../optim/adamw.js';
import type { Optimizer } from '../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../optim/param-groups.js';

/** The parameters of each type of optimizer. */
type Params = { [O in ResolvedOptimizer as O['type']]: O['params'] };

type Builder<Type extends keyof Params> = (
  params: ParamsOf<ParamGroup>,
  options: Params[Type],
) => Optimizer;

/**
 * The optimizer that `section` names, over `params`. Throws DS_CONFIG when it names none, DS_ARGUMENT when the groups
 * are wrong.
 */
export function buildOptimizer(
  section: ResolvedOptimizer | null,
  params: ParamsOf<ParamGroup>,
): Optimizer {
  if (section) return build(section, params);
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'optimizer',
    expected: 'an optimizer',
    got: 'none',
    hint: 'Add "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } }, or pass one to initialize().',
  });
}

function build<Type extends keyof Params>(
  { type, params: options }: { type: Type; params: Params[Type] },
  params: ParamsOf<ParamGroup>,
): Optimizer {
  return builders[type](params, options);
}

function adam(
  params: ParamsOf<ParamGroup>,
  { lr, betas, eps, weight_decay, bias_correction }: Params['Adam'],
  decoupled: boolean,
): Optimizer {
  return new AdamW(params as ParamsOf<AdamGroup>, {
    lr,
    betas: [...betas],
    eps,
    weightDecay: weight_decay,
    biasCorrection: bias_correction,
    decoupled,
  });
}

/** A type that the configuration may name and whose update is not there yet. */
function absent(type: keyof Params): () => Optimizer {
  return () => {
    throw new DsError({
      code: 'DS_CONFIG',
      op: 'optimizer.type',
      expected: '"Adam" or "AdamW"',
      got: JSON.stringify(type),
      hint: 'It is not supported yet.',
    });
  };
}

const builders: { [Type in keyof Params]: Builder<Type> } = {
  Adam: (params, options) => adam(params, options, options.adam_w_mode),
  AdamW: (params, options) => adam(params, options, true),
  FusedAdam: (params, options) => adam(params, options, options.adam_w_mode),
  DeepSpeedCPUAdam: (params, options) => adam(params, options, options.adam_w_mode),
  SGD: absent('SGD'),
  Adagrad: absent('Adagrad'),
  Lion: absent('Lion'),
  Lamb: absent('Lamb'),
  FusedLamb: absent('FusedLamb'),
  Muon: absent('Muon'),
};
