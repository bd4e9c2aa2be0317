// GPT-2 to and from Hugging Face: config.json, names and layouts of GPT2LMHeadModel.
import type { JsonObject } from '../../../types/json.js';
import { converted, type PretrainedFolder } from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import type { Parameter } from '../../nn/parameter.js';
import type { PretrainedDescription } from '../../nn/pretrained.js';
import { isFloating } from '../../runtime/dtype.js';
import type { GPT2, GPT2Config } from './gpt2.js';
import { gpt2HuggingFaceNames } from './names.js';

/** What our layers compute with. */
const LAYER_NORM_EPSILON = 1e-5;
const END_OF_TEXT = 50256;

/** Keys whose other values change what the model computes. Absent keys have the first value. */
const SUPPORTED: Record<string, readonly unknown[]> = {
  activation_function: ['gelu_new', 'gelu_pytorch_tanh'],
  layer_norm_epsilon: [LAYER_NORM_EPSILON],
  scale_attn_weights: [true],
  scale_attn_by_inverse_layer_idx: [false],
  tie_word_embeddings: [true],
  add_cross_attention: [false],
};

/** Masks that old checkpoints carry among the weights. */
const IGNORED = /(^|\.)attn\.(masked_)?bias$/;
const HEAD = 'lm_head.weight';
const EMBEDDING = 'transformer.wte.weight';

/** The sizes in a config.json. Throws DS_CHECKPOINT when it is no GPT-2, or one that computes something else. */
export function parseGpt2Config({ path, config, tensors }: PretrainedFolder): GPT2Config {
  const place = `${path}/config.json`;
  if (config.model_type !== 'gpt2') {
    throw unfit(`${place}: model_type`, '"gpt2"', JSON.stringify(config.model_type) ?? 'nothing');
  }
  const size = (key: string): number => {
    const value = config[key];
    if (Number.isSafeInteger(value) && (value as number) > 0) return value as number;
    throw unfit(`${place}: ${key}`, 'a positive whole number', JSON.stringify(value) ?? 'nothing');
  };
  for (const [key, values] of Object.entries(SUPPORTED)) {
    const value = config[key] ?? values[0];
    if (values.includes(value)) continue;
    throw unfit(`${place}: ${key}`, values.join(' or '), JSON.stringify(value));
  }
  const channels = size('n_embd');
  const inner = config.n_inner ?? 4 * channels;
  if (inner !== 4 * channels) {
    throw unfit(`${place}: n_inner`, `${4 * channels}`, JSON.stringify(inner));
  }
  const layers = size('n_layer');
  const last = `h.${layers - 1}.ln_1.weight`;
  if (!tensors.has(last) && !tensors.has(`transformer.${last}`)) {
    throw unfit(`${place}: n_layer`, `weights of ${layers} layers`, `none called ${last}`);
  }
  const [vocabSize, maxSeq] = [size('vocab_size'), size('n_positions')];
  return { vocabSize, maxSeq, layers, heads: size('n_head'), channels };
}

/**
 * Fills a new model on the CPU, in f32, one tensor at a time. Names may lack "transformer.". Throws DS_CHECKPOINT for
 * weights that are missing, unknown or of another shape, and for a head that is not the embedding.
 */
export async function loadGpt2(model: GPT2, folder: PretrainedFolder): Promise<void> {
  const { tensors, path } = folder;
  const layouts = gpt2HuggingFaceNames(model);
  const left = new Set(Array.from(tensors.keys()).filter((name) => !IGNORED.test(name)));
  const places: { name: string; parameter: Parameter; transposed: boolean }[] = [];
  for (const [own, parameter] of model.namedParameters()) {
    const name = findName(tensors, own);
    const entry = name === null ? undefined : tensors.get(name);
    if (name === null || !entry) throw unfit(`${path}: ${own}`, 'this tensor', 'none');
    const { transposed } = layouts.get(own) as { transposed: boolean };
    const wanted = transposed ? [...parameter.shape].reverse() : parameter.shape;
    if (!isFloating(entry.dtype) || entry.shape.join() !== wanted.join()) {
      const got = `${entry.dtype} [${entry.shape.join(', ')}]`;
      throw unfit(`${path}: ${name}`, `floating point [${wanted.join(', ')}]`, got);
    }
    places.push({ name, parameter, transposed });
    left.delete(name);
  }
  if (left.delete(HEAD)) await requireTied(folder);
  const [unknown] = left;
  if (unknown !== undefined) throw unfit(path, 'the tensors of GPT-2 alone', `"${unknown}" too`);
  for (const { name, parameter, transposed } of places) {
    const read = await folder.read(name);
    const values = converted(name, read, { dtype: 'f32', transposed });
    parameter.place(values);
    values.release();
  }
}

/** What transformers needs to read the model. */
export function describeGpt2(model: GPT2): PretrainedDescription {
  const { vocabSize, maxSeq, layers, heads, channels, dropout = 0 } = model.config;
  const config: JsonObject = {
    architectures: ['GPT2LMHeadModel'],
    model_type: 'gpt2',
    vocab_size: vocabSize,
    n_positions: maxSeq,
    n_embd: channels,
    n_layer: layers,
    n_head: heads,
    n_inner: null,
    activation_function: 'gelu_new',
    layer_norm_epsilon: LAYER_NORM_EPSILON,
    embd_pdrop: dropout,
    resid_pdrop: dropout,
    attn_pdrop: 0,
    initializer_range: 0.02,
    tie_word_embeddings: true,
    bos_token_id: Math.min(END_OF_TEXT, vocabSize - 1),
    eos_token_id: Math.min(END_OF_TEXT, vocabSize - 1),
  };
  const names = [...gpt2HuggingFaceNames(model)];
  const transposed = names.flatMap(([name, layout]) => (layout.transposed ? [name] : []));
  return { config, transposed };
}

function findName(tensors: ReadonlyMap<string, unknown>, own: string): string | null {
  const short = own.replace(/^transformer\./, '');
  return [own, short].find((name) => tensors.has(name)) ?? null;
}

/** A head of its own would be lost. */
async function requireTied(folder: PretrainedFolder): Promise<void> {
  const embedding = findName(folder.tensors, EMBEDDING) as string;
  const [head, table] = [await folder.read(HEAD), await folder.read(embedding)];
  const bytes = [head, table].map((tensor) => {
    const raw = tensor.toRaw();
    return new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength);
  }) as [Uint8Array, Uint8Array];
  const tied = head.dtype === table.dtype && Buffer.compare(...bytes) === 0;
  head.release();
  table.release();
  if (!tied) throw unfit(`${folder.path}: ${HEAD}`, 'the values of the token embedding', 'others');
}

function unfit(op: string, expected: string, got: string): DsError {
  const hint = 'GPT2 has the published architecture: a tied head, GELU in its tanh form.';
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got, hint });
}
