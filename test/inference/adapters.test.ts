// Tests adapter folders of ds serve and ds chat: their base model, and the error without one.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { initInference, initialize, nn, peft, Tensor } from '../../lib/index.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { openEngine } from '../../lib/serve/index.js';
import { stir, tinyGpt2, tinyLlama } from '../peft/models.js';
import { refusal } from '../support/refusal.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-adapters-'));
const base = join(dir, 'base');
const adapter = join(dir, 'adapter');
const tokenizer = join(packageRoot(), 'examples', 'tokenizer');
/** Larger than the base weights, so that texts differ. */
const strong = { r: 2, loraAlpha: 200 };
const ask = { prompt: [3, 1, 4], maxNewTokens: 6, temperature: 0, ignoreEos: true };

beforeAll(async () => {
  await tinyLlama().save(base);
  const model = peft.addLora(tinyLlama(), { ...strong, baseModelNameOrPath: base });
  stir(model);
  await peft.saveAdapter(model, adapter);
});
afterAll(() => rmSync(dir, { recursive: true }));

async function text(model: nn.models.CausalLM | string, more: object = {}): Promise<number[]> {
  const config = { device: 'cpu', max_out_tokens: 16, ...more };
  const engine =
    typeof model === 'string'
      ? await openEngine(model, { config })
      : await initInference(model, config);
  const [one] = await engine.generate(ask);
  await engine.destroy();
  return Array.from(one?.tokens ?? []);
}

/** A folder with an adapter; its file names `named` as the base model. */
function folderNaming(name: string, named: string | null): string {
  const folder = join(dir, name);
  cpSync(adapter, folder, { recursive: true });
  const file = join(folder, 'adapter_config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...config, base_model_name_or_path: named }));
  return folder;
}

test('an adapter is served on the model that it was trained on', async () => {
  const model = peft.addLora(tinyLlama(), strong);
  stir(model);
  peft.merge(model);
  const expected = await text(peft.unload(model));
  expect(expected).not.toEqual(await text(base));
  expect(await text(adapter)).toEqual(expected);
  expect(await text(folderNaming('beside', '../base'))).toEqual(expected);
  expect(await text(adapter, { quant: { weight: { num_bits: 8 } } })).toHaveLength(6);
});

test('an adapter with the config.json of its base model is no model', async () => {
  const folder = folderNaming('with-config', base);
  cpSync(join(base, 'config.json'), join(folder, 'config.json'));
  expect(await text(folder)).toEqual(await text(adapter));
  expect(await refusal(() => nn.models.fromPretrained(folder))).toMatchObject({
    code: 'DS_CHECKPOINT',
    got: expect.stringContaining('an adapter of PEFT for'),
  });
  // With weights the folder is a model, as before.
  cpSync(join(base, 'model.safetensors'), join(folder, 'model.safetensors'));
  expect(await text(folder)).toEqual(await text(base));
});

test('on a 4-bit model the adapter is not merged', async () => {
  const small = join(dir, 'small');
  const packed = peft.quantize(tinyLlama());
  await packed.save(small);
  await peft.loadAdapter(packed, adapter);
  expect(await text(folderNaming('on-small', small))).toEqual(await text(packed));
});

test('the adapter of a tied table is not merged', async () => {
  const tied = join(dir, 'tied');
  await tinyGpt2().save(tied);
  const model = await nn.models.fromPretrained(tied);
  const options = { ...strong, targetModules: ['wte', 'c_attn'], baseModelNameOrPath: tied };
  stir(peft.addLora(model, options));
  const folder = join(dir, 'on-tied');
  await peft.saveAdapter(model, folder);
  const output = await text(folder);
  expect(output).not.toEqual(await text(tied));
  expect(output).toEqual(await text(model));
});

test("a tokenizer in the model's folder only is used", async () => {
  cpSync(tokenizer, base, { recursive: true });
  for (const [folder, home] of [
    [folderNaming('without', base), base],
    [folderNaming('with', base), join(dir, 'with')],
  ] as const) {
    if (home === folder) cpSync(tokenizer, folder, { recursive: true });
    const engine = await openEngine(folder, { config: { device: 'cpu' } });
    expect(engine.tokenizer?.folder).toBe(home);
    await engine.destroy();
  }
});

test('accepts a training checkpoint that contains only an adapter', async () => {
  const model = peft.addLora(tinyLlama(), { r: 2 });
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: { train_batch_size: 1, optimizer: { type: 'SGD', params: { lr: 0.5 } } },
  });
  const tokens = Tensor.from(Int32Array.from([1, 2, 3, 4]), { shape: [1, 4] });
  engine.backward(engine.forward(tokens, tokens));
  engine.step();
  const folder = join(dir, 'checkpoint-1');
  await engine.saveCheckpoint(folder);
  engine.destroy();
  expect(await refusal(() => nn.models.fromPretrained(folder))).toMatchObject({
    code: 'DS_CHECKPOINT',
    got: 'a model with adapters',
    hint: expect.stringContaining('peft.addLora()'),
  });
  cpSync(adapter, folder, { recursive: true });
  expect(await text(folder)).toEqual(await text(adapter));
});

test.each([
  ['./gone', '"./gone"'],
  [null, 'an unnamed model'],
])('an adapter of %j, which is no folder here, says what it is', async (named, message) => {
  const folder = folderNaming(`of-${named === null}`, named);
  for (const open of [() => openEngine(folder), () => nn.models.fromPretrained(folder)]) {
    expect(await refusal(open)).toMatchObject({
      code: 'DS_CHECKPOINT',
      op: folder,
      got: `an adapter of PEFT for ${message}`,
      hint: expect.stringContaining('peft.loadAdapter'),
    });
  }
});

test('a base named by the hub is read from the hub', async () => {
  const error = await refusal(() => openEngine(folderNaming('of-hub', 'org/no-such-model')));
  expect(error).toMatchObject({ code: 'DS_HUB', op: 'org/no-such-model' });
  expect(error.message).toMatch(/HF_HUB_OFFLINE is set/);
});
