// attention() with sinks: a softmax over the scores and one more logit without a value.
import { attention, concat, softmax, Tensor, where } from '../../lib/tensor/index.js';
import { refusal } from '../support/refusal.js';

const [B, H, Hk, T, D] = [2, 4, 2, 7, 6];

const draw = (shape: number[], salt: number): Tensor => {
  const count = shape.reduce((a, b) => a * b, 1);
  const values = Float64Array.from({ length: count }, (_, i) => Math.sin(i * 1.7 + salt));
  const tensor = Tensor.from(values, { shape, dtype: 'f64' });
  tensor.requiresGrad = true;
  return tensor;
};

/** The same by operations that store the scores. */
function plain(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, window: number | null): Tensor {
  const scores = q
    .reshape([B, Hk, (H / Hk) * T, D])
    .matmul(k.transpose(2, 3))
    .reshape([B, H, T, T])
    .mul(D ** -0.5);
  const seen = Array.from({ length: T }, (_, t) =>
    Array.from({ length: T }, (_, s) => (s <= t && s > t - (window ?? T) ? 1 : 0)),
  );
  const masked = where(Tensor.from(seen).gt(0), scores, -1e300);
  const extra = sinks.reshape([1, H, 1, 1]).expand([B, H, T, 1]);
  const weights = softmax(concat([masked, extra], 3), 3).narrow(3, 0, T);
  return weights
    .reshape([B, Hk, (H / Hk) * T, T])
    .matmul(v)
    .reshape([B, H, T, D]);
}

test.each([[null], [3]])('values and gradients with the window %p', (window) => {
  const inputs = () =>
    [draw([B, H, T, D], 0), draw([B, Hk, T, D], 1), draw([B, Hk, T, D], 2), draw([H], 3)] as const;
  const [q, k, v, z] = inputs();
  const [q2, k2, v2, z2] = inputs();
  const out = attention(q, k, v, { causal: true, window, sinks: z });
  const expected = plain(q2, k2, v2, z2, window);
  const weight = draw([B, H, T, D], 4).detach();
  out.mul(weight).sum().backward();
  expected.mul(weight).sum().backward();
  const pairs = [
    [out, expected],
    ...[q, k, v, z].map((tensor, i) => [tensor.grad, [q2, k2, v2, z2][i]?.grad]),
  ];
  for (const [got, wanted] of pairs as [Tensor, Tensor][]) {
    const [a, b] = [got.contiguous().toArray(), wanted.contiguous().toArray()];
    a.forEach((value, i) => {
      expect(value).toBeCloseTo(b[i] as number, 12);
    });
  }
});

test('a query that sees no key gives 0', () => {
  const [q, k, v] = [draw([1, 1, 2, D], 0), draw([1, 1, 2, D], 1), draw([1, 1, 2, D], 2)];
  const documents = Tensor.from([[-1, 0]], { dtype: 'i32' });
  const out = attention(q, k, v, { causal: true, documents, sinks: draw([1], 3) });
  expect(out.select(2, 0).toArray()).toEqual(new Array(D).fill(0));
});

test('sinks of another size are refused', async () => {
  const error = await refusal(() =>
    attention(draw([1, 2, 2, D], 0), draw([1, 2, 2, D], 1), draw([1, 2, 2, D], 2), {
      sinks: draw([3], 3),
    }),
  );
  expect([error.code, error.message]).toEqual([
    'DS_SHAPE',
    expect.stringContaining('sinks [2], a logit of each head'),
  ]);
});
