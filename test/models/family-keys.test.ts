// Tests keys of config.json that families of the shared body read: defaults, old and new versions,
// multimodal folders, and refusals.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TensorSource, WeightFiles, writeAlone } from '../../lib/checkpoint/index.js';
import { nn } from '../../lib/index.js';
import { NormalizedHead } from '../../lib/models/normalized-head.js';
import { OpenWeights } from '../../lib/models/stored-weights.js';
import { wrapTransposedLayout } from '../../lib/models/transposed-experts.js';
import { cpu } from '../../lib/runtime/device.js';
import { required } from '../../lib/runtime/required.js';
import { noGrad, Tensor } from '../../lib/tensor/index.js';
import { greedyTexts } from '../support/greedy-texts.js';
import { FAMILIES, folderOf } from './family-rows.js';

const { fromConfig, fromPretrained } = nn.models;

const configOf = (family: string): Record<string, unknown> =>
  JSON.parse(readFileSync(join(folderOf(family), 'config.json'), 'utf8'));

/** The configuration of a family with changed keys; undefined removes a key. */
function withKeys(family: string, more: object = {}): nn.models.RotaryLM {
  const all = Object.entries({ ...configOf(family), ...more });
  const options = Object.fromEntries(all.filter(([, value]) => value !== undefined));
  return fromConfig(options as never) as nn.models.RotaryLM;
}

const refusal = (message: RegExp, code = 'DS_CHECKPOINT') =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });

