// Whether the ranks of a job were given the same configuration, model and optimizer: compared before they share anything.
import { createHash } from 'node:crypto';
import type { ResolvedConfig } from '../../../types/config.js';
import type { JsonValue } from '../../../types/json.js';
import type { Distributed } from '../../comm/index.js';
import { DsError, type DsErrorCode } from '../../errors.js';
import type { Module } from '../../nn/module.js';
import { hyperparameters } from '../../optim/param-groups.js';
import type { Tensor } from '../../tensor/index.js';
import { StoreWorld } from '../checkpoint/store-world.js';
import type { Decisions } from '../engine-parts.js';

/** What an engine is about to be built from. */
export type Given = Pick<Decisions, 'module' | 'config' | 'optimizer' | 'schedules'>;

/** Each value as text by its place: two ranks agree when these are the same, in whatever order they were written. */
type Description = Record<'model' | 'config' | 'optimizer', Texts>;

type Texts = Record<string, string>;

/** Sections that one rank prints, writes or measures by: what it does there is its own business. */
const OWN: ReadonlySet<string> = new Set<keyof ResolvedConfig>([
  ...(['notices', 'steps_per_print', 'wall_clock_breakdown', 'memory_breakdown'] as const),
  ...(['dump_state', 'log_level', 'timers', 'flops_profiler', 'comms_logger'] as const),
  ...(['tensorboard', 'csv_monitor', 'wandb', 'comet', 'autotuning'] as const),
]);

/** Of each part of a description, in the order of comparison: the error's code, and its place. */
const PARTS: readonly [keyof Description, DsErrorCode, (key: string) => string][] = [
  ['model', 'DS_ARGUMENT', (key) => `initialize, ${key}`],
  ['config', 'DS_CONFIG', (key) => key],
  ['optimizer', 'DS_ARGUMENT', (key) => `initialize, optimizer ${key}`],
];

/** Other places that differ, as many as a hint names. */
const ALSO = 4;

/**
 * Throws, on every rank alike, where a rank was given something else than rank 0: DS_CONFIG with the key of the
 * configuration, DS_ARGUMENT with the parameter or hyperparameter; rank and both values in either. DS_COMM where a rank
 * does not come. Digests are exchanged, and descriptions of two ranks only where digests differ. DeepSpeed does not compare.
 */
export async function requireAgreement(job: Distributed | null, given: Given): Promise<void> {
  if (!job?.store) return;
  const world = worldOf(job);
  const own = describe(given);
  const digest = createHash('sha256').update(sorted(own)).digest('hex');
  await world.inTurn(async (exchange) => {
    const digests = await exchange(digest);
    const other = digests.findIndex((one) => one !== digests[0]);
    if (other < 0) return;
    const isCompared = job.rank === 0 || job.rank === other;
    const said = await exchange(isCompared ? own : null);
    throw difference(said[0] as Description, said[other] as Description, other);
  });
}

/** Engines that are built at the same time agree one after the other, so in the same order on every rank. */
class AgreementWorld {
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly world: StoreWorld) {}

  inTurn<Result>(body: (exchange: Exchange) => Promise<Result>): Promise<Result> {
    const exchange: Exchange = (value) => this.world.exchange('initialize', value);
    const turn = this.last.catch(() => {}).then(() => body(exchange));
    this.last = turn;
    return turn;
  }
}

/** Resolves with every rank's value, by rank. */
type Exchange = (value: JsonValue) => Promise<JsonValue[]>;

const worlds = new WeakMap<Distributed, AgreementWorld>();
/** Ranks join the same jobs in the same order; one store may serve several. */
let jobs = 0;

function worldOf(job: Distributed): AgreementWorld {
  const known = worlds.get(job);
  if (known) return known;
  const { rank, worldSize: size, store, timeout, world } = job;
  const made = new AgreementWorld(
    new StoreWorld(store as NonNullable<typeof store>, {
      ...{ rank, size, timeout, name: `initialize/${jobs++}`, check: () => world.check() },
      hint: 'Every rank must call initialize(), and as often.',
    }),
  );
  worlds.set(job, made);
  return made;
}

/** `value` as JSON, the keys of each object in alphabetical order. */
function sorted(value: unknown): string {
  return JSON.stringify(value, (_, one) =>
    isSection(one) ? Object.fromEntries(Object.entries(one).sort()) : one,
  );
}

function describe({ module, config, optimizer, schedules }: Given): Description {
  const { name, groups } = optimizer;
  // The global batch comes last: it follows from the other two sizes.
  const { train_batch_size, ...rest } = config;
  const sections = Object.entries({ ...rest, train_batch_size });
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
    config: flatten(sections.filter(([key]) => !OWN.has(key))),
    optimizer: { name, schedule: schedules.name, ...Object.fromEntries(settings) },
  };
}

/** Numbered: the order of parameters is that of collectives. */
function describeModel(module: Module, groupOf: ReadonlyMap<Tensor, number>): Texts {
  const parameters = Array.from(module.namedParameters(), ([name, parameter], index) => {
    const group = groupOf.get(parameter);
    const trained = parameter.requiresGrad ? 'wants a gradient' : 'frozen';
    const place = group === undefined ? 'in no group' : `in group ${group}`;
    return [`parameter ${index}`, `${name} ${shapeOf(parameter)}, ${trained}, ${place}`];
  });
  const buffers = Array.from(module.namedBuffers(), ([name, buffer], index) => [
    `buffer ${index}`,
    `${name} ${shapeOf(buffer)}`,
  ]);
  return Object.fromEntries([...parameters, ...buffers]);
}

const shapeOf = ({ shape }: Tensor): string => `[${shape.join(', ')}]`;

/** The leaves of nested sections by dotted path. */
function flatten(entries: readonly [string, unknown][], above = ''): Texts {
  const leaves: Texts = {};
  for (const [key, value] of entries) {
    const path = above + key;
    if (isSection(value)) Object.assign(leaves, flatten(Object.entries(value), `${path}.`));
    else leaves[path] = text(value);
  }
  return leaves;
}

function isSection(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** What JSON would drop keeps its name: a caller's optimizer may have anything in its groups. */
function text(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(text).join(', ')}]`;
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'function') return 'a function';
  return isSection(value) ? sorted(flatten(Object.entries(value))) : String(value);
}

/** The first difference between rank 0 and `rank`. */
function difference(first: Description, other: Description, rank: number): DsError {
  for (const [part, code, place] of PARTS) {
    const [here, there] = [first[part], other[part]];
    const keys = new Set([...Object.keys(here), ...Object.keys(there)]);
    const [key, ...others] = [...keys].filter((one) => here[one] !== there[one]);
    if (key === undefined) continue;
    const also = others.slice(0, ALSO).join(', ') + (others.length > ALSO ? ', ...' : '');
    return new DsError({
      code,
      op: place(key),
      expected: `the same on every rank: ${here[key] ?? 'none'} as on rank 0`,
      got: `${there[key] ?? 'none'} on rank ${rank}`,
      hint: `Give every rank the same ${part}.${also && ` Also different: ${also}.`}`,
    });
  }
  return new DsError({
    code: 'DS_INTERNAL',
    op: 'initialize',
    expected: 'descriptions that differ as their digests do',
    got: `the same on ranks 0 and ${rank}`,
  });
}
