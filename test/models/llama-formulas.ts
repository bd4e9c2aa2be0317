// The formulas of Llama in doubles with plain loops, the reference for the model.

/** Sizes as in config.json. */
export interface Sizes {
  heads: number;
  kvHeads: number;
  headDim: number;
  eps: number;
  layers: number;
  tied: boolean;
  /** Radians per position of pair i. */
  frequency(i: number): number;
  /** Number of leading channels of a head that are rotated. Default: all. */
  rotaryDim?: number;
  /** Factor of cosines and sines. Default: 1. */
  magnitude?: number;
}

/** Values in row-major order by names of Hugging Face; a matrix is [out, in]. */
export type Weights = ReadonlyMap<string, readonly number[]>;

type Rows = number[][];

const dot = (a: readonly number[], b: readonly number[]): number =>
  a.reduce((sum, value, i) => sum + value * (b[i] as number), 0);

function linear(x: Rows, weights: Weights, name: string): Rows {
  const weight = weights.get(`${name}.weight`) as readonly number[];
  const bias = weights.get(`${name}.bias`);
  const inner = (x[0] as number[]).length;
  return x.map((row) =>
    Array.from({ length: weight.length / inner }, (_, o) => {
      return dot(row, weight.slice(o * inner, (o + 1) * inner)) + (bias?.[o] ?? 0);
    }),
  );
}

function norm(x: Rows, weights: Weights, name: string, eps: number): Rows {
  const weight = weights.get(`${name}.weight`) as readonly number[];
  return x.map((row) => {
    const scale = 1 / Math.sqrt(dot(row, row) / row.length + eps);
    return row.map((value, i) => value * scale * (weight[i] as number));
  });
}

const plus = (a: Rows, b: Rows): Rows =>
  a.map((row, t) => row.map((value, i) => value + ((b[t] as number[])[i] as number)));

/** The head at `from` of each row, rotated by its position if `turned`. */
function headAt(x: Rows, from: number, sizes: Sizes, turned: boolean): Rows {
  const { headDim, rotaryDim = headDim, magnitude = 1 } = sizes;
  const half = rotaryDim / 2;
  return x.map((row, position) => {
    const part = row.slice(from, from + headDim);
    if (!turned) return part;
    return part.map((value, i) => {
      if (i >= rotaryDim) return value;
      const angle = position * sizes.frequency(i % half);
      const other = i < half ? -(part[i + half] as number) : (part[i - half] as number);
      return magnitude * (value * Math.cos(angle) + other * Math.sin(angle));
    });
  });
}

function attention(x: Rows, weights: Weights, prefix: string, sizes: Sizes): Rows {
  const { heads, kvHeads, headDim } = sizes;
  const [q, k, v] = ['q', 'k', 'v'].map((text) => linear(x, weights, `${prefix}.${text}_proj`)) as [
    Rows,
    Rows,
    Rows,
  ];
  const mixed: Rows = x.map(() => []);
  for (let h = 0; h < heads; ++h) {
    const shared = Math.floor(h / (heads / kvHeads)) * headDim;
    const queries = headAt(q, h * headDim, sizes, true);
    const keys = headAt(k, shared, sizes, true);
    const values = headAt(v, shared, sizes, false);
    queries.forEach((query, t) => {
      const seen = keys.slice(0, t + 1);
      const scores = seen.map((key) => Math.exp(dot(query, key) / Math.sqrt(headDim)));
      const total = scores.reduce((sum, score) => sum + score, 0);
      for (let d = 0; d < headDim; ++d) {
        const column = values.slice(0, t + 1).map((value) => value[d] as number);
        (mixed[t] as number[]).push(dot(scores, column) / total);
      }
    });
  }
  return linear(mixed, weights, `${prefix}.o_proj`);
}

function feedForward(x: Rows, weights: Weights, prefix: string): Rows {
  const gate = linear(x, weights, `${prefix}.gate_proj`);
  const up = linear(x, weights, `${prefix}.up_proj`);
  const product = gate.map((row, t) =>
    row.map((value, i) => (value / (1 + Math.exp(-value))) * ((up[t] as number[])[i] as number)),
  );
  return linear(product, weights, `${prefix}.down_proj`);
}

/** Logits [T, V] of one text. */
export function logitsOf(tokens: readonly number[], weights: Weights, sizes: Sizes): Rows {
  const table = weights.get('model.embed_tokens.weight') as readonly number[];
  const channels = (weights.get('model.norm.weight') as readonly number[]).length;
  let x: Rows = tokens.map((token) => table.slice(token * channels, (token + 1) * channels));
  for (let layer = 0; layer < sizes.layers; ++layer) {
    const prefix = `model.layers.${layer}`;
    const first = norm(x, weights, `${prefix}.input_layernorm`, sizes.eps);
    x = plus(x, attention(first, weights, `${prefix}.self_attn`, sizes));
    const second = norm(x, weights, `${prefix}.post_attention_layernorm`, sizes.eps);
    x = plus(x, feedForward(second, weights, `${prefix}.mlp`));
  }
  x = norm(x, weights, 'model.norm', sizes.eps);
  return linear(x, weights, sizes.tied ? 'model.embed_tokens' : 'lm_head');
}

/** The mean cross-entropy of `targets`. */
export function lossOf(logits: Rows, targets: readonly number[]): number {
  const each = logits.map((row, t) => {
    const total = row.reduce((sum, value) => sum + Math.exp(value), 0);
    return Math.log(total) - (row[targets[t] as number] as number);
  });
  return each.reduce((sum, value) => sum + value, 0) / each.length;
}
