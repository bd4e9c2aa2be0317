// Folders with experts in MXFP4 give the values that transformers unpacks.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles } from '../../lib/checkpoint/index.js';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { nn, type Tensor } from '../../lib/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { Tensor as Tensors } from '../../lib/tensor/index.js';
import { refusal } from '../support/refusal.js';

const NAME = 'model.layers.0.mlp.experts.gate_up_proj';
/** Two experts of two rows with 64 inputs. */
const SHAPE = [2, 2, 2, 16];
const CONFIG = {
  model_type: 'gpt_oss',
  vocab_size: 8,
  hidden_size: 64,
  intermediate_size: 1,
  head_dim: 4,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  num_local_experts: 2,
  num_experts_per_tok: 1,
  max_position_embeddings: 16,
};

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-mxfp4-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const bytes = (values: number[], shape: number[]): Tensor =>
  Tensors.from(Uint8Array.from(values), { shape, dtype: 'u8' });

/** A folder with one tensor in MXFP4, of codes and scales that a formula gives. */
async function folderWith(name: string, scales = [126, 129, 127, 120, 130, 125, 128, 127]) {
  const dir = join(home, name);
  const model = nn.models.fromConfig(CONFIG);
  await model.save(dir);
  const files = await WeightFiles.open(dir);
  const kept: { name: string; values: Tensor }[] = [];
  for (const tensor of files.tensors.keys()) {
    if (tensor !== NAME) kept.push({ name: tensor, values: await files.read(tensor) });
  }
  await files.close();
  const codes = Array.from({ length: 128 }, (_, i) => (37 * i + 11) & 255);
  kept.push({ name: `${NAME}_blocks`, values: bytes(codes, SHAPE) });
  kept.push({ name: `${NAME}_scales`, values: bytes(scales, [2, 2, scales.length / 4]) });
  const path = join(dir, 'model.safetensors');
  const sources = kept.map(({ name, values }) => ({
    name,
    values,
    dtype: values.dtype,
    shape: values.shape,
  }));
  await writeSafetensors(path, sources);
  const config = JSON.parse(readFileSync(join(dir, 'config.json'), 'utf8'));
  const quantization_config = { quant_method: 'mxfp4', modules_to_not_convert: ['lm_head'] };
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, quantization_config }));
  return dir;
}

function weightOf(model: nn.models.CausalLM): nn.Parameter {
  const found = new Map(model.namedParameters()).get(NAME);
  if (!found) throw new Error(`no ${NAME}`);
  return found;
}

test.each(['f32', 'bf16'] as const)('values in %s equal those of transformers', async (dtype) => {
  const dir = await folderWith(`whole-${dtype}`);
  const weight = weightOf(await nn.models.fromPretrained(dir, { dtype }));
  const values = weight.to('f32').toArray();
  expect([weight.shape, weight.dtype]).toEqual([[2, 64, 2], dtype]);
  // Recorded from convert_moe_packed_tensors of transformers 5.18.
  expect(values.slice(0, 10)).toEqual([-0.75, -1.5, 0, -1, 0, 0, 0.75, -3, 1.5, 3]);
  expect(values.slice(-8)).toEqual([0.125, 0.5, -0.25, 2, 1, 4, -0.5, 4]);
  expect(values.reduce((sum, value) => sum + value, 0)).toBe(105.82421875);
  expect(values.reduce((sum, value, i) => sum + i * value, 0)).toBe(23045.34765625);
});

test('ranges of elements are read separately, and a saved folder has plain values', async () => {
  const dir = await folderWith('ranges');
  const fullValues = weightOf(await nn.models.fromPretrained(dir)).toArray();
  const model = await nn.models.fromPretrained(dir);
  for (const [from, count] of [
    [0, 3],
    [5, 130],
    [127, 129],
  ] as const) {
    const out = Tensors.empty([count], 'f32', cpu()).keep();
    weightOf(model).writeInitial(out, from);
    expect(out.toArray()).toEqual(fullValues.slice(from, from + count));
    out.dispose();
  }
  await model.save(join(home, 'plain'));
  const back = await nn.models.fromPretrained(join(home, 'plain'));
  expect(weightOf(back).toArray()).toEqual(fullValues);
  expect(back.describe().config.quantization_config).toBeUndefined();
});

test('scales of another size are refused', async () => {
  const dir = await folderWith('damaged', [127, 127, 127, 127]);
  const error = await refusal(() => nn.models.fromPretrained(dir));
  expect([error.code, error.message]).toEqual([
    'DS_CHECKPOINT',
    expect.stringMatching(/gate_up_proj_scales: expected .*2, 2, 2.*got .*2, 2, 1/),
  ]);
});
