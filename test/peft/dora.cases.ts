// Tests DoRA: the output against sums in f64, with dropout, on 4-bit weights, merged, in files and
// with engines.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, truncateSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DsConfig, initialize, nn, peft, seed, Tensor } from '../../lib/index.js';
import type { Device } from '../../lib/runtime/device.js';
import type { Case } from '../support/case.js';
import { largest, logits, on, stir, tinyGpt2, tinyLlama } from './models.js';

const [INPUTS, OUTPUTS, RANK, ROWS, FACTOR] = [5, 7, 3, 4, 2];
const DORA = { useDora: true, r: RANK, loraAlpha: RANK * FACTOR } as const;

class One extends nn.Module {
  constructor(readonly proj: nn.Linear) {
    super();
  }

  forward(x: Tensor): Tensor {
    return this.proj.call(x);
  }
}

const wave = (count: number, phase: number): number[] =>
  Array.from({ length: count }, (_, i) => Math.fround(Math.sin(phase + 1.3 * i)));

/** sum over k of a[i, k] b[k, j], with accessor functions. */
type At = (i: number, j: number) => number;
const times =
  (count: number, a: At, b: At): At =>
  (i, j) =>
    Array.from({ length: count }, (_, k) => a(i, k) * b(k, j)).reduce((s, x) => s + x, 0);
const at =
  (values: readonly number[], columns: number): At =>
  (i, j) =>
    values[i * columns + j] as number;
const transpose =
  (a: At): At =>
  (i, j) =>
    a(j, i);

function near(name: string, got: Tensor | null | undefined, wanted: At, columns: number): void {
  const values = (got as Tensor).toArray();
  const error = largest(
    values,
    values.map((_, i) => wanted(Math.floor(i / columns), i % columns)),
  );
  assert.ok(error < 5e-6, `${name} is off by ${error}`);
}

/** y = m / n (W + s B A) x + b, and gradients with n as a constant. */
async function asInF64(device: Device): Promise<void> {
  seed(3);
  const model = on(device, new One(new nn.Linear(INPUTS, OUTPUTS)));
  const w = at(model.proj.weight.toArray(), INPUTS);
  const bias = (model.proj.bias as nn.Parameter).toArray();
  peft.addLora(model, { ...DORA, targetModules: ['proj'], bias: 'lora_only' });
  const layer = model.proj as unknown as peft.DoraLinear;
  stir(model);
  layer.lora_magnitude_vector.initialize((out) => {
    nn.init.ones(out);
    out.add_(Tensor.from(wave(OUTPUTS, 0.4).map((x) => x / 2)).to(device));
  });
  const [a, b] = layer.factors.map((factor) => at(factor.toArray(), factor.size(1))) as [At, At];
  const m = layer.lora_magnitude_vector.toArray();
  const update = times(RANK, b, a);
  const whole: At = (i, j) => w(i, j) + FACTOR * update(i, j);
  const lengths = m.map((_, i) =>
    Math.hypot(...Array.from({ length: INPUTS }, (_, j) => whole(i, j))),
  );
  const g = (i: number): number => (m[i] as number) / (lengths[i] as number);
  const [xs, dys] = [wave(ROWS * INPUTS, 0.3), wave(ROWS * OUTPUTS, 2.1)];
  const x = Tensor.from(xs, { shape: [ROWS, INPUTS], device }).requireGrad();
  const [ix, dy] = [at(xs, INPUTS), at(dys, OUTPUTS)];
  const u = times(INPUTS, ix, transpose(whole));
  const y = model.call(x);
  near('y', y, (i, j) => u(i, j) * g(j) + (bias[j] as number), OUTPUTS);
  y.backward(Tensor.from(dys, { shape: [ROWS, OUTPUTS], device }));
  const du: At = (i, j) => dy(i, j) * g(j);
  near('dx', x.grad, times(OUTPUTS, du, whole), INPUTS);
  const dWhole = times(ROWS, transpose(du), ix);
  const s =
    (of: At): At =>
    (i, j) =>
      FACTOR * of(i, j);
  near('dA', layer.lora_A.weight.grad, s(times(OUTPUTS, transpose(b), dWhole)), INPUTS);
  near('dB', layer.lora_B.weight.grad, s(times(INPUTS, dWhole, transpose(a))), RANK);
  const dg = (j: number): number => times(ROWS, transpose(dy), u)(j, j);
  near('dm', layer.lora_magnitude_vector.grad, (_, j) => dg(j) / (lengths[j] as number), OUTPUTS);
  near('db', layer.bias?.grad, (_, j) => times(ROWS, transpose(dy), () => 1)(j, 0), OUTPUTS);
}

