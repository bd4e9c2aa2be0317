// Tests the section fp8 of a configuration: the layers that it changes, its errors, the Trainer's
// options, and the refusal of older GPUs.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { resolveConfig } from '../../lib/config/index.js';
import { requireFp8Gpu } from '../../lib/engine/setup/fp8.js';
import { type DsConfig, initialize, nn } from '../../lib/index.js';
import { GPT2, Llama } from '../../lib/models/index.js';
import { addLora, lorasOf } from '../../lib/peft/index.js';
import { destroyTrainers, tinyTrainer } from '../trainer/tiny.js';

afterEach(destroyTrainers);

const config = (fp8: DsConfig['fp8']): DsConfig => ({
  train_micro_batch_size_per_gpu: 2,
  optimizer: { type: 'AdamW', params: { lr: 1e-2 } },
  bf16: { enabled: true },
  fp8,
});
const sizes = { vocabSize: 64, maxSeq: 64, layers: 1, heads: 2, channels: 32 };
const llama = () => new Llama({ ...sizes, kvHeads: 1, hidden: 40 });

const recipesOf = (model: nn.Module): Record<string, unknown> =>
  Object.fromEntries(
    [...model.namedModules()].flatMap(([path, one]) => ('fp8' in one ? [[path, one.fp8]] : [])),
  );

test('linear layers take the recipe, but not heads and layers with other dims', async () => {
  const model = llama();
  const fp8 = { enabled: true, recipe: 'blockwise', exclude: ['k_proj'] } as const;
  const { engine } = await initialize({ model, config: config(fp8), device: 'cpu' });
  const of = (name: string): string => `model.layers.0.${name}`;
  expect(recipesOf(model)).toEqual({
    [of('self_attn.q_proj')]: 'blockwise',
    [of('self_attn.k_proj')]: null,
    [of('self_attn.v_proj')]: 'blockwise',
    [of('self_attn.o_proj')]: 'blockwise',
    // 40 is no multiple of 16.
    [of('mlp.gate_proj')]: null,
    [of('mlp.up_proj')]: null,
    [of('mlp.down_proj')]: null,
    lm_head: null,
  });
  engine.destroy();
  expect(Object.values(recipesOf(model)).every((recipe) => recipe === null)).toBe(true);
});

test('base layers of adapters take it, the adapters do not', async () => {
  const model = addLora(new GPT2(sizes), { r: 16, targetModules: 'all-linear' });
  const { engine } = await initialize({ model, config: config({ enabled: true }), device: 'cpu' });
  const bases = [...lorasOf(model).values()].map(({ base }) => (base as nn.Linear).fp8);
  expect(bases).toEqual(Array.from({ length: 4 }, () => 'tensorwise'));
  // What is left are the layers lora_A and lora_B.
  expect(new Set(Object.values(recipesOf(model)))).toEqual(new Set([null]));
  engine.destroy();
});

test.each<[DsConfig['fp8'], nn.Module, RegExp]>([
  [{ enabled: true, exclude: ['q'] }, llama(), /fp8.exclude.*expected names.*got "q"/s],
  [{ enabled: true }, new nn.Sequential(new nn.Linear(16, 8)), /multiples of 16.*1 linear layers/s],
])('refuses %j', async (fp8, model, message) => {
  await expect(initialize({ model, config: config(fp8), device: 'cpu' })).rejects.toThrow(message);
});

test('needs bf16', () => {
  const options = { train_batch_size: 1, fp8: { enabled: true } };
  expect(() => resolveConfig(options, { worldSize: 1 })).toThrow(
    /fp8.enabled.*false without bf16/s,
  );
});

const gpu = (name: string, capability: string) =>
  ({ kind: 'cuda', info: { name, detail: `compute capability ${capability}, 132` } }) as never;

test.each([
  ['tensorwise', 'NVIDIA A100', '8.0', /fp8.enabled.*8.9 or higher.*NVIDIA A100.*8\.0/s],
  ['rowwise', 'NVIDIA L40S', '8.9', /fp8.recipe.*9\.0 to 10\.x.*L40S.*"tensorwise"/s],
  ['blockwise', 'NVIDIA B200', '10.0', /fp8.recipe.*9\.0.*B200/s],
] as const)('%s refuses %s', (recipe, name, capability, message) => {
  expect(() => requireFp8Gpu(recipe, gpu(name, capability))).toThrow(message);
  expect(() => requireFp8Gpu(recipe, gpu('NVIDIA H200', '9.0'))).not.toThrow();
});

test('the option of a Trainer fills the section', async () => {
  const { config: resolved } = await tinyTrainer({ precision: 'bf16', fp8: 'rowwise' }).engine();
  expect(resolved.fp8).toEqual({
    enabled: true,
    recipe: 'rowwise',
    exclude: [],
    all_gather: false,
  });
});

test('the option profile of a Trainer writes device time by role', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-roles-'));
  try {
    const profile = join(folder, 'roles.txt');
    await tinyTrainer({ profile, maxSteps: 8 }).train();
    const text = readFileSync(profile, 'utf8');
    expect(text).toMatch(/^device time by role, mean of 3 steps\nattention +\d/);
    expect(text).toMatch(/\nstep +[\d.]+ ms +100\.0 %\n$/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
