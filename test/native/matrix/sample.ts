// Cases of SampleTokens against plain JavaScript: rows with different rules, ties, bans, and rows
// without a next token.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import { paddedLayout, unaligned } from './layouts.js';
import { type Random, roundTo } from './numbers.js';
import { philox } from './philox.js';

const { exp, expm1, floor, fround, log, log1p, max, min, trunc } = Math;
const OUT = Number.NEGATIVE_INFINITY;
const RECENT = 64;
const FOREVER = 2 ** 31 - 1;

/** The rules in the slot of one row, and special properties of its scores. */
interface Rule {
  temperature?: number;
  topP?: number;
  minP?: number;
  topK?: number;
  /** Repetition, presence and frequency, with counts. */
  penalties?: readonly [number, number, number];
  bias?: boolean;
  /** Half of the tokens, one in 32, or none. */
  mask?: 'half' | 'few' | 'none';
  /** Bans of 1 to 3 tokens; one of them has expired. */
  bans?: boolean;
  scores?: 'few values' | 'all equal' | 'NaN' | 'infinity' | 'nothing' | 'mostly out';
}

const rules: readonly Rule[] = [
  { temperature: 0 },
  { temperature: 0, scores: 'few values' },
  {},
  { temperature: 0.7 },
  { topK: 3 },
  { topK: 5, scores: 'few values' },
  { topK: 1_000_000 },
  { topK: 2000, topP: 0.98 },
  { topP: 0.5 },
  { topP: 0.9, temperature: 1.5 },
  { topP: 0.5, scores: 'all equal' },
  { topP: 0 },
  { topK: 40, topP: 0.8, minP: 0.05, scores: 'few values' },
  { minP: 0.3 },
  { temperature: 0, penalties: [1.3, 0, 0], scores: 'few values' },
  { penalties: [0.8, 0.5, 0.25], topP: 0.95 },
  { temperature: 0, bias: true },
  { bias: true, penalties: [1.5, 1, 1], bans: true, topK: 20 },
  { temperature: 0, bans: true },
  { scores: 'NaN' },
  { temperature: 0, scores: 'infinity' },
  { scores: 'nothing' },
  { scores: 'mostly out', topK: 50, topP: 0.99 },
  { temperature: 1e-30, scores: 'few values' },
  { temperature: 0, mask: 'half' },
  { mask: 'half', bias: true, bans: true, topK: 20 },
  { temperature: 0, mask: 'half', scores: 'NaN' },
  { mask: 'half' },
  { mask: 'few', scores: 'infinity' },
  { mask: 'few', temperature: 0.7 },
  { mask: 'few', temperature: 0, scores: 'few values' },
  { mask: 'half', temperature: 0, scores: 'mostly out' },
  { mask: 'half', minP: 0.3, scores: 'few values' },
  { mask: 'few', topP: 0.5 },
  { mask: 'half', penalties: [1.3, 0.5, 0.25], temperature: 0 },
  { mask: 'few', penalties: [0.8, 0.5, 0.25] },
  { mask: 'none' },
  { mask: 'none', temperature: 0 },
];

function scoresOf(random: Random, kind: Rule['scores'], columns: number): Float64Array {
  const x = random.normal(columns).map((value) => 3 * value);
  if (kind === 'few values') return x.map((value) => floor(value) / 2);
  if (kind === 'all equal') return x.fill(1.25);
  if (kind === 'nothing') return x.fill(OUT);
  if (kind === 'mostly out') return x.map((value, c) => (c % 7 === 0 ? value : OUT));
  if (kind === 'NaN') x[columns >> 1] = Number.NaN;
  if (kind === 'infinity') x[columns - 1] = Number.POSITIVE_INFINITY;
  return x;
}

/** The weight of e^y; the op may differ by an ulp or two. */
const weightOf = (y: number): number => trunc(fround(exp(y)) * 2 ** 38);

const below = (y: number, maximum: number): number => (maximum === OUT ? OUT : y);

/** The rules of a row, as stored in its slot. */
interface Slot {
  settings: ArrayLike<number>;
  numbers: ArrayLike<number>;
  recent: ArrayLike<number>;
  counts: ArrayLike<number> | null;
  bias: ArrayLike<number> | null;
  mask: ArrayLike<number> | null;
  bans: readonly ArrayLike<number>[];
}