describe('defaults of absent keys', () => {
  const windows = (family: string, layers: number, more: object = {}) => {
    const keys = { num_hidden_layers: layers, layer_types: undefined, sliding_window: 8, ...more };
    return withKeys(family, keys).config.window;
  };
  const W = 8;

  test('layers with a window', () => {
    expect(windows('gemma2', 4)).toEqual([W, null, W, null]);
    expect(windows('gemma3', 7)).toEqual([W, W, W, W, W, null, W]);
    expect(windows('gemma3', 4, { sliding_window_pattern: 2 })).toEqual([W, null, W, null]);
    expect(windows('olmo3', 5)).toEqual([W, W, W, null, W]);
    expect(windows('cohere2', 4)).toEqual([W, W, W, null]);
    expect(windows('exaone4', 4, { sliding_window: null })).toBe(null);
    const pattern = { sliding_window_pattern: 'LLG' };
    expect(windows('exaone4', 6, pattern)).toEqual([W, W, null, W, W, null]);
    expect(windows('exaone4', 5, pattern)).toEqual([W, W, null, W, null]);
  });

  test('layers without positions', () => {
    const keys = { num_hidden_layers: 5, no_rope_layers: undefined };
    const { ropeLayers } = withKeys('smollm3', keys).config;
    expect(ropeLayers).toEqual([true, true, true, false, true]);
    const two = { ...keys, no_rope_layer_interval: 2 };
    expect(withKeys('smollm3', two).config.ropeLayers).toEqual([true, false, true, false, true]);
  });

  test('factors: an absent attention_multiplier is 1, not 1 / sqrt(D)', () => {
    const absent = { attention_multiplier: undefined, logits_scaling: undefined };
    expect(withKeys('granite', absent).config.scales).toEqual({
      embed: 3,
      residual: 0.45,
      scores: 1,
      logits: 1,
    });
    const { scales } = withKeys('gemma2', { attn_logit_softcapping: null }).config;
    expect(scales).toEqual({ scores: 24, scoreCap: null, logitCap: 2.5 });
  });

  test('a section of null counts as absent', () => {
    const scalingOf = (section: null | undefined) =>
      withKeys('mistral4', { rope_parameters: section }).config.ropeScaling;
    expect(scalingOf(null)).toMatchObject({ type: 'yarn', factor: 128 });
    expect(scalingOf(null)).toEqual(scalingOf(undefined));
  });

  test('models of one class have the defaults of their model_type', () => {
    const absent = { n_group: undefined, topk_group: undefined, rms_norm_eps: undefined };
    const lengths = { index_topk: undefined, max_position_embeddings: 4096 };
    const read = (type: string, more: object = {}) =>
      withKeys('deepseek-v32', { ...lengths, ...more, model_type: type }).config;
    const glm = read('glm_moe_dsa', absent);
    expect(glm).toMatchObject({ eps: 1e-5, maxSeq: 2048, moe: { groups: 1, keptGroups: 1 } });
    expect(read('deepseek_v32')).toMatchObject({ eps: 1e-6, maxSeq: 2048 });
    expect(read('deepseek_v3').maxSeq).toBe(4096);
    expect(() => read('deepseek_v3', absent)).toThrow(/n_group: expected a divisor of 4, got 8/);
  });

  test('a length of null counts as absent', () => {
    expect(withKeys('dots1', { max_position_embeddings: null }).config.maxSeq).toBe(2048);
  });

  test('a DeepSeek without experts is dense, and a Qwen has half of intermediate_size', () => {
    const dense = withKeys('deepseek', {
      n_routed_experts: undefined,
      n_shared_experts: undefined,
    });
    expect(dense.config.moe).toBe(undefined);
    expect(dense.describe().config).not.toHaveProperty('n_routed_experts');
    const qwen = withKeys('qwen', { seq_length: 64 });
    expect([
      qwen.config.hidden,
      qwen.config.maxSeq,
      qwen.describe().config.intermediate_size,
    ]).toEqual([24, 64, 48]);
    expect(() => withKeys('qwen', { visual: {} })).toThrow(refusal(/visual/));
    expect(() => withKeys('qwen', { intermediate_size: 47 })).toThrow(refusal(/an even number/));
  });

  test('the first Ling and the second have other routers', () => {
    const { config } = withKeys('bailing-moe').describe();
    expect(config).toMatchObject({ score_function: 'sigmoid', use_qk_norm: true, n_group: 2 });
    const first = withKeys('bailing-moe-first').describe().config;
    expect(first).toMatchObject({ score_function: 'softmax', use_qk_norm: false });
    expect(withKeys('bailing-moe', { norm_head: true }).lm_head).toBeInstanceOf(NormalizedHead);
    const many = { multi_gate: true };
    expect(() => withKeys('bailing-moe', many)).toThrow(refusal(/multi_gate/));
    const free = { moe_router_enable_expert_bias: false };
    expect(() => withKeys('bailing-moe', free)).toThrow(refusal(/enable_expert_bias/));
  });

  test('Phi-3.5-MoE has a factor of angles for short and long texts', () => {
    const factors = { short_factor: [1, 2], long_factor: [1, 4] };
    const section = { type: 'longrope', ...factors, original_max_position_embeddings: 32 };
    const scaled = (more: object) =>
      withKeys('phimoe', { rope_parameters: undefined, rope_scaling: { ...section, ...more } });
    const model = scaled({ short_mscale: 1.25, long_mscale: 1.25 });
    expect(model.config.ropeScaling).toMatchObject({ type: 'longrope', attentionFactor: 1.25 });
    expect(
      model.describe().config.rope_scaling ?? model.describe().config.rope_parameters,
    ).toMatchObject({
      short_mscale: 1.25,
      long_mscale: 1.25,
    });
    const differing = { short_mscale: 1.25, long_mscale: 1.3 };
    expect(() => scaled(differing)).toThrow(refusal(/long_mscale: expected 1.25/));
    const hasBias = (lm_head_bias: unknown): boolean =>
      'lm_head.bias' in withKeys('phimoe', { lm_head_bias }).stateDict();
    expect([true, false, undefined].map(hasBias)).toEqual([true, false, false]);
  });

  test('settings of the attention of MPT', () => {
    const withAttention = (attn_config: object) => withKeys('mpt', { attn_config });
    const { config } = withAttention({ clip_qkv: 6 }).describe();
    expect(config.attn_config).toEqual({ alibi: true, clip_qkv: 6 });
    expect(withAttention({ clip_qkv: null }).config.scales).toEqual({ clip: null });
    expect(() => withAttention({ alibi: false })).toThrow(refusal(/attn_config: alibi: .*table/));
    expect(() => withAttention({ qk_ln: true })).toThrow(refusal(/attn_config: qk_ln/));
    expect(() => withKeys('mpt', { no_bias: false })).toThrow(refusal(/no_bias/));
  });

  test('key heads of older Falcons, and layers that predict later tokens', () => {
    const older = {
      new_decoder_architecture: undefined,
      num_kv_heads: undefined,
      num_ln_in_parallel_attn: undefined,
    };
    const rotaryLM = withKeys('falcon', older);
    expect([rotaryLM.config.kvHeads, rotaryLM.describe().config.num_ln_in_parallel_attn]).toEqual([
      1, 1,
    ]);
    expect(withKeys('falcon', { ...older, multi_query: false }).config.kvHeads).toBe(4);
    const named = nn.models.layoutOf(withKeys('deepseek-v3')).nameOf;
    expect(named('model.layers.2.mlp.gate.weight')).toBe(null);
    expect(named('model.layers.1.mlp.gate.weight')).toBe('model.layers.1.mlp.gate.weight');
  });

  test('Kimi K2 is a DeepSeek V3', () => {
    const model = withKeys('deepseek-v3', { model_type: 'kimi_k2' });
    expect([model.constructor.name, model.describe().config.model_type]).toEqual([
      'DeepseekV3',
      'deepseek_v3',
    ]);
  });

  test('text parts of multimodal files', () => {
    const mrope = {
      rope_parameters: undefined,
      rope_scaling: { type: 'mrope', mrope_section: [1] },
    };
    const flat = {
      ...mrope,
      model_type: 'qwen2_5_vl',
      architectures: undefined,
      vision_config: {},
    };
    const inside = (outer: string, family: string, more: object = {}) =>
      fromConfig({
        model_type: outer,
        text_config: { ...configOf(family), ...more },
      } as never) as nn.models.RotaryLM;
    expect(withKeys('qwen2', flat).constructor.name).toBe('Qwen2');
    expect(inside('qwen3_vl', 'qwen3', { model_type: 'qwen3_vl_text' }).constructor.name).toBe(
      'Qwen3',
    );
    expect(inside('mistral3', 'mistral').constructor.name).toBe('Mistral');
    expect(inside('mistral3', 'ministral3').constructor.name).toBe('Ministral3');
    const around = ['llava', 'llava_next', 'internvl', 'smolvlm', 'idefics3'];
    const texts = ['llama', 'mistral', 'qwen2', 'llama', 'qwen3'];
    expect(around.map((outer, i) => inside(outer, texts[i] as string).constructor.name)).toEqual([
      'Llama',
      'Mistral',
      'Qwen2',
      'Llama',
      'Qwen3',
    ]);
    expect(() => inside('llava', 'gemma')).toThrow(refusal(/text_config: model_type/));
    expect(inside('kimi_k25', 'deepseek-v3').constructor.name).toBe('DeepseekV3');
    expect(() => inside('mistral3', 'llama')).toThrow(
      refusal(
        /config: text_config: model_type: expected "ministral3", "mistral", "mistral4", got "llama"/,
      ),
    );
    expect(() => inside('qwen3_vl', 'mistral')).toThrow(refusal(/text_config: model_type/));
  });

  test('MiMo is a Qwen2; its predicting layers are not read', () => {
    const model = withKeys('qwen2', { model_type: 'mimo' });
    expect(model.constructor.name).toBe('Qwen2');
    const named = nn.models.layoutOf(model).nameOf;
    expect(named('model.mtp_layers.0.norm.weight')).toBe(null);
    expect(named('model.layers.9.mlp.up_proj.weight')).toBe('model.layers.9.mlp.up_proj.weight');
  });

  test('base frequencies have the defaults of each family', () => {
    const none = { rope_parameters: undefined };
    const bases = ['smollm3', 'olmo3', 'gemma3', 'cohere', 'ernie', 'glm4'].map((family) => {
      const { ropeTheta, windowRopeTheta } = withKeys(family, none).config;
      return [ropeTheta, windowRopeTheta];
    });
    expect(bases).toEqual([
      [2e6, undefined],
      [5e5, 5e5],
      [1e6, 1e4],
      [5e5, undefined],
      [5e5, undefined],
      [1e4, undefined],
    ]);
    const shares = ['stablelm', 'phi', 'glm4'].map((family) => {
      const absent = { ...none, partial_rotary_factor: undefined };
      return withKeys(family, absent).config.partialRotaryFactor;
    });
    expect(shares).toEqual([0.25, 0.5, 0.5]);
  });
});

