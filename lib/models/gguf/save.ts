// Writes a model and its tokenizer as one GGUF file for llama.cpp (saveGguf()).

import {
  blockValues,
  type PackedType,
  packed,
  replaceBy,
  runsOf,
  type TensorSource,
  type ValueOrder,
  type WrittenTensor,
  writeGguf,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { requireModule } from '../../nn/require-module.js';
import { cpu } from '../../runtime/device.js';
import { waitForEventLoop } from '../../runtime/event-loop.js';
import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { numel } from '../../runtime/view.js';
import { held, noGrad, scope } from '../../tensor/index.js';
import { createTokenizerMetadata } from '../../text/gguf-tokenizer.js';
import type { CausalLM } from '../causal-lm.js';
import { MIN_NORM, NormalizedHead } from '../normalized-head.js';
import { RotaryLM } from '../rotary/rotary-lm.js';
import { pretrainedSources } from '../save-weights.js';
import type { GgufArchitecture } from './architecture.js';
import { ARCHITECTURES } from './architectures.js';
import { computeRopeDivisors, createMetadata } from './describe.js';
import { type LayoutSizes, OFFSET, SAME } from './layouts.js';
import { findStoredName, listRules, readExpertNames, STACKS, splitBlockName } from './names.js';

/**
 * The type of all matrices in a file, or a mixture of llama.cpp: "Q4_K_M" of Q4_K and Q6_K, "MXFP4"
 * of experts in MXFP4 and other matrices in Q8_0.
 */
export type GgufType = 'F32' | 'F16' | 'Q8_0' | 'MXFP4' | 'Q4_K_M';

/** Options of saveGguf(). */
export interface SaveGgufOptions {
  /** The type of matrices; vectors are F32. Default: "Q8_0". */
  type?: GgufType;
  /** Folder or GGUF file with the tokenizer, which llama.cpp needs for texts. Default: none. */
  tokenizer?: string;
}

/** llama.cpp's ids of the types (general.file_type). */
const FILE_TYPES: Readonly<Record<string, number>> = {
  F32: 0,
  F16: 1,
  Q8_0: 7,
  MXFP4: 38,
  Q4_K_M: 15,
};

/** Number of values that are packed at a time, a multiple of every block. */
const CHUNK = 2 ** 16;

/** The largest f16 number: packed types store scales as f16. */
const LARGEST = 65_504;

/**
 * Writes `model` as a GGUF file. The file gets the name `path` when it is complete. Rows that do
 * not fit the blocks of a type become Q8_0 or F16. Host memory in addition to the model: the
 * largest tensor in f32, twice.
 *
 * - Throws DS_ARGUMENT for wrong options, and for a family or a setting that llama.cpp lacks.
 * - Throws DS_ARGUMENT for unmerged adapters, and for 4- and 8-bit layers.
 * - Throws DS_DATA for a tokenizer that llama.cpp lacks.
 * - Throws DS_NONFINITE for weights that f16 cannot hold, unless `type` is "F32".
 * - Throws DS_CHECKPOINT if `path` is not a file; DS_IO.
 */
export async function saveGguf(
  model: CausalLM,
  path: string,
  given: SaveGgufOptions = {},
): Promise<void> {
  const { type = 'Q8_0', tokenizer } = readOptions('saveGguf', given, namesOf.SaveGgufOptions);
  requireModule('saveGguf', model);
  requireType('saveGguf path', path, 'string');
  if (!path.endsWith('.gguf')) throw valueError('saveGguf path', 'a name that ends in .gguf', path);
  if (tokenizer !== undefined) requireType('saveGguf tokenizer', tokenizer, 'string');
  const fileType = Object.hasOwn(FILE_TYPES, type) ? FILE_TYPES[type] : undefined;
  if (fileType === undefined) {
    throw valueError('saveGguf type', Object.keys(FILE_TYPES).join(', '), type);
  }
  const [architecture, rotaryModel] = findArchitecture(model);
  const { vocabSize, moe } = rotaryModel.config;
  if (type === 'MXFP4' && !moe) {
    throw valueError('saveGguf type', 'another type for a model without experts', type);
  }
  const metadata = new Map([
    ...createMetadata(architecture, rotaryModel.config, fileType),
    ...(await collectLayerNumbers(architecture, rotaryModel)),
    ...createTokenizerMetadata(tokenizer ?? null, vocabSize),
  ]);
  const pieces = planTensors(architecture, rotaryModel, type);
  const sourceOf = new Map(pieces.map((piece) => [piece.tensor, piece]));
  const plan = { metadata, tensors: pieces.map(({ tensor }) => tensor) };
  await replaceBy(path, (draft) =>
    writeGguf(draft, plan, (tensor) => packTensor(required(sourceOf.get(tensor)))),
  );
}

function findArchitecture(model: CausalLM): [GgufArchitecture, RotaryLM] {
  const { config = {} } = model.describe() ?? {};
  const type = config.model_type;
  const ofType = ARCHITECTURES.filter(({ modelTypes }) => modelTypes.includes(type as string));
  const architecture = ofType.find(({ writes }) => writes?.fits(config) ?? true);
  if (architecture && model instanceof RotaryLM) return [architecture, model];
  const expected = ofType[0]?.writes?.expected;
  if (expected) throw argumentError('saveGguf', expected, `${config.num_hidden_layers} layers`);
  const known = ARCHITECTURES.flatMap(({ modelTypes }) => modelTypes).join(', ');
  throw valueError('saveGguf', `a model of ${known}`, type ?? model.constructor.name);
}

/** Returns the metadata with a number of each block. */
async function collectLayerNumbers(
  architecture: GgufArchitecture,
  model: RotaryLM,
): Promise<[string, Float32Array][]> {
  const { layerNumbers = [] } = architecture;
  if (layerNumbers.length === 0) return [];
  const numbers: [string, Float32Array][] = [];
  const lists = new Map(
    layerNumbers.map(({ modelName, key }) => {
      const list = new Float32Array(model.config.layers);
      numbers.push([key, list]);
      return [modelName, list];
    }),
  );
  for (const source of pretrainedSources(model, model.describe()).sources) {
    const place = splitBlockName(architecture, source.name);
    const list = place && lists.get(place.rest);
    if (place && list) list.set(await readValues(source), Number(place.layer));
  }
  return numbers;
}

/** A tensor of the file, and its values: one tensor of the model, or several in order. */
interface FileTensor {
  readonly tensor: WrittenTensor;
  readonly sources: readonly TensorSource[];
  /** The order of a source's values in the file. Default: the same. */
  readonly order?: PlacedOrder;
  /** Changes every value. */
  readonly change?: (value: number) => number;
  /** Width of rows that are divided by their norms. Default: no row is. */
  readonly unitRows?: number;
  /** The values, if no tensor of the model has them. */
  readonly values?: readonly number[];
}

/** A tensor of the file with values of a tensor of the model. */
interface TensorTarget extends Pick<FileTensor, 'order' | 'change'> {
  readonly name: string;
  readonly shape: readonly number[];
  /** Whether the tensor of the model has all experts. Default: several of them make a stack. */
  readonly isWhole?: boolean;
}

/** An order for several tensors of a file; this one has the values [first, first + count). */
interface PlacedOrder {
  readonly order: ValueOrder | null;
  readonly first: number;
  readonly count: number;
}

function planTensors(
  architecture: GgufArchitecture,
  model: RotaryLM,
  type: GgufType,
): FileTensor[] {
  const numbers = new Set(architecture.layerNumbers?.map(({ modelName }) => modelName));
  const isNumber = (name: string): boolean =>
    numbers.has(splitBlockName(architecture, name)?.rest ?? '');
  const { sources } = pretrainedSources(model, model.describe());
  const isTied = model.config.tied;
  // llama.cpp multiplies by the rows as they are.
  const hasUnitHead = model.lm_head instanceof NormalizedHead;
  const stacks = new Map<string, { target: TensorTarget; sources: TensorSource[] }>();
  for (const source of sources) {
    if (isNumber(source.name)) continue;
    for (const target of listTargets(architecture, model, source)) {
      const stacked = stacks.get(target.name)?.sources ?? [];
      stacks.set(target.name, { target, sources: [...stacked, source] });
    }
  }
  const small = Object.entries(computeRopeDivisors(model.config)).map(
    ([name, values]): FileTensor => {
      return { tensor: { name, shape: [values.length], type: 'F32' }, sources: [], values };
    },
  );
  const { hasOffsetNorms, plainNorm } = architecture;
  const ofModel = [...stacks].map(([name, { target, sources: all }]): FileTensor => {
    const isStack = name.includes('_exps.') && !target.isWhole;
    const shape = isStack ? [all.length, ...target.shape] : target.shape;
    const preferred = chooseType(name, type, { layers: model.config.layers, isTied });
    const tensor = { name, shape, type: chooseFittingType(preferred, shape) };
    const isPlain = name.endsWith(`.${plainNorm}.weight`);
    const isOffset = hasOffsetNorms && name.endsWith('norm.weight') && !isPlain;
    const change = target.change ?? (isOffset ? OFFSET.write : null);
    const { order } = target;
    const unitRows = hasUnitHead && name === 'output.weight' ? model.config.channels : null;
    return {
      tensor,
      sources: all,
      ...(order && { order }),
      ...(change && { change }),
      ...(unitRows !== null && { unitRows }),
    };
  });
  return [...small, ...ofModel];
}

/**
 * Returns the tensors of the file with the values of a tensor of the model. Throws DS_ARGUMENT if
 * the format has no place for them.
 */
function listTargets(
  architecture: GgufArchitecture,
  { config: { heads, kvHeads, latent, delta } }: RotaryLM,
  { name, shape }: TensorSource,
): TensorTarget[] {
  const place = splitBlockName(architecture, name);
  const rule = place && listRules(architecture).find(({ modelName }) => modelName === place.rest);
  if (!rule) return [{ name: findFileName(architecture, name), shape, isWhole: shape.length > 2 }];
  requireStored(architecture, name, required(rule.fileNames[0]));
  const ofLatent = latent && { plainDim: latent.plainDim };
  const sizes: LayoutSizes = { heads, kvHeads, ...ofLatent, ...(delta && { delta }) };
  const { layout = SAME, change } = rule;
  const order = layout.order?.(shape, sizes) ?? null;
  let first = 0;
  return layout.fileShapes(shape, sizes).map((stored, i) => {
    const count = numel(stored);
    const placed = { order, first, count };
    first += count;
    return {
      name: `blk.${place.layer}.${required(rule.fileNames[i])}`,
      shape: stored,
      isWhole: true,
      ...((order || rule.fileNames.length > 1) && { order: placed }),
      ...(change && { change: change.write }),
    };
  });
}

/**
 * Returns the name in the file of a tensor with Hugging Face's name. Throws DS_ARGUMENT if there is
 * none.
 */
function findFileName(architecture: GgufArchitecture, name: string): string {
  const [, stem = '', suffix = ''] = /^(.*)\.(weight|bias)$/.exec(name) ?? [];
  const stored = findStoredName(architecture, stem) ?? findStackName(architecture, stem);
  if (stored === undefined) throw unsupportedTensorError(architecture, name);
  return requireStored(architecture, name, `${stored}.${suffix}`);
}

/** Returns the name in the file. Throws DS_ARGUMENT for a bias that llama.cpp ignores. */
function requireStored(architecture: GgufArchitecture, name: string, stored: string): string {
  const { lacksBiases = false } = architecture;
  const mayBias = lacksBiases === 'feed' ? !/\.ffn_(?!norm)/.test(stored) : !lacksBiases;
  const isFine = mayBias || !name.endsWith('.bias') || /norm/.test(stored);
  if (isFine) return stored;
  throw unsupportedTensorError(architecture, name);
}

const unsupportedTensorError = ({ name }: GgufArchitecture, got: string): DsError =>
  argumentError('saveGguf', `tensors of ${name} in llama.cpp`, got);

function findStackName(architecture: GgufArchitecture, stem: string): string | undefined {
  const place = splitBlockName(architecture, stem);
  const pattern = place?.rest.replace(/\.\d+\./, '.*.');
  const names = Object.entries(readExpertNames(architecture));
  const kind = names.find(([, name]) => name === pattern)?.[0] as keyof typeof STACKS | undefined;
  return kind && place ? `blk.${place.layer}.${STACKS[kind]}` : undefined;
}

/** Whether a layer gets more bits in llama.cpp's mixture. */
const hasMoreBits = (layer: number, layers: number): boolean => {
  const eighth = Math.floor(layers / 8);
  return layer < eighth || layer >= Math.floor((7 * layers) / 8) || (layer - eighth) % 3 === 2;
};

function chooseType(
  name: string,
  type: GgufType,
  { layers, isTied }: { layers: number; isTied: boolean },
): PackedType {
  // Vectors and routers are small and sensitive.
  if (!name.endsWith('.weight') || /norm|ffn_gate_inp|sinks|conv1d|output_scale/.test(name)) {
    return 'F32';
  }
  if (type === 'MXFP4') return name.includes('_exps.') ? 'MXFP4' : 'Q8_0';
  if (type !== 'Q4_K_M') return type;
  if (name === 'output.weight' || (isTied && name === 'token_embd.weight')) return 'Q6_K';
  const [, layer] = /^blk\.(\d+)\.(?:attn_v|attn_qkv|ffn_down)/.exec(name) ?? [];
  return layer !== undefined && hasMoreBits(Number(layer), layers) ? 'Q6_K' : 'Q4_K';
}

/** Returns the wanted type if its blocks fit the rows of the shape, else Q8_0 or F16. */
function chooseFittingType(preferred: PackedType, shape: readonly number[]): PackedType {
  const types: PackedType[] = [preferred, 'Q8_0', 'F16'];
  const width = shape.at(-1) ?? 1;
  return types.find((type) => width % blockValues(type) === 0) ?? 'F16';
}

async function* packTensor({
  tensor,
  sources,
  values,
  unitRows,
  ...changes
}: FileTensor): AsyncGenerator<Uint8Array> {
  if (values) yield packed(tensor.type, Float32Array.from(values));
  for (const source of sources) {
    const all = reorderValues(await readValues(source), changes);
    if (unitRows !== undefined) divideByNorms(all, unitRows);
    if (tensor.type !== 'F32') requireRange(source.name, all);
    for (let at = 0; at < all.length; at += CHUNK) {
      yield packed(tensor.type, all.subarray(at, at + CHUNK));
      // Lets other work of the thread run between chunks.
      await waitForEventLoop();
    }
  }
}

/** Divides each row of `width` values by its norm. */
function divideByNorms(values: Float32Array, width: number): void {
  for (let at = 0; at < values.length; at += width) {
    const row = values.subarray(at, at + width);
    const norm = Math.max(Math.sqrt(row.reduce((sum, value) => sum + value ** 2, 0)), MIN_NORM);
    for (let i = 0; i < width; ++i) row[i] = (row[i] as number) / norm;
  }
}

/** Throws DS_NONFINITE for a value that a packed type cannot store. */
function requireRange(name: string, values: Float32Array): void {
  const odd = values.find((value) => !(Math.abs(value) <= LARGEST));
  if (odd === undefined) return;
  throw new DsError({
    code: 'DS_NONFINITE',
    op: `saveGguf ${name}`,
    expected: `numbers from -${LARGEST} to ${LARGEST}`,
    got: String(odd),
    hint: 'The weights have diverged, or need { type: "F32" }.',
  });
}

async function readValues({ values }: TensorSource): Promise<Float32Array> {
  if (typeof values !== 'function') throw new TypeError('values of a model');
  const tensor = await values();
  try {
    const wide = held(() => noGrad(() => scope(() => tensor.to(cpu()).to('f32').clone())));
    const raw = wide.toRaw() as Float32Array;
    wide.release();
    return raw;
  } finally {
    tensor.release();
  }
}

/** Returns the values of a tensor of the file in its order. */
function reorderValues(
  values: Float32Array,
  { order: placed, change }: Pick<FileTensor, 'order' | 'change'>,
): Float32Array {
  const changed = change ? values.map(change) : values;
  if (!placed) return changed;
  const { order, first, count } = placed;
  if (!order) return changed.subarray(first, first + count);
  const out = new Float32Array(count);
  for (const run of runsOf(order, 0, changed.length)) {
    const { at, lanes, distance } = run;
    const start = run.from - first;
    if (distance === 1 && lanes === 1) {
      if (start < 0 || start >= count) continue;
      out.set(changed.subarray(at, at + run.count), start);
      continue;
    }
    for (let lane = 0; lane < lanes; ++lane) {
      let [to, from] = [start + lane * run.apart, at + lane];
      for (let i = 0; i < run.count; ++i, to += distance, from += lanes) {
        if (to >= 0 && to < count) out[to] = changed[from] as number;
      }
    }
  }
  return out;
}
