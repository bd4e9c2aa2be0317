// fp8Linear against f64: outputs and gradients are products of quantized operands, at odd numbers
// of rows, in every recipe.
import assert from 'node:assert/strict';
import type { Device } from '../../lib/runtime/device.js';
import { linear, randn, relu, scope, seed, type Tensor } from '../../lib/tensor/index.js';
import {
  FP8_RECIPES,
  type Fp8Recipe,
  fp8Linear,
  shareCasts,
} from '../../lib/tensor/ops/fp8-linear.js';
import { recomputed } from '../../lib/tensor/recompute.js';
import type { Case } from '../support/case.js';
import { afterQuantization, type Format, type Scaling } from '../support/fp8-grid.js';

const [INPUTS, OUTPUTS] = [144, 160];

const PARTS: Record<Fp8Recipe, { rows: Scaling; weight: Scaling; gradient: Format }> = {
  tensorwise: { rows: 'tensor', weight: 'tensor', gradient: 'e5m2' },
  rowwise: { rows: 'row', weight: 'row', gradient: 'e4m3' },
  blockwise: { rows: 'group', weight: 'square', gradient: 'e4m3' },
};

type At = (r: number, c: number) => number;
const transpose =
  (at: At): At =>
  (r, c) =>
    at(c, r);

/** The elements of a matrix. */
function elementsOf(x: Tensor): At {
  const values = x.to('f32').toArray().flat(9) as number[];
  const columns = x.shape.at(-1) as number;
  return (r, c) => values[r * columns + c] as number;
}

/** a b^T of quantized operands [m, k] and [n, k]. */
function productOf(a: Float64Array, b: Float64Array, k: number): Float64Array {
  const [m, n] = [a.length / k, b.length / k];
  const out = new Float64Array(m * n);
  for (let r = 0; r < m; ++r) {
    for (let c = 0; c < n; ++c) {
      let sum = 0;
      for (let j = 0; j < k; ++j) sum += (a[r * k + j] as number) * (b[c * k + j] as number);
      out[r * n + c] = sum;
    }
  }
  return out;
}

function requireClose(label: string, got: Tensor, expected: Float64Array, tolerance: number): void {
  const values = got.to('f32').toArray().flat(9) as number[];
  const scale = expected.reduce((largest, x) => Math.max(largest, Math.abs(x)), 0);
  values.forEach((x, i) => {
    const error = Math.abs(x - (expected[i] as number));
    assert.ok(error <= tolerance * scale, `${label}[${i}]: ${x}, expected ${expected[i]}`);
  });
}

function gradients(recipe: Fp8Recipe, rows: number, device: Device): void {
  seed(7);
  const make = (shape: number[]): Tensor => {
    const tensor = randn(shape, { dtype: 'bf16', device });
    tensor.requiresGrad = true;
    return tensor;
  };
  scope(() => {
    const [x, weight, bias] = [make([rows, INPUTS]), make([OUTPUTS, INPUTS]), make([OUTPUTS])];
    const dout = randn([rows, OUTPUTS], { dtype: 'bf16', device });
    const out = fp8Linear(x, weight, bias, recipe);
    out.mul(dout).sum().backward();
    const { rows: scaling, weight: ofWeight, gradient } = PARTS[recipe];
    const forward = { format: 'e4m3', scaling } as const;
    const backward = { format: gradient, scaling };
    const [ofX, w, g, b] = [x, weight, dout, bias.reshape([1, OUTPUTS])].map(elementsOf) as [
      At,
      At,
      At,
      At,
    ];
    const weightKind = { format: 'e4m3', scaling: ofWeight } as const;
    const y = productOf(
      afterQuantization(ofX, [rows, INPUTS], forward),
      afterQuantization(w, [OUTPUTS, INPUTS], weightKind),
      INPUTS,
    ).map((sum, i) => sum + b(0, i % OUTPUTS));
    requireClose('out', out, y, 0.006);
    const dx = productOf(
      afterQuantization(g, [rows, OUTPUTS], backward),
      afterQuantization(transpose(w), [INPUTS, OUTPUTS], weightKind),
      OUTPUTS,
    );
    requireClose('dx', x.grad as Tensor, dx, 0.006);
    const dw = productOf(
      afterQuantization(transpose(g), [OUTPUTS, rows], backward),
      afterQuantization(transpose(ofX), [INPUTS, rows], forward),
      rows,
    );
    requireClose('dw', weight.grad as Tensor, dw, 0.006);
  });
}

