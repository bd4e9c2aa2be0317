// parallelize(): replaces the layers of a model by this rank's parts, according to a plan.

import type { ProcessGroup } from '../comm/index.js';
import { DsError } from '../errors.js';
import { Dropout } from '../nn/dropout.js';
import { Embedding } from '../nn/embedding.js';
import { Experts } from '../nn/experts.js';
import { Linear } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { RMSNorm } from '../nn/norms.js';
import { Parameter } from '../nn/parameter.js';
import { QuantizedLinear } from '../nn/quantized-linear.js';
import { replaceModules } from '../nn/replace-modules.js';
import { requireModule } from '../nn/require-module.js';
import { formatValue } from '../runtime/format-value.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { required } from '../runtime/required.js';
import type { HeadShare } from '../tensor/index.js';
import { splitEvenly } from './exchanges.js';
import { CutExperts } from './experts.js';
import { HeadsNorm } from './heads-norm.js';
import {
  ChannelDropout,
  ColumnLinear,
  type LayerCutOptions,
  RowLinear,
  VocabularyEmbedding,
} from './layers.js';
import {
  type LayerStyle,
  matcherOf,
  type PathStyle,
  patternsOf,
  type SequencePlan,
  type TensorPlan,
} from './plan.js';
import { quantizedColumn, quantizedRow } from './quantized-layers.js';
import { type HeadCounts, type SharedHeads, splitHeads } from './rank-ranges.js';
import { requireGroup } from './require-group.js';
import { splitTokens, tokenStream } from './sequence.js';
import { type Stream, wholeStream } from './stream.js';
import { VocabularyHead } from './vocabulary-head.js';

/** A model that has a plan for its layers. */
export interface Parallelizable {
  /** Returns the plan for parallelize(), which splits the layers over ranks. */
  tensorPlan(): TensorPlan;
}

/** Options of parallelize(). */
export interface ParallelizeOptions {
  /**
   * Whether the ranks also split the tokens of activations outside of the split layers. Norms,
   * dropout and the residual stream then need 1 / n of the memory; results are the same, bit for
   * bit. In training, T must be a multiple of the number of ranks. Default: false. Source:
   * Korthikanti et al. 2022.
   */
  sequenceParallel?: boolean;
}

/** The models that are already split, and their groups. */
const cut = new WeakMap<Module, ProcessGroup>();

/** Returns the group over which a model is split, or null if it is not split. */
export function groupOf(model: Module): ProcessGroup | null {
  return cut.get(model) ?? null;
}

/**
 * Splits a model's layers over the ranks of `group`, in place, and returns the model. Each rank
 * keeps its part of every layer that the plan names; the layers then contain the exchanges. Default
 * plan: that of the model; all models of nn.models have one.
 *
 * - All ranks must have built the same model with the same seed, and must pass the same inputs to
 *   it.
 * - Call it before initialize().
 * - It computes nothing. The weights of each rank equal its part of the weights on one rank, bit
 *   for bit. Stored weights are read only for this rank's part.
 * - Names of modules and parameters do not change.
 * - An engine completes the gradients of parameters with hasPartialGradient. Without an engine,
 *   call sumPartialGradients().
 *
 * Throws DS_ARGUMENT if the model has no plan or is already split, or if there are more ranks than
 * heads. Throws it too if a pattern matches no module or an unsuitable module.
 */
export function parallelize<M extends Module>(
  model: M,
  group: ProcessGroup,
  plan: TensorPlan | null = null,
  given: ParallelizeOptions = {},
): M {
  requireModule('parallelize', model);
  requireGroup('parallelize', group);
  const { sequenceParallel = false } = readOptions(
    'parallelize',
    given,
    namesOf.ParallelizeOptions,
  );
  return splitModel(model, group, plan, { sequenceParallel, takesPacked: false });
}

/**
 * @internal Splits a model as parallelize() does, but only for inference: also splits layers with
 * 8- or 4-bit weights. Checkpoints cannot describe the whole tensors of such parts.
 */
export function parallelizeForInference<M extends Module>(
  model: M,
  group: ProcessGroup,
  plan: TensorPlan | null,
): M {
  return splitModel(model, group, plan, { sequenceParallel: false, takesPacked: true });
}