test('angles by layer type have the same meaning in old and new files', () => {
  const newer = withKeys('gemma3');
  const older = withKeys('gemma3', {
    rope_parameters: undefined,
    rope_theta: 1e6,
    rope_local_base_freq: 1e4,
    rope_scaling: { rope_type: 'linear', factor: 4 },
  });
  expect(older.config).toEqual(newer.config);
  expect(newer.config.ropeScaling).toEqual({ type: 'linear', factor: 4 });
  const written = fromConfig(newer.describe().config as never) as nn.models.RotaryLM;
  expect(written.config).toEqual(newer.config);
});

describe('refused by name', () => {
  test.each<[string, object, RegExp]>([
    ['cohere', { use_qk_norm: true }, /use_qk_norm: expected false, got true.*CohereForCausalLM/],
    ['stablelm', { qk_layernorm: true }, /qk_layernorm: expected false/],
    ['phi', { qk_layernorm: true }, /qk_layernorm: expected false/],
    ['phi', { tie_word_embeddings: true }, /tie_word_embeddings: expected false/],
    ['gemma2', { hidden_activation: 'silu' }, /hidden_activation: expected gelu_pytorch_tanh/],
    ['granite', { hidden_act: 'gelu' }, /hidden_act: expected silu or swish, got "gelu"/],
    ['granite', { residual_multiplier: 0 }, /residual_multiplier: expected a positive number/],
    ['smollm3', { no_rope_layers: [1, 2, 1] }, /no_rope_layers: expected 0 or 1 for each of 3/],
    ['smollm3', { sliding_window: 8 }, /sliding_window: expected null/],
    [
      'gemma3',
      { rope_parameters: { sliding_attention: { rope_type: 'linear', factor: 2 } } },
      /sliding_attention: rope_type: expected default, got "linear"/,
    ],
    ['gemma3', { use_bidirectional_attention: true }, /use_bidirectional_attention: expected/],
  ])('%s with %j', (family, more, message) => {
    expect(() => withKeys(family, more)).toThrow(refusal(message));
  });

  test('sparse attention limits the length to the tokens that it chooses', () => {
    const folder = { ...configOf('deepseek-v32'), index_topk: 16 } as never;
    const model = fromConfig(folder);
    expect([model.maxSeq, model.describe().config.model_type]).toEqual([16, 'deepseek_v3']);
    expect(fromConfig(folder, { maxSeq: 8 }).maxSeq).toBe(8);
    const message = /DeepseekV3 maxSeq: expected at most 16, .*\(index_topk\), got 17\. .*indexer/;
    expect(() => fromConfig(folder, { maxSeq: 17 })).toThrow(message);
  });

  test('latent attention has a key head for each query head', () => {
    const model = withKeys('deepseek-v3', { num_key_value_heads: 2 });
    expect(model.config.kvHeads).toBe(model.config.heads);
  });

  test('every family without a class, with the part that it needs', () => {
    for (const [type, part] of Object.entries({
      mamba: 'state space',
      albert: 'an encoder',
    })) {
      const message = new RegExp(`got "${type}".*"${type}" needs ${part}`);
      expect(() => fromConfig({ model_type: type })).toThrow(refusal(message));
    }
    const near = /lacks\. The nearest models that load have the model_type "phi3" and "phimoe"\./;
    expect(() => fromConfig({ model_type: 'phi3small' })).toThrow(refusal(near));
    const outer = { model_type: 'qwen3_5' };
    expect(() => fromConfig(outer)).toThrow(refusal(/text_config: expected an object/));
    expect(() => fromConfig({ model_type: 'qwen3moe' })).toThrow(refusal(/mean "qwen3_moe"\?/));
    expect(() => fromConfig({ model_type: 'toString' })).toThrow(refusal(/got "toString"\. nn/));
  });

  test.each<[string, object, RegExp]>([
    ['falcon', { alibi: true }, /alibi: expected false, got true/],
    ['falcon', { parallel_attn: false }, /parallel_attn: expected true, got false/],
    ['gptj', { rotary_dim: 10 }, /rotary_dim: expected at most 8 channels, got 10/],
    ['olmo', { clip_qkv: -1 }, /clip_qkv: expected a positive number, got -1/],
    ['gpt-oss', { swiglu_limit: 5 }, /swiglu_limit: expected 7, got 5/],
    ['deepseek-v3', { mlp_layer_types: ['sparse', 'dense'] }, /mlp_layer_types: expected 2 kinds/],
    ['deepseek-v32', { index_topk: 0 }, /index_topk: expected a positive integer, got 0/],
    ['deepseek-v3', { scoring_func: 'softmax' }, /scoring_func: expected sigmoid/],
    ['deepseek-v3', { n_group: 4 }, /n_group: expected a divisor of 6, got 4/],
    ['deepseek-v3', { v_head_dim: 16 }, /latent valueDim: expected at most plainDim/],
    ['deepseek-v2', { norm_topk_prob: true }, /norm_topk_prob: expected false, got true/],
    ['deepseek-v2', { topk_method: 'other' }, /topk_method: expected group_limited_greedy/],
  ])('%s with %o', (family, more, message) => {
    expect(() => withKeys(family, more)).toThrow(
      expect.objectContaining({ message: expect.stringMatching(message) }),
    );
  });

  test('options of other families are refused', () => {
    const sizes = { vocabSize: 9, maxSeq: 8, layers: 2, heads: 2, channels: 8, hidden: 8 };
    const { Llama, SmolLM3, Granite, Gemma3 } = nn.models;
    expect(() => new Llama({ ...sizes, scales: { embed: 2 } } as never)).toThrow(
      refusal(/"scales"/, 'DS_ARGUMENT'),
    );
    expect(() => new Granite({ ...sizes, scales: { logitCap: 2 } })).toThrow(
      refusal(/Granite scales.*"logitCap"/, 'DS_ARGUMENT'),
    );
    expect(() => new Granite({ ...sizes, scales: { embed: -1 } })).toThrow(
      refusal(/Granite scales\.embed/, 'DS_ARGUMENT'),
    );
    expect(() => new SmolLM3({ ...sizes, ropeLayers: [true] })).toThrow(
      refusal(/SmolLM3 ropeLayers: expected true or false for each of 2 layers/, 'DS_ARGUMENT'),
    );
    expect(() => new Gemma3({ ...sizes, windowRopeTheta: 0 })).toThrow(
      refusal(/Gemma3 windowRopeTheta/, 'DS_ARGUMENT'),
    );
  });
});

