// Cases of low-rank updates of several adapters: mixed ranks, empty tiles, rows without an adapter.
import type { DType } from '../../../lib/runtime/dtype.js';
import * as kernels from '../../../lib/runtime/kernels.generated.js';
import type { View } from '../../../lib/runtime/view.js';
import {
  close,
  inPlaceOperand,
  input,
  type MatrixCase,
  type Operand,
  opCase,
  sameAs,
} from './harness.js';
import { floating, paddedLayout } from './layouts.js';
import type { Make, Mistake } from './mistake.js';
import type { Random } from './numbers.js';

interface Batch {
  title: string;
  /** Rows of x and out. */
  count: number;
  /** Adapter and number of rows of each tile; -1 is none. */
  tiles: readonly (readonly [adapter: number, rows: number])[];
  /** Ranks of the adapters, for each layer. */
  ranks: readonly (readonly number[])[];
  maxRank: number;
  k: number;
  /** Outputs of each layer. */
  m: readonly number[];
}

const batches: readonly Batch[] = [
  {
    title: 'odd sizes',
    count: 9,
    tiles: [
      [1, 3],
      [0, 0],
      [0, 1],
      [-1, 1],
      [2, 2],
    ],
    ranks: [[3, 5, 0]],
    maxRank: 5,
    k: 13,
    m: [7],
  },
  {
    title: 'tensor cores',
    count: 40,
    tiles: [
      [0, 16],
      [0, 5],
      [2, 16],
      [-1, 2],
      [1, 1],
    ],
    ranks: [[16, 1, 9]],
    maxRank: 16,
    k: 72,
    m: [130],
  },
  {
    title: 'three layers',
    count: 12,
    tiles: [
      [-1, 3],
      [3, 1],
      [0, 4],
      [1, 2],
    ],
    ranks: [
      [8, 16, 2, 32],
      [0, 16, 1, 5],
      [32, 0, 3, 17],
    ],
    maxRank: 32,
    k: 264,
    m: [136, 24, 8],
  },
  {
    title: 'two equal layers',
    count: 30,
    tiles: [
      [-1, 4],
      [1, 16],
      [1, 1],
      [0, 5],
    ],
    ranks: [
      [16, 48],
      [0, 3],
    ],
    maxRank: 48,
    k: 64,
    m: [1048, 1048],
  },
  {
    title: 'two odd layers',
    count: 5,
    tiles: [
      [0, 2],
      [1, 1],
    ],
    ranks: [
      [2, 7],
      [7, 1],
    ],
    maxRank: 7,
    k: 20,
    m: [3, 129],
  },
  {
    title: 'rank 256',
    count: 19,
    tiles: [
      [1, 16],
      [0, 3],
    ],
    ranks: [[256, 200]],
    maxRank: 256,
    k: 1032,
    m: [257],
  },
  {
    title: 'many tiles',
    count: 100,
    tiles: Array.from({ length: 100 }, (_, i) => [i % 3, 1] as const),
    ranks: [[24, 4, 16]],
    maxRank: 24,
    k: 40,
    m: [18],
  },
  {
    title: 'many tiles of two equal layers',
    count: 380,
    // So many that the GPU's blocks take several turns.
    tiles: [
      [1, 16],
      [2, 5],
      [-1, 2],
      ...Array.from({ length: 340 }, (_, i) => [i % 3, 1] as const),
    ],
    ranks: [
      [16, 3, 16],
      [0, 16, 9],
    ],
    maxRank: 16,
    k: 8,
    m: [1096, 1096],
  },
  { title: 'no row', count: 3, tiles: [[0, 0]], ranks: [[4]], maxRank: 4, k: 8, m: [8] },
];

/** Rows in a random order; some have no entry, and one entry is in no tile. */
function listsOf(random: Random, { count, tiles }: Batch) {
  const order = Array.from({ length: count }, (_, row) => ({ row, at: random.unit() }));
  order.sort((a, b) => a.at - b.at);
  const entries = tiles.reduce((sum, [, rows]) => sum + rows, 0);
  const rows = order.slice(0, Math.min(count, entries + 1)).map(({ row }) => row);
  let first = 0;
  const list = tiles.flatMap(([adapter, many]) => {
    const tile = [adapter, first, many];
    first += many;
    return tile;
  });
  const owners = tiles.flatMap(([adapter, many]) => Array<number>(many).fill(adapter));
  return { rows, list, owners };
}

