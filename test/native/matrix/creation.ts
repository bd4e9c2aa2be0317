// Fill, Arange, RandomUniform, RandomNormal and Dropout against a Philox written in plain integers.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import { type ElementPart, inOrder } from '../../../lib/tensor/index.js';
import {
  close,
  closeSameBits,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  sameAs,
} from './harness.js';
import {
  aligned,
  everyDType,
  floating,
  numeric,
  oddSizes,
  paddedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';
import { philox } from './philox.js';

const { cos, log, sin, sqrt } = Math;

/** The first n numbers of the stream in [0, 1). */
function unitFloats(n: number, seed: number, offset: number): number[] {
  const words: number[] = [];
  for (let block = 0; words.length < n; ++block) words.push(...philox(seed, offset, block));
  return words.slice(0, n).map((word) => (word >>> 8) * 2 ** -24);
}

/** Box-Muller over pairs of the stream. */
function normals(n: number, seed: number, offset: number): number[] {
  const u = unitFloats(n + (n % 2), seed, offset);
  const out: number[] = [];
  for (let i = 0; i < u.length; i += 2) {
    const radius = sqrt(-2 * log(1 - u[i]!));
    out.push(radius * cos(2 * Math.PI * u[i + 1]!), radius * sin(2 * Math.PI * u[i + 1]!));
  }
  return out.slice(0, n);
}

const shapes: readonly (readonly number[])[] = [
  [],
  [0],
  [1],
  [3, 0, 2],
  [17],
  [1029],
  [3, 5, 7],
  [2, 3, 2, 3, 2, 3],
];

function fills(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  const one = (dtype: DType, shape: readonly number[], value: number, title: string, layout = {}) =>
    cases.push(
      opCase({
        op: 'Fill',
        dtype,
        title: `[${shape}] ${value} ${title}`,
        build: () => ({
          operands: { out: output(dtype, shape, exact, layout) },
          args: { value },
          reference: () => ({ out: new Float64Array(numel(shape)).fill(value) }),
        }),
      }),
    );
  for (const dtype of everyDType) {
    for (const shape of shapes) one(dtype, shape, 3, 'contiguous', unaligned);
    one(dtype, [129, 33], 7, 'padded', paddedLayout([129, 33]));
    one(dtype, [17, 33], 0, 'column-major', reversedLayout([17, 33]));
    one(dtype, [5, 3, 7], 1, 'every second', sparse([5, 3, 7]));
  }
  for (const dtype of floating) {
    for (const value of [1 / 3, -0, Number.NaN, Number.POSITIVE_INFINITY, 65519, 65520, 2 ** -25]) {
      one(dtype, [35], value, 'value');
    }
  }
  return cases;
}

function aranges(): MatrixCase[] {
  return numeric.flatMap((dtype) =>
    oddSizes.flatMap((n) =>
      [
        [0, 1],
        [floating.includes(dtype) ? 0.3 : 2, floating.includes(dtype) ? 0.1 : 3],
      ].map(([start, step]) =>
        opCase({
          op: 'Arange',
          dtype,
          title: `[${n}] from ${start} by ${step}`,
          build: () => ({
            operands: { out: output(dtype, [n], exact, n % 2 ? unaligned : aligned) },
            args: { start, step },
            reference: () => ({
              out: Array.from({ length: n }, (_, i) => start! + i * step!),
            }),
          }),
        }),
      ),
    ),
  );
}

function randoms(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of floating) {
    for (const n of oddSizes) {
      for (const [seed, offset, low, high] of [
        [0, 0, 0, 1],
        [2 ** 40 + 12345, 2 ** 33 + 7, -0.25, 1.75],
      ] as const) {
        const layout = n % 2 ? unaligned : aligned;
        const title = `[${n}] seed ${seed} offset ${offset}`;
        const check = closeSameBits(dtype, 1, 'tensor');
        cases.push(
          opCase({
            op: 'RandomUniform',
            dtype,
            title,
            build: () => ({
              operands: {
                out: output(
                  dtype,
                  [n],
                  dtype === 'f64' ? close('f32', 1, 'tensor') : check,
                  layout,
                ),
              },
              args: { low, high, seed, offset, ...inOrder },
              reference: () => ({
                out: unitFloats(n, seed, offset).map((u) => low + u * (high - low)),
              }),
            }),
          }),
          opCase({
            op: 'RandomNormal',
            dtype,
            title,
            build: () => ({
              operands: {
                out: output(
                  dtype,
                  [n],
                  dtype === 'f64' ? close('f32', 1, 'tensor') : check,
                  layout,
                ),
              },
              args: { mean: low, stddev: high, seed, offset, ...inOrder },
              reference: () => ({ out: normals(n, seed, offset).map((z) => low + z * high) }),
            }),
          }),
        );
      }
    }
  }
  return cases;
}