/** Bits of three layers of one input, and of their gradients; the second layer stays in bf16. */
function bitsOfThree(recipe: Fp8Recipe, device: Device, isShared: boolean): unknown[] {
  seed(9);
  return scope(() => {
    const make = (shape: number[]): Tensor => {
      const tensor = randn(shape, { dtype: 'bf16', device });
      tensor.requiresGrad = true;
      return tensor;
    };
    const [x, a, b, c] = [
      make([40, INPUTS]),
      make([OUTPUTS, INPUTS]),
      make([48, INPUTS]),
      make([64, INPUTS]),
    ];
    const layers = (): Tensor[] => [
      fp8Linear(x, a, null, recipe),
      linear(x, b, null),
      fp8Linear(x, c, null, recipe),
    ];
    const outs = isShared ? shareCasts(x, layers) : layers();
    const during = device.memory.inUse;
    outs
      .map((out) => out.mul(out).sum())
      .reduce((sum, tensor) => sum.add(tensor))
      .backward();
    const grads = [x, a, b, c].map((tensor) => tensor.grad as Tensor);
    return [during, ...[...outs, ...grads].map((tensor) => tensor.toArray())];
  });
}

function checkSharing(recipe: Fp8Recipe, device: Device): void {
  const before = device.memory.inUse;
  const [apartBytes, ...apart] = bitsOfThree(recipe, device, false);
  const [sharedBytes, ...shared] = bitsOfThree(recipe, device, true);
  assert.deepEqual(shared, apart);
  assert.ok(Number(sharedBytes) < Number(apartBytes), 'the forward keeps one transpose');
  assert.equal(device.memory.inUse, before, 'bytes after the backward');
}

/** The second layer makes its output only; the codes go when the layers are done. */
function castOnce(device: Device): void {
  seed(10);
  scope(() => {
    const x = randn([16, INPUTS], { dtype: 'bf16', device });
    const weight = randn([OUTPUTS, INPUTS], { dtype: 'bf16', device });
    const layer = (): number => {
      const before = device.memory.liveBuffers;
      fp8Linear(x, weight, null, 'rowwise');
      return device.memory.liveBuffers - before;
    };
    const before = device.memory.liveBuffers;
    assert.deepEqual(
      shareCasts(x, () => [layer(), layer()]),
      [3, 1],
    );
    assert.equal(device.memory.liveBuffers - before, 2);
  });
}

/** The backward reads codes, so the input is freed; a recomputed input is not kept in any form. */
function keptInput(recipe: Fp8Recipe, device: Device): void {
  const gradient = (isRecomputed: boolean, isFreed: boolean): unknown[] => {
    seed(12);
    return scope(() => {
      const source = randn([40, INPUTS], { dtype: 'bf16', device });
      const weight = randn([OUTPUTS, INPUTS], { dtype: 'bf16', device });
      source.requiresGrad = weight.requiresGrad = true;
      const x = isRecomputed ? recomputed(relu, source) : relu(source);
      const out = fp8Linear(x, weight, null, recipe);
      if (isFreed) {
        x.dispose();
        assert.ok(x.isDisposed);
      }
      out.mul(out).sum().backward();
      return [source, weight].map((tensor) => (tensor.grad as Tensor).toArray());
    });
  };
  const expected = gradient(false, false);
  assert.deepEqual(gradient(false, true), expected);
  assert.deepEqual(gradient(true, true), expected);
}

/** A changed input is cast anew, and inputs of other calls do not mix. */
function changedInput(device: Device): void {
  seed(11);
  scope(() => {
    const [x, other] = [0, 1].map(() => randn([16, INPUTS], { dtype: 'bf16', device })) as [
      Tensor,
      Tensor,
    ];
    const weight = randn([OUTPUTS, INPUTS], { dtype: 'bf16', device });
    const of = (input: Tensor): unknown => fp8Linear(input, weight, null, 'rowwise').toArray();
    const [first, apart, doubled] = [of(x), of(other), of(x.mul(2))];
    shareCasts(x, () => {
      assert.deepEqual(of(x), first);
      assert.deepEqual(
        shareCasts(other, () => of(other)),
        apart,
      );
      assert.deepEqual(of(x), first);
      x.mul_(2);
      assert.deepEqual(of(x), doubled);
    });
  });
}

export const cases: Case[] = [
  ...FP8_RECIPES.flatMap((recipe) => [
    ...[1, 40, 131].map(
      (rows): Case => ({
        name: `fp8Linear, ${recipe}, ${rows} rows: products of quantized operands`,
        run: (device) => gradients(recipe, rows, device),
      }),
    ),
    {
      name: `fp8Linear, ${recipe}: layers that share casts give the same bits, and free them`,
      run: (device: Device) => checkSharing(recipe, device),
    },
    {
      name: `fp8Linear, ${recipe}: the backward needs no input`,
      run: (device: Device) => keptInput(recipe, device),
    },
  ]),
  { name: 'fp8Linear: layers that share casts cast their input once', run: castOnce },
  { name: 'fp8Linear: a changed input is cast anew', run: changedInput },
];