const nameOf = (name: string, layer: number): string =>
  layer === 0 ? name : `${name}${layer + 1}`;

/** An operand for each of three layers; null for absent ones. */
function perLayer(
  name: string,
  { ranks }: Batch,
  make: (layer: number) => Operand,
): Record<string, Operand | null> {
  return Object.fromEntries(
    [0, 1, 2].map((p) => [nameOf(name, p), p < ranks.length ? make(p) : null]),
  );
}

const ranksOf = (batch: Batch): Record<string, Operand | null> =>
  perLayer('ranks', batch, (p) => input('i32', [batch.ranks[p]!.length], batch.ranks[p]!));

const shrinkOf = (dtype: DType, batch: Batch): MatrixCase => {
  const { title, count, tiles, ranks, maxRank: most, k } = batch;
  return opCase({
    op: 'AdapterShrink',
    dtype,
    title,
    build: (random) => {
      const { rows, list, owners } = listsOf(random, batch);
      const slots = ranks[0]!.length;
      const size = ranks.length * rows.length * most;
      const shape = [ranks.length, rows.length, most];
      return {
        operands: {
          x: input(dtype, [count, k], random.normal(count * k)),
          rows: input('i32', [rows.length], rows),
          tiles: input('i32', [tiles.length, 3], list),
          ...perLayer('a', batch, () =>
            input(dtype, [slots, most, k], random.normal(slots * most * k)),
          ),
          ...ranksOf(batch),
          h: inPlaceOperand(input(dtype, shape, random.normal(size)), close(dtype, 2, 'tensor')),
        },
        reference: (v) => {
          const h = v.h!.slice();
          ranks.forEach((localValues, p) => {
            const a = v[nameOf('a', p)]!;
            owners.forEach((s, e) => {
              for (let j = 0; j < most && s >= 0; ++j) {
                let sum = 0;
                for (let i = 0; i < k && j < localValues[s]!; ++i) {
                  sum += v.x![rows[e]! * k + i]! * a[(s * most + j) * k + i]!;
                }
                h[(p * rows.length + e) * most + j] = sum;
              }
            });
          });
          return { h };
        },
      };
    },
  });
};

const expandOf = (dtype: DType, batch: Batch): MatrixCase => {
  const { title, count, tiles, ranks, maxRank: most, m } = batch;
  const layoutOf = (shape: readonly number[]) =>
    title === 'three layers'
      ? paddedLayout(shape, 8, 16)
      : title.includes('odd')
        ? paddedLayout(shape)
        : {};
  return opCase({
    op: 'AdapterExpand',
    dtype,
    title,
    build: (random) => {
      const { rows, list, owners } = listsOf(random, batch);
      const slots = ranks[0]!.length;
      const inner = random.normal(ranks.length * rows.length * most);
      // Beyond the rank, AdapterShrink writes 0.
      for (const [at] of inner.entries()) {
        const [p, e] = [Math.floor(at / most / rows.length), Math.floor(at / most) % rows.length];
        if (at % most >= (ranks[p]![owners[e] ?? 0] ?? 0)) inner[at] = 0;
      }
      const check = close(dtype, 2, 'tensor');
      return {
        operands: {
          h: input(dtype, [ranks.length, rows.length, most], inner),
          rows: input('i32', [rows.length], rows),
          tiles: input('i32', [tiles.length, 3], list),
          ...perLayer('b', batch, (p) =>
            input(dtype, [slots, m[p]!, most], random.normal(slots * m[p]! * most)),
          ),
          ...ranksOf(batch),
          ...perLayer('out', batch, (p) => {
            const shape = [count, m[p]!];
            return inPlaceOperand(
              input(dtype, shape, random.normal(count * m[p]!), layoutOf(shape)),
              check,
            );
          }),
        },
        reference: (v) =>
          Object.fromEntries(
            ranks.map((localValues, p) => {
              const width = m[p]!;
              const b = v[nameOf('b', p)]!;
              const out = v[nameOf('out', p)]!.slice();
              owners.forEach((s, e) => {
                for (let c = 0; c < width; ++c) {
                  for (let j = 0; j < localValues[s]!; ++j) {
                    const x = v.h![(p * rows.length + e) * most + j]!;
                    out[rows[e]! * width + c]! += x * b[(s * width + c) * most + j]!;
                  }
                }
              });
              return [nameOf('out', p), out];
            }),
          ),
      };
    },
  });
};

