// attention({ alibiSlopes }) equals attention with the bias as a mask, also beside other masks.
import { attention, Tensor } from '../../lib/tensor/index.js';
import { thrownBy } from '../support/refusal.js';

const [B, H, T, S, D] = [2, 3, 4, 6, 8];
const SLOPES = [0.5, 0.25, 0.1];

const values = (shape: number[], salt: number): Tensor => {
  const count = shape.reduce((a, b) => a * b, 1);
  const list = Float64Array.from({ length: count }, (_, i) => Math.sin(i * 1.7 + salt));
  const tensor = Tensor.from(list, { shape, dtype: 'f64' });
  tensor.requiresGrad = true;
  return tensor;
};

const inputs = (): [Tensor, Tensor, Tensor] => [
  values([B, H, T, D], 1),
  values([B, H, S, D], 2),
  values([B, H, S, D], 3),
];

const slopesOf = (list: readonly number[]): Tensor => Tensor.from([...list], { dtype: 'f64' });

/** The bias of all heads, with `more` added. */
function biasWith(more: (t: number, s: number) => number): Tensor {
  const list = SLOPES.flatMap((slope) =>
    Array.from({ length: T * S }, (_, i) => slope * ((i % S) - S) + more(Math.floor(i / S), i % S)),
  );
  return Tensor.from(Float64Array.from(list), { shape: [1, H, T, S], dtype: 'f64' });
}

/** The result, and the gradients of q, k and v. */
function resultsOf(options: Parameters<typeof attention>[3]): number[][] {
  const tensors = inputs();
  const out = attention(...tensors, options);
  out.mul(out).sum().backward();
  return [out, ...tensors.map(({ grad }) => grad as Tensor)].map((tensor) =>
    tensor.contiguous().toArray(),
  );
}

function expectNear(got: number[][], expected: number[][]): void {
  got.forEach((list, i) => {
    list.forEach((value, j) => {
      expect(value).toBeCloseTo((expected[i] as number[])[j] as number, 10);
    });
  });
}

test('the bias is a slope times the distance', () => {
  const expected = resultsOf({ causal: true, mask: biasWith(() => 0) });
  expectNear(resultsOf({ causal: true, alibiSlopes: slopesOf(SLOPES) }), expected);
});

test('a mask of numbers is added to the bias', () => {
  const plus = (t: number, s: number): number => Math.cos(t + 2 * s);
  const list = Array.from({ length: T * S }, (_, i) => plus(Math.floor(i / S), i % S));
  const mask = Tensor.from(Float64Array.from(list), { shape: [T, S], dtype: 'f64' });
  const got = resultsOf({ mask, alibiSlopes: slopesOf(SLOPES) });
  expectNear(got, resultsOf({ mask: biasWith(plus) }));
});

test('a mask of truth values hides keys', () => {
  const isSeen = (t: number, s: number): boolean => s === 0 || (t + s) % 3 !== 0;
  const list = Array.from({ length: T * S }, (_, i) => isSeen(Math.floor(i / S), i % S));
  const mask = Tensor.from(list.map(Number), { shape: [T, S] }).ne(0);
  const biasAt = (t: number, s: number): number => (isSeen(t, s) ? 0 : Number.NEGATIVE_INFINITY);
  const got = resultsOf({ mask, alibiSlopes: slopesOf(SLOPES) });
  expectNear(got, resultsOf({ mask: biasWith(biasAt) }));
});

test('slopes of other heads are refused', () => {
  const tensors = inputs();
  const { code, message } = thrownBy(() =>
    attention(...tensors, { alibiSlopes: slopesOf([1, 2]) }),
  );
  expect([code, message]).toEqual([
    'DS_SHAPE',
    expect.stringMatching(/alibiSlopes \[3\], a slope of each head/),
  ]);
});
