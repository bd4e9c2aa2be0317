// Sums the device time of traced steps by role, for the table of `bench train` and of --profile.

import { required } from '../runtime/required.js';
import type { TraceEvent, TraceFile } from './trace-events.js';

/** Kinds of work on the device in a step, in the order of the table. */
const KINDS = [
  'attention',
  'linears',
  'norms',
  'loss',
  'optimizer',
  'rest',
  'idle',
  'communication',
] as const;
type Role = (typeof KINDS)[number];

/**
 * Roles of ops by the beginnings of their names; the first match counts. "linears" includes the
 * products of experts and of the head, casts to FP8 and parts in bf16. Other ops are "rest":
 * embeddings, activations, residual sums, bias gradients, copies.
 */
const ROLES: readonly (readonly [RegExp, Role])[] = [
  [/^(Attention|Paged|Rope|Rotary|GatedDelta|StateSpace|ShortConv)/, 'attention'],
  [/^(Matmul|Grouped|Gated|Quantized|Invariant|Adapter|Fp8|Nf4|Dequantize|SplitBf16)/, 'linears'],
  [/^(Layer|Rms)Norm/, 'norms'],
  [/^CrossEntropy/, 'loss'],
  [/^(Ada|Lamb|Lion|Muon|Moment|Drift|Frozen|Anchor|OneBit|Rmsprop|Sgd|Sign)/, 'optimizer'],
  [/^(SumOfSquares|GradientControl|JoinMaster|SplitMaster|BytesQuantize)/, 'optimizer'],
];

/** Returns the role of an op; `name` is one of its names in a trace, such as "Matmul". */
export function roleOfOp(name: string): Role {
  return ROLES.find(([pattern]) => pattern.test(name))?.[1] ?? 'rest';
}

/** A row of the table. */
interface RoleTime {
  /** Kind of the work. */
  role: Role;
  /** Milliseconds a step. */
  ms: number;
  /** Share of the step's time, from 0 to 1. */
  share: number;
}

/** Device time of a step by role. */
export interface RoleTimes {
  /** Traced steps. Times are means over them. */
  steps: number;
  /** Milliseconds of a step on the compute stream. */
  stepMs: number;
  /**
   * By role, in the order of KINDS. All rows but "communication" add up to the step: collectives
   * run on streams of their own, and compute that waits for them is "idle".
   */
  roles: RoleTime[];
}

/** Returns a function from an event to the names of its process and of its lane. */
function readLanes(events: readonly TraceEvent[]): (event: TraceEvent) => [string, string] {
  const names = new Map<string, string>();
  for (const { ph, name, pid, tid, args } of events) {
    if (ph !== 'M' || typeof args?.name !== 'string') continue;
    if (name === 'process_name') names.set(`${pid}`, args.name.replace(/^rank \d+, /, ''));
    if (name === 'thread_name') names.set(`${pid} ${tid}`, args.name);
  }
  return ({ pid, tid }) => [names.get(`${pid}`) ?? '', names.get(`${pid} ${tid}`) ?? ''];
}

const isCollective = (process: string, { name, cat }: TraceEvent): boolean =>
  process === 'collectives' ||
  (cat === 'op' && /^(all|reduce|broadcast|send|recv|barrier)/.test(name));

/**
 * Returns the device time of a trace of whole steps by role. Ops of the compute stream count.
 * Copies and updates on other streams do not count. A trace without a step has no roles.
 */
export function sumByRole({ traceEvents }: TraceFile): RoleTimes {
  const laneOf = readLanes(traceEvents);
  const sums = new Map<Role, number>(KINDS.map((role) => [role, 0]));
  const add = (role: Role, ms: number): void => {
    sums.set(role, (sums.get(role) ?? 0) + ms);
  };
  let [steps, total, busy] = [0, 0, 0];
  for (const event of traceEvents) {
    if (event.ph !== 'X') continue;
    const [process, lane] = laneOf(event);
    const ms = event.dur / 1000;
    if (process === 'device' && event.cat === 'step') {
      steps++;
      total += ms;
    } else if (isCollective(process, event)) {
      add('communication', ms);
      if (lane === 'compute') busy += ms;
    } else if (process === 'device' && lane === 'compute') {
      busy += ms;
      add(event.cat === 'op' ? roleOfOp(event.name) : 'rest', ms);
    }
  }
  if (steps === 0) return { steps, stepMs: 0, roles: [] };
  add('idle', Math.max(0, total - busy));
  const roles = KINDS.map((role): RoleTime => {
    const ms = required(sums.get(role));
    return { role, ms: ms / steps, share: ms / total };
  });
  return { steps, stepMs: total / steps, roles };
}

/** Formats a table with a row for each role, without a final line break. */
export function formatRoles({ steps, stepMs, roles }: RoleTimes): string {
  const row = (name: string, ms: number, share: number): string =>
    `${name.padEnd(14)}${ms.toFixed(2).padStart(10)} ms${(100 * share).toFixed(1).padStart(8)} %`;
  return [
    `device time by role, mean of ${steps} step${steps === 1 ? '' : 's'}`,
    ...roles.map(({ role, ms, share }) => row(role, ms, share)),
    row('step', stepMs, steps === 0 ? 0 : 1),
  ].join('\n');
}