const FORMS = ['', ' in place', ' gated'] as const;

const sumOf = (dtype: DType, batch: Batch, form: (typeof FORMS)[number]): MatrixCase => {
  const { title, count, tiles, ranks, maxRank: most, m } = batch;
  const gated = form === ' gated';
  return opCase({
    op: 'AdapterSum',
    dtype,
    title: `${title}${form}`,
    build: (random) => {
      const { rows, list, owners } = listsOf(random, batch);
      const [slots, layers] = [ranks[0]!.length, ranks.length];
      const outputs = m.reduce((sum, width) => sum + width, 0);
      const columns = outputs + layers * slots * most;
      const width = gated ? m[0]! : outputs;
      const wide = input(dtype, [count, columns], random.normal(count * columns));
      // Beyond the rank, the rows of A are 0.
      const values = Float64Array.from(wide.values!);
      for (let at = 0; at < values.length; ++at) {
        const h = (at % columns) - outputs;
        const slot = Math.floor(h / most);
        if (h >= 0 && h % most >= ranks[Math.floor(slot / slots)]![slot % slots]!) values[at] = 0;
      }
      const check = close(dtype, 2, 'tensor');
      const operand = inPlaceOperand({ ...wide, values }, check);
      const out: Operand =
        form === ' in place'
          ? sameAs(input(dtype, [count, width], [], { strides: [columns, 1] }), 'wide')
          : inPlaceOperand(
              input(
                dtype,
                [count, width],
                random.normal(count * width),
                title.includes('odd') ? paddedLayout([count, width]) : {},
              ),
              check,
            );
      return {
        operands: {
          wide: form === ' in place' ? operand : { ...wide, values },
          rows: input('i32', [rows.length], rows),
          tiles: input('i32', [tiles.length, 3], list),
          ...perLayer('b', batch, (p) =>
            input(dtype, [slots, m[p]!, most], random.normal(slots * m[p]! * most)),
          ),
          ...ranksOf(batch),
          next: form === '' ? input(dtype, [count, columns], random.normal(count * columns)) : null,
          out,
        },
        args: { gated },
        reference: (v) => {
          const sums = v.wide!.slice();
          owners.forEach((s, e) => {
            let first = 0;
            m.forEach((localValue, p) => {
              for (let c = 0; s >= 0 && c < localValue; ++c) {
                for (let j = 0; j < ranks[p]![s]!; ++j) {
                  const h = v.wide![rows[e]! * columns + outputs + (p * slots + s) * most + j]!;
                  const b = v[nameOf('b', p)]![(s * localValue + c) * most + j]!;
                  sums[rows[e]! * columns + first + c]! += h * b;
                }
              }
              first += localValue;
            });
          });
          if (form === ' in place') return { wide: sums };
          const expected = v.out!.slice();
          owners.forEach((_, e) => {
            for (let c = 0; c < width; ++c) {
              const gate = sums[rows[e]! * columns + c]!;
              const up = sums[rows[e]! * columns + width + c]!;
              const value = gated ? (gate / (1 + Math.exp(-gate))) * up : gate;
              expected[rows[e]! * width + c] = value;
            }
          });
          return { out: expected };
        },
      };
    },
  });
};

const formsOf = ({ m }: Batch): readonly (typeof FORMS)[number][] =>
  m.length === 2 && m[0] === m[1] ? FORMS : FORMS.slice(0, 2);

export const cases: readonly MatrixCase[] = floating.flatMap((dtype) =>
  batches.flatMap((batch) => [
    shrinkOf(dtype, batch),
    expandOf(dtype, batch),
    ...formsOf(batch).map((form) => sumOf(dtype, batch, form)),
  ]),
);

type Wrong = (make: Make) => Record<string, View | null>;
type Row = [what: string, code: Mistake['code'], message: string, wrong: Wrong];
type Call = (make: Make, wrong: Record<string, View | null>) => void;

const lists = (m: Make) => ({ rows: m([4], 'i32'), tiles: m([2, 3], 'i32') });
const absent = { ranks2: null, ranks3: null };

