// Tests the keys of config.json for each family: parsed to sizes, written back, and refused.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { consolidate, initialize, nn } from '../../lib/index.js';

const { GPT2, Llama, Mistral, Mixtral, Phi3, Qwen2, Qwen2Moe, Qwen3, Qwen3Moe } = nn.models;
const { fromConfig, fromPretrained } = nn.models;

const sizes = {
  vocabSize: 31,
  maxSeq: 16,
  layers: 3,
  heads: 4,
  channels: 16,
  hidden: 20,
  kvHeads: 2,
};

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-families-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Writes the folder of `model` with changed keys; undefined removes a key. */
async function write(model: nn.models.CausalLM, more: object = {}): Promise<string> {
  const home = join(dir, 'model');
  rmSync(home, { recursive: true, force: true });
  await nn.saveWeights(model, home);
  const path = join(home, 'config.json');
  writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')), ...more }));
  return home;
}

const refusal = (message: RegExp) =>
  expect.objectContaining({ code: 'DS_CHECKPOINT', message: expect.stringMatching(message) });

const yarn: nn.models.YarnScaling = {
  type: 'yarn',
  factor: 4,
  originalMaxSeq: 4,
  attentionFactor: 1.25,
  betaFast: 24,
  betaSlow: 2,
  truncate: false,
};
const longrope: nn.models.LongRopeScaling = {
  type: 'longrope',
  factor: 4,
  originalMaxSeq: 4,
  shortFactor: [1, 1.5],
  longFactor: [2, 4],
};

describe('written keys are read again', () => {
  test.each<[string, () => nn.models.RotaryLM]>([
    ['Llama', () => new Llama({ ...sizes, attentionBias: true, padTokenId: 3 })],
    ['Llama, yarn', () => new Llama({ ...sizes, ropeScaling: yarn })],
    ['Llama, longrope', () => new Llama({ ...sizes, ropeScaling: longrope })],
    [
      'Llama, dynamic',
      () => new Llama({ ...sizes, ropeScaling: { type: 'dynamic', factor: 2, originalMaxSeq: 8 } }),
    ],
    ['Mistral', () => new Mistral({ ...sizes, window: 5, headDim: 6, ropeTheta: 1e6 })],
    ['Mistral without a window', () => new Mistral(sizes)],
    ['Phi3', () => new Phi3({ ...sizes, window: 5, residualDropout: 0.25, padTokenId: 3 })],
    ['Phi3, longrope', () => new Phi3({ ...sizes, ropeScaling: longrope, tied: true })],
    [
      'Phi3, longrope of its own factors',
      () => new Phi3({ ...sizes, ropeScaling: { ...longrope, factor: 1.3, attentionFactor: 1.1 } }),
    ],
    ['Phi3, half of a head', () => new Phi3({ ...sizes, partialRotaryFactor: 0.5 })],
    ['Qwen2', () => new Qwen2({ ...sizes, tied: true, attentionDropout: 0.25 })],
    ['Qwen2 with windows', () => new Qwen2({ ...sizes, window: [null, 6, 6] })],
    ['Qwen3', () => new Qwen3({ ...sizes, headDim: 8, tied: true, attentionBias: true })],
    ['Qwen3 with windows', () => new Qwen3({ ...sizes, window: [4, null, 4], eps: 1e-5 })],
    ['Mixtral', () => new Mixtral({ ...sizes, window: 6, moe: { experts: 5, perToken: 2 } })],
    [
      'Qwen2Moe',
      () =>
        new Qwen2Moe({
          ...sizes,
          window: [4, null, 4],
          routerAuxLossCoef: 0.25,
          moe: { experts: 4, perToken: 3, hidden: 6, sharedHidden: 10, denseLayers: [0, 2] },
        }),
    ],
    [
      'Qwen3Moe',
      () =>
        new Qwen3Moe({
          ...sizes,
          headDim: 8,
          tied: true,
          attentionBias: true,
          window: 5,
          moe: { experts: 6, perToken: 1, hidden: 8, normalize: false },
        }),
    ],
  ])('%s', async (_name, make) => {
    const model = make();
    const read = await fromPretrained(await write(model));
    expect(read.constructor).toBe(model.constructor);
    expect(read.config).toEqual(model.config);
    expect(new Set(read.parameters().map(({ shape }) => shape.join()))).toEqual(
      new Set(model.parameters().map(({ shape }) => shape.join())),
    );
    expect(read.describe()).toEqual(model.describe());
  });
});