/**
 * Parts of a larger tensor: aligned to blocks of four or not, rows shorter than a block, one row.
 */
const parts: readonly (ElementPart & { n: number })[] = [
  { n: 40_000, first: 8, row: 400, stride: 1200 },
  { n: 1000, first: 7, row: 10, stride: 33 },
  { n: 21, first: 3, row: 3, stride: 3 },
  { n: 12, first: 2, row: 1, stride: 5 },
  { n: 1025, first: 4, row: 1024, stride: 1024 },
  { n: 9, first: 13, row: 0, stride: 0 },
];
const placeOf = ({ first, row, stride }: ElementPart, i: number): number =>
  row === 0 ? first + i : first + Math.floor(i / row) * stride + (i % row);
const titleOf = ({ n, first, row, stride }: (typeof parts)[number]): string =>
  `[${n}] from ${first}, ${row} of ${stride}`;

function randomParts(): MatrixCase[] {
  const [seed, offset] = [2 ** 40 + 12345, 9];
  return floating.flatMap((dtype) =>
    parts.flatMap(({ n, ...part }) => {
      const check = dtype === 'f64' ? close('f32', 1, 'tensor') : closeSameBits(dtype, 1, 'tensor');
      const out = () => ({ out: output(dtype, [n], check, n % 2 ? unaligned : aligned) });
      const pick = (all: (n: number, seed: number, offset: number) => number[]): number[] => {
        const values = all(placeOf(part, n - 1) + 1, seed, offset);
        return Array.from({ length: n }, (_, i) => values[placeOf(part, i)]!);
      };
      const title = titleOf({ n, ...part });
      return [
        opCase({
          op: 'RandomUniform',
          dtype,
          title,
          build: () => ({
            operands: out(),
            args: { low: -1, high: 2, seed, offset, ...part },
            reference: () => ({ out: pick(unitFloats).map((u) => 3 * u - 1) }),
          }),
        }),
        opCase({
          op: 'RandomNormal',
          dtype,
          title,
          build: () => ({
            operands: out(),
            args: { mean: 0.5, stddev: 2, seed, offset, ...part },
            reference: () => ({ out: pick(normals).map((z) => 0.5 + 2 * z) }),
          }),
        }),
      ];
    }),
  );
}

/** Parts of all ranks' samples, with the random numbers of whole samples. */
function dropoutParts(): MatrixCase[] {
  const p = 0.3;
  return floating.flatMap((dtype) =>
    parts.flatMap(({ n, ...part }) =>
      [1, 3].map((ranks) =>
        opCase({
          op: 'Dropout',
          dtype,
          title: `${titleOf({ n, ...part })}, on ${ranks} ranks`,
          build: (random) => {
            const sample = 2 * (part.stride || 20);
            const rank = ranks - 1;
            const check = closeSameBits(dtype, 1, 'tensor');
            return {
              operands: {
                in: input(dtype, [n], random.normal(n), aligned),
                out: output(dtype, [n], check, aligned),
              },
              args: { p, seed: 77, offset: 5, sample, rank, ranks, ...part, accumulate: false },
              reference: (values) => {
                const last = placeOf(part, n - 1);
                const all = unitFloats((last + sample + 1) * ranks, 77, 5);
                const out = Array.from({ length: n }, (_, i) => {
                  const localValue = placeOf(part, i);
                  const place =
                    (Math.floor(localValue / sample) * ranks + rank) * sample +
                    (localValue % sample);
                  return all[place]! >= Math.fround(p) ? values.in![i]! / (1 - p) : 0;
                });
                return { out };
              },
            };
          },
        }),
      ),
    ),
  );
}