const shrink: Call = (m, wrong) =>
  kernels.adapterShrink({
    x: m([6, 8]),
    ...lists(m),
    a: m([2, 4, 8]),
    ranks: m([2], 'i32'),
    ...absent,
    a2: null,
    a3: null,
    h: m([1, 4, 4]),
    ...wrong,
  });

const expand: Call = (m, wrong) =>
  kernels.adapterExpand({
    h: m([1, 4, 4]),
    ...lists(m),
    b: m([2, 5, 4]),
    ranks: m([2], 'i32'),
    ...absent,
    out: m([6, 5]),
    b2: null,
    out2: null,
    b3: null,
    out3: null,
    ...wrong,
  });

const sum: Call = (m, wrong) =>
  kernels.adapterSum({
    wide: m([6, 13]),
    ...lists(m),
    b: m([2, 5, 4]),
    ranks: m([2], 'i32'),
    ...absent,
    b2: null,
    b3: null,
    next: null,
    out: m([6, 5]),
    gated: false,
    ...wrong,
  });

const rowsFor = (op: string, call: Call, rows: readonly Row[]): Mistake[] =>
  rows.map(([what, code, message, wrong]) => {
    return { op, what, code, message, run: (make: Make) => call(make, wrong(make)) };
  });

export const mistakes: readonly Mistake[] = [
  ...rowsFor('adapter_shrink', shrink, [
    ['shape of a', 'DS_SHAPE', '[2, 4, 7] f32', (m) => ({ a: m([2, 4, 7]) })],
    ['dtype of a', 'DS_DTYPE', 'f16', (m) => ({ a: m([2, 4, 8], 'f16') })],
    ['shape of tiles', 'DS_SHAPE', '[3, 2] i32', (m) => ({ tiles: m([3, 2], 'i32') })],
    ['number of ranks', 'DS_SHAPE', '[3] i32', (m) => ({ ranks: m([3], 'i32') })],
    ['shape of h', 'DS_SHAPE', '[2, 4, 4] f32', (m) => ({ h: m([2, 4, 4]) })],
    ['a layer without ranks', 'DS_SHAPE', 'a factor without ranks', (m) => ({ a2: m([2, 4, 8]) })],
    [
      'a third layer without a second',
      'DS_SHAPE',
      'a third layer',
      (m) => ({ a3: m([2, 4, 8]), ranks3: m([2], 'i32') }),
    ],
  ]),
  ...rowsFor('adapter_expand', expand, [
    ['shape of b', 'DS_SHAPE', '[2, 5, 3] f32', (m) => ({ b: m([2, 5, 3]) })],
    ['strides of out', 'DS_SHAPE', '[6, 5] f32', (m) => ({ out: m([6, 5], 'f32', [1, 6]) })],
    ['dtype of out', 'DS_DTYPE', 'f16', (m) => ({ out: m([6, 5], 'f16') })],
    ['entries of h', 'DS_SHAPE', '[1, 5, 4] f32', (m) => ({ h: m([1, 5, 4]) })],
    [
      'a layer without an output',
      'DS_SHAPE',
      'a factor without an output',
      (m) => ({ b2: m([2, 5, 4]), ranks2: m([2], 'i32'), h: m([2, 4, 4]) }),
    ],
  ]),
  ...rowsFor('adapter_sum', sum, [
    ['columns of wide', 'DS_SHAPE', '[6, 14] f32', (m) => ({ wide: m([6, 14]) })],
    ['shape of out', 'DS_SHAPE', '[6, 4] f32', (m) => ({ out: m([6, 4]) })],
    ['dtype of out', 'DS_DTYPE', 'f16', (m) => ({ out: m([6, 5], 'f16') })],
    ['dims of next', 'DS_SHAPE', '[6]', (m) => ({ next: m([6]) })],
    [
      'a gate of one layer',
      'DS_SHAPE',
      'two layers (gate and up) with gated, got 1',
      () => ({ gated: true as never }),
    ],
    [
      'layers of different rank',
      'DS_SHAPE',
      '[2, 5, 3] f32',
      (m) => ({ b2: m([2, 5, 3]), ranks2: m([2], 'i32') }),
    ],
    [
      'unequal layers of a gate',
      'DS_SHAPE',
      '[2, 4, 4] f32',
      (m) => ({ b2: m([2, 4, 4]), ranks2: m([2], 'i32'), gated: true as never }),
    ],
  ]),
];