function splitModel<M extends Module>(
  model: M,
  group: ProcessGroup,
  plan: TensorPlan | null,
  { sequenceParallel, takesPacked }: { sequenceParallel: boolean; takesPacked: boolean },
): M {
  const appliedPlan = plan ?? planOf(model);
  if (cut.has(model))
    throw refusedError('a model without tensor parallelism', 'a model that is already parallel');
  if (group.size === 1) return model;
  const heads = appliedPlan.heads ? splitHeads(appliedPlan.heads, group) : null;
  const stream = sequenceParallel ? tokenStream(group) : wholeStream(group);
  const styled = findStyled(model, patternsOf(appliedPlan));
  const parameters = [...model.namedParameters()];
  const instead = new Map<Module, Module>();
  for (const [path, module, style] of styled) {
    const ownHeads = style.counts ? splitHeads(style.counts, group) : heads;
    const replacement = apply(module, { path, style, heads: ownHeads, group, stream, takesPacked });
    if (replacement) instead.set(module, replacement);
  }
  replaceModules(model, instead);
  requireNoneLeft(model, new Set(instead.values()));
  for (const [, parameter] of parameters) {
    if (!parameter.isCut) parameter.isReplica = group.rank > 0;
  }
  if (sequenceParallel) applySequence(model, group, appliedPlan.sequence);
  cut.set(model, group);
  const countsOf = (counts: HeadCounts) => ownCounts(splitHeads(counts, group), group.rank);
  if (heads) appliedPlan.taken?.(ownCounts(heads, group.rank), countsOf);
  return model;
}

/**
 * Sums over the ranks the gradients of replicated parameters that each rank used only for its part.
 * Call it after backward() if no engine does. Throws DS_COMM if the ranks disagree or one fails.
 */
export function sumPartialGradients(model: Module, group: ProcessGroup): void {
  requireModule('sumPartialGradients', model);
  requireGroup('sumPartialGradients', group);
  for (const [name, { hasPartialGradient, grad }] of model.namedParameters()) {
    if (!hasPartialGradient || !grad) continue;
    group.allReduce(grad, { purpose: `gradient of ${name}` }).wait();
  }
}

function planOf(model: Module): TensorPlan {
  const { tensorPlan } = model as Partial<Parallelizable>;
  if (typeof tensorPlan === 'function') return tensorPlan.call(model);
  throw refusedError(
    'a model that has a tensorPlan(), or a plan as the third argument',
    model.constructor.name,
    "For example { layers: { '*.fc1': 'column', '*.fc2': 'row' } }.",
  );
}

const ownCounts = ({ queries, keys }: SharedHeads, rank: number) => ({
  queries: required(queries[rank]).count,
  keys: required(keys[rank]).count,
});

/**
 * Returns every module that a pattern matches, with the style of the first such pattern. Throws
 * DS_ARGUMENT if a pattern matches no module.
 */
function findStyled(model: Module, patterns: readonly PathStyle[]): [string, Module, LayerStyle][] {
  const used = new Set<PathStyle>();
  const below = [...model.namedModules()].filter(([path]) => path !== '');
  const styled = below.flatMap(([path, module]): [string, Module, LayerStyle][] => {
    const fitting = patterns.filter(({ fits }) => fits(path));
    for (const style of fitting) used.add(style);
    const [first] = fitting;
    return first && first.style.style !== 'whole' ? [[path, module, first.style]] : [];
  });
  const idle = patterns.find((pattern) => !used.has(pattern));
  if (!idle) return styled;
  const paths = below.map(([path]) => path);
  throw refusedError(
    'patterns that match module paths',
    `${formatValue(String(idle.pattern))}; paths: ${paths.slice(0, 12).join(', ')}${paths.length > 12 ? ', ..' : ''}`,
  );
}

/**
 * Splits the tokens of activations by the plan. Throws DS_ARGUMENT if the plan names no such place.
 */
function applySequence(model: Module, group: ProcessGroup, plan: SequencePlan | undefined): void {
  if (!plan)
    throw refusedError(
      'a plan with a `sequence` for sequenceParallel',
      'a plan without a `sequence`',
    );
  const modules = new Map(model.namedModules());
  const at = (path: string): Module => {
    const module = modules.get(path);
    if (module) return module;
    throw refusedError("paths of modules in the plan's `sequence`", formatValue(path));
  };
  const byToken = plan.byToken.map(matcherOf);
  for (const [path, module] of modules) {
    if (!byToken.some((fits) => fits(path))) continue;
    for (const parameter of module.parameters()) parameter.hasPartialGradient = true;
  }
  splitTokens(at(plan.body), at(plan.first), group);
}

interface LayerContext {
  path: string;
  style: LayerStyle;
  heads: SharedHeads | null;
  group: ProcessGroup;
  stream: Stream;
  takesPacked: boolean;
}

/**
 * Returns the module that replaces `module`, or null if it stays. Throws DS_ARGUMENT if the style
 * does not suit the module.
 */
