// Models whose layers differ: multimodal folders, heads too wide for kernels, and refused settings.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles, writeAlone } from '../../lib/checkpoint/index.js';
import { initInference, nn } from '../../lib/index.js';
import { scoredAttention } from '../../lib/nn/scored-attention.js';
import { attention, noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import { folderOf } from './family-rows.js';

let home: string;
beforeAll(() => {
  home = mkdtempSync(join(tmpdir(), 'ds-kinds-'));
});
afterAll(() => rmSync(home, { recursive: true, force: true }));

const { Gemma4 } = nn.models;
const SIZES = {
  vocabSize: 41,
  maxSeq: 64,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  channels: 16,
  hidden: 24,
  headDim: 8,
  window: [5, null, 5, null],
  windowRopeTheta: 10_000,
  tied: true,
};

const tokensOf = (values: readonly number[]): Tensor =>
  Tensor.from(Int32Array.from(values), { shape: [1, values.length] });

function logitsOf(model: nn.models.CausalLM, values: readonly number[]): number[] {
  const tokens = tokensOf(values);
  const logits = noGrad(() => model.call(tokens).contiguous());
  const found = logits.toArray();
  for (const tensor of [tokens, logits]) tensor.dispose();
  return found;
}

const configOf = (family: string) =>
  JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8'));

test('a multimodal folder with unread projections of shared layers', async () => {
  const files = await WeightFiles.open(join(folderOf('gemma4'), 'model.safetensors'));
  const sources = [...files.tensors].map(([name, { dtype, shape }]) => ({
    name: name.replace(/^model\./, 'model.language_model.'),
    dtype,
    shape,
    values: () => files.read(name),
  }));
  const unread = ['language_model.layers.4.self_attn.k_proj.weight', 'audio_tower.weight'];
  for (const name of [...unread, 'embed_vision.weight']) {
    const values = async () => Tensor.from(Float32Array.of(1, 2)).keep();
    sources.push({ name: `model.${name}`, dtype: 'f32', shape: [2], values });
  }
  await writeAlone(join(home, 'model.safetensors'), sources);
  await files.close();
  const config = {
    model_type: 'gemma4',
    architectures: ['Gemma4ForConditionalGeneration'],
    text_config: configOf('gemma4'),
    vision_config: { hidden_size: 8 },
  };
  writeFileSync(join(home, 'config.json'), JSON.stringify(config));
  const model = await nn.models.fromPretrained(home);
  const plain = await nn.models.fromPretrained(folderOf('gemma4'));
  expect(logitsOf(model, [5, 6, 7, 8])).toEqual(logitsOf(plain, [5, 6, 7, 8]));
  for (const parameter of [...model.parameters(), ...plain.parameters()]) parameter.dispose();
});

test('heads of 258 channels attend as the kernel of the CPU does', () => {
  scope(() => {
    const draw = (heads: number, T: number) =>
      Tensor.from(
        Float64Array.from({ length: heads * T * 258 }, (_, i) => Math.sin(i * 0.37 + heads)),
        { shape: [1, heads, T, 258], dtype: 'f64' },
      );
    const [q, k, v] = [draw(4, 3), draw(2, 7), draw(1, 14).reshape([1, 2, 7, 258])];
    for (const window of [null, 2]) {
      const options = { scale: 0.07, window };
      const got = scoredAttention(q, k, v, { ...options, cap: null }).toArray();
      const expected = attention(q, k, v, { ...options, causal: true })
        .contiguous()
        .toArray();
      for (const [i, value] of got.entries()) expect(value).toBeCloseTo(expected[i] as number, 12);
    }
  });
});

test('an engine computes wide and shared keys like a full forward', async () => {
  const model = new Gemma4({
    ...SIZES,
    full: { headDim: 258, kvHeads: 1, keysAsValues: true },
    sharedKeys: { layers: 2, doubled: true },
    layerInputDim: 3,
    initializerRange: 0.3,
  });
  const prompt = [4, 9, 17, 30, 8, 5, 21];
  const expected = [...prompt];
  for (let i = 0; i < 12; ++i) {
    const last = logitsOf(model, expected).slice(-SIZES.vocabSize);
    expected.push(last.indexOf(Math.max(...last)));
  }
  expect(model.generate(prompt, { maxNewTokens: 12, temperature: 0 })).toEqual(expected);
  const engine = await initInference(model, { device: 'cpu', max_ragged_batch_size: 4 });
  const greedy = { temperature: 0, ignoreEos: true, maxNewTokens: 12 } as const;
  const [text] = await engine.generate({ prompt, ...greedy });
  expect([...prompt, ...(text?.tokens ?? [])]).toEqual(expected);
  await engine.destroy();
});

test.each([
  ['full', { full: { headDim: 7 } }, /Gemma4 full headDim: expected an even width/],
  ['kvHeads', { full: { headDim: 8, kvHeads: 1 } }, /full kvHeads: expected 2 without/],
  ['sharedKeys', { sharedKeys: { layers: 3 } }, /sharedKeys layers: expected an earlier layer/],
  ['layerInputDim', { layerInputDim: 0 }, /layerInputDim: expected/],
])('a wrong %s is refused', (_, more, message) => {
  expect(() => new Gemma4({ ...SIZES, ...more })).toThrow(message);
});

test.each([
  [{ num_kv_shared_layers: 5 }, /num_kv_shared_layers: expected fewer than the 5 layers/],
  [{ per_layer_config: { 1: { head_dim: 14 } } }, /per_layer_config: expected the same sizes/],
  [{ per_layer_config: { 1: { width: 14 } } }, /width: expected the keys head_dim/],
  [{ vocab_size_per_layer_input: 40 }, /vocab_size_per_layer_input: expected 41/],
  [{ enable_moe_block: true, num_experts: 4, top_k_experts: 5 }, /top_k_experts: expected at most/],
])('config.json with %j is refused', (more, message) => {
  expect(() => nn.models.fromConfig({ ...configOf('gemma4'), ...more })).toThrow(message);
});

test('skipped blocks and drawn tokens are refused', () => {
  const model = new Gemma4({ ...SIZES, sharedKeys: { layers: 2 } });
  const tokens = tokensOf([1, 2, 3, 4]);
  expect(() => model.call(tokens, null, { layerFactors: [1, 0, 1, 1] })).toThrow(
    /layerFactors: expected no value, because blocks read/,
  );
  expect(() =>
    model.train().call(tokens, null, { layerTokens: { layers: [1], reserved: 2 } }),
  ).toThrow(/layers that differ/);
  tokens.dispose();
});