describe("the meaning of a family's keys", () => {
  const windowsOf = async (model: nn.models.RotaryLM, more: object) =>
    ((await fromPretrained(await write(model, more))) as nn.models.RotaryLM).config.window;

  test("Mistral's window defaults to 4096 without the key, and to none if the key is null", async () => {
    expect(await windowsOf(new Mistral(sizes), { sliding_window: undefined })).toBe(4096);
    expect(await windowsOf(new Mistral(sizes), { sliding_window: null })).toBe(null);
  });

  test.each<[string, () => nn.models.RotaryLM]>([
    ['Mistral', () => new Mistral(sizes)],
    ['Phi3', () => new Phi3(sizes)],
    ['Mixtral', () => new Mixtral({ ...sizes, moe: { experts: 2, perToken: 1 } })],
  ])('%s has no switch for its window: a switch that is off is refused', async (_, make) => {
    const off = { use_sliding_window: false, sliding_window: 4 };
    await expect(windowsOf(make(), off)).rejects.toEqual(
      refusal(/use_sliding_window: expected true or no value .*got false.*sliding_window to null/),
    );
    for (const [key, window] of [
      [null, 4],
      [true, 4],
      [false, null],
    ] as const) {
      const found = windowsOf(make(), { use_sliding_window: key, sliding_window: window });
      expect(await found).toBe(window);
    }
  });

  test('Qwen3Moe has a switch, which is off by default', async () => {
    const make = () => new Qwen3Moe({ ...sizes, moe: { experts: 2, perToken: 1, hidden: 6 } });
    for (const [key, window] of [
      [undefined, null],
      [null, null],
      [true, 4],
      [false, null],
    ]) {
      const found = windowsOf(make(), { use_sliding_window: key, sliding_window: 4 });
      expect(await found).toBe(window);
    }
  });

  test("Qwen's windows follow layer_types or max_window_layers", async () => {
    const model = new Qwen2(sizes);
    const none = { use_sliding_window: false, sliding_window: 4, layer_types: undefined };
    expect(await windowsOf(model, none)).toBe(null);
    const behind = { ...none, use_sliding_window: true, max_window_layers: 2 };
    expect(await windowsOf(model, behind)).toEqual([null, null, 4]);
    expect(await windowsOf(model, { ...behind, max_window_layers: undefined })).toBe(null);
    const listed = ['sliding_attention', 'full_attention', 'sliding_attention'];
    expect(await windowsOf(model, { ...behind, layer_types: listed })).toEqual([4, null, 4]);
  });

  test('yarn scaling extends the length beyond max_position_embeddings', async () => {
    const rope_scaling = { type: 'yarn', factor: 4, original_max_position_embeddings: 16 };
    const home = await write(new Qwen2(sizes), { rope_scaling });
    expect((await fromPretrained(home)).maxSeq).toBe(64);
    expect((await fromPretrained(home, { maxSeq: 128 })).maxSeq).toBe(128);
  });

  test('missing factors follow from the lengths', async () => {
    const { shortFactor: short_factor, longFactor: long_factor } = longrope;
    const section = { rope_type: 'longrope', short_factor, long_factor };
    const rope_scaling = { ...section, original_max_position_embeddings: 8 };
    const { config } = await Llama.fromPretrained(await write(new Llama(sizes), { rope_scaling }));
    expect(config.ropeScaling).toEqual({ ...longrope, factor: 2, originalMaxSeq: 8 });
  });
});

describe('rope_parameters beside rope_scaling', () => {
  const linear = { rope_type: 'linear', factor: 2 };
  const read = async (rope_parameters: object, rope_scaling: unknown) =>
    (await Llama.fromPretrained(await write(new Llama(sizes), { rope_parameters, rope_scaling })))
      .config;

  test('accepts both keys with equal values, or one of them empty', async () => {
    const found = { ropeTheta: 500, ropeScaling: { type: 'linear', factor: 2 } };
    const overridden = { ...linear, rope_theta: 500 };
    for (const scaling of [null, {}, { type: 'linear', factor: 2 }, overridden]) {
      expect(await read(overridden, scaling)).toMatchObject(found);
    }
    expect(await read({}, overridden)).toMatchObject(found);
  });

  test.each<[string, unknown, RegExp]>([
    ['another scaling', linear, /: rope_scaling: expected .*rope_parameters.*got .*Move .*factor/],
    ['another base', { rope_theta: 600 }, /: rope_scaling: expected the values of rope_parameters/],
    ['no scaling that there is', { rope_type: 'mrope' }, /rope_scaling: rope_type: .*"mrope"/],
    ['no section', 'linear', /: rope_scaling: expected an object/],
  ])('is refused beside %s', async (_name, scaling, message) => {
    const plain = { rope_type: 'default', rope_theta: 500 };
    await expect(read(plain, scaling)).rejects.toEqual(refusal(message));
  });
});

