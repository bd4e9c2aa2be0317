// Tests layers with weights in FP8: values of codes, products of codes, joint products, refusals.
import assert from 'node:assert/strict';
import { nn, noGrad, scope, seed, swiglu, Tensor } from '../../lib/index.js';
import { joinedGate, joinedLinear, joinMemory } from '../../lib/nn/joined-linears.js';
import type { Device } from '../../lib/runtime/device.js';
import type { DType } from '../../lib/runtime/dtype.js';
import type { Case } from '../support/case.js';

const { Fp8Linear } = nn;

const numbers = (tensor: Tensor): number[] =>
  noGrad(() => scope(() => tensor.to('f32').contiguous().toArray()));
const largest = (list: readonly number[]): number => Math.max(0, ...list.map(Math.abs));
const distance = (a: readonly number[], b: readonly number[]): number =>
  largest(a.map((value, i) => value - (b[i] as number)));

/** Of the largest output: sums of codes on tensor cores, and one rounding to the dtype. */
const TOLERANCE = { f32: 2e-3, f16: 2e-3, bf16: 6e-3 } as const;
const dtypes = ['f32', 'f16', 'bf16'] as const;

function drawn(shape: readonly number[], dtype: DType, device: Device): Tensor {
  const count = shape.reduce((product, size) => product * size, 1);
  const values = Float32Array.from({ length: count }, (_, i) => Math.sin(i * 12.9898) * 1.5);
  return scope(() => Tensor.from(values, { shape, device }).to(dtype)).keep();
}

/** The values of the codes of each row. */
function rounded(rows: Tensor): number[] {
  if (rows.numel === 0) return [];
  const layer = new nn.Linear(rows.size(1), rows.size(0), { bias: false });
  layer.to(rows.device, rows.dtype);
  noGrad(() => layer.weight.copy_(rows));
  return numbers(Fp8Linear.from(layer).values('f32'));
}

/** e4m3 keeps 4 bits: a weight moves by at most a 16th, or by half of the smallest code. */
async function rounds(device: Device): Promise<void> {
  for (const dtype of dtypes) {
    seed(4);
    const layer = new nn.Linear(150, 11).to(device, dtype);
    noGrad(() => layer.weight.narrow(0, 3, 1).mul_(1e-5));
    const before = numbers(layer.weight);
    const fp8Linear = Fp8Linear.from(layer);
    const scales = numbers(fp8Linear.weight_scale);
    numbers(fp8Linear.values('f32')).forEach((after, i) => {
      const value = before[i] as number;
      const scale = scales[Math.floor(i / 150)] as number;
      const most = Math.max(Math.abs(value) / 16, scale / 1024) * 1.0001;
      assert.ok(Math.abs(after - value) <= most, `${dtype}: weight ${i}: ${value} to ${after}`);
    });
    for (const scale of scales) assert.ok(Number.isInteger(Math.log2(scale)), 'a power of two');
  }
}

/** The product is the one of the values of both codes. */
async function multiplies(device: Device): Promise<void> {
  for (const dtype of dtypes) {
    for (const inputs of [64, 40]) {
      seed(5);
      const plain = new nn.Linear(inputs, 48).to(device, dtype);
      const fp8Linear = Fp8Linear.from(plain);
      const weight = numbers(fp8Linear.values('f32'));
      const bias = numbers(plain.bias as nn.Parameter);
      for (const shape of [[3, inputs], [2, 3, inputs], [200, inputs], [0, inputs], [inputs]]) {
        const x = drawn(shape, dtype, device);
        const rows = rounded(scope(() => x.reshape([-1, inputs]).keep()));
        const expected = Array.from({ length: (rows.length / inputs) * 48 }, (_, at) => {
          const [row, output] = [Math.floor(at / 48), at % 48];
          let sum = bias[output] as number;
          for (let k = 0; k < inputs; ++k)
            sum += (rows[row * inputs + k] as number) * (weight[output * inputs + k] as number);
          return sum;
        });
        const got = fp8Linear.call(x);
        assert.deepEqual(got.shape, [...shape.slice(0, -1), 48]);
        assert.equal(got.dtype, dtype);
        const wrong = distance(numbers(got), expected);
        assert.ok(wrong <= TOLERANCE[dtype] * largest(expected), `${dtype} [${shape}]: ${wrong}`);
      }
    }
  }
}

/** The gradient of x is that of the dequantized weight; the weight has none. */
async function flows(device: Device): Promise<void> {
  seed(6);
  const fp8Linear = Fp8Linear.from(new nn.LinearGelu(32, 48).to(device));
  const weight = fp8Linear.values('f32');
  const [x, dout] = [drawn([3, 32], 'f32', device), drawn([3, 48], 'f32', device)];
  fp8Linear.project(x.requireGrad()).mul(dout).sum().backward();
  const expected = noGrad(() => dout.matmul(weight));
  assert.ok(distance(numbers(x.grad as Tensor), numbers(expected)) < 1e-4);
  assert.ok(fp8Linear.hasGelu);
  assert.equal(fp8Linear.weight_codes.grad, null);
}

/** One product of several layers has the values of separate ones. */
async function joins(device: Device): Promise<void> {
  for (const dtype of dtypes) {
    for (const bias of [true, false]) {
      seed(8);
      const layers = [64, 64].map((outputs) =>
        Fp8Linear.from(new nn.Linear(160, outputs, { bias }).to(device, dtype)),
      );
      const x = drawn([2, 5, 160], dtype, device);
      const each = noGrad(() => layers.map((layer) => layer.call(x)));
      assert.ok(joinMemory(layers));
      noGrad(() =>
        scope(() => {
          const all = joinedLinear(x, layers) as Tensor[];
          all.forEach((got, l) => {
            const alone = numbers(each[l] as Tensor);
            assert.ok(distance(numbers(got), alone) <= TOLERANCE[dtype] * largest(alone));
          });
          const [gate, up] = each as [Tensor, Tensor];
          const expected = numbers(swiglu(gate, up));
          const gated = numbers(joinedGate(x, layers) as Tensor);
          assert.ok(distance(gated, expected) <= 2 * TOLERANCE[dtype] * largest(expected));
        }),
      );
    }
  }
  const other = new nn.Linear(160, 64).to(device);
  assert.equal(joinMemory([Fp8Linear.from(other), new nn.Linear(160, 64).to(device)]), false);
}

async function refuses(device: Device): Promise<void> {
  const layer = new nn.Linear(16, 4).to(device);
  const fp8Linear = Fp8Linear.from(layer);
  assert.throws(() => fp8Linear.call(drawn([2, 15], 'f32', device)), /\[\.\., 16\], got \[2, 15\]/);
  noGrad(() => layer.weight.narrow(0, 0, 1).fill_(Number.NaN));
  assert.throws(() => Fp8Linear.from(layer), /finite numbers/);
}

export const cases: Case[] = [
  { name: 'FP8 weights are the nearest codes times powers of two', run: rounds },
  { name: 'outputs of FP8 layers are those of both codes', run: multiplies },
  { name: 'gradients of inputs of FP8 layers, and none of the weight', run: flows },
  { name: 'FP8 layers with one input in one product have the values of separate ones', run: joins },
  { name: 'FP8 layers refuse other inputs and weights that are not finite', run: refuses },
];
