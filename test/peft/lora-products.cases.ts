// Tests where LoRA layers add their product: into the base's output, unless hooks see it. Also
// which products a replay skips.
import assert from 'node:assert/strict';
import { nn, peft, seed, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { cast, checkpoint, linear, noGrad, randn, scope } from '../../lib/tensor/index.js';
import { addWideLinearInto, wideLinear } from '../../lib/tensor/ops/wide-linear.js';
import type { Case } from '../support/case.js';
import { countOps } from '../support/op-counts.js';
import { largest, on, stir } from './models.js';

class One extends nn.Module {
  readonly proj = new nn.Linear(64, 48);

  forward(x: Tensor): Tensor {
    return this.proj.call(x);
  }
}

/** An adapter over a layer, with or without NF4. */
function withLora(device: Device, isPacked: boolean): [nn.Module, peft.LoraLinear] {
  seed(3);
  const model = on(device, new One());
  if (isPacked) peft.quantize(model);
  peft.addLora(model, { r: 8, targetModules: ['proj'] });
  stir(model);
  on(device, model);
  return [model, model.proj as unknown as peft.LoraLinear];
}

/** Hooks of lora_B see its own output; the results are those without hooks, but for rounding. */
function besideHooks(device: Device, isPacked: boolean): void {
  const [model, layer] = withLora(device, isPacked);
  const x = randn([5, 64], { device }).keep().requireGrad();
  const run = (): number[][] => {
    const y = model.call(x) as Tensor;
    y.square().sum().backward();
    const leaves = [x, ...layer.factors];
    const values = [y.toArray(), ...leaves.map(({ grad }) => (grad as Tensor).toArray())];
    for (const tensor of leaves) tensor.grad = null;
    return values;
  };
  const plain = run();
  let seen: number[] = [];
  const remove = layer.lora_B.registerForwardHook((_, __, output) => {
    seen = (output as Tensor).toArray();
  });
  const watched = run();
  remove();
  assert.ok(largest(seen, layer.updateFor(x).toArray()) < 1e-5);
  for (const [i, values] of plain.entries()) {
    const top = Math.max(...values.map(Math.abs));
    assert.ok(largest(values, watched[i] as number[]) < 1e-5 * top, `values ${i}`);
  }
}

/** Only A's product is made again: the backward reads neither sum. */
function inReplays(device: Device, isPacked: boolean): void {
  const [model] = withLora(device, isPacked);
  const x = randn([5, 64], { device }).keep().requireGrad();
  const y = checkpoint((tensor: Tensor) => model.call(tensor) as Tensor, x);
  const counts = countOps(() => y.sum().backward());
  assert.equal(counts.Matmul, 1 + 5);
  assert.equal(counts.Nf4Dequantize, isPacked ? 1 : undefined);
}

/** Factors in f32 over bf16 count with 16 bits of mantissa, in results and gradients. */
function wide(device: Device, isReplayed: boolean): void {
  scope(() => {
    seed(5);
    const x = randn([2, 37, 64], { device }).to('bf16').requireGrad();
    const [down, up] = [randn([8, 64], { device }), randn([48, 8], { device })];
    const dz = randn([2, 37, 48], { device }).to('bf16');
    const leaves = [x, down.requireGrad(), up.requireGrad()];
    const base = randn([2, 37, 48], { device }).to('bf16');
    const run = (tensor: Tensor): Tensor =>
      addWideLinearInto(base.clone(), wideLinear(tensor, down).mul(2), up);
    const y = isReplayed ? checkpoint(run, x) : run(x);
    y.backward(dz);
    const got = [y, ...leaves.map(({ grad }) => grad as Tensor)];
    const expected = noGrad(() => {
      const [rows, grads] = [cast(x, 'f32').reshape([74, 64]), cast(dz, 'f32').reshape([74, 48])];
      const inner = linear(rows, down).mul(2);
      const ofInner = grads.matmul(up).mul(2);
      const sum = cast(base, 'f32').reshape([74, 48]).add(linear(inner, up));
      const ofDown = ofInner.transpose(0, 1).matmul(rows);
      return [sum, ofInner.matmul(down), ofDown, grads.transpose(0, 1).matmul(inner)];
    });
    for (const [i, tensor] of got.entries()) {
      const [values, wanted] = [tensor, expected[i] as Tensor].map((tensor) =>
        cast(tensor, 'f32').toArray().flat(9),
      ) as [number[], number[]];
      const top = Math.max(...wanted.map(Math.abs));
      // cuBLASLt may round the product to bf16 before it adds, so a bf16 result has two roundings.
      const bound = (tensor.dtype === 'bf16' ? 2 ** -7 : 2 ** -15) * top;
      assert.ok(largest(values, wanted) < bound, `result ${i}: ${largest(values, wanted) / top}`);
    }
  });
}

/** Layers with f32 adapters split small matrices and cast no activation. */
function splitsFactors(device: Device): void {
  const model = on(device, new One().to('bf16'));
  peft.addLora(model, { r: 8, targetModules: ['proj'] });
  on(device, model);
  const x = randn([5, 64], { device }).to('bf16').keep().requireGrad();
  const counts = countOps(() => (model.call(x) as Tensor).sum().backward());
  assert.equal(counts.SplitBf16, 3 + 5);
  assert.equal(counts.Matmul, 3 + 5);
}

const wideCases: readonly Case[] = [
  { name: 'factors in f32 over bf16', run: (device) => wide(device, false) },
  { name: 'factors in f32 over bf16, replayed', run: (device) => wide(device, true) },
  { name: 'factors in f32 are split', run: splitsFactors },
];

export const cases: Case[] = [
  ...wideCases,
  ...[false, true].flatMap((isPacked) => [
    {
      name: `hooks${isPacked ? ', NF4' : ''}`,
      run: (device: Device) => besideHooks(device, isPacked),
    },
    {
      name: `replays${isPacked ? ', NF4' : ''}`,
      run: (device: Device) => inReplays(device, isPacked),
    },
  ]),
];