describe('keys of Phi', () => {
  const config = async (more: object, options: object = {}) =>
    (await Phi3.fromPretrained(await write(new Phi3(sizes), more), options)).config;
  const { shortFactor: short_factor, longFactor: long_factor } = longrope;
  const beside = { original_max_position_embeddings: 4, pad_token_id: null };

  test.each(['longrope', 'su', 'yarn'])(
    '%s is LongRoPE, stretched by the lengths',
    async (type) => {
      const found = await config({ ...beside, rope_scaling: { type, short_factor, long_factor } });
      expect(found.ropeScaling).toEqual(longrope);
    },
  );

  test('what transformers 5 writes is read', async () => {
    const rope_parameters = {
      rope_type: 'longrope',
      rope_theta: 500,
      partial_rotary_factor: 0.5,
      short_factor: [1.5],
      long_factor: [4],
      original_max_position_embeddings: 4,
    };
    const found = await config({ ...beside, rope_parameters, rope_theta: undefined });
    expect(found).toMatchObject({ ropeTheta: 500, partialRotaryFactor: 0.5 });
    expect(found.ropeScaling).toMatchObject({ factor: 4, shortFactor: [1.5], longFactor: [4] });
  });

  test('omitted keys have the defaults of transformers', async () => {
    const left = { rms_norm_eps: undefined, sliding_window: undefined, resid_pdrop: undefined };
    const found = await config({ ...left, partial_rotary_factor: undefined });
    expect(found).toMatchObject({ eps: 1e-5, window: null, residualDropout: 0 });
    expect(found).toMatchObject({ partialRotaryFactor: 1, kvHeads: 2 });
    await expect(config({ pad_token_id: undefined })).rejects.toEqual(refusal(/got 32000/));
    const dropped = { resid_pdrop: 0.1, embd_pdrop: 0.1, attention_dropout: 0.2 };
    expect(await config(dropped)).toMatchObject({ residualDropout: 0.1, attentionDropout: 0.2 });
    expect(await config(dropped, { residualDropout: 0 })).toMatchObject({ residualDropout: 0 });
  });

  test('files have packed matrices, and three keys of a scaling beside both lengths', async () => {
    const home = await write(new Phi3({ ...sizes, ropeScaling: longrope, maxSeq: 16 }));
    const read = await Phi3.fromPretrained(home, { maxSeq: 12 });
    const again = join(dir, 'again');
    await read.save(again);
    const written = JSON.parse(readFileSync(join(again, 'config.json'), 'utf8'));
    expect(written).toMatchObject({
      architectures: ['Phi3ForCausalLM'],
      model_type: 'phi3',
      max_position_embeddings: 16,
      original_max_position_embeddings: 4,
      rope_scaling: { type: 'longrope', short_factor, long_factor },
    });
    expect(Object.keys(written.rope_scaling)).toHaveLength(3);
    const shapes = Object.fromEntries(
      Array.from((await fromPretrained(again)).namedParameters(), ([name, one]) => [
        name,
        one.shape,
      ]),
    );
    expect(shapes).toMatchObject({
      'model.layers.0.self_attn.qkv_proj.weight': [32, 16],
      'model.layers.0.self_attn.o_proj.weight': [16, 16],
      'model.layers.2.mlp.gate_up_proj.weight': [40, 16],
      'model.layers.2.mlp.down_proj.weight': [16, 20],
    });
  });
});

