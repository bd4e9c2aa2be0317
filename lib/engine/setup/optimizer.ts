// The optimizer of an engine: the caller's, or that of the section "optimizer".
import type { ResolvedOptimizer } from '../../../types/config.js';
import { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { AdamGroup } from '../../optim/adam-rule.js';
import { AdamW } from '../../optim/adamw.js';
import * as optim from '../../optim/index.js';
import { Lamb, type LambGroup } from '../../optim/lamb.js';
import { Muon } from '../../optim/muon.js';
import { type MuonGroup, splitMuonGroups } from '../../optim/muon-groups.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import { StandaloneOptimizer } from '../../optim/standalone.js';
import { formatValue } from '../../runtime/format-value.js';
import { camelCase } from '../../runtime/options.js';
import type { Tensor } from '../../tensor/index.js';
import { type Given as Inputs, madeBy, requireMethods } from './clients.js';
import { requireElementwise, requireExchange } from './optimizer-needs.js';
import type { PipelinePlan } from './pipeline.js';
import { isCutOver } from './tensor-parallel.js';
import { NoOptimizer } from './untrained.js';

/**
 * Returns the optimizer of the caller, else of the configuration. At stage 3 without either,
 * returns NoOptimizer, which only gathers weights for forwards. Throws DS_CONFIG without an
 * optimizer at other stages and for one that does not support pipelines or divided layers. Throws
 * DS_ARGUMENT for invalid groups or without trainable parameters.
 */
export function findOptimizer(given: Inputs, plan: PipelinePlan | null): Optimizer {
  const optimizer = givenOptimizer(given);
  requireExchange(optimizer, given.config, plan !== null);
  if (isCutOver(given.job, given.module)) requireElementwise(optimizer);
  return optimizer;
}

function givenOptimizer({
  module,
  config: { optimizer: section, zero_optimization, bf16 },
  clients: { optimizer, modelParameters },
}: Inputs): Optimizer {
  const { stage } = zero_optimization;
  if (!optimizer && !section && !modelParameters && stage === 3) return new NoOptimizer();
  const { bf16_optimizer_states: bf16States } = bf16;
  const own = (one: Optimizer): Optimizer => {
    const op = 'initialize optimizer';
    requireMethods(op, one, 'an optimizer', ['declareState', 'update']);
    requireGroups(op, one.groups);
    if (bf16States) requireBf16States(one);
    return unused(one);
  };
  if (optimizer && typeof optimizer !== 'function') return own(optimizer);
  const trainable = module.parameters().filter(({ requiresGrad }) => requiresGrad);
  if (!modelParameters && trainable.length === 0) throw untrainable(module);
  const params = modelParameters ?? trainable;
  return optimizer
    ? own(madeBy('initialize optimizer', optimizer, params))
    : buildOptimizer(section, params, { named: module.namedParameters(), bf16States });
}

/** Throws DS_CONFIG if the caller's optimizer stores per-parameter state in f32. */
function requireBf16States(optimizer: Optimizer): void {
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const { shape } of params) {
      const declared = Object.entries(optimizer.declareState(group, shape));
      const [name, wide] = declared.find(([, { dtype }]) => dtype === 'f32') ?? [];
      if (!wide) continue;
      throw new DsError({
        code: 'DS_CONFIG',
        op: 'bf16.bf16_optimizer_states',
        expected: 'an optimizer with its state in bf16',
        got: `${optimizer.name} with ${name} in f32`,
        hint: 'Use new optim.AdamW(params, { fp32OptimizerStates: false }), or set bf16_optimizer_states to false.',
      });
    }
  }
}

/** Throws DS_ARGUMENT for an optimizer with its own state, because the engine would drop it. */
function unused(optimizer: Optimizer): Optimizer {
  if (!(optimizer instanceof StandaloneOptimizer && optimizer.hasStepped)) return optimizer;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize optimizer',
    expected: 'an optimizer without steps',
    got: `${optimizer.name} with its own state, which the engine would drop`,
    hint: 'Create a new optimizer, or call dispose() on it to drop its state.',
  });
}

/** Throws DS_ARGUMENT if the caller's optimizer has no groups. */
function requireGroups(op: string, groups: unknown): void {
  const isGroup = (one: unknown): boolean =>
    typeof one === 'object' && one !== null && Array.isArray((one as Partial<ParamGroup>).params);
  if (Array.isArray(groups) && groups.length > 0 && groups.every(isGroup)) return;
  const expected = 'an optimizer with groups: a list of at least one { params, .. }';
  throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(groups) });
}

function untrainable(module: Module): DsError {
  const count = module.parameters().length;
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'initialize',
    expected: 'a model with a parameter that requires a gradient',
    got: count === 0 ? 'a model without parameters' : `a model with ${count} frozen parameters`,
    hint: count === 0 ? '' : 'Call requireGrad(true) on the parameters to train.',
  });
}

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
function buildOptimizer(
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

const camelCased = (options: object): object =>
  Object.fromEntries(Object.entries(options).map(([key, value]) => [camelCase(key), value]));

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