function processScores(scores: Float64Array, slot: Slot): Float64Array {
  const { settings, numbers, recent, counts, bias, mask, bans } = slot;
  const [, , , repetition, presence, frequency] = Array.from(settings) as [...number[]];
  const x = scores.map((value, c) => {
    const count = counts ? counts[c]! : 0;
    let score = fround(value + (bias ? bias[c]! : 0));
    if (count > 0) score = fround(score < 0 ? score * repetition! : score / repetition!);
    const sampled = floor(count / 2);
    if (sampled > 0) score = fround(fround(score - fround(frequency! * sampled)) - presence!);
    const isOut = mask && ((mask[c >> 5]! >> (c & 31)) & 1) === 0;
    return isOut && score < Number.POSITIVE_INFINITY ? OUT : score;
  });
  const [position, generated] = [numbers[0]!, numbers[1]!];
  for (const [, until, length, ...tokens] of bans.map((ban) => Array.from(ban))) {
    const before = length! - 1;
    if (generated >= until! || before > position) continue;
    const follows = tokens
      .slice(0, before)
      .every((token, i) => recent[(position - before + i) % RECENT] === token);
    const last = tokens[before]!;
    if (follows && x[last]! < Number.POSITIVE_INFINITY) x[last] = OUT;
  }
  return x;
}

/** Keeps only the candidates that pass top-k, top-p and min-p. */
function filterScores(y: Float64Array, [topK, topP, minP]: readonly [number, number, number]) {
  const columns = Array.from(y.keys());
  if (topK > 0 && topK < y.length) {
    const least = Array.from(y).sort((a, b) => b - a)[topK - 1]!;
    for (const c of columns) if (y[c]! < least) y[c] = OUT;
  }
  if (topP < 1) {
    const ascending = columns.toSorted((a, b) => y[a]! - y[b]! || a - b);
    const total = ascending.reduce((sum, c) => sum + weightOf(y[c]!), 0);
    const dropped = trunc((1 - fround(topP)) * total);
    let sum = 0;
    for (const c of ascending.slice(0, -1)) {
      sum += weightOf(y[c]!);
      if (sum <= dropped) y[c] = OUT;
    }
  }
  for (const c of columns) if (exp(y[c]!) < fround(minP)) y[c] = OUT;
}

function choose(scores: Float64Array, slot: Slot): number {
  const x = processScores(scores, slot);
  if (x.some((value) => !(value < Number.POSITIVE_INFINITY))) return -1;
  const maximum = x.reduce((a, b) => max(a, b));
  if (maximum === OUT) return -2;
  const temperature = fround(slot.settings[0]!);
  if (temperature === 0) return x.indexOf(maximum);
  const y = x.map((value) => below(fround(fround(value - maximum) / temperature), value));
  const [position, , topK, low, high] = Array.from(slot.numbers) as [...number[]];
  filterScores(y, [topK!, slot.settings[1]!, slot.settings[2]!]);
  // A seed has two words; the harness's philox uses the lower one.
  if (high !== 0) throw new Error('seeds of one word');
  const keys = y.map((value, c) => {
    if (value === OUT) return OUT;
    const word = philox(low!, position!, floor(c / 4))[c % 4]!;
    return value - log(-log1p(-(word + 0.5) * 2 ** -32));
  });
  return keys.indexOf(keys.reduce((a, b) => max(a, b)));
}

/** The token's own log-probability, and the log-sum-exp of all. */
function logprobsOf(scores: Float64Array, token: number): [number, number] {
  if (token < 0) return [Number.NaN, Number.NaN];
  const maximum = scores.reduce((a, b) => max(a, b));
  const rest = scores.reduce((sum, x) => sum + exp(x - maximum), 0);
  const sum = maximum + log1p(expm1(log(rest)));
  return [scores[token]! - sum, sum];
}

