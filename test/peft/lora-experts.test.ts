// Adapters of experts: which matrices get one, their files, merging, and training in an engine.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { cpu, initialize, nn, peft, seed, Tensor } from '../../lib/index.js';
import { bitsOf, largest, logits, stir } from './models.js';

const golden = join(__dirname, '../golden/peft');
const EXPERTS = ['mlp.experts.gate_up_proj', 'mlp.experts.down_proj'];
const OPTIONS = { r: 2, loraAlpha: 6, targetModules: [], targetParameters: EXPERTS };

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

const lorasOf = (model: nn.Module): peft.LoraExperts[] =>
  [...peft.lorasOf(model).values()].filter((value) => value instanceof peft.LoraExperts);

test('adapters of both matrices have the names of PEFT, and change nothing at first', () => {
  const model = tinyMoe();
  const before = logits(model, cpu());
  peft.addLora(model, OPTIONS);
  expect(largest(logits(model, cpu()), before)).toBe(0);
  const trained = [...model.namedParameters()].filter(([, one]) => one.requiresGrad);
  expect(trained.slice(0, 4).map(([name, { shape }]) => [name, ...shape])).toEqual([
    ['model.layers.0.mlp.experts.base_layer.lora_A.weight', 8, 32],
    ['model.layers.0.mlp.experts.base_layer.lora_B.weight', 32, 8],
    ['model.layers.0.mlp.experts.lora_A.weight', 8, 16],
    ['model.layers.0.mlp.experts.lora_B.weight', 32, 8],
  ]);
  expect(trained.length).toBe(8);
});

test('one matrix by its full name, with its own rank', () => {
  const name = 'model.layers.1.mlp.experts.down_proj';
  const model = peft.addLora(tinyMoe(), {
    ...OPTIONS,
    targetParameters: [name],
    rankPattern: { 'experts.down_proj': 3 },
  });
  const [layer, ...more] = lorasOf(model);
  expect(more).toEqual([]);
  expect([...peft.lorasOf(model).keys()]).toEqual(['model.layers.1.mlp.experts']);
  expect([layer?.base_layer, layer?.lora_A.weight.shape]).toEqual([null, [12, 16]]);
});

test('the first matrix of experts without gates has the name of transformers too', () => {
  const path = join(__dirname, '../golden/transformers/models/nemotron-h-moe/config.json');
  const config = JSON.parse(readFileSync(path, 'utf8'));
  for (const name of ['experts.up_proj', 'experts.gate_up_proj']) {
    const targetParameters = [`mixer.${name}`];
    const model = peft.addLora(nn.models.fromConfig(config), { ...OPTIONS, targetParameters });
    const [layer] = lorasOf(model);
    expect([layer?.lora_A.weight.shape, layer?.lora_B.weight.shape]).toEqual([
      [12, 8],
      [8, 12],
    ]);
  }
  expect(() =>
    peft.addLora(tinyMoe(), { ...OPTIONS, targetParameters: ['experts.up_proj'] }),
  ).toThrow(/experts\.up_proj, which matches no parameter/);
});

test.each(['qwen3-moe', 'gpt-oss'])('%s: files as PEFT writes them', async (name) => {
  const model = await nn.models.fromPretrained(join(golden, name, 'base'));
  await peft.loadAdapter(model, join(golden, name, 'adapter'));
  const dir = mkdtempSync(join(tmpdir(), 'ds-lora-experts-'));
  try {
    await peft.saveAdapter(model, dir);
    const [saved, reference] = await Promise.all(
      [dir, join(golden, name, 'adapter')].map(async (text) => {
        const files = await WeightFiles.open(join(text, 'adapter_model.safetensors'));
        const names = [...files.tensors.keys()].sort();
        const found = await Promise.all(names.map(async (key) => bitsOf(await files.read(key))));
        await files.close();
        return names.map((key, i) => [key, found[i]]);
      }),
    );
    expect(saved).toEqual(reference);
    const keyOf = (path: string): unknown =>
      JSON.parse(readFileSync(join(path, 'adapter_config.json'), 'utf8')).target_parameters;
    expect(keyOf(dir)).toEqual(keyOf(join(golden, name, 'adapter')));
    // Loading into the present adapters compares the scaling of each matrix.
    await peft.loadAdapter(model, dir);
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('merge adds both updates, unmerge takes them out, unload removes the adapters', () => {
  const model = peft.addLora(tinyMoe(), OPTIONS);
  stir(model);
  const apart = logits(model, cpu());
  const plain = peft.withoutAdapters(model, () => logits(model, cpu()));
  expect(largest(apart, plain)).toBeGreaterThan(1e-3);
  peft.merge(model);
  expect(largest(logits(model, cpu()), apart)).toBeLessThan(1e-5);
  peft.unmerge(model);
  expect(largest(logits(model, cpu()), apart)).toBeLessThan(1e-5);
  peft.unload(model);
  expect(largest(logits(model, cpu()), plain)).toBeLessThan(1e-5);
});

test.each([0, 3] as const)('stage %i trains the adapters and nothing else', async (stage) => {
  const model = peft.addLora(tinyMoe(), OPTIONS);
  const weights = [...model.namedParameters()].filter(([, one]) => !one.requiresGrad);
  const before = stage === 0 ? weights.map(([, one]) => bitsOf(one)) : [];
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 2,
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
  if (stage === 0) expect(weights.map(([, one]) => bitsOf(one))).toEqual(before);
  await engine.destroy();
});

test.each<[peft.LoraOptions, string]>([
  [{ ...OPTIONS, loraDropout: 0.1 }, 'addLora loraDropout: expected 0 with targetParameters'],
  [{ ...OPTIONS, useDora: true }, 'addLora useDora: expected false with targetParameters'],
  [{ ...OPTIONS, fanInFanOut: true }, 'addLora fanInFanOut: expected false'],
  [{ ...OPTIONS, targetParameters: ['experts.up'] }, 'got experts.up, which matches no parameter'],
  [{ ...OPTIONS, targetParameters: ['q_proj.weight'] }, 'got q_proj.weight, another parameter'],
  [{ ...OPTIONS, targetParameters: [] }, 'addLora targetModules'],
])('%p is refused', (options, message) => {
  expect(() => peft.addLora(tinyMoe(), options)).toThrow(message);
});
