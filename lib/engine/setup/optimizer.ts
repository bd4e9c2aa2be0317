// Finds the optimizer of an engine: the caller's, or the one that the section "optimizer"
// describes.
import type { ResolvedOptimizer } from '../../../types/config.js';
import type { DsError } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import type { DeclaredState } from '../../optim/declared-state.js';
import * as optim from '../../optim/index.js';
import { type MuonGroup, splitMuonGroups } from '../../optim/muon-groups.js';
import type { Optimizer } from '../../optim/optimizer.js';
import type { ParamGroup, ParamsOf } from '../../optim/param-groups.js';
import { StandaloneOptimizer } from '../../optim/standalone.js';
import { formatValue } from '../../runtime/format-value.js';
import { argumentError, configError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { camelCase } from '../../runtime/options.js';
import type { Tensor } from '../../tensor/index.js';
import { callFactory, type BuildInputs as Inputs, requireMethods } from './clients.js';
import { requireElementwise, requireExchange } from './optimizer-needs.js';
import type { PipelinePlan } from './pipeline.js';
import { isCutOver } from './tensor-parallel.js';

/** An optimizer without groups. All parameters are frozen (DeepSpeed's ZeRO-Inference). */
export class NoOptimizer implements Optimizer {
  readonly name = 'no optimizer';
  readonly groups: ParamGroup[] = [];

  declareState(): DeclaredState {
    return {};
  }

  update(): void {}
}

/**
 * Returns the optimizer of the caller, else of the configuration. Without either, stage 3 uses
 * NoOptimizer. Throws DS_CONFIG if another stage has no optimizer, or if the parallelism excludes
 * the optimizer. Throws DS_ARGUMENT for invalid groups, or if no parameter is trainable.
 */
export function findOptimizer(inputs: Inputs, plan: PipelinePlan | null): Optimizer {
  const optimizer = givenOptimizer(inputs);
  requireExchange(optimizer, inputs.config, plan !== null);
  if (isCutOver(inputs.job, inputs.module)) requireElementwise(optimizer);
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
  const checkOwn = (optimizer: Optimizer): Optimizer => {
    const op = 'initialize optimizer';
    requireMethods(op, optimizer, 'an optimizer', ['declareState', 'update']);
    requireGroups(op, optimizer.groups);
    if (bf16States) requireBf16States(optimizer);
    return requireUnused(optimizer);
  };
  if (optimizer && typeof optimizer !== 'function') return checkOwn(optimizer);
  const trainable = module.parameters().filter(({ requiresGrad }) => requiresGrad);
  if (!modelParameters && trainable.length === 0) throw untrainableError(module);
  const params = modelParameters ?? trainable;
  return optimizer
    ? checkOwn(callFactory('initialize optimizer', optimizer, params))
    : buildOptimizer(section, params, { named: module.namedParameters(), bf16States });
}

/** Throws DS_CONFIG if the caller's optimizer stores state in f32. */
function requireBf16States(optimizer: Optimizer): void {
  for (const [group, { params }] of optimizer.groups.entries()) {
    for (const { shape } of params) {
      const declared = Object.entries(optimizer.declareState(group, shape));
      const [name, wide] = declared.find(([, { dtype }]) => dtype === 'f32') ?? [];
      if (!wide) continue;
      throw configError(
        'bf16.bf16_optimizer_states',
        'an optimizer with its state in bf16',
        `${optimizer.name} with ${name} in f32`,
        'Use new optim.AdamW(params, { fp32OptimizerStates: false }), or set bf16_optimizer_states to false.',
      );
    }
  }
}

/**
 * Throws DS_ARGUMENT for an optimizer that has stepped, because the engine would drop its state.
 */
function requireUnused(optimizer: Optimizer): Optimizer {
  if (!(optimizer instanceof StandaloneOptimizer && optimizer.hasStepped)) return optimizer;
  throw argumentError(
    'initialize optimizer',
    'an optimizer without steps',
    `${optimizer.name} with its own state, which the engine would drop`,
    'Create a new optimizer, or call dispose() on it to drop its state.',
  );
}

/** Throws DS_ARGUMENT if the caller's optimizer has no groups. */
function requireGroups(op: string, groups: unknown): void {
  const isGroup = (value: unknown): boolean => isObject(value) && Array.isArray(value.params);
  if (Array.isArray(groups) && groups.length > 0 && groups.every(isGroup)) return;
  const expected = 'an optimizer with groups: a list of at least one { params, .. }';
  throw argumentError(op, expected, formatValue(groups));
}

function untrainableError(module: Module): DsError {
  const count = module.parameters().length;
  return argumentError(
    'initialize',
    'a model with a parameter that requires a gradient',
    count === 0 ? 'a model without parameters' : `a model with ${count} frozen parameters`,
    count === 0 ? '' : 'Call requireGrad(true) on the parameters to train.',
  );
}

/** Inputs of a Builder in addition to params and options. */
interface BuilderInputs {
  /** The named parameters of the model, for rules by name. */
  named: Iterable<readonly [string, Tensor]>;
  /** The key bf16.bf16_optimizer_states. */
  bf16States: boolean;
}

/** Builds an optimizer. `options` are the params of the section, with names in camelCase. */
type Builder = (
  params: ParamsOf<ParamGroup>,
  options: Record<string, unknown>,
  more: BuilderInputs,
) => Optimizer;

/**
 * Builds the optimizer of the section. Throws DS_CONFIG without a section, DS_ARGUMENT for invalid
 * groups.
 */
function buildOptimizer(
  section: ResolvedOptimizer | null,
  params: ParamsOf<ParamGroup>,
  more: BuilderInputs,
): Optimizer {
  if (section) {
    const options = Object.entries(section.params).map(([key, value]) => [camelCase(key), value]);
    return builderOf(section.type)(params, Object.fromEntries(options), more);
  }
  throw configError(
    'optimizer',
    'an optimizer',
    'none',
    'Add "optimizer": { "type": "AdamW", "params": { "lr": 1e-4 } }, or pass one to initialize().',
  );
}

type OptimizerClass = new (params: never, options: never) => Optimizer;

/** Builds `Class` with its options. `idle` lists options of DeepSpeed that have no effect here. */
const buildPlain =
  (Class: OptimizerClass, idle: readonly string[] = []): Builder =>
  (params, options) => {
    const acting = Object.entries(options).filter(([name]) => !idle.includes(name));
    return new Class(params as never, Object.fromEntries(acting) as never);
  };

/** Options of DeepSpeed's 1-bit optimizers that have no effect here. */
const ONE_BIT = [
  'cudaAware',
  'commBackendName',
  'biasCorrection',
  'epsInsideSqrt',
  'maxGradNorm',
  'amsgrad',
];

const buildAdam: Builder = (params, { adamWMode: decoupled, ...options }, { bf16States }) => {
  const own = { ...options, decoupled, fp32OptimizerStates: !bf16States };
  return buildPlain(optim.AdamW, ['amsgrad', 'torchAdam'])(params, own, { named: [], bf16States });
};

const buildMuon: Builder = (params, { muonLr, lr, ...options }, { named }) =>
  new optim.Muon(splitMuonGroups(params as ParamsOf<MuonGroup>, named), {
    ...options,
    lr: (muonLr ?? lr) as number,
  });

const lamb = buildPlain(optim.Lamb, ['amsgrad']);

const special = {
  Adam: buildAdam,
  AdamW: buildAdam,
  FusedAdam: buildAdam,
  DeepSpeedCPUAdam: buildAdam,
  Lamb: lamb,
  FusedLamb: lamb,
  Muon: buildMuon,
  OneBitAdam: buildPlain(optim.OneBitAdam, ONE_BIT),
  OneBitLamb: buildPlain(optim.OneBitLamb, ONE_BIT),
  OneBitSGD: buildPlain(optim.OneBitSGD, ONE_BIT),
  SGD: buildPlain(optim.Sgd),
  ZeroOneAdam: buildPlain(optim.ZeroOneAdam, ONE_BIT),
} satisfies { [Type in ResolvedOptimizer['type']]?: Builder };

/** All other types have a class of the same name. */
const classes: {
  [Type in Exclude<ResolvedOptimizer['type'], keyof typeof special>]: OptimizerClass;
} = optim;

function builderOf(type: ResolvedOptimizer['type']): Builder {
  return type in special
    ? special[type as keyof typeof special]
    : buildPlain(classes[type as keyof typeof classes]);
}
