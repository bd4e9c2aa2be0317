// Tests the JSON list of checkpoint parts for inference, and the errors for a wrong list.
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type inference, initInference, nn, seed } from '../../lib/index.js';

const models = join(__dirname, '../golden/transformers/models');
const folder = mkdtempSync(join(tmpdir(), 'ds-parts-'));
const ask = { prompt: [3, 1, 4], maxNewTokens: 6, temperature: 0, ignoreEos: true };
afterAll(() => rmSync(folder, { recursive: true }));

async function text(model: nn.models.CausalLM | string, config: inference.InferenceConfig) {
  const engine = await initInference(model, { device: 'cpu', max_out_tokens: 32, ...config });
  const [one] = await engine.generate(ask);
  await engine.destroy();
  return one?.tokens;
}

test.each(['gpt2', 'llama-tied', 'qwen3'])('a list of whole tensors fills a %s', async (family) => {
  const home = join(models, family);
  const expected = await text(home, { dtype: 'fp32' });
  const checkpoint = { type: 'ds_model', checkpoints: ['model.safetensors'], version: 1 };
  const options = { checkpoint, base_dir: home, dtype: 'fp32' } as const;
  expect(await text(home, options)).toEqual(expected);
  expect(await text(nn.models.fromConfig(home), options)).toEqual(expected);
});

test('one process writes a checkpoint and reads it', async () => {
  const saved = join(folder, 'saved');
  seed(4);
  const model = new nn.models.GPT2({ vocabSize: 31, maxSeq: 32, layers: 1, heads: 2, channels: 8 });
  const expected = await text(model, { save_mp_checkpoint_path: saved });
  const checkpoint = join(saved, 'ds_inference_config.json');
  expect(await text(saved, { checkpoint })).toEqual(expected);
  expect(JSON.parse(readFileSync(checkpoint, 'utf8'))).toMatchObject({
    type: 'ds_model',
    tp_size: 1,
  });
  await expect(text(model, { checkpoint })).rejects.toThrow(/a model without values/);
  await expect(text(model, { save_mp_checkpoint_path: saved })).rejects.toMatchObject({
    code: 'DS_ARGUMENT',
  });
});

test('a folder that cannot be created gives an error with a code', async () => {
  const model = new nn.models.GPT2({ vocabSize: 31, maxSeq: 32, layers: 1, heads: 2, channels: 8 });
  const saved = text(model, { save_mp_checkpoint_path: '/proc/ds/parts' });
  await expect(saved).rejects.toMatchObject({
    code: 'DS_IO',
    op: 'save_mp_checkpoint_path /proc/ds/parts',
  });
});

const list = { type: 'ds_model', checkpoints: ['model.safetensors'], version: 1 };

test.each([
  [
    { ...list, type: 'Megatron' },
    /checkpoint: type: expected "ds_model" or "bloom", got "Megatron"/,
  ],
  [{ ...list, version: undefined }, /checkpoint: expected a version/],
  [{ ...list, checkpoints: ['a.pt'] }, /expected safetensors files, got "a.pt".*convert them/],
  [{ ...list, checkpoints: [] }, /checkpoint: checkpoints: expected files/],
  [{ ...list, checkpoints: { tp: ['a.safetensors'] } }, /a list of files, or \{ tp, non_tp \}/],
  [{ ...list, shards: 2 }, /checkpoint: shards: expected type, checkpoints/],
  [
    {
      ...list,
      checkpoints: { non_tp: ['model.safetensors'], tp: ['a.safetensors', 'b.safetensors'] },
    },
    /expected parts of 1 ranks, got parts of 2\..*tp_size 2/,
  ],
])('the list %j is refused', async (checkpoint, message) => {
  const home = join(models, 'llama');
  const inferenceConfig = { checkpoint, base_dir: home } as inference.InferenceConfig;
  await expect(text(home, inferenceConfig)).rejects.toThrow(message);
});

test('refuses a file without a tensor, one with another shape, and a missing file', async () => {
  const home = join(models, 'llama');
  const other = join(models, 'qwen3', 'model.safetensors');
  copyFileSync(other, join(folder, 'model.safetensors'));
  await expect(text(home, { checkpoint: list, base_dir: folder })).rejects.toMatchObject({
    code: 'DS_CHECKPOINT',
  });
  const file = join(folder, 'list.json');
  writeFileSync(file, '[]');
  await expect(text(home, { checkpoint: file })).rejects.toThrow(
    /list.json: expected a JSON object/,
  );
  const absent = join(folder, 'absent.json');
  await expect(text(home, { checkpoint: absent })).rejects.toMatchObject({ code: 'DS_IO' });
});