describe('keys of GPT-2', () => {
  const tiny = (more: object = {}) =>
    new GPT2({ vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8, ...more });
  const dropped = { resid_pdrop: 0.1, embd_pdrop: 0.2, attn_pdrop: 0.3 };

  test('its dropout is not obeyed, and saved again where no other was set', async () => {
    const home = await write(tiny(), dropped);
    const read = await GPT2.fromPretrained(home);
    expect(read.config.dropout).toBe(undefined);
    expect(read.describe().config).toMatchObject(dropped);
    const set = (dropout: number) => ({ resid_pdrop: dropout, embd_pdrop: dropout, attn_pdrop: 0 });
    for (const dropout of [0, 0.25]) {
      const reported = await GPT2.fromPretrained(home, { dropout });
      expect(reported.describe().config).toMatchObject(set(dropout));
      expect(tiny({ dropout }).describe().config).toMatchObject(set(dropout));
    }
    expect(tiny().describe().config).toMatchObject(set(0));
    const left = { resid_pdrop: undefined, embd_pdrop: undefined, attn_pdrop: undefined };
    const { config } = (await GPT2.fromPretrained(await write(tiny(), left))).describe();
    expect(Object.keys(config).filter((key) => key.endsWith('pdrop'))).toEqual([]);
  });

  test('initializer_range is the deviation of its first weights, and saved again', async () => {
    const shape = { n_layer: 2, n_head: 2, n_embd: 64, vocab_size: 97, n_positions: 64 };
    const model = fromConfig({ model_type: 'gpt2', ...shape, initializer_range: 0.08 });
    for (const [name, parameter] of model.namedParameters()) {
      if (parameter.ndim < 2) continue;
      const values = parameter.toArray();
      const deviation = Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
      const expected = name.endsWith('c_proj.weight') ? 0.08 / Math.sqrt(2 * 2) : 0.08;
      expect([name, Math.abs(deviation / expected - 1) < 0.1]).toEqual([name, true]);
    }
    expect(model.describe().config).toMatchObject({ initializer_range: 0.08 });
    expect(tiny().describe().config).toMatchObject({ initializer_range: 0.02 });
    expect(() => tiny({ initializerRange: -1 })).toThrow(/GPT2 initializerRange/);
    await expect(
      GPT2.fromPretrained(await write(tiny(), { initializer_range: 'x' })),
    ).rejects.toEqual(refusal(/initializer_range: expected a positive number/));
  });
});

describe('the error names keys that would change the numbers', () => {
  const qwen = () => new Qwen2(sizes);
  const phi = () => new Phi3(sizes);
  const llama = () => new Llama(sizes);
  test.each<[string, () => nn.models.RotaryLM, object, RegExp]>([
    ['quantized weights', llama, { quantization_config: { bits: 4 } }, /quantization_config.*bits/],
    ['a window of a Llama', llama, { sliding_window: 8 }, /sliding_window: expected null, got 8/],
    ['half of the channels', llama, { partial_rotary_factor: 0.5 }, /partial_rotary_factor/],
    [
      'more than all channels',
      phi,
      { partial_rotary_factor: 1.5 },
      /partial_rotary_factor: .*1\.5/,
    ],
    [
      'a scaling that Phi has not got',
      phi,
      { rope_scaling: { rope_type: 'linear', factor: 2 } },
      /rope_type: expected "default", "longrope", got "linear"/,
    ],
    [
      'a yarn that is none of Phi',
      phi,
      { rope_scaling: { rope_type: 'yarn', factor: 2 } },
      /short_factor: expected a list of positive numbers/,
    ],
    ['both directions', llama, { is_causal: false }, /is_causal: expected true, got false/],
    [
      'a key of another scaling',
      llama,
      { rope_scaling: { rope_type: 'linear', factor: 2, beta_fast: 3 } },
      /rope_scaling: beta_fast: .*got 3/,
    ],
    ['sections of axes', llama, { rope_scaling: { mrope_section: [1, 1] } }, /mrope_section/],
    [
      'layers of another kind',
      qwen,
      { layer_types: ['full_attention', 'linear_attention', 'full_attention'] },
      /layer_types: expected 3 of "full_attention", got .*linear_attention/,
    ],
    [
      'windows without a width',
      qwen,
      { use_sliding_window: true, layer_types: Array(3).fill('sliding_attention') },
      /layer_types/,
    ],
    ['an activation', qwen, { hidden_act: 'relu' }, /hidden_act: .*got "relu"/],
    ['padding that is no token', qwen, { pad_token_id: 31 }, /pad_token_id: .*got 31/],
    ['a share that is none', qwen, { attention_dropout: 1 }, /attention_dropout/],
    [
      'another length than it stretches',
      llama,
      {
        rope_scaling: { rope_type: 'dynamic', factor: 2, original_max_position_embeddings: 8 },
      },
      /original_max_position_embeddings: expected 16, got 8/,
    ],
  ])('%s', async (_name, make, more, message) => {
    await expect(fromPretrained(await write(make(), more))).rejects.toEqual(refusal(message));
  });
});

