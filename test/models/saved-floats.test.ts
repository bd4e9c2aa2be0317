// Whole numbers of a saved config.json that transformers requires to be floats.
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn } from '../../lib/index.js';
import { folderOf } from './family-rows.js';

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-floats-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

async function saveModel(model: nn.models.CausalLM): Promise<string> {
  const dir = mkdtempSync(join(home, 'model-'));
  await model.save(dir);
  for (const parameter of model.parameters()) parameter.dispose();
  return readFileSync(join(dir, 'config.json'), 'utf8');
}

test('bounds of scores and logits', async () => {
  const config = JSON.parse(readFileSync(join(folderOf('gemma2'), 'config.json'), 'utf8'));
  const text = await saveModel(
    nn.models.fromConfig({ ...config, attn_logit_softcapping: 50, final_logit_softcapping: 30 }),
  );
  expect(text).toMatch(/"attn_logit_softcapping": 50\.0,?\n/);
  expect(text).toMatch(/"final_logit_softcapping": 30\.0,?\n/);
  expect(text).toMatch(/"hidden_size": 32,?\n/);
  expect(JSON.parse(text)).toMatchObject({ final_logit_softcapping: 30 });
});

test('zeros of the folder', async () => {
  const text = await saveModel(await nn.models.fromPretrained(folderOf('mixtral')));
  expect(text).toMatch(/"router_jitter_noise": 0\.0,?\n/);
  const mpt = await saveModel(await nn.models.fromPretrained(folderOf('mpt')));
  expect(mpt).toMatch(/"embedding_fraction": 1\.0,?\n/);
  const bamba = await saveModel(await nn.models.fromPretrained(folderOf('bamba')));
  expect(bamba).toMatch(/"z_loss_coefficient": 0\.0,?\n/);
});

test('lists of floats, and factors', async () => {
  const text = await saveModel(await nn.models.fromPretrained(folderOf('granite-hybrid')));
  expect(text).toMatch(/"time_step_limit": \[\n +0\.0,\n/);
  expect(text).toMatch(/"embedding_multiplier": 2\.0,?\n/);
  expect(text).toMatch(/"mamba_d_state": 256,?\n/);
  expect(JSON.parse(text).time_step_limit[0]).toBe(0);
  const config = JSON.parse(readFileSync(join(folderOf('falcon-h1'), 'config.json'), 'utf8'));
  const plain = { attention_in_multiplier: 1, key_multiplier: 2, mlp_multipliers: [1, 3] };
  const multiplied = await saveModel(nn.models.fromConfig({ ...config, ...plain }));
  expect(multiplied).toMatch(/"attention_in_multiplier": 1\.0,?\n/);
  expect(multiplied).toMatch(/"key_multiplier": 2\.0,?\n/);
  expect(multiplied).toMatch(/"mlp_multipliers": \[\n +1\.0,\n +3\.0\n/);
  const sparse = await saveModel(await nn.models.fromPretrained(folderOf('gemma3n')));
  expect(sparse).toMatch(/"altup_coef_clip": 120\.0,?\n/);
  expect(sparse).toMatch(/"activation_sparsity_pattern": \[\n +0\.6,\n +0\.0,\n/);
});
