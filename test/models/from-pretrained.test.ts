// Tests that fromPretrained selects the model from the folder, and that errors list the supported
// models.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeSafetensors } from '../../lib/checkpoint/safetensors-writer.js';
import { consolidate, initialize, nn, noGrad, seed, Tensor } from '../../lib/index.js';

const { fromPretrained, GPT2, Llama } = nn.models;

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-pretrained-'));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** Writes `model` as transformers would. */
async function write(model: nn.Module, more: object = {}): Promise<void> {
  const { config, transposed } = model.describe() as nn.PretrainedDescription;
  const sources = Array.from(model.namedParameters(), ([name, parameter]) => {
    const values = transposed.includes(name) ? parameter.transpose(0, 1).contiguous() : parameter;
    return { name, dtype: values.dtype, shape: values.shape, values };
  });
  await writeSafetensors(join(dir, 'model.safetensors'), sources);
  writeFileSync(join(dir, 'config.json'), JSON.stringify({ ...config, ...more }));
}

const tiny = () => new GPT2({ vocabSize: 31, maxSeq: 8, layers: 2, heads: 2, channels: 8 });

const refusal = (message: RegExp, code = 'DS_CHECKPOINT') =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });

test('fromPretrained of a class, called without the class, names the right call', async () => {
  const { fromPretrained: alone } = Llama;
  await expect(Reflect.apply(alone, undefined, [dir])).rejects.toEqual(
    refusal(/fromPretrained: expected a call on a class.*without its class/, 'DS_ARGUMENT'),
  );
});

test('a pipe in place of config.json is refused at once', async () => {
  execFileSync('mkfifo', [join(dir, 'config.json')]);
  for (const make of [() => fromPretrained(dir), () => nn.models.fromConfig(dir)]) {
    await expect(async () => make()).rejects.toEqual(
      refusal(/config\.json: expected .*(a pipe|no regular file)/),
    );
  }
});

test('model_type selects the class, with its options', async () => {
  const model = tiny();
  await write(model);
  const read = await fromPretrained(dir, { dropout: 0.5 });
  expect(read).toBeInstanceOf(GPT2);
  expect(read.config).toMatchObject({ layers: 2, channels: 8, dropout: 0.5 });
  for (const [name, parameter] of model.namedParameters()) {
    expect(read.stateDict()[name]?.toArray()).toEqual(parameter.toArray());
  }
  await expect(fromPretrained(dir, { drop: 0.5 } as object)).rejects.toEqual(
    refusal(/"drop".*"dropout"/, 'DS_ARGUMENT'),
  );
});

test.each(['bf16', null, 3, ['bf16']])('refuses %j as options', async (options) => {
  await write(tiny());
  await expect(fromPretrained(dir, options as never)).rejects.toEqual(
    refusal(/expected options, such as \{ dtype: "bf16" \}, got/, 'DS_ARGUMENT'),
  );
});

test('an encoder is refused with tasks to open it for', async () => {
  await write(tiny(), { model_type: 'bert' });
  await expect(fromPretrained(dir)).rejects.toEqual(
    refusal(
      /model_type: expected a causal language model, got "bert".*\{ task: "auto" \}.*"embedding"/,
    ),
  );
});

test.each<[string, unknown, RegExp]>([
  [
    'another type',
    'albert',
    /config\.json: model_type: expected a family of docs\/models\.md, such as .*"llama".*, got "albert".*"albert" needs an encoder/,
  ],
  ['an unknown type', 'berta', /model_type: expected .*, got "berta"\. nn\.models\.fromPretrained/],
  ['no type', null, /model_type: expected a family of docs\/models\.md, .*, got nothing/],
  ['no text', 7, /model_type: .*got 7/],
])('the error of the type %s names the page of supported types', async (_name, type, message) => {
  await write(tiny(), { model_type: type });
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(message));
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(/nn\.loadWeights\(\)/));
  await expect(GPT2.fromPretrained(dir)).rejects.toEqual(
    refusal(/expected "gpt2".*nn\.models\.fromPretrained/),
  );
});

test('a folder without config.json, a file and a missing path are refused', async () => {
  await write(tiny());
  rmSync(join(dir, 'config.json'));
  await expect(fromPretrained(dir)).rejects.toEqual(refusal(/no file config\.json/));
  const file = join(dir, 'model.safetensors');
  await expect(fromPretrained(file)).rejects.toEqual(refusal(/got a file.*Check the path/));
  await expect(fromPretrained(undefined as never)).rejects.toThrow(
    /^fromPretrained dir: expected a string, got undefined/,
  );
  await expect(fromPretrained(join(dir, 'x'))).rejects.toEqual(refusal(/got nothing of this name/));
});

