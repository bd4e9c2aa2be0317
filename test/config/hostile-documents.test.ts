// Small hostile JSON and YAML documents: each ends with a DsError or is read, in bounded time.
// DS_FUZZ_CASES sets the number of random documents of a reader; DS_FUZZ_SECONDS tries more of them
// for a time, and prints counts.
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { checkConfig, checkSearch } from '../../lib/config/index.js';
import { DsError } from '../../lib/errors.js';
import { initInference, nn, peft } from '../../lib/index.js';
import { samplingDefaults } from '../../lib/serve/sampling-defaults.js';
import { checkArguments } from '../../lib/trainer/command/check-arguments.js';
import { readArguments } from '../../lib/trainer/command/read-arguments.js';
import type { JsonObject } from '../../types/json.js';
import { below } from '../support/random.js';
import { damage, drawnConfig, siblingKey, VALUES } from './random-documents.js';

const CASES = Number(process.env.DS_FUZZ_CASES ?? 60);
const SECONDS = 5;
const LONGER = Number(process.env.DS_FUZZ_SECONDS ?? 0);

const root = mkdtempSync(join(tmpdir(), 'ds-documents-'));
afterAll(() => rmSync(root, { recursive: true }));

const DEEP = 20_000;
const nest = (open: string, close: string): string => open.repeat(DEEP) + close.repeat(DEEP);

/** Texts that no parser may trip over. */
const TEXTS: Readonly<Record<string, string>> = {
  'nested arrays': nest('[', ']'),
  'nested objects': `${nest('{"a":', '}').replace('}', '1}')}`,
  'a key with nested arrays': `{"a": ${nest('[', ']')}}`,
  'a key with nested objects': `{"a": ${'{"a":'.repeat(DEEP)}1${'}'.repeat(DEEP)}}`,
  'open arrays': '['.repeat(DEEP),
  'open objects': '{"a":'.repeat(DEEP),
  nothing: '',
  null: 'null',
  'a NUL': '{"a": "\0"}',
  'a byte order mark': '\uFEFF{}',
  'a prototype': '{"__proto__": {"a": 1}, "constructor": 1}',
};

const anchors = Array.from({ length: 50_000 }, (_, i) => `- &a${i} x`).join('\n');
const YAML: Readonly<Record<string, string>> = {
  ...TEXTS,
  'an alias': 'a: &x 1\nlearning_rate: *x\n',
  'an alias of nothing': 'learning_rate: *x\n',
  'a cycle': 'report_to: &x [*x]\n',
  '50,000 anchors': `report_to:\n${anchors}\n`,
  'aliases that multiply': `a: &a [x, x, x, x, x, x, x, x]\n${'bcdefghij'
    .split('')
    .map((name, i) => `${name}: &${name} [${`*${'abcdefghi'[i]}, `.repeat(8)}x]`)
    .join('\n')}\nreport_to: *j\n`,
  'a merge key': '<<: {learning_rate: 1}\n',
  'a tag': 'learning_rate: !!js/function "x"\n',
  'a key that is a list': '? [a, b]\n: 1\n',
  'a key that is an alias': 'a: &x learning_rate\n*x : 1\n',
  'nested lists on a line': `a: ${'- '.repeat(DEEP)}x`,
  'nested lists below a key': `a:\n  ${'- '.repeat(DEEP)}x`,
  'nested keys on a line': '? '.repeat(DEEP),
  'nested blocks': Array.from({ length: 2000 }, (_, i) => `${' '.repeat(i)}a:`).join('\n'),
};

const GPT2_FOLDER = join(__dirname, '..', 'golden', 'transformers', 'models', 'gpt2');
const isNoGeneration = (path: string): boolean => !path.endsWith('generation_config.json');

/**
 * Runs `read`; false: it refused. Throws for other errors than ours, and for one that takes too
 * long.
 */