/** With unchanged magnitudes, dropout acts as in LoRA: the base layer gets all of x. */
async function dropsAsLora(device: Device): Promise<void> {
  const outputs = [true, false].map((useDora) => {
    seed(4);
    const model = on(device, new One(new nn.Linear(32, 16)));
    void model.proj.weight.buffer;
    peft.addLora(model, { ...DORA, useDora, loraDropout: 0.5, targetModules: ['proj'] });
    const { factors } = model.proj as unknown as peft.LoraLinear;
    factors.forEach((factor, i) => {
      factor.initialize((out) => {
        nn.init.zeros(out);
        out.add_(Tensor.from(wave(out.numel, i), { shape: out.shape }).to(device).mul(1e-4));
      });
    });
    seed(5);
    const x = Tensor.from(wave(8 * 32, 1), { shape: [8, 32], device }).requireGrad();
    const y = model.train().call(x);
    y.sum().backward();
    return [y.toArray(), (x.grad as Tensor).toArray()] as const;
  });
  const [[dora, dx], [lora, wanted]] = outputs as [(typeof outputs)[0], (typeof outputs)[0]];
  assert.ok(largest(dora, lora) < 1e-3 && largest(dora, lora) > 0);
  assert.ok(largest(dx, wanted) < 1e-2);
}

/** At first the output is unchanged, for whole and 4-bit weights; merging and unmerging keep it. */
async function stagesOfALife(device: Device): Promise<void> {
  for (const isSmall of [false, true]) {
    const model = on(device, tinyLlama());
    if (isSmall) peft.quantize(model);
    const plain = logits(model, device);
    const targetModules = ['q_proj', 'o_proj', 'down_proj', 'embed_tokens'];
    peft.addLora(model, { ...DORA, targetModules });
    assert.ok(largest(logits(model, device), plain) < 1e-5);
    const names = [...model.namedParameters()].map(([name]) => name);
    const localTexts = names.filter((name) => name.endsWith('.lora_magnitude_vector'));
    assert.equal(localTexts.length, 3 * 2 + 1);
    stir(model);
    grow(model);
    const adapted = logits(model, device);
    assert.ok(largest(adapted, plain) > 1e-2);
    const without = peft.withoutAdapters(model, () => logits(model, device));
    assert.ok(largest(without, plain) < 1e-5);
    if (isSmall) continue; // Merging rounds to 4 bits again.
    peft.merge(model);
    assert.ok(largest(logits(model, device), adapted) < 1e-5);
    peft.unmerge(model);
    assert.ok(largest(logits(model, device), adapted) < 1e-5);
    peft.merge(model);
    peft.unload(model);
    assert.ok(largest(logits(model, device), adapted) < 1e-5);
  }
}

/** Sets magnitudes that are not zero and differ from the norms of the weights. */
function grow(model: nn.Module): void {
  for (const layer of peft.lorasOf(model).values()) {
    const { lora_magnitude_vector: magnitude } = layer as peft.DoraLinear;
    magnitude.initialize((out) => {
      nn.init.ones(out);
      out.add_(Tensor.from(wave(out.numel, 0.2)).to(out.device).mul(0.5));
    });
  }
}

