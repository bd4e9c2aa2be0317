// Cases of sign packing: both kinds of levels, segments of every length, gaps, bytes shared by
// segments, skipped steps; averages over ranks.
import { type Levels, levelsOf } from '../../support/sign-exchange.js';
import {
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import { aligned, unaligned } from './layouts.js';

const { ceil, fround } = Math;

interface Segments {
  /** Elements of each segment. */
  sizes: readonly number[];
  /** Unused elements after each segment. */
  gap: number;
}

interface Compression extends Segments {
  kind: Levels;
  apply?: boolean;
  /** Values below the normal range, which are flushed to zero. */
  tiny?: boolean;
  /** Whether values include zeros. */
  zeros?: boolean;
}

function startsOf({ sizes, gap }: Segments): number[] {
  const starts = [0];
  for (const size of sizes) starts.push(starts.at(-1)! + size + gap);
  return starts;
}

const describe = ({ sizes, gap }: Segments): string => {
  const many = sizes.length > 8 ? `${sizes.length} segments` : `[${sizes}]`;
  return `${many} + ${gap}`;
};

/** Calls body(element, segment) for each element of a segment. */
function eachElement(of: Segments, body: (i: number, segment: number) => void): void {
  const starts = startsOf(of);
  of.sizes.forEach((size, k) => {
    for (let i = starts[k]!; i < starts[k]! + size; ++i) body(i, k);
  });
}

const bit = (bytes: ArrayLike<number>, i: number): number => (bytes[i >> 3]! >> (7 - (i % 8))) & 1;

function compress(compression: Compression): MatrixCase {
  const { kind, apply = true, tiny = false, zeros = false, sizes, gap } = compression;
  const starts = startsOf(compression);
  const n = starts.at(-1)!;
  const flags = [apply ? '' : 'skipped', tiny ? 'tiny' : '', zeros ? 'zeros' : ''].filter(Boolean);
  return opCase({
    op: 'SignCompress',
    dtype: 'f32',
    title: `${kind} ${describe(compression)} ${flags}`,
    build(random) {
      const layout = gap % 2 ? unaligned : aligned;
      const scaleValue = (x: number): number => (zeros && x > 0.3 ? 0 : x * (tiny ? 1e-41 : 1));
      const errors = random.normal(n).map((x) => x * (tiny ? 1e-41 : 0.3));
      return {
        operands: {
          value: input('f32', [n], random.normal(n).map(scaleValue), layout),
          error: inPlaceOperand(
            input('f32', [n], errors, layout),
            apply ? closeSameBits('f32', 1, 'tensor') : exact,
          ),
          starts: input('i64', [starts.length], starts),
          counts: input('i64', [sizes.length], sizes),
          bits: output('u8', [ceil(n / 8)], exact, layout),
          levels: output(
            'f32',
            [sizes.length, 2],
            apply ? closeSameBits('f32', 1, 'element') : exact,
          ),
          control: input('f32', [4], [0.5, apply ? 1 : 0, 1, 1]),
        },
        args: { kind },
        reference({ value, error: old }) {
          const bits = new Float64Array(ceil(n / 8));
          const levels = new Float64Array(2 * sizes.length);
          const error = old!.slice();
          if (!apply) return { bits, levels, error };
          const x = value!.map((v, i) => {
            const sum = fround(flush(v) + flush(old![i]!));
            return flush(sum);
          });
          const found = sizes.map((size, k) => {
            return levelsOf([...x.subarray(starts[k]!, starts[k]! + size)], kind);
          });
          levels.set(found.flat());
          eachElement(compression, (i, k) => {
            const isHigh = !(x[i]! < 0);
            if (isHigh) bits[i >> 3]! += 1 << (7 - (i % 8));
            error[i] = flush(fround(x[i]! - found[k]![isHigh ? 1 : 0]));
          });
          return { bits, levels, error };
        },
      };
    },
  });
}

const flush = (x: number): number => (Math.abs(x) < 2 ** -126 ? 0 : x);

function average(ranks: number, of: Segments, apart: number): MatrixCase {
  const starts = startsOf(of);
  const n = starts.at(-1)!;
  const bytes = ceil(n / 8);
  const width = 2 * of.sizes.length;
  return opCase({
    op: 'SignAverage',
    dtype: 'f32',
    title: `${ranks} ranks ${describe(of)}, rows ${apart} apart`,
    build(random) {
      const rows = (size: number) => ({ strides: [size + apart, 1] });
      return {
        operands: {
          bits: input(
            'u8',
            [ranks, bytes],
            random.uniform(ranks * bytes, 0, 256).map(Math.floor),
            rows(bytes),
          ),
          levels: input('f32', [ranks, width], random.normal(ranks * width), rows(width)),
          starts: input('i64', [starts.length], starts),
          counts: input('i64', [of.sizes.length], of.sizes),
          out: output('f32', [n], exact, of.gap % 2 ? unaligned : aligned),
        },
        reference({ bits, levels }) {
          const out = new Float64Array(n);
          eachElement(of, (i, k) => {
            let sum = 0;
            for (let rank = 0; rank < ranks; ++rank) {
              const localValues = bits!.subarray(rank * bytes, (rank + 1) * bytes);
              sum = fround(sum + levels![rank * width + 2 * k + bit(localValues, i)]!);
            }
            out[i] = ranks === 1 ? sum : fround(sum * fround(1 / ranks));
          });
          return { out };
        },
      };
    },
  });
}

const several: readonly Segments[] = [
  { sizes: [], gap: 0 },
  { sizes: [0], gap: 0 },
  { sizes: [1], gap: 0 },
  { sizes: [7], gap: 64 },
  { sizes: [0, 0, 5], gap: 3 },
  { sizes: [257, 4096, 5, 4097], gap: 3 },
  { sizes: [40_009, 1, 0, 8192, 129], gap: 0 },
  { sizes: Array.from({ length: 3000 }, (_, i) => (i % 3 === 0 ? 1 : 5)), gap: 0 },
  { sizes: [4096 * 257 + 5, 33], gap: 64 },
];

export const cases: MatrixCase[] = [
  ...several.flatMap((of) => [
    compress({ ...of, kind: 'rms' }),
    compress({ ...of, kind: 'means' }),
  ]),
  ...(['rms', 'means'] as const).flatMap((kind) => [
    compress({ sizes: [300, 5], gap: 3, kind, apply: false }),
    compress({ sizes: [300, 5], gap: 3, kind, tiny: true }),
    compress({ sizes: [300, 5], gap: 3, kind, zeros: true }),
  ]),
  ...several.flatMap((of) => [average(1, of, 0), average(3, of, 5)]),
  average(8, several[5]!, 0),
];
