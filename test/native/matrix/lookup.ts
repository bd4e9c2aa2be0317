// Embedding with its gradient, and Gather.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type Layout,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import {
  aligned,
  everyDType,
  flatOf,
  floating,
  indexOf,
  oddSizes,
  paddedLayout,
  permutedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';

function embeddings(): MatrixCase[] {
  const sizes: readonly (readonly [number, number, number])[] = [
    ...oddSizes.map((c) => [17, 33, c] as const),
    [0, 5, 3],
    [1, 1, 1],
    [257, 3, 65],
  ];
  return everyDType.flatMap((dtype) =>
    sizes.flatMap(([n, v, c]) =>
      (['i32', 'i64'] as const).map((index) =>
        opCase({
          op: 'Embedding',
          dtype,
          title: `[${v},${c}] of ${n} ${index}`,
          build: (random) => ({
            operands: {
              weight: input(
                dtype,
                [v, c],
                random.integers(v * c, 0, dtype === 'bool' ? 2 : 99),
                index === 'i32' ? paddedLayout([v, c]) : aligned,
              ),
              index: input(index, [n], random.integers(n, 0, v), unaligned),
              out: output(dtype, [n, c], exact, index === 'i32' ? unaligned : aligned),
            },
            reference: (values) => ({
              out: Array.from(
                { length: n * c },
                (_, i) => values.weight![values.index![Math.floor(i / c)]! * c + (i % c)]!,
              ),
            }),
          }),
        }),
      ),
    ),
  );
}

function embeddingBackwards(): MatrixCase[] {
  const sizes = [
    ...oddSizes.map((c) => [33, 17, c]),
    [0, 5, 3],
    [1029, 3, 33],
    [300, 1, 17],
    [3, 1029, 65],
    [1029, 1029, 5],
  ];
  return floating.flatMap((dtype) =>
    sizes.flatMap(([n, v, c]) =>
      [false, true].map((accumulate) =>
        opCase({
          op: 'EmbeddingBackward',
          dtype,
          title: `[${v},${c}] of ${n}${accumulate ? ' accumulates' : ''}`,
          build(random) {
            const check = close(dtype, 1, 'tensor');
            const layout = c! % 2 ? unaligned : aligned;
            return {
              operands: {
                dout: input(dtype, [n!, c!], random.normal(n! * c!), layout),
                index: input(accumulate ? 'i64' : 'i32', [n!], random.integers(n!, 0, v!)),
                dweight: accumulate
                  ? inPlaceOperand(input(dtype, [v!, c!], random.normal(v! * c!), layout), check)
                  : output(dtype, [v!, c!], check, layout),
              },
              args: { accumulate },
              reference(values) {
                const sum = accumulate ? values.dweight!.slice() : new Float64Array(v! * c!);
                values.dout!.forEach((x, i) => {
                  sum[values.index![Math.floor(i / c!)]! * c! + (i % c!)]! += x;
                });
                return { dweight: sum };
              },
            };
          },
        }),
      ),
    ),
  );
}

export interface Gathering {
  from: readonly number[];
  to: readonly number[];
  dim: number;
  layout?: Layout;
  outLayout?: Layout;
}

export const gatherings: readonly Gathering[] = [
  ...oddSizes.filter((n) => n > 0).map((n) => ({ from: [n], to: [33], dim: 0, layout: unaligned })),
  { from: [17, 33], to: [17, 5], dim: 1 },
  {
    from: [17, 33],
    to: [3, 33],
    dim: 0,
    layout: paddedLayout([17, 33]),
    outLayout: reversedLayout([3, 33]),
  },
  {
    from: [5, 7, 9],
    to: [5, 11, 9],
    dim: 1,
    layout: permutedLayout([5, 7, 9], [2, 0, 1]),
    outLayout: sparse([5, 11, 9]),
  },
  { from: [2, 3, 2, 5, 2, 3], to: [2, 3, 2, 8, 2, 3], dim: 3 },
  { from: [4, 3], to: [4, 0], dim: 1 },
  { from: [3, 1029], to: [3, 257], dim: 1 },
];

/** Where element i of the smaller tensor lies in the larger one. */
export const placeOf = ({ from, to, dim }: Gathering, index: Float64Array, i: number): number =>
  flatOf(
    from,
    indexOf(to, i).map((k, d) => (d === dim ? index[i]! : k)),
  );

function gathers(): MatrixCase[] {
  const cases: MatrixCase[] = [];
  const name = (g: Gathering, index: DType): string =>
    `[${g.from}] to [${g.to}] dim ${g.dim} ${index}`;
  for (const dtype of everyDType) {
    for (const g of gatherings) {
      const index = numel(g.to) % 2 ? 'i32' : 'i64';
      cases.push(
        opCase({
          op: 'Gather',
          dtype,
          title: name(g, index),
          build: (random) => ({
            operands: {
              in: input(
                dtype,
                g.from,
                random.integers(numel(g.from), 0, dtype === 'bool' ? 2 : 99),
                g.layout,
              ),
              index: input(index, g.to, random.integers(numel(g.to), 0, g.from[g.dim]!), unaligned),
              out: output(dtype, g.to, exact, g.outLayout),
            },
            args: { dim: g.dim },
            reference: (v) => ({ out: v.index!.map((_, i) => v.in![placeOf(g, v.index!, i)]!) }),
          }),
        }),
      );
    }
  }
  return cases;
}

export const cases: MatrixCase[] = [...embeddings(), ...embeddingBackwards(), ...gathers()];
