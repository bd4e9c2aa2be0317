// Whether the ranks of a job were given the same configuration, model and optimizer: compared
// before they share anything.
import { createHash } from 'node:crypto';
import type { ResolvedConfig } from '../../../types/config.js';
import type { Axis, Distributed, MeshShape } from '../../comm/index.js';
import { DsError, type DsErrorCode } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { hyperparameters } from '../../optim/param-groups.js';
import { isPart } from '../../runtime/box.js';
import { isObject } from '../../runtime/is-object.js';
import { getRandomState, type Tensor } from '../../tensor/index.js';
import type { Decisions } from '../engine-parts.js';
import { DATA, MODEL } from '../ranks.js';
import { isCutOver, partsOf, requireComplete } from './cut-layers.js';
import { type Exchange, setupWorldOf } from './setup-world.js';

/** What an engine is about to be built from. */
export type Given = Pick<Decisions, 'module' | 'config' | 'optimizer' | 'schedules'>;

/** What ranks compare. */
type Part = 'model' | 'parts' | 'config' | 'optimizer' | 'generator';

/**
 * Each value as text by its place: two ranks agree when these are the same, in whatever order they
 * were written.
 */
type Description = Record<Part, Texts>;

type Texts = Record<string, string>;

/** Sections that one rank prints, writes or measures by: what it does there is its own business. */
const OWN: ReadonlySet<string> = new Set<keyof ResolvedConfig>([
  ...(['notices', 'steps_per_print', 'wall_clock_breakdown', 'memory_breakdown'] as const),
  ...(['dump_state', 'log_level', 'timers', 'flops_profiler', 'comms_logger'] as const),
  ...(['tensorboard', 'csv_monitor', 'wandb', 'comet', 'autotuning'] as const),
]);

interface Rule {
  part: Part;
  /** Ranks that differ on these axes alone agree. */
  axes: readonly Axis[];
  code: DsErrorCode;
  place: (key: string) => string;
  /** Of an error: where it is to be the same, and what to do. */
  among: string;
  hint: string;
}

const everyone = (part: Part) => ({
  ...{ part, axes: [...DATA, ...MODEL], among: 'on every rank' },
  hint: `Give every rank the same ${part}.`,
});

/** In the order of comparison. */
const RULES: readonly Rule[] = [
  { ...everyone('model'), code: 'DS_ARGUMENT', place: (key) => `initialize, ${key}` },
  {
    ...{ part: 'parts', axes: ['pp', 'dp', 'sp'], code: 'DS_ARGUMENT' },
    place: (key) => `initialize, ${key}`,
    among: 'on ranks with the same place on tp',
    hint: 'Cut layers by the place on tp alone.',
  },
  { ...everyone('config'), code: 'DS_CONFIG', place: (key) => key },
  { ...everyone('optimizer'), code: 'DS_ARGUMENT', place: (key) => `initialize, optimizer ${key}` },
  {
    ...{ part: 'generator', axes: MODEL, code: 'DS_ARGUMENT' },
    place: (key) => `initialize, random ${key}`,
    among: `on ranks that differ on ${MODEL.join(', ')} alone`,
    hint: 'Call seed() with the same number there, or set "seed" in the configuration.',
  },
];

/** Other places that differ, as many as a hint names. */
const ALSO = 4;

/**
 * Throws, on every rank alike, where a rank was given something else than the first one that must
 * have the same: DS_CONFIG with the key of the configuration, DS_ARGUMENT with the parameter or
 * hyperparameter; ranks and both values in either. DS_COMM where a rank does not come. Digests are
 * exchanged, and descriptions of two ranks only where digests differ; keys of the configuration
 * that are left to the plan are "auto". DeepSpeed does not compare.
 */
export async function requireAgreement(
  job: Distributed,
  given: Given,
  planned: ReadonlySet<string> = new Set(),
): Promise<void> {
  if (job.worldSize === 1) return;
  const own = describe(given);
  for (const key of planned) own.config[key] = text('auto');
  await setupWorldOf(job).inTurn(async (exchange) => {
    await compare(job, RULES, own, exchange);
    if (!isCutOver(job, given.module)) return;
    const { mesh } = job;
    const parts = mesh.place('pp', 'dp', 'sp') === 0 ? partsOf(given.module) : [];
    requireComplete(await exchange(parts));
  });
}

/** The same of the configuration alone, before the model is touched. */
export async function requireSameConfig(job: Distributed, config: ResolvedConfig): Promise<void> {
  if (job.worldSize === 1) return;
  const rules = RULES.filter(({ part }) => part === 'config');
  const own = { config: describeConfig(config) };
  await setupWorldOf(job).inTurn((exchange) => compare(job, rules, own, exchange));
}