function dropouts(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  for (const dtype of floating) {
    for (const n of [...oddSizes, 40_009]) {
      for (const mode of ['overwrites', 'accumulates', 'in place'] as const) {
        const p = mode === 'in place' ? 0 : 0.3;
        cases.push(
          opCase({
            op: 'Dropout',
            dtype,
            title: `[${n}] p ${p} ${mode}`,
            build: (random) => {
              const layout = n % 2 ? unaligned : aligned;
              const x = input(dtype, [n], random.normal(n), layout);
              const old = input(dtype, [n], random.normal(n), layout);
              // f64 uses the f32 mask but divides in f64.
              const check = closeSameBits(dtype, 1, 'tensor');
              const operands =
                mode === 'overwrites'
                  ? { in: x, out: output(dtype, [n], check, layout) }
                  : mode === 'accumulates'
                    ? { in: x, out: inPlaceOperand(old, check) }
                    : { in: inPlaceOperand(x, check), out: sameAs(x, 'in') };
              return {
                operands,
                args: {
                  p,
                  seed: 77,
                  offset: 5,
                  sample: n || 1,
                  rank: 0,
                  ranks: 1,
                  ...inOrder,
                  accumulate: mode === 'accumulates',
                },
                reference: (values) => {
                  const u = unitFloats(n, 77, 5);
                  const result = u.map((unit, i) => {
                    const kept = unit >= Math.fround(p) ? values.in![i]! / (1 - p) : 0;
                    return mode === 'accumulates' ? values.out![i]! + kept : kept;
                  });
                  return { [mode === 'in place' ? 'in' : 'out']: result };
                },
              };
            },
          }),
        );
      }
    }
  }
  return cases;
}

/**
 * A rank draws the same numbers for its samples as one rank with all samples. If `sample` is no
 * multiple of 4, samples split blocks.
 */
function sharedDropouts(): MatrixCase[] {
  const p = 0.3;
  const shapes = [1, 3, 4, 6, 8, 100, 1024].flatMap((sample) =>
    [1, 5].map((samples) => ({ sample, samples })),
  );
  return floating.flatMap((dtype) =>
    shapes.flatMap(({ sample, samples }) =>
      [0, 2].map((rank) =>
        opCase({
          op: 'Dropout',
          dtype,
          title: `${samples} samples of ${sample} on rank ${rank} of 3`,
          build: (random) => {
            const n = sample * samples;
            const x = input(dtype, [n], random.normal(n), aligned);
            const share = { sample, rank, ranks: 3 };
            return {
              operands: {
                in: x,
                out: output(dtype, [n], closeSameBits(dtype, 1, 'tensor'), aligned),
              },
              args: { p, seed: 77, offset: 5, ...share, ...inOrder, accumulate: false },
              reference: (values) => {
                const all = unitFloats(3 * n, 77, 5);
                const out = Array.from({ length: n }, (_, i) => {
                  const place = (Math.floor(i / sample) * 3 + rank) * sample + (i % sample);
                  return all[place]! >= Math.fround(p) ? values.in![i]! / (1 - p) : 0;
                });
                return { out };
              },
            };
          },
        }),
      ),
    ),
  );
}

export const cases: MatrixCase[] = [
  ...fills(),
  ...aranges(),
  ...randoms(),
  ...dropouts(),
  ...sharedDropouts(),
  ...randomParts(),
  ...dropoutParts(),
];
