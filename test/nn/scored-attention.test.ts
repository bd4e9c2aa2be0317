// Tests attention with bounded scores, by operations and by the kernel, and norms by 1 + weight,
// against formulas in f64.
import { OffsetRMSNorm } from '../../lib/models/rotary/norms.js';
import { scoredAttention } from '../../lib/nn/scored-attention.js';
import { attention, noGrad, Tensor } from '../../lib/tensor/index.js';

/** Values in [-2, 2), the same in every run. */
const drawValues = (count: number, salt: number): Float64Array =>
  Float64Array.from(
    { length: count },
    (_, i) => 4 * ((Math.sin(i * 12.9 + salt) * 43758.5) % 1) * 0.5,
  );

const [B, H, Hk, T, S, D] = [2, 4, 2, 5, 7, 6];
const [scale, cap] = [0.7, 1.3];

interface Seen {
  window: number | null;
  documents: number[][] | null;
}

/** One element of the result: softmax of c tanh(scale q.k / c), times v. */
function referenceOf(
  [q, k, v]: readonly Float64Array[],
  length: { T: number; S: number },
  { window, documents }: Seen,
): number[] {
  const { T, S } = length;
  const out: number[] = [];
  for (let b = 0; b < B; ++b) {
    for (let h = 0; h < H; ++h) {
      const g = Math.floor(h / (H / Hk));
      for (let t = 0; t < T; ++t) {
        const weights = Array.from({ length: S }, (_, s) => {
          const at = t + S - T;
          const isNear = s <= at && (window === null || at - s < window);
          const isSame = !documents || documents[b]?.[at] === documents[b]?.[s];
          if (!isNear || !isSame) return 0;
          let sum = 0;
          for (let d = 0; d < D; ++d) {
            const localValue = (q as Float64Array)[((b * H + h) * T + t) * D + d] as number;
            sum += localValue * ((k as Float64Array)[((b * Hk + g) * S + s) * D + d] as number);
          }
          return Math.exp(cap * Math.tanh((scale * sum) / cap));
        });
        const total = weights.reduce((sum, value) => sum + value, 0);
        for (let d = 0; d < D; ++d) {
          const sum = weights.reduce(
            (all, value, s) =>
              all + value * ((v as Float64Array)[((b * Hk + g) * S + s) * D + d] ?? 0),
            0,
          );
          out.push(sum / total);
        }
      }
    }
  }
  return out;
}

test.each<[string, { T: number; S: number }, Seen]>([
  ['queries of all keys', { T: S, S }, { window: null, documents: null }],
  ['the last queries', { T, S }, { window: null, documents: null }],
  ['a window', { T, S }, { window: 3, documents: null }],
  [
    ...(['documents', { T: S, S }] as const),
    {
      window: 4,
      documents: [
        [0, 0, 0, 1, 1, 1, 1],
        [0, 1, 1, 1, 2, 2, 2],
      ],
    },
  ],
])('%s follow the formula', (_, length, seen) => {
  const values = [
    drawValues(B * H * length.T * D, 1),
    drawValues(B * Hk * length.S * D, 2),
    drawValues(B * Hk * length.S * D, 3),
  ];
  const [q, k, v] = values.map((value, i) =>
    Tensor.from(value, {
      shape: [B, i === 0 ? H : Hk, i === 0 ? length.T : length.S, D],
      dtype: 'f64',
    }),
  ) as [Tensor, Tensor, Tensor];
  const documents =
    seen.documents && Tensor.from(Int32Array.from(seen.documents.flat()), { shape: [B, length.S] });
  const options = { scale, cap, window: seen.window, documents };
  const out = noGrad(() => scoredAttention(q, k, v, options));
  const expected = referenceOf(values, length, seen);
  const got = out.contiguous().toArray();
  for (const [i, value] of got.entries()) expect(value).toBeCloseTo(expected[i] as number, 12);
  if (documents && length.T < length.S) return;
  const fused = noGrad(() => attention(q, k, v, { ...options, causal: true }));
  for (const [i, value] of fused.contiguous().toArray().entries())
    expect(value).toBeCloseTo(expected[i] as number, 12);
});

test('the kernel gives the gradients of the operations', () => {
  const gradients = [scoredAttention, attention].map((attend) => {
    const inputs = [H, Hk, Hk].map((heads, i) =>
      Tensor.from(drawValues(B * heads * T * D, i), { shape: [B, heads, T, D], dtype: 'f64' }),
    ) as [Tensor, Tensor, Tensor];
    for (const input of inputs) input.requiresGrad = true;
    attend(...inputs, { scale, cap, window: 3, causal: true })
      .mul(Tensor.from(drawValues(B * H * T * D, 9), { shape: [B, H, T, D], dtype: 'f64' }))
      .sum()
      .backward();
    return inputs.flatMap((input) => [...(input.grad as Tensor).toArray()]);
  }) as [number[], number[]];
  for (const [i, value] of gradients[1].entries())
    expect(value).toBeCloseTo(gradients[0][i] as number, 12);
});

test('sparse patterns are refused', () => {
  const x = Tensor.from(new Float32Array(4), { shape: [1, 1, 2, 2] });
  const options = { scale: 1, cap: 1, window: null, sparsity: {} };
  expect(() => scoredAttention(x, x, x, options)).toThrow(
    expect.objectContaining({
      code: 'DS_ARGUMENT',
      message: expect.stringMatching(
        /bounded scores or heads of more than 256 channels: expected no sparse pattern.*sparsify/,
      ),
    }),
  );
});

test.each(['f32', 'bf16'] as const)(
  'a norm keeps a weight that 1 + w in 16 bits loses: %s',
  (dtype) => {
    const [rows, channels, w] = [64, 32, 0.002];
    const norm = new OffsetRMSNorm(channels, 0).to('cpu', dtype);
    noGrad(() => norm.weight.fill_(w));
    const values = drawValues(rows * channels, 5).map((value) => value + 3);
    const x = Tensor.from(Float32Array.from(values), { shape: [rows, channels] }).to(dtype);
    const inputs = x.to('f32').toArray();
    const check = (out: Tensor) => {
      let [sum, wanted] = [0, 0];
      const got = out.to('f32').toArray();
      for (let row = 0; row < rows; ++row) {
        const localValues = inputs.slice(row * channels, (row + 1) * channels);
        const root = Math.sqrt(
          localValues.reduce((all, value) => all + value * value, 0) / channels,
        );
        localValues.forEach((value, i) => {
          wanted += (value / root) * (1 + w);
          sum += got[row * channels + i] as number;
        });
      }
      expect(Math.abs(sum / wanted - 1)).toBeLessThan(3e-4);
    };
    noGrad(() => {
      check(norm.call(x));
      check(norm.added(x.mul(0.5), x.mul(0.5))[1]);
    });
  },
);
