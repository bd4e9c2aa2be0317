// Creates the optimizer of the section "optimizer".
import type { ResolvedOptimizer } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { AdamGroup } from '../../optim/adam-rule.js';
import { AdamW } from '../../optim/adamw.js';
import * as optim from '../../optim/index.js';
import { Lamb, type LambGroup } from '../../optim/lamb.js';
import { Muon } from '../../optim/muon.js';
import { type MuonGroup, splitMuonGroups } from '../../optim/muon-groups.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import type { Tensor } from '../../tensor/index.js';

type Named = Iterable<readonly [string, Tensor]>;

/** Inputs of builders in addition to their params. */
interface Given {
  /** The model's parameters, for rules by name. */
  named: Named;
  /** bf16.bf16_optimizer_states. */
  bf16States: boolean;
}

/** The params of each optimizer type. */
type Params = { [O in ResolvedOptimizer as O['type']]: O['params'] };

type Builder<Type extends keyof Params> = (
  params: ParamsOf<ParamGroup>,
  options: Params[Type],
  given: Given,
) => Optimizer;

/**
 * Returns the optimizer of `section` for `params`. Throws DS_CONFIG without a section, DS_ARGUMENT
 * for invalid groups.
 */
export function buildOptimizer(
  section: ResolvedOptimizer | null,
  params: ParamsOf<ParamGroup>,
  given: Given,
): Optimizer {
  if (section) return build(section, params, given);
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
  given: Given,
): Optimizer {
  const special: { [Other in keyof Params]?: Builder<Other> } = builders;
  const make = special[type] ?? plain(classes[type as Plain] as unknown as OptimizerClass<Type>);
  return make(params, options, given);
}

function adam(
  params: ParamsOf<ParamGroup>,
  options: Params['Adam'],
  { bf16States }: Given,
): Optimizer {
  const { lr, betas, eps, weight_decay, bias_correction } = options;
  return new AdamW(params as ParamsOf<AdamGroup>, {
    lr,
    betas: [...betas],
    eps,
    weightDecay: weight_decay,
    biasCorrection: bias_correction,
    decoupled: options.adam_w_mode,
    fp32OptimizerStates: !bf16States,
  });
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

function muon(params: ParamsOf<ParamGroup>, options: Params['Muon'], { named }: Given): Optimizer {
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

/** Types with a class of the same name, and options that are the params in camelCase. */
type Plain = Exclude<keyof Params, keyof typeof builders>;

type Camel<Name extends string> = Name extends `${infer First}_${infer Rest}`
  ? `${First}${Capitalize<Camel<Rest>>}`
  : Name;

type Options<Type extends keyof Params> = {
  [Key in keyof Params[Type] as Camel<Key & string>]: Params[Type][Key];
};

type OptimizerClass<Type extends keyof Params> = new (
  params: never,
  options: Options<Type>,
) => Optimizer;

const classes: { [Type in Plain]: OptimizerClass<Type> } = optim;

function camelCased(options: object): object {
  const named = Object.entries(options);
  const camel = (key: string) => key.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
  return Object.fromEntries(named.map(([key, value]) => [camel(key), value]));
}

const plain =
  <Type extends keyof Params>(Class: OptimizerClass<Type>): Builder<Type> =>
  (params, options) =>
    new Class(params as never, camelCased(options) as Options<Type>);

/** Keys of DeepSpeed's 1-bit optimizers without effect. */
const IDLE: ReadonlySet<string> = new Set([
  ...['cuda_aware', 'comm_backend_name', 'bias_correction', 'eps_inside_sqrt', 'max_grad_norm'],
  'amsgrad',
]);

const oneBit =
  <Type extends keyof Params>(
    Class: new (params: never, options: object) => Optimizer,
  ): Builder<Type> =>
  (params, options) => {
    const acting = Object.entries(options).filter(([key]) => !IDLE.has(key));
    return new Class(params as never, camelCased(Object.fromEntries(acting)));
  };

const builders = {
  Adam: adam,
  AdamW: adam,
  FusedAdam: adam,
  DeepSpeedCPUAdam: adam,
  SGD: plain<'SGD'>(optim.Sgd),
  Lamb: lamb,
  FusedLamb: lamb,
  Muon: muon,
  OneBitAdam: oneBit<'OneBitAdam'>(optim.OneBitAdam),
  OneBitLamb: oneBit<'OneBitLamb'>(optim.OneBitLamb),
  OneBitSGD: oneBit<'OneBitSGD'>(optim.OneBitSGD),
  ZeroOneAdam: oneBit<'ZeroOneAdam'>(optim.ZeroOneAdam),
} satisfies { [Type in keyof Params]?: Builder<Type> };
