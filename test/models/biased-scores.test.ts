// Folders of BLOOM, OPT and Baichuan: names, keys, and what is refused.
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { type TensorSource, writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { nn } from '../../lib/index.js';
import { alibiSlopes } from '../../lib/models/rotary/alibi.js';
import type { JsonObject } from '../../types/json.js';
import { refusal, thrownBy } from '../support/refusal.js';
import { folderOf } from './family-rows.js';

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-biased-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

/** A copy of a golden folder with other names of tensors. */
async function renameWeights(family: string, rename: (name: string) => string): Promise<string> {
  const dir = join(home, family);
  cpSync(folderOf(family), dir, { recursive: true });
  const files = await WeightFiles.open(folderOf(family));
  const entries: TensorSource[] = [];
  for (const name of files.tensors.keys()) {
    const values = await files.read(name);
    const { shape, dtype } = values;
    entries.push({ name: rename(name), shape, dtype, values });
  }
  await files.close();
  await writeSafetensors(join(dir, 'model.safetensors'), entries);
  return dir;
}

const keysOf = (family: string): JsonObject =>
  JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8')) as JsonObject;

const valuesOf = (model: nn.models.CausalLM): unknown[] =>
  [...model.namedParameters()].map(([name, one]) => [name, one.toRaw()]);

test('names in files of BLOOM may omit "transformer."', async () => {
  const bare = await renameWeights('bloom', (name) => name.replace(/^transformer\./, ''));
  const model = await nn.models.fromPretrained(bare);
  expect(valuesOf(model)).toEqual(valuesOf(await nn.models.fromPretrained(folderOf('bloom'))));
});

test('slopes are powers of two, and values between them', () => {
  expect(alibiSlopes(4)).toEqual([1 / 4, 1 / 16, 1 / 64, 1 / 256]);
  expect(alibiSlopes(6).slice(4)).toEqual([1 / 2, 1 / 8]);
});

test('older keys of BLOOM are read', () => {
  const { hidden_size, n_head, n_layer, ...rest } = keysOf('bloom');
  const older = { ...rest, n_embed: 24, num_attention_heads: 6, num_hidden_layers: 2 };
  const { channels, heads, layers, maxSeq } = nn.models.fromConfig(older).config;
  expect([channels, heads, layers, maxSeq]).toEqual([hidden_size, n_head, n_layer, 2048]);
});

test('the keys of a Baichuan folder choose its positions and its head', () => {
  const writeConfig = (changes: JsonObject): JsonObject =>
    nn.models.fromConfig({ ...keysOf('baichuan'), ...changes }).describe().config as JsonObject;
  expect(writeConfig({})).toMatchObject({ max_position_embeddings: 128, z_loss_weight: 0 });
  const { max_position_embeddings: _, z_loss_weight: __, ...keys } = keysOf('baichuan');
  const biased = nn.models.fromConfig({ ...keys, model_max_length: 64 });
  const described = biased.describe().config as JsonObject;
  expect(described).toMatchObject({ model_max_length: 64 });
  expect(Object.keys(described)).not.toContain('z_loss_weight');
  expect(Object.keys(described)).not.toContain('rope_theta');
});

test('OPT without its last norm is refused', () => {
  const { code, message } = thrownBy(() =>
    nn.models.fromConfig({ ...keysOf('opt'), _remove_final_layer_norm: true }),
  );
  expect([code, message]).toEqual([
    'DS_CHECKPOINT',
    expect.stringMatching(/_remove_final_layer_norm: expected false, got true/),
  ]);
});

test('a head of OPT 350M has the width of the embedding', async () => {
  const dir = folderOf('opt-narrow');
  const model = await nn.models.fromPretrained(dir, {
    task: 'sequence-classification',
    labels: ['a', 'b', 'c'],
  });
  const shapes = Object.fromEntries([...model.namedParameters()].map(([n, one]) => [n, one.shape]));
  expect(shapes).toMatchObject({
    'score.weight': [3, 10],
    'model.decoder.embed_tokens.weight': [41, 10],
    'model.decoder.project_in.weight': [16, 10],
    'model.decoder.project_out.weight': [10, 16],
  });
  expect(shapes).not.toHaveProperty('model.decoder.final_layer_norm.weight');
  for (const parameter of model.parameters()) parameter.dispose();
});

test('OPT keeps the length of its table', async () => {
  const dir = folderOf('opt');
  const { code, message } = await refusal(() => nn.models.Opt.fromPretrained(dir, { maxSeq: 8 }));
  expect([code, message]).toEqual([
    'DS_ARGUMENT',
    expect.stringMatching(/Opt maxSeq: expected no value/),
  ]);
});
