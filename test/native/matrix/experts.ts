// Cases of routing and of rows sorted by expert: ties, and rows without a token.
import type { DType } from '../../../lib/runtime/dtype.js';
import {
  close,
  exact,
  inPlaceOperand,
  input,
  type MatrixCase,
  opCase,
  output,
  type Values,
} from './harness.js';
import { floating, unaligned } from './layouts.js';
import type { Random } from './numbers.js';

const wide = (dtype: DType): DType => (dtype === 'f64' ? 'f64' : 'f32');

/** The indices of the k largest values, the first of equal ones first; NaN is the greatest. */
function largest(row: Float64Array, k: number): number[] {
  const key = (i: number): number => (Number.isNaN(row[i]) ? Infinity : (row[i] as number));
  const places = Array.from(row, (_, i) => i);
  return places.sort((a, b) => key(b) - key(a) || a - b).slice(0, k);
}

function softmax(row: ArrayLike<number>): number[] {
  const values = Array.from(row);
  const max = Math.max(...values.filter((x) => !Number.isNaN(x)));
  const e = values.map((x) => Math.exp(x - max));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

interface Routing {
  tokens: number;
  experts: number;
  k: number;
}

const routings: readonly Routing[] = [
  { tokens: 1, experts: 1, k: 1 },
  { tokens: 7, experts: 8, k: 2 },
  { tokens: 33, experts: 60, k: 4 },
  { tokens: 5, experts: 128, k: 8 },
  { tokens: 3, experts: 512, k: 33 },
  { tokens: 0, experts: 4, k: 2 },
];

/** Some logits are equal. */
function logitsOf(random: Random, { tokens, experts }: Routing): Float64Array {
  return random.normal(tokens * experts).map((x) => Math.round(x * 8) / 4);
}

const routeOf = (dtype: DType, routing: Routing, normalize: boolean): MatrixCase => {
  const { tokens, experts, k } = routing;
  return opCase({
    op: 'RouteTopK',
    dtype,
    title: `[${tokens}, ${experts}] k ${k}${normalize ? ' normalized' : ''}`,
    build: (random) => ({
      operands: {
        logits: input(dtype, [tokens, experts], logitsOf(random, routing), unaligned),
        x: null,
        weight: null,
        bias: null,
        ids: output('i32', [tokens, k], exact),
        weights: output(wide(dtype), [tokens, k], close(wide(dtype))),
      },
      args: { normalize },
      reference: ({ logits }) => {
        const [ids, weights]: [number[], number[]] = [[], []];
        for (let t = 0; t < tokens; ++t) {
          const row = logits!.subarray(t * experts, (t + 1) * experts);
          const chosen = largest(row, k);
          const among = normalize ? chosen.map((i) => row[i]!) : row;
          const shares = softmax(among);
          ids.push(...chosen);
          weights.push(...chosen.map((i, j) => shares[normalize ? j : i]!));
        }
        return { ids, weights };
      },
    }),
  });
};

interface TokenRouting extends Routing {
  channels: number;
  hasBias: boolean;
}

const tokenRoutings: readonly TokenRouting[] = [
  { tokens: 1, experts: 1, k: 1, channels: 8, hasBias: false },
  { tokens: 1, experts: 32, k: 4, channels: 2880, hasBias: true },
  { tokens: 3, experts: 60, k: 4, channels: 100, hasBias: true },
  { tokens: 2, experts: 37, k: 3, channels: 4104, hasBias: false },
  { tokens: 2, experts: 500, k: 9, channels: 40, hasBias: false },
  { tokens: 0, experts: 4, k: 2, channels: 16, hasBias: true },
];

/** One number of each expert's weights counts, so logits differ by steps that no sum can move. */
const routeTokensOf = (dtype: DType, routing: TokenRouting, isOdd: boolean): MatrixCase => {
  const { tokens, experts, k, channels, hasBias } = routing;
  const normalize = !isOdd;
  return opCase({
    op: 'RouteTopK',
    dtype,
    title: `x [${tokens}, ${channels}] to ${k} of ${experts}${isOdd ? ', odd' : ''}`,
    build: (random) => {
      const layout = isOdd ? unaligned : {};
      const weight = new Float64Array(experts * channels);
      for (let e = 0; e < experts; ++e) {
        const places = random.integers(3, 0, channels);
        for (const at of places) weight[e * channels + at] = (e % 9) / 4 - 1;
      }
      const x = random.integers(tokens * channels, -2, 3);
      const bias = random.integers(experts, -4, 5).map((integer) => integer / 2);
      return {
        operands: {
          x: input(dtype, [tokens, channels], x, layout),
          weight: input(dtype, [experts, channels], weight, layout),
          bias: hasBias ? input(dtype, [experts], bias, layout) : null,
          logits: output(dtype, [tokens, experts], exact),
          ids: output('i32', [tokens, k], exact),
          weights: output('f32', [tokens, k], close('f32')),
        },
        args: { normalize },
        reference: (v) => {
          const [logits, ids, weights] = [[], [], []] as [number[], number[], number[]];
          for (let t = 0; t < tokens; ++t) {
            const row = Float64Array.from({ length: experts }, (_, e) => {
              let sum = v.bias?.[e] ?? 0;
              for (let c = 0; c < channels; ++c)
                sum += v.x![t * channels + c]! * v.weight![e * channels + c]!;
              return sum;
            });
            logits.push(...row);
            const chosen = largest(row, k);
            const shares = softmax(normalize ? chosen.map((i) => row[i]!) : row);
            ids.push(...chosen);
            weights.push(...chosen.map((i, j) => shares[normalize ? j : i]!));
          }
          return { logits, ids, weights };
        },
      };
    },
  });
};

const routeBackwardOf = (dtype: DType, routing: Routing, normalize: boolean): MatrixCase => {
  const { tokens, experts, k } = routing;
  const accumulate = normalize;
  return opCase({
    op: 'RouteTopKBackward',
    dtype,
    title: `[${tokens}, ${experts}] k ${k}${normalize ? ' normalized, added' : ''}`,
    build: (random) => {
      const logits = logitsOf(random, routing);
      const ids = Array.from({ length: tokens }, (_, t) =>
        largest(logits.subarray(t * experts, (t + 1) * experts), k),
      ).flat();
      const check = close(dtype, 2, 'tensor');
      const shape = [tokens, experts];
      return {
        operands: {
          logits: input(dtype, shape, logits),
          ids: input('i32', [tokens, k], ids),
          dweights: input(wide(dtype), [tokens, k], random.normal(tokens * k)),
          dlogits: accumulate
            ? inPlaceOperand(input(dtype, shape, random.normal(tokens * experts), unaligned), check)
            : output(dtype, shape, check, unaligned),
        },
        args: { normalize, accumulate },
        reference: (v) => ({ dlogits: routeGradient(v, routing, normalize, accumulate) }),
      };
    },
  });
};

/** With the whole Jacobian of the softmax. */
function routeGradient(
  v: Values,
  { tokens, experts, k }: Routing,
  normalize: boolean,
  accumulate: boolean,
): Float64Array {
  const out = new Float64Array(tokens * experts);
  for (let t = 0; t < tokens; ++t) {
    const row = v.logits!.subarray(t * experts, (t + 1) * experts);
    const ids = Array.from(v.ids!.subarray(t * k, (t + 1) * k));
    const members = normalize ? ids : Array.from(row, (_, i) => i);
    const shares = softmax(members.map((i) => row[i]!));
    const slope = members.map((i) => {
      const j = ids.indexOf(i);
      return j < 0 ? 0 : v.dweights![t * k + j]!;
    });
    members.forEach((i, a) => {
      const sum = members.reduce((total, _, b) => {
        return total + slope[b]! * shares[b]! * ((a === b ? 1 : 0) - shares[a]!);
      }, 0);
      out[t * experts + i] = sum;
    });
  }
  return accumulate ? out.map((x, i) => x + v.dlogits![i]!) : out;
}

const groupRowsOf = (tokens: number, k: number, groups: number, first: number): MatrixCase =>
  opCase({
    op: 'GroupRows',
    dtype: 'i32',
    title: `[${tokens}, ${k}] to ${groups} groups from ${first}`,
    build: (random) => ({
      operands: {
        ids: input('i32', [tokens, k], random.integers(tokens * k, 0, groups + 2 * first)),
        offsets: output('i32', [groups + 1], exact),
        rows: output('i32', [tokens * k], exact),
        places: output('i32', [tokens, k], exact),
      },
      args: { first },
      reference: ({ ids }) => {
        const rows: number[] = [];
        const places = new Array<number>(tokens * k).fill(-1);
        const offsets = [0];
        for (let g = 0; g < groups; ++g) {
          ids!.forEach((id, i) => {
            if (id !== first + g) return;
            places[i] = rows.length;
            rows.push(Math.floor(i / k));
          });
          offsets.push(rows.length);
        }
        while (rows.length < tokens * k) rows.push(-1);
        return { offsets, rows, places };
      },
    }),
  });

interface Combining {
  tokens: number;
  k: number;
  rows: number;
  width: number;
}

const combinings: readonly Combining[] = [
  { tokens: 5, k: 2, rows: 12, width: 13 },
  { tokens: 9, k: 3, rows: 27, width: 64 },
  { tokens: 3, k: 8, rows: 24, width: 520 },
  { tokens: 2, k: 2, rows: 4, width: 0 },
  { tokens: 0, k: 2, rows: 3, width: 8 },
];

/** Rows for most choices; each row serves at most one choice. */
function placesOf(random: Random, { tokens, k, rows }: Combining): number[] {
  const order = Array.from({ length: rows }, (_, row) => ({ row, at: random.unit() }));
  order.sort((a, b) => a.at - b.at);
  const free = order.map(({ row }) => row);
  return Array.from({ length: tokens * k }, () => (random.unit() < 0.2 ? -1 : (free.pop() ?? -1)));
}

const combineOf = (dtype: DType, sizes: Combining, weighted: boolean): MatrixCase => {
  const { tokens, k, rows, width } = sizes;
  const accumulate = !weighted;
  return opCase({
    op: 'CombineRows',
    dtype,
    title: `[${rows}, ${width}] to ${tokens}${weighted ? ' weighted' : ' added'}`,
    build: (random) => {
      const check = close(dtype, 2, 'tensor');
      const old = input(dtype, [tokens, width], random.normal(tokens * width));
      const factors = input(wide(dtype), [tokens, k], random.normal(tokens * k));
      return {
        operands: {
          y: input(dtype, [rows, width], random.normal(rows * width)),
          places: input('i32', [tokens, k], placesOf(random, sizes)),
          weights: weighted ? factors : null,
          out: accumulate ? inPlaceOperand(old, check) : output(dtype, [tokens, width], check),
        },
        args: { accumulate },
        reference: (v) => ({
          out: Float64Array.from({ length: tokens * width }, (_, i) => {
            const [t, c] = [Math.floor(i / width), i % width];
            let sum = accumulate ? v.out![i]! : 0;
            for (let j = t * k; j < (t + 1) * k; ++j) {
              const place = v.places![j]!;
              if (place >= 0) sum += (weighted ? v.weights![j]! : 1) * v.y![place * width + c]!;
            }
            return sum;
          }),
        }),
      };
    },
  });
};

const combineBackwardOf = (dtype: DType, sizes: Combining): MatrixCase => {
  const { tokens, k, rows, width } = sizes;
  return opCase({
    op: 'CombineRowsBackward',
    dtype,
    title: `[${rows}, ${width}] of ${tokens}`,
    build: (random) => {
      const check = close(dtype, 2, 'tensor');
      return {
        operands: {
          y: input(dtype, [rows, width], random.normal(rows * width)),
          places: input('i32', [tokens, k], placesOf(random, sizes)),
          weights: input(wide(dtype), [tokens, k], random.normal(tokens * k)),
          dout: input(dtype, [tokens, width], random.normal(tokens * width)),
          // Rows that no place refers to keep their values.
          dy: inPlaceOperand(input(dtype, [rows, width], random.normal(rows * width)), check),
          dweights: output(wide(dtype), [tokens, k], close(wide(dtype), 4, 'tensor')),
        },
        reference: (v) => {
          const dy = v.dy!.slice();
          const dweights = new Float64Array(tokens * k);
          v.places!.forEach((place, j) => {
            if (place < 0) return;
            const t = Math.floor(j / k);
            for (let c = 0; c < width; ++c) {
              const grad = v.dout![t * width + c]!;
              dy[place * width + c] = v.weights![j]! * grad;
              dweights[j]! += grad * v.y![place * width + c]!;
            }
          });
          return { dy, dweights };
        },
      };
    },
  });
};

const both = [false, true] as const;

export const cases: MatrixCase[] = [
  ...[
    [0, 2, 4, 0],
    [1, 1, 1, 0],
    [37, 2, 5, 3],
    [128, 8, 60, 0],
    [700, 3, 512, 0],
  ].map(([tokens, k, groups, first]) => groupRowsOf(tokens!, k!, groups!, first!)),
  ...floating.flatMap((dtype) => [
    ...routings.flatMap((routing) => both.map((normalize) => routeOf(dtype, routing, normalize))),
    ...routings.flatMap((routing) =>
      both.map((normalize) => routeBackwardOf(dtype, routing, normalize)),
    ),
    ...combinings.flatMap((combining) =>
      both.map((weighted) => combineOf(dtype, combining, weighted)),
    ),
    ...combinings.map((combining) => combineBackwardOf(dtype, combining)),
  ]),
  ...(['f32', 'f16', 'bf16'] as const).flatMap((dtype) =>
    tokenRoutings.flatMap((tokenRouting) =>
      both.map((isOdd) => routeTokensOf(dtype, tokenRouting, isOdd)),
    ),
  ),
];