async function files(device: Device): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'ds-dora-'));
  try {
    const model = on(device, tinyGpt2(5));
    peft.addLora(model, { ...DORA, targetModules: ['c_attn', 'wte'] });
    stir(model);
    grow(model);
    await peft.saveAdapter(model, dir);
    const config = JSON.parse(readFileSync(join(dir, 'adapter_config.json'), 'utf8'));
    assert.equal(config.use_dora, true);
    const text = readFileSync(join(dir, 'adapter_model.safetensors'), 'latin1');
    assert.match(
      text,
      /"base_model\.model\.transformer\.h\.1\.attn\.c_attn\.lora_magnitude_vector"/,
    );
    const other = await peft.loadAdapter(on(device, tinyGpt2(5)), dir);
    assert.deepEqual(logits(other, device), logits(model, device));
    const folder = join(dir, 'model');
    await tinyGpt2(6).save(folder);
    const fromFiles = await nn.models.fromPretrained(folder);
    peft.addLora(fromFiles, { ...DORA, targetModules: ['c_attn'] });
    const [layer] = peft.lorasOf(fromFiles).values() as Iterable<peft.DoraLinear>;
    assert.ok(layer?.lora_magnitude_vector.toArray().every((length) => length > 0));
    assert.equal(layer?.weight.isMaterialized, false, 'read for its lengths alone');
    const lost = await nn.models.fromPretrained(folder);
    truncateSync(join(folder, 'model.safetensors'), 2000);
    assert.throws(
      () => peft.addLora(lost, { ...DORA, targetModules: ['c_attn'] }),
      /model\.safetensors/,
    );
    assert.ok(
      lost.parameters().every(({ requiresGrad }) => requiresGrad),
      'as it was',
    );
    assert.equal(peft.lorasOf(lost).size, 0);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

type Zero = Exclude<NonNullable<DsConfig['zero_optimization']>, boolean>;

/**
 * Four steps of bf16 on 4-bit weights, with accumulation, checkpointed blocks, and weights on the
 * host.
 */
async function losses(device: Device, zero_optimization: Zero): Promise<number[]> {
  seed(1);
  const sizes = { vocabSize: 64, maxSeq: 16, layers: 2, heads: 4, kvHeads: 2 };
  const model = new nn.models.Llama({
    ...sizes,
    channels: 32,
    hidden: 48,
    activationCheckpointing: true,
  });
  for (const parameter of model.parameters()) void parameter.buffer;
  peft.addLora(peft.quantize(model), { ...DORA, targetModules: 'all-linear' });
  const { engine } = await initialize({
    model,
    device,
    config: {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'AdamW', params: { lr: 0.01 } },
      bf16: { enabled: true },
      zero_optimization,
    },
  });
  const ids = Int32Array.from({ length: 16 }, (_, i) => (i * 5) % 64);
  const tokens = Tensor.from(ids, { shape: [2, 8], device }).keep();
  const found = Array.from({ length: 4 }, () => {
    const loss = engine.forward<Tensor>(tokens, tokens);
    engine.backward(loss);
    engine.step();
    return loss.item();
  });
  tokens.dispose();
  engine.destroy();
  return found;
}

async function underEngines(device: Device): Promise<void> {
  const fullValues = await losses(device, { stage: 0 });
  assert.ok((fullValues[3] as number) < (fullValues[0] as number), fullValues.join(' '));
  const away = {
    stage: 3,
    offload_param: { device: 'cpu' },
    stage3_max_reuse_distance: 0,
  } as const;
  const from = await losses(device, { ...away, stage3_param_persistence_threshold: 0 });
  assert.deepEqual(from, fullValues);
}

export const cases: Case[] = [
  { name: 'y, dx, dA, dB, dm and db are those in f64', run: asInF64 },
  { name: 'dropout does not change the input of the base layer', run: dropsAsLora },
  { name: 'Llama with magnitudes, merged, unmerged, unloaded, over 4 bits', run: stagesOfALife },
  { name: "PEFT's files", run: files },
  { name: 'engines train it, on the device and from the host', run: underEngines },
];
