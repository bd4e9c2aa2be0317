// The optimizer section of a configuration to the optimizer it names.
import type { ResolvedOptimizer } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import { Adagrad, type AdagradGroup } from '../../optim/adagrad.js';
import { type AdamGroup, AdamW } from '../../optim/adamw.js';
import { Lamb, type LambGroup } from '../../optim/lamb.js';
import { Lion, type LionGroup } from '../../optim/lion.js';
import { Muon } from '../../optim/muon.js';
import { type MuonGroup, splitMuonGroups } from '../../optim/muon-groups.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import { Sgd, type SgdGroup } from '../../optim/sgd.js';
import type { Tensor } from '../../tensor/index.js';

/** A model's parameters by name. */
type Named = Iterable<readonly [string, Tensor]>;

/** The parameters of each type of optimizer. */
type Params = { [O in ResolvedOptimizer as O['type']]: O['params'] };

type Builder<Type extends keyof Params> = (
  params: ParamsOf<ParamGroup>,
  options: Params[Type],
  named: Named,
) => Optimizer;

/**
 * The optimizer that `section` names, over `params`; `named` are the model's, for rules that go by name. Throws
 * DS_CONFIG when it names none, DS_ARGUMENT when the groups are wrong.
 */
export function buildOptimizer(
  section: ResolvedOptimizer | null,
  params: ParamsOf<ParamGroup>,
  named: Named,
): Optimizer {
  if (section) return build(section, params, named);
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
  named: Named,
): Optimizer {
  return builders[type](params, options, named);
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

function sgd(
  params: ParamsOf<ParamGroup>,
  { weight_decay: weightDecay, ...options }: Params['SGD'],
): Optimizer {
  return new Sgd(params as ParamsOf<SgdGroup>, { ...options, weightDecay });
}

function adagrad(
  params: ParamsOf<ParamGroup>,
  { lr, lr_decay, weight_decay, initial_accumulator_value, eps }: Params['Adagrad'],
): Optimizer {
  return new Adagrad(params as ParamsOf<AdagradGroup>, {
    lr,
    lrDecay: lr_decay,
    weightDecay: weight_decay,
    initialAccumulatorValue: initial_accumulator_value,
    eps,
  });
}

function lion(
  params: ParamsOf<ParamGroup>,
  { lr, betas, weight_decay }: Params['Lion'],
): Optimizer {
  const options = { lr, betas, weightDecay: weight_decay };
  return new Lion(params as ParamsOf<LionGroup>, options);
}

function lamb(params: ParamsOf<ParamGroup>, options: Params['Lamb']): Optimizer {
  return new Lamb(params as ParamsOf<LambGroup>, {
    lr: options.lr,
    betas: options.betas,
    eps: options.eps,
    epsInsideSqrt: options.eps_inside_sqrt,
    weightDecay: options.weight_decay,
    maxCoeff: options.max_coeff,
    minCoeff: options.min_coeff,
    biasCorrection: options.bias_correction,
    momentCorrection: options.moment_correction,
  });
}

function muon(params: ParamsOf<ParamGroup>, options: Params['Muon'], named: Named): Optimizer {
  return new Muon(splitMuonGroups(params as ParamsOf<MuonGroup>, named), {
    lr: options.muon_lr ?? options.lr,
    momentum: options.momentum,
    weightDecay: options.weight_decay,
    nsMethod: options.ns_method,
    adamLr: options.adam_lr,
    betas: options.betas,
    eps: options.eps,
  });
}

const builders: { [Type in keyof Params]: Builder<Type> } = {
  Adam: (params, options) => adam(params, options, options.adam_w_mode),
  AdamW: (params, options) => adam(params, options, true),
  FusedAdam: (params, options) => adam(params, options, options.adam_w_mode),
  DeepSpeedCPUAdam: (params, options) => adam(params, options, options.adam_w_mode),
  SGD: sgd,
  Adagrad: adagrad,
  Lion: lion,
  Lamb: lamb,
  FusedLamb: lamb,
  Muon: muon,
};
