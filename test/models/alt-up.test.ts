// Gemma 3n: versions of the stream, sparse gates, further embeddings of a smaller vocabulary,
// multimodal folders, and refused settings.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { WeightFiles, writeAlone } from '../../lib/checkpoint/index.js';
import { initInference, nn } from '../../lib/index.js';
import { normalQuantile, sparsify } from '../../lib/models/rotary/sparse-gate.js';
import { noGrad, scope, Tensor } from '../../lib/tensor/index.js';
import { folderOf } from './family-rows.js';

const { Gemma3n } = nn.models;
const SIZES = {
  vocabSize: 41,
  maxSeq: 64,
  layers: 4,
  heads: 4,
  kvHeads: 2,
  channels: 12,
  hidden: 16,
  headDim: 6,
  window: [5, null, 5, null],
  windowRopeTheta: 10_000,
  layerInputDim: 3,
  altUp: { inputs: 2, laurelRank: 3 },
  tied: true,
  initializerRange: 0.3,
};

const configOf = (family: string) =>
  JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8'));

function logitsOf(model: nn.models.CausalLM, values: readonly number[]): number[] {
  const tokens = Tensor.from(Int32Array.from(values), { shape: [1, values.length] });
  const logits = noGrad(() => model.call(tokens).contiguous());
  const found = logits.toArray();
  for (const tensor of [tokens, logits]) tensor.dispose();
  return found;
}

const release = (...models: nn.models.CausalLM[]): void => {
  for (const model of models) for (const parameter of model.parameters()) parameter.dispose();
};

test('sparse gates keep the part above a quantile', () => {
  // Values of scipy.stats.norm.ppf.
  expect(normalQuantile(0.95)).toBeCloseTo(1.6448536269514722, 12);
  expect(normalQuantile(0.3)).toBeCloseTo(-0.5244005127080407, 12);
  expect(normalQuantile(0.5)).toBe(0);
  expect(normalQuantile(0.999999)).toBeCloseTo(4.753424308817087, 8);
  scope(() => {
    const gates = Tensor.from([[1, 2, 3, 6]], { dtype: 'f64' });
    // Mean 3, deviation sqrt(3.5).
    const limit = 3 + Math.sqrt(3.5) * normalQuantile(0.6);
    const [kept] = sparsify(gates, 0.6).toList() as number[][];
    expect(kept?.slice(0, 3)).toEqual([0, 0, 0]);
    expect(kept?.[3]).toBeCloseTo(6 - limit, 12);
  });
});

test('a multimodal folder loads as its text part', async () => {
  const home = mkdtempSync(join(tmpdir(), 'ds-gemma3n-'));
  const files = await WeightFiles.open(join(folderOf('gemma3n'), 'model.safetensors'));
  const sources = [...files.tensors].map(([name, { dtype, shape }]) => ({
    name: name.replace(/^model\./, 'model.language_model.'),
    dtype,
    shape,
    values: () => files.read(name),
  }));
  const unread = ['language_model.layers.3.self_attn.k_proj.weight', 'audio_tower.weight'];
  for (const name of [...unread, 'embed_vision.weight', 'embed_audio.weight']) {
    const values = async () => Tensor.from(Float32Array.of(1, 2)).keep();
    sources.push({ name: `model.${name}`, dtype: 'f32', shape: [2], values });
  }
  await writeAlone(join(home, 'model.safetensors'), sources);
  await files.close();
  const config = {
    model_type: 'gemma3n',
    architectures: ['Gemma3nForConditionalGeneration'],
    text_config: configOf('gemma3n'),
    audio_config: { hidden_size: 8 },
  };
  writeFileSync(join(home, 'config.json'), JSON.stringify(config));
  const model = await nn.models.fromPretrained(home);
  const plain = await nn.models.fromPretrained(folderOf('gemma3n'));
  expect(model).toBeInstanceOf(Gemma3n);
  expect(logitsOf(model, [5, 6, 7, 8])).toEqual(logitsOf(plain, [5, 6, 7, 8]));
  release(model, plain);
  rmSync(home, { recursive: true, force: true });
});

test('tokens beyond the smaller table have the further embedding of token 0', () => {
  const model = new Gemma3n({ ...SIZES, altUp: { ...SIZES.altUp, layerVocab: 30 } });
  const whole = new Gemma3n(SIZES);
  const given = new Map(model.namedParameters());
  noGrad(() =>
    scope(() => {
      for (const [name, parameter] of whole.namedParameters()) {
        const values = given.get(name) as Tensor;
        if (values.size(0) === parameter.size(0)) {
          parameter.copy_(values);
          continue;
        }
        expect([name, values.size(0)]).toEqual(['model.embed_tokens_per_layer.weight', 30]);
        parameter.narrow(0, 0, 30).copy_(values);
        parameter.narrow(0, 30, 11).copy_(values.narrow(0, 0, 1).expand([11, values.size(1)]));
      }
    }),
  );
  const tokens = [3, 31, 29, 40, 30];
  expect(logitsOf(model, tokens)).toEqual(logitsOf(whole, tokens));
  expect(model.describe().config).toMatchObject({ vocab_size_per_layer_input: 30 });
  release(model, whole);
});

