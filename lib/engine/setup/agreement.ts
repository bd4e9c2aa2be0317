// Checks at the start that all ranks have the same configuration, model and optimizer.
import { createHash } from 'node:crypto';
import type { ResolvedConfig } from '../../../types/config.js';
import { findFlaw } from '../../checkpoint/tiling.js';
import type { Axis, Distributed, MeshShape } from '../../comm/index.js';
import { AXES, AXIS } from '../../comm/mesh-shape.js';
import { DsError, type DsErrorCode } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { type Box, isPart } from '../../runtime/box.js';
import { argumentError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { leading, required } from '../../runtime/required.js';
import { numel } from '../../runtime/view.js';
import { getRandomState, type Tensor } from '../../tensor/index.js';
import type { Decisions } from '../engine-parts.js';
import { MODEL } from '../ranks.js';
import type { BuildInputs as Inputs } from './clients.js';
import { type Exchange, setupWorldOf } from './setup-world.js';

/** The parts of an engine that ranks compare. */
type ComparedInputs = Pick<Decisions, 'module' | 'config' | 'optimizer' | 'schedules'>;

type Section = 'model' | 'parts' | 'config' | 'optimizer' | 'generator';

/**
 * Values as text, by key. Two descriptions are equal if they have the same keys and texts, in any
 * order.
 */
type Description = Record<Section, Texts>;

type Texts = Record<string, string>;

/** Sections of the configuration that only print, log or measure. They may differ between ranks. */
const LOCAL_SECTIONS: ReadonlySet<string> = new Set<keyof ResolvedConfig>([
  'notices',
  'steps_per_print',
  'wall_clock_breakdown',
  'memory_breakdown',
  'dump_state',
  'log_level',
  'timers',
  'flops_profiler',
  'comms_logger',
  'tensorboard',
  'csv_monitor',
  'wandb',
  'comet',
  'autotuning',
] as const);

interface Rule {
  section: Section;
  /** Ranks that differ only on these axes must agree. */
  axes: readonly Axis[];
  code: DsErrorCode;
  op: (key: string) => string;
  /** Text for the error: which ranks must agree. */
  among: string;
  hint: string;
}

const ruleForAll = (section: Section) => ({
  section,
  axes: AXES,
  among: 'on every rank',
  hint: `Give every rank the same ${section}.`,
});

/** The facts that ranks must agree on, in the order of comparison. */
const RULES: readonly Rule[] = [
  { ...ruleForAll('model'), code: 'DS_ARGUMENT', op: (key) => `initialize, ${key}` },
  {
    section: 'parts',
    axes: AXES.filter((axis) => axis !== AXIS.tensor),
    code: 'DS_ARGUMENT',
    op: (key) => `initialize, ${key}`,
    among: 'on ranks with the same coordinate on tp',
    hint: 'Divide layers only by the coordinate on tp.',
  },
  { ...ruleForAll('config'), code: 'DS_CONFIG', op: (key) => key },
  { ...ruleForAll('optimizer'), code: 'DS_ARGUMENT', op: (key) => `initialize, optimizer ${key}` },
  {
    section: 'generator',
    axes: MODEL,
    code: 'DS_ARGUMENT',
    op: (key) => `initialize, random ${key}`,
    among: `on ranks that differ only on ${MODEL.join(', ')}`,
    hint: 'Call seed() with the same number there, or set "seed" in the configuration.',
  },
];

/** Maximum number of other differences in a hint. */
const MORE_DIFFERENCES = 4;

/**
 * Compares configuration, parameters and hyperparameters of ranks that must agree. Ranks first
 * exchange digests. If two digests differ, these two ranks exchange descriptions. Keys that the
 * plan will set count as "auto". If tensor parallelism divides layers (`isCut`), also checks that
 * the parts are complete. Throws on every rank, with ranks and values: DS_CONFIG, DS_ARGUMENT for
 * parameters and hyperparameters, DS_COMM.
 */
export async function requireAgreement(
  { job, planned }: Pick<Inputs, 'job' | 'planned'>,
  inputs: ComparedInputs,
  isCut: boolean,
): Promise<void> {
  if (job.worldSize === 1) return;
  const ownDescription = describe(inputs);
  for (const key of planned?.keys ?? []) ownDescription.config[key] = formatSetting('auto');
  await setupWorldOf(job).runInTurn(async (exchange) => {
    await compareRanks(job, RULES, ownDescription, exchange);
    if (!isCut) return;
    const { mesh } = job;
    const parts = mesh.place(...mesh.shape.others(AXIS.tensor)) === 0 ? partsOf(inputs.module) : [];
    requireComplete(await exchange(parts));
  });
}

/** Compares only the configuration. For calls before the model changes. */
export async function requireSameConfig(job: Distributed, config: ResolvedConfig): Promise<void> {
  if (job.worldSize === 1) return;
  const rules = RULES.filter(({ section }) => section === 'config');
  const own = { config: describeConfig(config) };
  await setupWorldOf(job).runInTurn((exchange) => compareRanks(job, rules, own, exchange));
}

async function compareRanks(
  { mesh, rank }: Distributed,
  rules: readonly Rule[],
  own: Partial<Description>,
  exchange: Exchange,
): Promise<void> {
  const all = await exchange(rules.map(({ section }) => digestOf(own[section] ?? {})));
  for (const [index, rule] of rules.entries()) {
    const digests = all.map((item) => required(item[index]));
    const pair = firstDifference(mesh.shape, digests, rule.axes);
    if (!pair) continue;
    const texts = await exchange(pair.includes(rank) ? (own[rule.section] ?? null) : null);
    const [first, other] = pair;
    throw differenceError(rule, [first, required(texts[first])], [other, required(texts[other])]);
  }
}

/** Returns two ranks that must agree and do not, or null. */
export function firstDifference(
  shape: MeshShape,
  digests: readonly string[],
  axes: readonly Axis[],
): [first: number, other: number] | null {
  for (const [other, digest] of digests.entries()) {
    const [first = other] = shape.ranksAlong(other, ...axes);
    if (digests[first] !== digest) return [first, other];
  }
  return null;
}

const digestOf = (texts: Texts): string =>
  createHash('sha256').update(stringifySorted(texts)).digest('hex');

/** Returns `value` as JSON with sorted keys. */
function stringifySorted(value: unknown): string {
  return JSON.stringify(value, (_, item) =>
    isObject(item) ? Object.fromEntries(Object.entries(item).sort()) : item,
  );
}

function describe({ module, config, optimizer, schedules }: ComparedInputs): Description {
  const { name, groups } = optimizer;
  const settings = groups.flatMap((group, index) =>
    Object.entries(hyperparameters(group)).map(([key, value]) => [
      `group ${index} ${key}`,
      formatSetting(value),
    ]),
  );
  const groupOf = new Map<Tensor, number>();
  for (const [index, { params }] of groups.entries()) {
    for (const parameter of params) groupOf.set(parameter, index);
  }
  return {
    model: describeModel(module, groupOf),
    parts: describeRegions(module),
    generator: flattenSections(Object.entries(getRandomState())),
    config: describeConfig(config),
    optimizer: { name, schedule: schedules.name, ...Object.fromEntries(settings) },
  };
}

/**
 * Describes the configuration. train_batch_size comes last, because it follows from two other
 * sizes, which explain more.
 */
function describeConfig({ train_batch_size, ...rest }: ResolvedConfig): Texts {
  const sections = Object.entries({ ...rest, train_batch_size });
  return flattenSections(sections.filter(([key]) => !LOCAL_SECTIONS.has(key)));
}

/** Describes parameters and buffers by number, because their order is the order of collectives. */
function describeModel(module: Module, groupOf: ReadonlyMap<Tensor, number>): Texts {
  const parameters = Array.from(module.namedParameters(), ([name, parameter], index) => {
    const group = groupOf.get(parameter);
    const trained = parameter.requiresGrad ? 'requires a gradient' : 'frozen';
    const grouping = group === undefined ? 'in no group' : `in group ${group}`;
    const start = parameter.stored ? `, from ${parameter.stored.origin}` : '';
    const { whole } = parameter.region;
    const cut = isPart(parameter.region) ? ' divided over tp' : '';
    const outline = `${name} [${whole.join(', ')}]${cut}`;
    return [`parameter ${index}`, `${outline}, ${trained}, ${grouping}${start}`];
  });
  const buffers = Array.from(module.namedBuffers(), ([name, buffer], index) => [
    `buffer ${index}`,
    `${name} ${shapeOf(buffer)}`,
  ]);
  return Object.fromEntries([...parameters, ...buffers]);
}

/** Describes the parts of divided parameters. Keys are the numbers of describeModel(). */
function describeRegions(module: Module): Texts {
  const texts = Array.from(module.namedParameters(), ([name, { region, isReplica }], index) => {
    const boxes = region.boxes.map((box) => `${shapeOf(box)} at [${box.offset.join(', ')}]`);
    const who = isReplica ? ' (a replica)' : '';
    const text = `${name} ${boxes.join(' and ')}${who}`;
    return isPart(region) ? [[`parameter ${index}`, text]] : [];
  });
  return Object.fromEntries(texts.flat());
}

const shapeOf = ({ shape }: { shape: readonly number[] }): string => `[${shape.join(', ')}]`;

/** Returns the values of nested sections as text, by dotted path. */
function flattenSections(entries: readonly [string, unknown][], above = ''): Texts {
  const leaves: Texts = {};
  for (const [key, value] of entries) {
    const path = above + key;
    if (isObject(value)) Object.assign(leaves, flattenSections(Object.entries(value), `${path}.`));
    else leaves[path] = formatSetting(value);
  }
  return leaves;
}

/** Formats a value. JSON would drop functions, which a caller's group may contain. */
function formatSetting(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(formatSetting).join(', ')}]`;
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'function') return 'a function';
  return isObject(value) ? stringifySorted(flattenSections(Object.entries(value))) : String(value);
}

/** Returns the error for the first key with different values on two ranks. */
function differenceError(
  { section, code, op, among, hint }: Rule,
  [first, here]: [rank: number, Texts],
  [other, there]: [rank: number, Texts],
): DsError {
  const keys = new Set([...Object.keys(here), ...Object.keys(there)]);
  const [key = section, ...others] = [...keys].filter((key) => here[key] !== there[key]);
  const also =
    others.slice(0, MORE_DIFFERENCES).join(', ') +
    (others.length > MORE_DIFFERENCES ? ', ...' : '');
  return new DsError({
    code,
    op: op(key),
    expected: `the same ${among}: ${here[key] ?? 'none'} as on rank ${first}`,
    got: `${there[key] ?? 'none'} on rank ${other}`,
    hint: hint + (also && ` Also different: ${also}.`),
  });
}

/** A part of a parameter that one rank saves and counts. */
interface NamedPart {
  name: string;
  whole: readonly number[];
  boxes: readonly Box[];
}

/** Returns the parts of this rank that are not replicas, in the order of the model. */
function partsOf(module: Module): NamedPart[] {
  return Array.from(module.namedParameters()).flatMap(([name, { region, isReplica }]) =>
    isPart(region) && !isReplica ? [{ name, ...region }] : [],
  );
}

/**
 * Throws DS_ARGUMENT unless the parts of all ranks contain every element of a parameter exactly
 * once.
 */
export function requireComplete(ranks: readonly (readonly NamedPart[])[]): void {
  const all = new Map<string, NamedPart[]>();
  for (const part of ranks.flat()) {
    const parts = all.get(part.name) ?? [];
    all.set(part.name, parts);
    parts.push(part);
  }
  for (const [name, parts] of all) {
    const [{ whole }] = leading(parts, 1);
    const ranges = parts.flatMap(({ boxes }) =>
      boxes.map((box) => ({ box, from: 0, numel: numel(box.shape) })),
    );
    const flaw = findFlaw(whole, ranges);
    if (!flaw) continue;
    const element = `[${flaw.element.join(', ')}]`;
    throw argumentError(
      `initialize, ${name}`,
      `parts of ${ranks.length} ranks on tp that together are [${whole.join(', ')}]`,
      flaw.kind === 'twice' ? `element ${element} on two ranks` : `no part with ${element}`,
      'Divide it with Parameter.partOf() by the rank on tp. Set isReplica on ranks that repeat a part.',
    );
  }
}