test('f16 for Gemma 3, whose values exceed its range', async () => {
  const model = await fromPretrained(folderOf('gemma3'), { dtype: 'f16' });
  const tokens = Tensor.from(Int32Array.of(5, 6), { shape: [1, 2] });
  expect(() => model.call(tokens)).toThrow(
    refusal(/Gemma3: expected weights in bf16 or f32.*got f16.*bf16/, 'DS_DTYPE'),
  );
  for (const parameter of model.parameters()) parameter.dispose();
});

describe('the text part of a multimodal folder', () => {
  let dir: string;
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), 'ds-multimodal-'));
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));

  test.each([
    ['of transformers 4', (name: string) => `language_model.${name}`, 'vision_tower.x.weight'],
    [
      'of transformers 5',
      (name: string) => name.replace('model.', 'model.language_model.'),
      'model.vision_tower.x.weight',
    ],
  ])('%s', async (_, nameIn, other) => {
    const files = await WeightFiles.open(folderOf('gemma3'));
    const sources: TensorSource[] = [];
    for (const [name, { dtype, shape }] of files.tensors) {
      sources.push({ name: nameIn(name), dtype, shape, values: () => files.read(name) });
    }
    const picture = async () => Tensor.from(Float32Array.of(1, 2)).keep();
    sources.push({ name: other, dtype: 'f32', shape: [2], values: picture });
    await writeAlone(join(dir, 'model.safetensors'), sources);
    await files.close();
    const { model_type, architectures, ...text } = configOf('gemma3');
    const config = {
      model_type: 'gemma3',
      architectures: ['Gemma3ForConditionalGeneration'],
      text_config: { ...text, model_type },
      vision_config: { hidden_size: 8 },
    };
    writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
    const [model, plain] = [await fromPretrained(dir), await fromPretrained(folderOf('gemma3'))];
    const tokens = Tensor.from(Int32Array.of(5, 6, 7, 8), { shape: [1, 4] });
    const [got, wanted] = [model, plain].map((model) =>
      noGrad(() => model.call(tokens).contiguous().toArray()),
    );
    expect(got).toEqual(wanted);
    expect(model.describe().config).toMatchObject({ model_type: 'gemma3_text' });
    expect(model.describe().config).not.toHaveProperty('vision_config');
    for (const parameter of [...model.parameters(), ...plain.parameters()]) parameter.dispose();
  });

  test('transposed experts of all experts in a tensor', async () => {
    const plain = await fromPretrained(folderOf('qwen3-moe-plain'));
    const sources: TensorSource[] = [...plain.namedParameters()].map(([name, value]) => {
      const { shape } = value;
      const isMatrix = /experts/.test(name);
      const [experts = 0, outputs = 0, inputs = 0] = shape;
      const stored = isMatrix ? [experts, inputs, outputs] : [...shape];
      const values = async () =>
        (isMatrix ? value.transpose(1, 2).contiguous() : value.clone()).keep();
      return {
        name: name.replace('model.', 'model.language_model.'),
        dtype: 'f32',
        shape: stored,
        values,
      };
    });
    await writeAlone(join(dir, 'model.safetensors'), sources);
    const { model_type, architectures, ...text } = configOf('qwen3-moe-plain');
    const config = {
      model_type: 'qwen3_vl_moe',
      architectures: ['Qwen3VLMoeForConditionalGeneration'],
      text_config: { ...text, model_type: 'qwen3_vl_moe_text' },
      tie_word_embeddings: false,
    };
    writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
    const model = await fromPretrained(dir);
    const localEntries = new Map(plain.namedParameters());
    for (const [name, parameter] of model.namedParameters()) {
      expect([name, parameter.toArray()]).toEqual([name, localEntries.get(name)?.toArray()]);
    }
    // transformers ignores norm_topk_prob there.
    expect(model.describe().config).toMatchObject({
      model_type: 'qwen3_moe',
      norm_topk_prob: true,
    });
    const files = await WeightFiles.open(dir);
    const layout = {
      transposed: new Set<string>(),
      nameOf: (name: string) => name.replace('language_model.', ''),
    };
    const name = 'model.layers.1.mlp.experts.gate_up_proj';
    const { decoded } = wrapTransposedLayout(model, files, layout, 'f32');
    const stored = required(decoded?.get(name)?.(new OpenWeights(files)));
    const part = Tensor.empty([100], 'f32', cpu());
    stored.read(part, 33);
    expect(part.toArray()).toEqual(required(localEntries.get(name)).toArray().slice(33, 133));
    stored.done();
    for (const parameter of [...model.parameters(), ...plain.parameters()]) parameter.dispose();
  });
});

test('every family has golden values of both kinds', () => {
  // The angles of Phi-3 change with the length of a text, in another way than in transformers.
  const expected = FAMILIES.filter((family) => !family.startsWith('phi3'));
  expect(Object.keys(greedyTexts())).toEqual(expect.arrayContaining(expected));
});