async function compare(
  { mesh, rank }: Distributed,
  rules: readonly Rule[],
  own: Partial<Description>,
  exchange: Exchange,
): Promise<void> {
  const all = await exchange(rules.map(({ part }) => digestOf(own[part] ?? {})));
  for (const [index, rule] of rules.entries()) {
    const digests = all.map((one) => one[index] as string);
    const pair = firstDifference(mesh.shape, digests, rule.axes);
    if (!pair) continue;
    const said = await exchange(pair.includes(rank) ? (own[rule.part] ?? null) : null);
    const [first, other] = pair;
    throw difference(rule, [first, said[first] as Texts], [other, said[other] as Texts]);
  }
}

/**
 * The first rank that differs from the first of those with which it must agree, and that one; null
 * where all agree.
 */
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

const digestOf = (texts: Texts): string => createHash('sha256').update(sorted(texts)).digest('hex');

/** `value` as JSON, the keys of each object in alphabetical order. */
function sorted(value: unknown): string {
  return JSON.stringify(value, (_, one) =>
    isObject(one) ? Object.fromEntries(Object.entries(one).sort()) : one,
  );
}

function describe({ module, config, optimizer, schedules }: Given): Description {
  const { name, groups } = optimizer;
  const settings = groups.flatMap((group, index) =>
    Object.entries(hyperparameters(group)).map(([key, value]) => [
      `group ${index} ${key}`,
      text(value),
    ]),
  );
  const groupOf = new Map<Tensor, number>();
  for (const [index, { params }] of groups.entries()) {
    for (const parameter of params) groupOf.set(parameter, index);
  }
  return {
    model: describeModel(module, groupOf),
    parts: describeParts(module),
    generator: flatten(Object.entries(getRandomState())),
    config: describeConfig(config),
    optimizer: { name, schedule: schedules.name, ...Object.fromEntries(settings) },
  };
}

/** The global batch comes last: it follows from the other two sizes. */
function describeConfig({ train_batch_size, ...rest }: ResolvedConfig): Texts {
  const sections = Object.entries({ ...rest, train_batch_size });
  return flatten(sections.filter(([key]) => !OWN.has(key)));
}

/** Numbered: the order of parameters is that of collectives. */
function describeModel(module: Module, groupOf: ReadonlyMap<Tensor, number>): Texts {
  const parameters = Array.from(module.namedParameters(), ([name, parameter], index) => {
    const group = groupOf.get(parameter);
    const trained = parameter.requiresGrad ? 'wants a gradient' : 'frozen';
    const place = group === undefined ? 'in no group' : `in group ${group}`;
    const start = parameter.stored ? `, from ${parameter.stored.origin}` : '';
    const { whole } = parameter.region;
    const cut = isPart(parameter.region) ? ', of which each has a part' : '';
    const outline = `${name} [${whole.join(', ')}]${cut}`;
    return [`parameter ${index}`, `${outline}, ${trained}, ${place}${start}`];
  });
  const buffers = Array.from(module.namedBuffers(), ([name, buffer], index) => [
    `buffer ${index}`,
    `${name} ${shapeOf(buffer)}`,
  ]);
  return Object.fromEntries([...parameters, ...buffers]);
}

/** By the number of the parameter in the model, as whole ones are. */
function describeParts(module: Module): Texts {
  const texts = Array.from(module.namedParameters(), ([name, { region, isReplica }], index) => {
    const boxes = region.boxes.map((box) => `${shapeOf(box)} at [${box.offset.join(', ')}]`);
    const who = isReplica ? ', which another rank answers for' : '';
    const text = `${name} ${boxes.join(' and ')}${who}`;
    return isPart(region) ? [[`parameter ${index}`, text]] : [];
  });
  return Object.fromEntries(texts.flat());
}

const shapeOf = ({ shape }: { shape: readonly number[] }): string => `[${shape.join(', ')}]`;

/** The leaves of nested sections by dotted path. */
function flatten(entries: readonly [string, unknown][], above = ''): Texts {
  const leaves: Texts = {};
  for (const [key, value] of entries) {
    const path = above + key;
    if (isObject(value)) Object.assign(leaves, flatten(Object.entries(value), `${path}.`));
    else leaves[path] = text(value);
  }
  return leaves;
}

/** What JSON would drop keeps its name: a caller's optimizer may have anything in its groups. */
function text(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(text).join(', ')}]`;
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'function') return 'a function';
  return isObject(value) ? sorted(flatten(Object.entries(value))) : String(value);
}

/** The first place where two ranks differ in what a rule is about. */
function difference(
  { part, code, place, among, hint }: Rule,
  [first, here]: [rank: number, Texts],
  [other, there]: [rank: number, Texts],
): DsError {
  const keys = new Set([...Object.keys(here), ...Object.keys(there)]);
  const [key = part, ...others] = [...keys].filter((one) => here[one] !== there[one]);
  const also = others.slice(0, ALSO).join(', ') + (others.length > ALSO ? ', ...' : '');
  return new DsError({
    code,
    op: place(key),
    expected: `the same ${among}: ${here[key] ?? 'none'} as on rank ${first}`,
    got: `${there[key] ?? 'none'} on rank ${other}`,
    hint: hint + (also && ` Also different: ${also}.`),
  });
}