describe('a Llama', () => {
  const sizes = { vocabSize: 31, maxSeq: 16, layers: 2, heads: 4, channels: 16, hidden: 20 };
  const llama3: nn.models.RopeScaling = {
    type: 'llama3',
    factor: 8,
    lowFreqFactor: 1,
    highFreqFactor: 4,
    originalMaxSeq: 8,
  };

  test.each<[string, Partial<nn.models.LlamaConfig>]>([
    ['untied, grouped', { kvHeads: 2, headDim: 6 }],
    ['tied, with biases', { tied: true, attentionBias: true, mlpBias: true }],
    ['scaled', { ropeScaling: llama3, ropeTheta: 5e5 }],
    ['scaled linearly', { ropeScaling: { type: 'linear', factor: 2 }, eps: 1e-5 }],
  ])('%s comes back as it was', async (_name, more) => {
    const model = new Llama({ ...sizes, ...more });
    await write(model);
    const read = await fromPretrained(dir, { activationCheckpointing: true });
    expect(read).toBeInstanceOf(Llama);
    expect(read.config).toEqual({ ...model.config, activationCheckpointing: true });
    for (const [name, parameter] of model.namedParameters()) {
      expect(read.stateDict()[name]?.toArray()).toEqual(parameter.toArray());
    }
  });

  test('rope_parameters, as transformers 5 writes them', async () => {
    await write(new Llama(sizes), {
      rope_theta: null,
      rope_scaling: null,
      rope_parameters: {
        rope_type: 'llama3',
        rope_theta: 5e5,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 8,
      },
    });
    const { config } = await Llama.fromPretrained(dir);
    expect(config).toMatchObject({ ropeTheta: 5e5, ropeScaling: llama3 });
  });

  test('rotary tables among the weights are skipped', async () => {
    const model = new Llama(sizes);
    await write(model);
    const sources = Array.from(model.namedParameters(), ([name, values]) => {
      return { name, dtype: values.dtype, shape: values.shape, values };
    });
    const values = new nn.Linear(2, 1, { bias: false }).weight;
    const name = 'model.layers.0.self_attn.rotary_emb.inv_freq';
    sources.push({ name, dtype: values.dtype, shape: values.shape, values });
    await writeSafetensors(join(dir, 'model.safetensors'), sources);
    expect((await fromPretrained(dir)).config).toMatchObject({ layers: 2 });
  });

  test.each<[string, object, RegExp]>([
    [
      'another activation',
      { hidden_act: 'gelu' },
      /hidden_act: expected silu or swish, got "gelu"/,
    ],
    [
      'another scaling',
      { rope_scaling: { rope_type: 'mrope', factor: 2 } },
      /rope_type: expected "default", .*"longrope".*got "mrope"/,
    ],
    ['an older name of it', { rope_scaling: { type: 'ntk', factor: 2 } }, /: type: .*got "ntk"/],
    ['half a scaling', { rope_scaling: { rope_type: 'llama3', factor: 2 } }, /low_freq_factor/],
    ['layers that are not there', { num_hidden_layers: 4000 }, /num_hidden_layers: .*none called/],
    ['too many layers', { num_hidden_layers: 1e9 }, /num_hidden_layers: expected at most 4096/],
    ['no flag', { tie_word_embeddings: 'no' }, /tie_word_embeddings: expected true or false/],
    ['another width', { intermediate_size: 24 }, /gate_proj.weight \(\[20, 16\]/],
    ['a head that it has not got', { tie_word_embeddings: true }, /lm_head\.weight/],
  ])('%s', async (_name, more, message) => {
    await write(new Llama(sizes), more);
    await expect(fromPretrained(dir)).rejects.toEqual(refusal(message));
  });

  test.each([0, 3] as const)('trained at stage %i, consolidated and read again', async (stage) => {
    seed(3);
    const { engine } = await initialize({
      model: new Llama({ ...sizes, kvHeads: 2 }),
      config: {
        train_batch_size: 1,
        optimizer: { type: 'AdamW', params: { lr: 0.01 } },
        zero_optimization: { stage },
      },
      device: 'cpu',
    });
    const text = [3, 1, 4, 1, 5, 9, 2, 6];
    const row = (from: number) =>
      Tensor.from(Int32Array.from(text.slice(from, from + 7)), { shape: [1, 7] });
    const losses: number[] = [];
    for (let step = 0; step < 8; ++step) {
      const loss = engine.forward(row(0), row(1));
      losses.push(loss.item());
      engine.backward(loss);
      engine.step();
    }
    expect(losses.at(-1)).toBeLessThan(0.8 * (losses[0] as number));
    await engine.saveCheckpoint(join(dir, 'saved'));
    await consolidate(join(dir, 'saved'), join(dir, 'hf'));
    const read = await fromPretrained(join(dir, 'hf'));
    const logitsOf = (model: { call(x: Tensor): Tensor }) =>
      noGrad(() => model.call(row(0)).contiguous().toArray());
    const trained = engine.withFullWeights(() => logitsOf(engine.module as nn.models.Llama));
    expect(logitsOf(read)).toEqual(trained);
    engine.destroy();
  });
});
