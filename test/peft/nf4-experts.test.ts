// Experts in 4 bits: values, gradients of what trains around them, adapters, and refusals.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpu, initialize, nn, peft, seed, Tensor } from '../../lib/index.js';
import * as kernels from '../../lib/runtime/kernels.generated.js';
import { bitsOf, largest, logits, stir } from './models.js';

const golden = join(__dirname, '../golden/peft');
const OPTIONS = {
  r: 2,
  loraAlpha: 6,
  targetModules: ['q_proj'],
  targetParameters: ['experts.gate_up_proj', 'experts.down_proj'],
};

function tinyMoe(): nn.models.Qwen3Moe {
  seed(3);
  return new nn.models.Qwen3Moe({
    vocabSize: 64,
    maxSeq: 16,
    layers: 2,
    heads: 4,
    kvHeads: 2,
    headDim: 8,
    channels: 32,
    hidden: 48,
    moe: { experts: 4, perToken: 2, hidden: 16 },
  });
}

const packedOf = (model: nn.Module): [string, peft.NF4Matrices][] =>
  [...model.namedModules()].flatMap(([path, one]) =>
    one instanceof peft.NF4Matrices ? [[path, one] as [string, peft.NF4Matrices]] : [],
  );

/** The same model with the values of `packed` in its experts. */
function unpackExperts(packed: nn.Module, plain: nn.models.CausalLM): nn.models.CausalLM {
  const parameters = new Map(plain.namedParameters());
  for (const [path, one] of packedOf(packed)) {
    kernels.copy({ in: one.values('f32'), out: parameters.get(path) as nn.Parameter });
  }
  return plain;
}

const skipModules = ['lm_head', 'q_proj', 'k_proj', 'v_proj', 'o_proj'];

const models: Record<string, () => Promise<nn.models.CausalLM>> = {
  'qwen3-moe': async () => tinyMoe(),
  'gpt-oss': () => nn.models.fromPretrained(join(golden, 'gpt-oss', 'base')),
};

test.each(Object.keys(models))('%s: logits and gradients of dequantized experts', async (name) => {
  const make = models[name] as () => Promise<nn.models.CausalLM>;
  const packed = peft.quantize(await make(), { experts: true, skipModules });
  expect(packedOf(packed).length).toBe(name === 'gpt-oss' ? 2 : 4);
  const plain = unpackExperts(packed, await make());
  expect(largest(logits(packed, cpu()), logits(plain, cpu()))).toBeLessThan(1e-6);
  for (const model of [packed, plain]) stir(peft.addLora(model, OPTIONS));
  const tokens = Tensor.from(
    Int32Array.from({ length: 12 }, (_, i) => (i * 7 + 3) % 64),
    { shape: [2, 6] },
  ).keep();
  const gradients = [packed, plain].map((model) => {
    model.call(tokens, tokens).backward();
    const trained = [...model.namedParameters()].filter(([, one]) => one.requiresGrad);
    return trained.map(([key, one]) => [key, (one.grad as Tensor).toArray()] as const);
  }) as [[string, number[]][], [string, number[]][]];
  expect(gradients[0].length).toBeGreaterThan(5);
  gradients[0].forEach(([key, values], i) => {
    const [other, expected] = gradients[1][i] as [string, number[]];
    expect([key, largest(values, expected) < 1e-6]).toEqual([other, true]);
  });
});

test('about 4.5 bits a weight, as for linear layers', () => {
  const model = peft.quantize(tinyMoe(), { experts: true });
  const bytes = packedOf(model).reduce((sum, [, { stored }]) => sum + stored.numel, 0);
  const weights = packedOf(model).reduce(
    (sum, [, { shape }]) => sum + shape.reduce((all, value) => all * value, 1),
    0,
  );
  expect(bytes).toBe(weights / 2);
  const names = [...model.namedParameters()].map(([name]) => name);
  expect(names).toContain('model.layers.0.mlp.experts.gate_up_proj.absmax');
});

test.each([0, 3] as const)('stage %i trains adapters and leaves the bytes', async (stage) => {
  const model = peft.addLora(peft.quantize(tinyMoe(), { experts: true }), OPTIONS);
  const bytes = (): string[] => packedOf(model).map(([, { stored }]) => bitsOf(stored));
  const before = stage === 0 ? bytes() : [];
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 2,
      bf16: { enabled: true },
      optimizer: { type: 'AdamW', params: { lr: 0.02 } },
      zero_optimization: { stage },
    },
  });
  const ids = Int32Array.from({ length: 12 }, (_, i) => (i * 7 + 3) % 64);
  const tokens = Tensor.from(ids, { shape: [2, 6] }).keep();
  const losses: number[] = [];
  for (let step = 0; step < 4; ++step) {
    const loss = engine.forward<Tensor>(tokens, tokens);
    engine.backward(loss);
    engine.step();
    losses.push(loss.item());
  }
  expect(losses.at(-1)).toBeLessThan((losses[0] as number) - 0.05);
  if (stage === 0) expect(bytes()).toEqual(before);
  await engine.destroy();
});

test('merge rounds the sum to 4 bits again', () => {
  const model = peft.addLora(peft.quantize(tinyMoe(), { experts: true }), OPTIONS);
  stir(model);
  const apart = logits(model, cpu());
  const plain = peft.withoutAdapters(model, () => logits(model, cpu()));
  peft.merge(model);
  expect(largest(logits(model, cpu()), apart)).toBeLessThan(largest(plain, apart));
});

test('a folder cannot have experts in 4 bits; the adapter is saved', async () => {
  const model = peft.addLora(peft.quantize(tinyMoe(), { experts: true }), OPTIONS);
  const dir = mkdtempSync(join(tmpdir(), 'ds-nf4-experts-'));
  try {
    expect((await peft.saveAdapter(model, dir)).length).toBe(2);
    peft.unload(model);
    await expect(nn.saveWeights(model, join(dir, 'whole'))).rejects.toThrow(
      'expected experts that are not quantized',
    );
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('a model without experts is refused', () => {
  const model = new nn.models.Llama({
    vocabSize: 64,
    maxSeq: 16,
    layers: 1,
    heads: 4,
    kvHeads: 2,
    channels: 32,
    hidden: 48,
  });
  expect(() => peft.quantize(model, { experts: true })).toThrow(
    'quantize experts: expected a model with experts',
  );
});