function apply(module: Module, context: LayerContext): Module | null {
  const { style, group } = context;
  switch (style.style) {
    case 'column':
      return columnAt(module, context, false);
    case 'columnGathered':
      return columnAt(module, context, true);
    case 'row':
      return rowAt(module, context, false);
    case 'rowScattered':
      return rowAt(module, context, true);
    case 'vocabulary':
      if (module instanceof Embedding) return new VocabularyEmbedding(module, group);
      throw misplacedError(context, 'an nn.Embedding', module);
    case 'head':
      if (isPacked(module, context)) return columnAt(module, context, true);
      if (isHead(module)) return new VocabularyHead(module, group);
      throw misplacedError(context, 'a linear layer, or a head that is the token table', module);
    case 'experts':
      if (module instanceof Experts) return new CutExperts(module, group, context.stream);
      throw misplacedError(context, 'an nn.Experts', module);
    case 'headsNorm':
      if (module instanceof RMSNorm) return new HeadsNorm(module, group, cutAt(context).cut ?? []);
      throw misplacedError(context, 'an nn.RMSNorm', module);
    case 'channelDropout':
      if (module instanceof Dropout) return dropoutAt(module, context);
      throw misplacedError(context, 'an nn.Dropout', module);
    case 'attention':
      (module as { headShare?: HeadShare | null }).headShare = headShareAt(module, context);
      if ('headGroup' in module) module.headGroup = group;
      // Each rank uses the values of its own heads, for example of the attention sinks.
      for (const child of Object.values(module)) {
        if (child instanceof Parameter) child.hasPartialGradient = true;
      }
      return null;
    case 'perHead':
      for (const parameter of module.parameters()) parameter.hasPartialGradient = true;
      return null;
    default:
      throw refusedError('a style of parallel.StyleName', formatValue(style.style));
  }
}

const isPacked = (module: Module, { takesPacked }: LayerContext): module is QuantizedLinear =>
  takesPacked && module instanceof QuantizedLinear;

function columnAt(module: Module, context: LayerContext, gatherOutput: boolean): Module {
  const options = { ...cutAt(context), gatherOutput };
  return isPacked(module, context)
    ? quantizedColumn(module, context.group, options)
    : new ColumnLinear(linearAt(module, context), context.group, options);
}

function rowAt(module: Module, context: LayerContext, scatterInput: boolean): Module {
  const options = { ...cutAt(context), scatterInput };
  return isPacked(module, context)
    ? quantizedRow(module, context.group, options)
    : new RowLinear(linearAt(module, context), context.group, options);
}

function linearAt(module: Module, context: LayerContext): Linear {
  if (module instanceof Linear) return module;
  throw misplacedError(context, 'an nn.Linear', module);
}

const isHead = (module: Module): module is Module & { weight: Parameter } =>
  'weight' in module && (module.weight as Parameter).region?.whole.length === 2;

function cutAt({ style, heads, stream }: LayerContext): LayerCutOptions {
  const { parts, pieces } = style;
  const options = { stream, ...(parts && { parts }), ...(pieces && { pieces }) };
  if (!style.heads) return options;
  if (!heads)
    throw refusedError(
      'a plan with heads',
      `{ heads: ${formatValue(style.heads)} } without counts`,
    );
  const named = [style.heads].flat();
  const repeated = Array.from({ length: parts ?? 1 }, () => named).flat();
  const cut = repeated.map((item) => ({ pieces: heads.counts[item], ranges: heads[item] }));
  return { stream, cut };
}

function dropoutAt({ p }: Dropout, { style, group }: LayerContext): ChannelDropout {
  const { pieces } = style;
  if (!pieces) throw refusedError('pieces of a "channelDropout": its number of channels', 'none');
  return new ChannelDropout(p, splitEvenly(pieces, group.size), group.rank);
}

function headShareAt(module: Module, context: LayerContext): HeadShare {
  const { heads, group } = context;
  if (!('headShare' in module))
    throw misplacedError(context, 'an attention with a headShare', module);
  if (!heads) throw refusedError('a plan with heads', 'the style "attention" without heads');
  return { first: required(heads.queries[group.rank]).first, whole: heads.counts.queries };
}

/**
 * Throws DS_ARGUMENT if an unsplit module refers to a split parameter: it would compute with a
 * part.
 */
function requireNoneLeft(model: Module, replaced: ReadonlySet<Module>): void {
  for (const [path, module] of model.namedModules()) {
    if (replaced.has(module)) continue;
    const uncut = Object.entries(module).find(
      ([, value]) => (value as Parameter | null)?.isCut === true,
    );
    if (!uncut) continue;
    throw refusedError(
      'the same split for all modules that share a parameter',
      `${path || 'the model'} with ${uncut[0]}, which another module splits`,
      'Give a tied head the style "head", and its table "vocabulary".',
    );
  }
}

function misplacedError({ path, style }: LayerContext, expected: string, module: Module): DsError {
  const got = `${module.constructor.name} at ${path}`;
  return refusedError(`${expected} for the style "${style.style}"`, got);
}

function refusedError(expected: string, got: string, hint?: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'parallelize',
    expected,
    got,
    ...(hint && { hint }),
  });
}
