// Tests where LoRA layers add their product: into the base's output, unless hooks see it. Also
// which products a replay skips.
import assert from 'node:assert/strict';
import { nn, peft, seed, type Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { checkpoint, randn } from '../../lib/tensor/index.js';
import type { Case } from '../support/case.js';
import { counted } from '../support/op-counts.js';
import { largest, on, stir } from './models.js';

class One extends nn.Module {
  readonly proj = new nn.Linear(64, 48);

  forward(x: Tensor): Tensor {
    return this.proj.call(x);
  }
}

/** An adapter over a layer, with or without NF4. */
function adapted(device: Device, isPacked: boolean): [nn.Module, peft.LoraLinear] {
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
  const [model, layer] = adapted(device, isPacked);
  const x = randn([5, 64], { device }).keep().requireGrad();
  const run = (): number[][] => {
    const y = model.call(x) as Tensor;
    y.square().sum().backward();
    const leaves = [x, ...layer.factors];
    const values = [y.toArray(), ...leaves.map(({ grad }) => (grad as Tensor).toArray())];
    for (const one of leaves) one.grad = null;
    return values;
  };
  const plain = run();
  let seen: number[] = [];
  const remove = layer.lora_B.registerForwardHook((_, __, output) => {
    seen = (output as Tensor).toArray();
  });
  const watched = run();
  remove();
  assert.ok(largest(seen, layer.besideOf(x).toArray()) < 1e-5);
  for (const [i, values] of plain.entries()) {
    const top = Math.max(...values.map(Math.abs));
    assert.ok(largest(values, watched[i] as number[]) < 1e-5 * top, `values ${i}`);
  }
}

/** Only A's product is made again: the backward reads neither sum. */
function inReplays(device: Device, isPacked: boolean): void {
  const [model] = adapted(device, isPacked);
  const x = randn([5, 64], { device }).keep().requireGrad();
  const y = checkpoint((given: Tensor) => model.call(given) as Tensor, x);
  const counts = counted(() => y.sum().backward());
  assert.equal(counts.Matmul, 1 + 5);
  assert.equal(counts.Nf4Dequantize, isPacked ? 1 : undefined);
}

export const cases: Case[] = [false, true].flatMap((isPacked) => [
  {
    name: `hooks${isPacked ? ', NF4' : ''}`,
    run: (device: Device) => besideHooks(device, isPacked),
  },
  {
    name: `replays${isPacked ? ', NF4' : ''}`,
    run: (device: Device) => inReplays(device, isPacked),
  },
]);