async function expectTame(text: string, read: () => unknown): Promise<boolean> {
  const started = process.cpuUsage();
  let failure: unknown = null;
  try {
    await read();
  } catch (error) {
    failure = error;
  }
  const seconds = process.cpuUsage(started).user / 1e6;
  const isOurs = failure === null || failure instanceof DsError;
  const shown = text.length > 400 ? `${text.slice(0, 400)}...` : text;
  if (!isOurs) throw new Error(`${shown}: ${(failure as Error).stack?.slice(0, 1500)}`);
  const length = failure instanceof DsError ? failure.message.length : 0;
  expect([shown, seconds < SECONDS, length < 5000]).toEqual([shown, true, true]);
  return failure === null;
}

interface Reader {
  read: (text: string) => unknown;
  base: JsonObject;
  /** Keys that take every hostile value. Default: all. */
  keys?: readonly string[];
  texts?: Readonly<Record<string, string>>;
  /** Another random document. */
  draw?: () => string;
}

function file(name: string, text: string): string {
  const path = join(root, name);
  writeFileSync(path, text);
  return path;
}

function folder(name: string, files: Record<string, string>): string {
  mkdirSync(join(root, name), { recursive: true });
  for (const [path, text] of Object.entries(files)) file(join(name, path), text);
  return join(root, name);
}

const GPT2: JsonObject = {
  model_type: 'gpt2',
  vocab_size: 31,
  n_positions: 8,
  n_embd: 8,
  n_layer: 1,
  n_head: 2,
  n_inner: 32,
  activation_function: 'gelu_new',
  layer_norm_epsilon: 1e-5,
  resid_pdrop: 0,
  embd_pdrop: 0,
  attn_pdrop: 0,
  tie_word_embeddings: true,
  architectures: ['GPT2LMHeadModel'],
};
const LLAMA: JsonObject = {
  model_type: 'llama',
  vocab_size: 31,
  max_position_embeddings: 8,
  hidden_size: 8,
  intermediate_size: 16,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  head_dim: 4,
  num_key_value_heads: 1,
  rms_norm_eps: 1e-5,
  rope_theta: 1e4,
  tie_word_embeddings: false,
  rope_scaling: { rope_type: 'linear', factor: 2 },
  architectures: ['LlamaForCausalLM'],
  hidden_act: 'silu',
  attention_bias: false,
  mlp_bias: false,
  eos_token_id: [1, 2],
};
const MIXTURE: JsonObject = {
  ...LLAMA,
  model_type: 'mixtral',
  num_local_experts: 2,
  num_experts_per_tok: 1,
  architectures: ['MixtralForCausalLM'],
  rope_scaling: null,
};
const config = (base: JsonObject): Reader => ({
  base,
  read: (text) => nn.models.fromConfig(file('config.json', text)),
});

/** `ds validate` and `ds --autotuning`; throws the longest error of both. */
function checkAndSearch(text: string): void {
  const path = file('ds_config.json', text);
  const reports = [checkConfig(path, { worldSize: 1 }), checkSearch(path, { worldSize: 1 })];
  for (const { config, errors } of reports) expect(config === null).toBe(errors.length > 0);
  const errors = reports.flatMap((report) => report.errors);
  const [longest] = errors.sort((a, b) => b.message.length - a.message.length);
  if (longest) throw longest;
}