/** A prime, so that slotOf() gives each slot once. */
const SLOTS = 43;
/** A row and its slot have different indices. */
const slotOf = (row: number): number => (row * 5 + 3) % SLOTS;
const chooseRows = (pick: (rule: Rule) => unknown): number[] =>
  rules.flatMap((rule, row) => (pick(rule) ? [row] : []));
const [withCounts, withBias] = [
  chooseRows((rule) => rule.penalties),
  chooseRows((rule) => rule.bias),
];
const withMask = chooseRows((rule) => rule.mask);
/** Columns of the numbers of a slot. */
const NUMBERS = 8;

/** Words of a mask. */
function maskOf(random: Random, kind: Rule['mask'], words: number): Float64Array {
  if (kind === 'none') return new Float64Array(words);
  if (kind === 'few') return random.integers(words, 0, 32).map((bit) => (1 << bit) | 0);
  return random.integers(words, -(2 ** 31), 2 ** 31);
}

/** The tables of all slots. Unused slots hold values that would change the result. */
function tables(random: Random, columns: number) {
  const settings = new Float64Array(SLOTS * 6).fill(Number.NaN);
  const numbers = new Float64Array(SLOTS * NUMBERS).fill(-7);
  const recent = random.integers(SLOTS * RECENT, 0, columns);
  const bans: number[][] = [[-1, FOREVER, 1, 0, 0, 0]];
  rules.forEach((rule, row) => {
    const slot = slotOf(row);
    const [repetition, presence, frequency] = rule.penalties ?? [1, 0, 0];
    const { temperature = 1, topP = 1, minP = 0, topK = 0 } = rule;
    settings.set([temperature, topP, minP, repetition, presence, frequency], slot * 6);
    const position = random.integer(3, 200);
    const [countsRow, biasRow] = [withCounts.indexOf(row), withBias.indexOf(row)];
    const seed = random.integer(0, 2 ** 31);
    const rows = [countsRow, biasRow, withMask.indexOf(row)];
    numbers.set([position, min(position, 9), topK, seed, 0, ...rows], slot * NUMBERS);
    if (!rule.bans) return;
    const last = (back: number) => recent[slot * RECENT + ((position - back) % RECENT)]!;
    const any = () => random.integer(0, columns);
    bans.push(
      [slot, FOREVER, 1, any(), 0, 0],
      [slot, FOREVER, 2, last(1), any(), 0],
      [slot, FOREVER, 3, last(2), last(1), any()],
      [slot, FOREVER, 3, (last(2) + 1) % columns, last(1), any()],
      [slot, 4, 1, any(), 0, 0],
      [slot, 100, 1, any(), 0, 0],
    );
  });
  return { settings, numbers, recent, bans };
}