describe('other contents of a folder', () => {
  const entries = {
    bos_token_id: 1,
    eos_token_id: [2, 5],
    pad_token_id: 4,
    use_cache: true,
    transformers_version: '5.17.0',
    dtype: 'float32',
    _name_or_path: 'elsewhere',
    task_specific_params: { depth: [1] },
  };
  const generation = { eos_token_id: [2, 5], temperature: 0.6, do_sample: true };
  const json = (file: string) => JSON.parse(readFileSync(file, 'utf8'));

  /** Writes a folder of `model` with extra keys. */
  async function reportOf(model: nn.models.CausalLM): Promise<string> {
    const home = await write(model, entries);
    writeFileSync(join(home, 'generation_config.json'), JSON.stringify(generation));
    return home;
  }

  test.each<[string, () => nn.models.CausalLM]>([
    ['Qwen2', () => new Qwen2({ ...sizes, padTokenId: 4 })],
    ['GPT2', () => new GPT2({ vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8 })],
  ])('is saved with it again: %s', async (_name, make) => {
    const read = await fromPretrained(await reportOf(make()), { dtype: 'bf16' });
    const files = await read.save(join(dir, 'again'));
    expect(files.map((file) => file.slice(dir.length))).toEqual([
      '/again/config.json',
      '/again/generation_config.json',
      '/again/model.safetensors',
    ]);
    const { transformers_version: _, dtype: __, _name_or_path: ___, ...kept } = entries;
    const config = json(join(dir, 'again', 'config.json'));
    expect(config).toMatchObject({ ...kept, torch_dtype: 'bfloat16' });
    expect(Object.keys(config)).not.toEqual(expect.arrayContaining(['dtype']));
    expect(json(join(dir, 'again', 'generation_config.json'))).toEqual(generation);
    const twice = await fromPretrained(join(dir, 'again'));
    expect(twice.config).toEqual(read.config);
    expect(twice.describe()).toEqual(read.describe());
    for (const [name, parameter] of read.namedParameters()) {
      expect([name, twice.stateDict()[name]?.toArray()]).toEqual([name, parameter.toArray()]);
    }
  });

  test('is part of an exported checkpoint', async () => {
    const { engine } = await initialize({
      model: await fromPretrained(await reportOf(new Qwen3({ ...sizes, padTokenId: 4 }))),
      config: { train_batch_size: 1, optimizer: { type: 'SGD', params: { lr: 0 } } },
      device: 'cpu',
    });
    await engine.saveCheckpoint(join(dir, 'saved'));
    engine.destroy();
    await consolidate(join(dir, 'saved'), join(dir, 'hf'));
    expect(json(join(dir, 'hf', 'generation_config.json'))).toEqual(generation);
    expect(json(join(dir, 'hf', 'config.json'))).toMatchObject({ eos_token_id: [2, 5] });
  });
});

describe('a model from a configuration without weights', () => {
  test('has its sizes and random weights, none of which is in memory', async () => {
    const from = new Qwen3({ ...sizes, layers: 8, padTokenId: 4, initializerRange: 0.05 });
    const home = await write(from, { eos_token_id: [2, 5] });
    const config = JSON.parse(readFileSync(join(home, 'config.json'), 'utf8'));
    for (const source of [config, home, join(home, 'config.json')]) {
      const qwen3 = fromConfig(source, { activationCheckpointing: true }) as nn.models.Qwen3;
      expect(qwen3).toBeInstanceOf(Qwen3);
      expect(qwen3.config).toEqual({ ...from.config, activationCheckpointing: true });
      expect(qwen3.parameters().some(({ isMaterialized }) => isMaterialized)).toBe(false);
      expect(qwen3.describe().config).toMatchObject({ eos_token_id: [2, 5] });
      const ups = qwen3.model.layers.flatMap(({ mlp }) =>
        (mlp as nn.SwiGLU).up_proj.weight.toArray(),
      );
      const deviation = Math.sqrt(ups.reduce((sum, x) => sum + x * x, 0) / ups.length);
      expect(Math.abs(deviation / 0.05 - 1)).toBeLessThan(0.1);
      expect(qwen3.model.norm.weight.toArray()).toEqual(Array(16).fill(1));
      const [padding, other] = [4, 5].map((token) =>
        qwen3.model.embed_tokens.weight.select(0, token).toArray(),
      );
      expect(padding).toEqual(Array(16).fill(0));
      expect(other).not.toContain(0);
    }
  });

  test('errors name the unsupported value', () => {
    expect(() => fromConfig(join(dir, 'none'))).toThrow(
      expect.objectContaining({ code: 'DS_IO', message: expect.stringMatching(/config\.json/) }),
    );
    expect(() => fromConfig({ model_type: 'berta' })).toThrow(refusal(/model_type: .*"qwen3"/));
    expect(() => fromConfig({ model_type: 'llama' })).toThrow(refusal(/num_hidden_layers/));
    expect(() => fromConfig(3 as never)).toThrow(
      expect.objectContaining({ code: 'DS_ARGUMENT', message: expect.stringMatching(/got 3/) }),
    );
    writeFileSync(join(dir, 'config.json'), '[1');
    expect(() => fromConfig(dir)).toThrow(refusal(/config\.json: expected a JSON object/));
  });
});