const READERS: Readonly<Record<string, Reader>> = {
  ds_config: {
    draw: drawnConfig,
    read: checkAndSearch,
    base: {
      train_batch_size: 8,
      train_micro_batch_size_per_gpu: 1,
      steps_per_print: 10,
      optimizer: { type: 'AdamW', params: { lr: 1e-3, betas: [0.9, 0.99], eps: 1e-8 } },
      scheduler: { type: 'WarmupLR', params: { warmup_num_steps: 10, warmup_max_lr: 1e-3 } },
      fp16: { enabled: true, loss_scale: 0, initial_scale_power: 16 },
      gradient_clipping: 1,
      zero_optimization: {
        stage: 2,
        reduce_bucket_size: 5e8,
        allgather_bucket_size: 5e8,
        offload_optimizer: { device: 'cpu', ratio: 0.5, pin_memory: true },
      },
      tensorboard: { enabled: true, output_path: 'x', job_name: 'y' },
    },
  },
  'gpt2 config.json': config(GPT2),
  'llama config.json': config(LLAMA),
  'mixtral config.json': config(MIXTURE),
  adapter_config: {
    read: async (text) => {
      const path = join(await savedAdapter(), 'adapter_config.json');
      writeFileSync(path, text);
      return peft.loadAdapter(new nn.models.GPT2(SIZES), join(path, '..'));
    },
    base: {
      peft_type: 'LORA',
      r: 2,
      lora_alpha: 4,
      lora_dropout: 0,
      bias: 'none',
      target_modules: ['c_attn'],
      modules_to_save: null,
      rank_pattern: {},
      use_dora: false,
      alpha_pattern: { c_attn: 2 },
      init_lora_weights: true,
      fan_in_fan_out: true,
    },
  },
  generation_config: {
    keys: ['eos_token_id'],
    read: async (text) => {
      const dir = folder('generation', { 'generation_config.json': text });
      cpSync(GPT2_FOLDER, dir, { recursive: true, filter: isNoGeneration });
      const engine = await initInference(dir, { dtype: 'fp32', device: 'cpu' });
      samplingDefaults(engine.module.describe());
      engine.destroy();
    },
    base: {
      eos_token_id: [1, 2],
      temperature: 0.5,
      top_k: 5,
      top_p: 0.5,
      min_p: 0.1,
      repetition_penalty: 1.5,
      max_new_tokens: 5,
      do_sample: true,
    },
  },
  'arguments of ds train': {
    read: async (text) =>
      checkArguments((await readArguments(['--config', file('args.yaml', text)])).args),
    base: {
      model_name_or_path: 'x',
      data: 'y.jsonl',
      output_dir: 'z',
      learning_rate: 1e-3,
      num_train_epochs: 1,
      per_device_train_batch_size: 2,
      max_length: 16,
      report_to: 'none',
      lr_scheduler_kwargs: { min_lr: 1e-6 },
      lora_target_modules: ['a'],
      use_peft: true,
      save_steps: 10,
      logging_steps: 1,
      seed: 1,
      bf16: true,
      deepspeed: file('ds.json', '{}'),
    },
    texts: YAML,
  },
};

const SIZES = { vocabSize: 31, maxSeq: 8, layers: 1, heads: 2, channels: 8 };
let adapter: string | null = null;

/** A folder with the weights of an adapter. */
async function savedAdapter(): Promise<string> {
  if (adapter !== null) return adapter;
  adapter = join(root, 'adapter');
  const model = new nn.models.GPT2(SIZES);
  peft.addLora(model, { r: 2, targetModules: ['c_attn'] });
  await peft.saveAdapter(model, adapter);
  return adapter;
}

const READER_COUNT = Object.keys(READERS).length;

/** A sibling of the base, or another document; one in four has damaged places. */
function randomDocument({ base, draw }: Reader): string {
  const text = draw && below(2) === 0 ? draw() : siblingKey(base);
  return below(4) === 0 ? damage(text) : text;
}

test.each(Object.entries(READERS))('%s: documents', async (name, reader) => {
  const { read, base, texts = TEXTS, keys } = reader;
  // A base that is refused would hide the checks after its error.
  await read(JSON.stringify(base));
  for (const text of Object.values(texts)) await expectTame(text, () => read(text));
  for (const key of keys ?? Object.keys(base)) {
    for (const value of VALUES) {
      const text = JSON.stringify({ ...base, [key]: value });
      await expectTame(text, () => read(text));
    }
  }
  const until = performance.now() + (1000 * LONGER) / READER_COUNT;
  const counts = { read: 0, refused: 0 };
  for (let i = 0; i < CASES || performance.now() < until; ++i) {
    const text = randomDocument(reader);
    counts[(await expectTame(text, () => read(text))) ? 'read' : 'refused'] += 1;
  }
  if (LONGER > 0) process.stdout.write(`${name}: ${JSON.stringify(counts)}\n`);
});

test.each([
  ['flow', `a: ${nest('[', ']')}`],
  ['lists', `a:\n  ${'- '.repeat(DEEP)}x`],
  ['keys', '? '.repeat(DEEP)],
])('deeply nested YAML %s are refused before they are composed', async (_name, text) => {
  const path = file('deep.yaml', text);
  await expect(readArguments(['--config', path])).rejects.toMatchObject({
    code: 'DS_ARGUMENT',
    op: path,
    got: 'more than 100 levels of nesting',
  });
});
