// Cases of Scatter and ScatterAdd: few and many indices per line, all of one place, and layouts.
import type { DType } from '../../../lib/runtime/dtype.js';
import { numel } from '../../../lib/runtime/view.js';
import {
  type Check,
  close,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
} from './harness.js';
import {
  everyDType,
  floating,
  permutedLayout,
  reversedLayout,
  sparse,
  unaligned,
} from './layouts.js';
import { type Gathering, gatherings, placeOf } from './lookup.js';
import type { Random } from './numbers.js';

/**
 * Lines with more indices than the op compares pairwise, and places with very many or no indices.
 */
const crowded: readonly Gathering[] = [
  { from: [1], to: [4099], dim: 0 },
  { from: [3], to: [4099], dim: 0, layout: unaligned },
  { from: [70_001], to: [257], dim: 0 },
  {
    from: [5, 33],
    to: [5, 301],
    dim: 1,
    layout: reversedLayout([5, 33]),
    outLayout: sparse([5, 301]),
  },
  {
    from: [33, 5],
    to: [301, 5],
    dim: 0,
    layout: sparse([33, 5]),
    outLayout: reversedLayout([301, 5]),
  },
  {
    from: [2, 40, 3],
    to: [2, 129, 3],
    dim: 1,
    layout: permutedLayout([2, 40, 3], [1, 2, 0]),
    outLayout: permutedLayout([2, 129, 3], [1, 0, 2]),
  },
  { from: [0, 3], to: [0, 129], dim: 1 },
];
const all = [...gatherings, ...crowded];

/** Values with sums in range, exact for integers. */
function drawValues(random: Random, dtype: DType, n: number): Float64Array {
  if (floating.includes(dtype)) return random.normal(n);
  return random.integers(n, 0, dtype === 'u8' || dtype === 'bool' ? 2 : 99);
}

function scatterings(
  op: 'Scatter' | 'ScatterAdd',
  dtype: DType,
  g: Gathering,
  accumulate: boolean,
): MatrixCase {
  const index = numel(g.to) % 2 ? 'i32' : 'i64';
  const isSum = op === 'ScatterAdd';
  const keeps = !isSum || accumulate;
  return opCase({
    op,
    dtype,
    title: `[${g.to}] to [${g.from}] dim ${g.dim} ${index}${isSum && accumulate ? ' accumulates' : ''}`,
    build(random) {
      const check: Check = isSum && floating.includes(dtype) ? close(dtype, 1, 'tensor') : exact;
      const old = input(dtype, g.from, drawValues(random, dtype, numel(g.from)), g.layout);
      return {
        operands: {
          src: input(dtype, g.to, drawValues(random, dtype, numel(g.to)), g.outLayout),
          index: input(index, g.to, random.integers(numel(g.to), 0, g.from[g.dim]!)),
          out: keeps ? inPlaceOperand(old, check) : output(dtype, g.from, check, g.layout),
        },
        args: isSum ? { dim: g.dim, accumulate } : { dim: g.dim },
        reference(v) {
          const out = keeps ? v.out!.slice() : new Float64Array(numel(g.from));
          v.src!.forEach((x, i) => {
            const place = placeOf(g, v.index!, i);
            out[place] = isSum ? out[place]! + x : x;
          });
          return { out: dtype === 'u8' ? out.map((x) => x % 256) : out };
        },
      };
    },
  });
}

export const cases: MatrixCase[] = everyDType.flatMap((dtype) =>
  all.flatMap((g) => [
    scatterings('Scatter', dtype, g, false),
    ...(dtype === 'bool'
      ? []
      : [false, true].map((accumulate) => scatterings('ScatterAdd', dtype, g, accumulate))),
  ]),
);
