// Adapters over 4-bit weights under an engine: accumulation, checkpoints with and without the base,
// files.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  consolidate,
  type DsConfig,
  type Engine,
  initialize,
  nn,
  peft,
  seed,
  Tensor,
} from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { bitsOf, tinyGpt2 } from './models.js';

type Zero = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean>;

const settings: Zero[] = [
  { stage: 0 },
  {
    stage: 3,
    stage3_max_reuse_distance: 0,
    stage3_param_persistence_threshold: 0,
    offload_param: { device: 'cpu' },
    offload_optimizer: { device: 'cpu' },
  },
];

/** The base is the same for every seed of the adapters. */
async function engineOf(device: Device, zero: Zero, from: number): Promise<Engine> {
  const model = peft.quantize(tinyGpt2(4));
  seed(from);
  peft.addLora(model, { r: 4, targetModules: 'all-linear', loraDropout: 0.1 });
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: 2,
      gradient_accumulation_steps: 2,
      gradient_clipping: 1,
      optimizer: { type: 'AdamW', params: { lr: 0.01 } },
      bf16: { enabled: true },
      zero_optimization: zero,
    },
  });
  return engine;
}

function train(engine: Engine, first: number, steps: number): number[] {
  return Array.from({ length: 2 * steps }, (_, i) => {
    const ids = Int32Array.from({ length: 16 }, (_, k) => (k * 5 + 3 * (first + i)) % 64);
    const [tokens, targets] = [0, 0].map(() =>
      Tensor.from(ids, { shape: [2, 8], device: engine.device }).keep(),
    ) as [Tensor, Tensor];
    const loss = engine.forward<Tensor>(tokens, targets);
    engine.backward(loss);
    engine.step();
    for (const tensor of [tokens, targets]) tensor.dispose();
    return loss.item();
  });
}

function weights(engine: Engine): Record<string, string> {
  return engine.withFullWeights(() =>
    Object.fromEntries(
      Array.from(engine.module.namedParameters(), ([name, one]) => [
        name,
        `${one.dtype} ${bitsOf(one)}`,
      ]),
    ),
  );
}

async function goesOn(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-qlora-'));
  const [whole, adapters] = [join(dir, 'whole'), join(dir, 'adapters')];
  const seen: (readonly [number[], Record<string, string>])[] = [];
  try {
    for (const [i, zero] of settings.entries()) {
      const engine = await engineOf(device, zero, 1);
      const losses = train(engine, 0, 3);
      assert.ok((losses.at(-1) as number) < (losses[0] as number));
      await engine.saveCheckpoint(whole, { tag: `${i}` });
      await engine.saveCheckpoint(adapters, { tag: `${i}`, excludeFrozenParameters: true });
      const before = weights(engine);
      seen.push([losses, before]);
      const folder = join(dir, `adapter-${i}`);
      await engine.withFullWeights(() => peft.saveAdapter(engine.module, folder));
      const after = train(engine, 6, 1);
      engine.destroy();
      for (const place of [whole, adapters]) {
        const other = await engineOf(device, settings[1 - i] as Zero, 2);
        await other.loadCheckpoint(place, { tag: `${i}` });
        assert.deepEqual(weights(other), before);
        assert.deepEqual(train(other, 6, 1), after);
        other.destroy();
      }
      const alone = await peft.loadAdapter(peft.quantize(tinyGpt2(4)), folder);
      for (const [name, parameter] of alone.namedParameters()) {
        if (name.includes('lora_')) assert.equal(`f32 ${bitsOf(parameter)}`, before[name], name);
      }
    }
    assert.deepEqual(seen[0], seen[1]);
    const { format } = await consolidate(whole, join(dir, 'out'));
    assert.equal(format, 'native');
    const model = peft.addLora(peft.quantize(tinyGpt2(9)), { r: 4, targetModules: 'all-linear' });
    await nn.loadWeights(model, join(dir, 'out'));
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

export const cases: Case[] = [
  { name: 'QLoRA goes on where it stopped, on the host and on the device', run: goesOn },
];