test('coefficients are bounded in training only', () => {
  const model = new Gemma3n({ ...SIZES, altUp: { ...SIZES.altUp, coefClip: 0.01 } });
  const tokens = [4, 9, 17, 30];
  const trained = logitsOf(model, tokens);
  model.eval();
  const evaluated = logitsOf(model, tokens);
  expect(evaluated).not.toEqual(trained);
  noGrad(() => {
    for (const [name, parameter] of model.namedParameters()) {
      if (/_coefs\.weight$/.test(name)) parameter.clamp_(-0.01, 0.01);
    }
  });
  expect(logitsOf(model, tokens)).toEqual(trained);
  release(model);
});

test('an engine computes shared keys like a full forward', async () => {
  const sparsity = [0.6, 0, 0, 0.2];
  const altUp = { ...SIZES.altUp, sparsity };
  const model = new Gemma3n({ ...SIZES, altUp, sharedKeys: { layers: 2 } });
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

test('a skipped block passes the stream on', () => {
  const model = new Gemma3n({ ...SIZES, layers: 2, window: [5, null] });
  const one = new Gemma3n({ ...SIZES, layers: 1, window: [5] });
  const given = new Map(model.namedParameters());
  noGrad(() =>
    scope(() => {
      for (const [name, parameter] of one.namedParameters()) {
        const values = given.get(name) as Tensor;
        // The further embeddings of the first block.
        const part = /per_layer_model_projection/.test(name)
          ? values.narrow(0, 0, 3)
          : /embed_tokens_per_layer/.test(name)
            ? values.narrow(1, 0, 3)
            : values;
        parameter.copy_(part);
      }
    }),
  );
  const tokens = Tensor.from(Int32Array.of(4, 9, 17), { shape: [1, 3] });
  const skipped = noGrad(() => model.call(tokens, null, { layerFactors: [1, 0] }).contiguous());
  const got = skipped.toArray();
  for (const [i, value] of logitsOf(one, [4, 9, 17]).entries()) {
    expect(got[i]).toBeCloseTo(value, 5);
  }
  for (const tensor of [tokens, skipped]) tensor.dispose();
  release(model, one);
});

test.each([
  [{ altUp: undefined }, /Gemma3n altUp: expected an object with inputs/],
  [{ altUp: { inputs: 1, laurelRank: 3 } }, /altUp inputs: expected an integer/],
  [{ altUp: { inputs: 2, laurelRank: 0 } }, /altUp laurelRank: expected an integer/],
  [{ altUp: { ...SIZES.altUp, sparsity: [0.5] } }, /sparsity: expected a share in \[0, 1\)/],
  [{ altUp: { ...SIZES.altUp, sparsity: [0, 0, 0, 1] } }, /sparsity: expected a share/],
  [{ altUp: { ...SIZES.altUp, coefClip: 0 } }, /altUp coefClip: expected/],
  [{ layerInputDim: null }, /Gemma3n layerInputDim: expected/],
  [{ full: { headDim: 8 } }, /full/],
])('the options %j are refused', (more, message) => {
  expect(() => new Gemma3n({ ...SIZES, ...more } as never)).toThrow(message);
});

test.each([
  [{ altup_active_idx: 1 }, /altup_active_idx: expected 0, got 1/],
  [{ altup_num_inputs: 1 }, /altup_num_inputs: expected at least 2, got 1/],
  [{ altup_coef_clip: -1 }, /altup_coef_clip: expected a positive number/],
  [{ activation_sparsity_pattern: 0.95 }, /activation_sparsity_pattern: expected a share/],
  [{ intermediate_size: [16, 16, 24, 16] }, /intermediate_size: expected the same width/],
  [{ intermediate_size: [] }, /intermediate_size: expected/],
  [{ hidden_size_per_layer_input: 0 }, /hidden_size_per_layer_input: expected a positive/],
  [{ num_kv_shared_layers: 4 }, /num_kv_shared_layers: expected fewer than the 4 layers/],
  [{ hidden_activation: 'gelu' }, /hidden_activation: expected gelu_pytorch_tanh/],
])('config.json with %j is refused', (more, message) => {
  expect(() => nn.models.fromConfig({ ...configOf('gemma3n'), ...more })).toThrow(message);
});

test('a config.json without the pattern has sparse gates in its first ten layers', () => {
  const { activation_sparsity_pattern: _, layer_types: __, ...rest } = configOf('gemma3n');
  const model = nn.models.fromConfig({ ...rest, num_hidden_layers: 12 }) as nn.models.Gemma3n;
  const pattern = [...Array(10).fill(0.95), 0, 0];
  expect(model.config.altUp?.sparsity).toEqual(pattern);
  expect(nn.models.fromConfig({ ...rest, altup_coef_clip: null }).describe().config).toMatchObject({
    activation_sparsity_pattern: [0, 0, 0, 0],
    altup_coef_clip: null,
  });
});