function sample(dtype: DType, columns: number, asked: 'logprobs' | 'tokens'): MatrixCase {
  const shape = [rules.length, columns];
  return opCase({
    op: 'SampleTokens',
    dtype,
    title: `[${shape}] ${asked}`,
    build: (random) => {
      const values = rules.flatMap(({ scores }) => Array.from(scoresOf(random, scores, columns)));
      const { settings, numbers, recent, bans } = tables(random, columns);
      const counts = random.integers(withCounts.length * columns, -6, 6).map((n) => max(n, 0));
      const bias = random.normal(withBias.length * columns).map((x, i) => (i % 5 === 1 ? OUT : x));
      const words = Math.ceil(columns / 32);
      const masks = withMask.flatMap((row) => Array.from(maskOf(random, rules[row]?.mask, words)));
      const layout = paddedLayout(shape, 3, columns % 2 === 0 ? 16 : 5);
      return {
        operands: {
          scores: input(
            dtype,
            shape,
            values.map((x) => roundTo(x, dtype)),
            layout,
          ),
          slots: input(
            'i32',
            [rules.length],
            rules.map((_, row) => slotOf(row)),
            unaligned,
          ),
          tokens: output('i32', [rules.length], exact, unaligned),
          logprobs:
            asked === 'logprobs'
              ? output('f32', [rules.length, 2], closeSameBits('f32', 1, 'tensor'))
              : null,
          settings: input('f32', [SLOTS, 6], settings),
          numbers: inPlaceOperand(input('i32', [SLOTS, NUMBERS], numbers), exact),
          recent: inPlaceOperand(input('i32', [SLOTS, RECENT], recent), exact),
          counts: inPlaceOperand(input('i32', [withCounts.length, columns], counts), exact),
          bias: input('f32', [withBias.length, columns], bias),
          masks: input('i32', [withMask.length, words], masks),
          bans: input('i32', [bans.length, 6], bans.flat()),
        },
        reference: (v) => {
          const after = { numbers: v.numbers!, recent: v.recent!, counts: v.counts! };
          const out = { tokens: [] as number[], logprobs: [] as number[] };
          rules.forEach((_, row) => {
            const at = slotOf(row);
            const rowOf = (table: Float64Array, index: number, width = columns) =>
              index < 0 ? null : table.subarray(index * width, (index + 1) * width);
            const settings = {
              settings: v.settings!.subarray(at * 6, at * 6 + 6),
              numbers: after.numbers.subarray(at * NUMBERS, (at + 1) * NUMBERS),
              recent: after.recent.subarray(at * RECENT, (at + 1) * RECENT),
              bans: bans.filter(([slot]) => slot === at),
            };
            const [position = 0, , , , , countsRow = -1, biasRow = -1, maskRow = -1] =
              settings.numbers;
            const counted = rowOf(after.counts, countsRow);
            const scores = v.scores!.subarray(row * columns, (row + 1) * columns);
            const mask = rowOf(v.masks!, maskRow, words);
            const slot = { ...settings, counts: counted, bias: rowOf(v.bias!, biasRow), mask };
            const token = choose(scores, slot);
            out.tokens.push(token);
            out.logprobs.push(...logprobsOf(scores, token));
            if (token < 0) return;
            settings.recent[position % RECENT] = token;
            settings.numbers[0]! += 1;
            settings.numbers[1]! += 1;
            if (counted) counted[token]! += 2;
          });
          return { ...after, ...out };
        },
      };
    },
  });
}

/**
 * No rows, and slots without optional tables. Few rows of many columns have equal scores in the
 * parts that several blocks read.
 */
function plain(rows: number, columns = 5): MatrixCase {
  const scores = (random: Random): Float64Array =>
    columns > 5 ? random.integers(rows * columns, -9, 10) : random.normal(rows * columns);
  return opCase({
    op: 'SampleTokens',
    dtype: 'f32',
    title: `${rows} greedy rows of ${columns} without tables`,
    build: (random) => ({
      operands: {
        scores: input('f32', [rows, columns], scores(random)),
        slots: input(
          'i32',
          [rows],
          Array.from({ length: rows }, (_, r) => r),
        ),
        tokens: output('i32', [rows], exact),
        logprobs: null,
        settings: input('f32', [rows, 6], new Array(rows).fill([0, 1, 0, 1, 0, 0]).flat()),
        numbers: inPlaceOperand(
          input('i32', [rows, NUMBERS], new Float64Array(rows * NUMBERS)),
          exact,
        ),
        recent: inPlaceOperand(
          input('i32', [rows, RECENT], new Float64Array(rows * RECENT)),
          exact,
        ),
        counts: null,
        bias: null,
        masks: null,
        bans: null,
      },
      reference: (v) => {
        const tokens = Array.from({ length: rows }, (_, r) => {
          const row = v.scores!.subarray(r * columns, (r + 1) * columns);
          return row.indexOf(row.reduce((a, b) => max(a, b)));
        });
        return {
          tokens,
          numbers: v.numbers!.map((_, i) => (i % NUMBERS < 2 ? 1 : 0)),
          recent: v.recent!.map((_, i) => (i % RECENT === 0 ? tokens[i / RECENT]! : 0)),
        };
      },
    }),
  });
}

export const cases: MatrixCase[] = [
  ...(['f32', 'f16', 'bf16'] as const).flatMap((dtype) =>
    [1, 3, 33, 258, 5003].flatMap((columns) => [
      sample(dtype, columns, 'logprobs'),
      sample(dtype, columns, 'tokens'),
    ]),
  ),
  ...[0, 1, 40].map((rows) => plain(rows)),
  ...[1, 3].map((rows) => plain(rows, 50_003)),
];
