// saveGguf: writes a model and its tokenizer as one GGUF file for llama.cpp.

import {
  blockValues,
  type PackedType,
  packed,
  replaceBy,
  type TensorSource,
  type WrittenTensor,
  writeGguf,
} from '../../checkpoint/index.js';
import { DsError } from '../../errors.js';
import { requireModule } from '../../nn/require-module.js';
import { cpu } from '../../runtime/device.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { refused, refusedValue } from '../../runtime/refused.js';
import { requireType } from '../../runtime/require-type.js';
import { required } from '../../runtime/required.js';
import { held, noGrad, scope } from '../../tensor/index.js';
import { ggufTokenizer } from '../../text/gguf-tokenizer.js';
import type { CausalLM } from '../causal-lm.js';
import { RotaryLM } from '../rotary/rotary-lm.js';
import { pretrainedSources } from '../save-weights.js';
import type { GgufArchitecture } from './architecture.js';
import {
  ARCHITECTURES,
  CHOICE_BIAS,
  expertNames,
  placeOf,
  STACKS,
  storedName,
} from './architectures.js';
import { metadataOf, ropeTensors } from './describe.js';
import { gateRows, joinedRows, pairedRow, type RowMap, splitRows } from './rows.js';

/** The type of all matrices in a file, or llama.cpp's mixture of Q4_K and Q6_K. */
export type GgufType = 'F32' | 'F16' | 'Q8_0' | 'Q4_K_M';

/** Options of saveGguf(). */
export interface SaveGgufOptions {
  /** The type of matrices; vectors are F32. Default "Q8_0". */
  type?: GgufType;
  /** Folder or GGUF file with the tokenizer, which llama.cpp needs for texts. Default: none. */
  tokenizer?: string;
}

const OPTIONS: OptionNames<SaveGgufOptions> = { type: true, tokenizer: true };

/** llama.cpp's ids of the types (general.file_type). */
const FILE_TYPES: Readonly<Record<string, number>> = { F32: 0, F16: 1, Q8_0: 7, Q4_K_M: 15 };

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
  const { type = 'Q8_0', tokenizer } = readOptions('saveGguf', given, OPTIONS);
  requireModule('saveGguf', model);
  requireType('saveGguf path', path, 'string');
  if (!path.endsWith('.gguf'))
    throw refusedValue('saveGguf path', 'a name that ends in .gguf', path);
  if (tokenizer !== undefined) requireType('saveGguf tokenizer', tokenizer, 'string');
  const fileType = Object.hasOwn(FILE_TYPES, type) ? FILE_TYPES[type] : undefined;
  if (fileType === undefined) {
    throw refusedValue('saveGguf type', Object.keys(FILE_TYPES).join(', '), type);
  }
  const [architecture, own] = architectureOf(model);
  const { vocabSize } = own.config;
  const metadata = new Map([
    ...metadataOf(architecture, own.config, fileType),
    ...ggufTokenizer(tokenizer ?? null, vocabSize),
  ]);
  const pieces = piecesOf(architecture, own, type);
  const sourceOf = new Map(pieces.map((piece) => [piece.tensor, piece]));
  const plan = { metadata, tensors: pieces.map(({ tensor }) => tensor) };
  await replaceBy(path, (draft) =>
    writeGguf(draft, plan, (tensor) => bytesOf(required(sourceOf.get(tensor)))),
  );
}

function architectureOf(model: CausalLM): [GgufArchitecture, RotaryLM] {
  const type = model.describe()?.config.model_type;
  const found = ARCHITECTURES.find(({ modelTypes }) => modelTypes.includes(type as string));
  if (found && model instanceof RotaryLM) return [found, model];
  const known = ARCHITECTURES.flatMap(({ modelTypes }) => modelTypes).join(', ');
  throw refusedValue('saveGguf', `a model of ${known}`, type ?? model.constructor.name);
}

/** A tensor of the file, and its values: one tensor of the model, or several in order. */
interface Piece {
  readonly tensor: WrittenTensor;
  readonly sources: readonly TensorSource[];
  /** Returns the row in the file of a row of a source. Default: the same order. */
  readonly rowOf?: RowMap;
  /** A number that is added to every value. */
  readonly add?: number;
  /** The values, if no tensor of the model has them. */
  readonly values?: readonly number[];
}

/** A tensor of the file that has some rows of a tensor of the model. */
interface Target {
  readonly name: string;
  readonly shape: readonly number[];
  readonly rowOf?: RowMap;
}

function piecesOf(architecture: GgufArchitecture, model: RotaryLM, type: GgufType): Piece[] {
  const { sources } = pretrainedSources(model, model.describe());
  const isTied = model.config.tied;
  const stacks = new Map<string, { target: Target; sources: TensorSource[] }>();
  for (const source of sources) {
    for (const target of targetsOf(architecture, model, source)) {
      const known = stacks.get(target.name)?.sources ?? [];
      stacks.set(target.name, { target, sources: [...known, source] });
    }
  }
  const small = Object.entries(ropeTensors(model.config)).map(([name, values]): Piece => {
    return { tensor: { name, shape: [values.length], type: 'F32' }, sources: [], values };
  });
  const { hasOffsetNorms } = architecture;
  const ofModel = [...stacks].map(([name, { target, sources: all }]): Piece => {
    const isStack = name.includes('_exps.') && target.shape.length === 2;
    const shape = isStack ? [all.length, ...target.shape] : target.shape;
    const wanted = typeOf(name, type, { layers: model.config.layers, isTied });
    const tensor = { name, shape, type: fitting(wanted, shape) };
    const add = hasOffsetNorms && name.endsWith('norm.weight') ? 1 : 0;
    return { tensor, sources: all, add, ...(target.rowOf && { rowOf: target.rowOf }) };
  });
  return [...small, ...ofModel];
}

/** Returns the tensors of the file with the rows of a tensor of the model. Throws DS_ARGUMENT. */
function targetsOf(
  architecture: GgufArchitecture,
  { config: { heads, kvHeads, headDim: dim } }: RotaryLM,
  { name, shape }: TensorSource,
): Target[] {
  const { mixture, joined, isPaired = false, blocks } = architecture;
  const [, stem = '', suffix = ''] = /^(.*)\.(weight|bias)$/.exec(name) ?? [];
  const place = placeOf(architecture, stem);
  const sizes = { heads, kvHeads, dim };
  if (place && place.rest === joined?.name && joined.isSplit && suffix === 'weight') {
    return (['q', 'k', 'v'] as const).map((kind) => ({
      ...{ name: `blk.${place.layer}.attn_${kind}.weight` },
      shape: [(kind === 'q' ? heads : kvHeads) * dim, ...shape.slice(1)],
      rowOf: splitRows(sizes, kind, isPaired),
    }));
  }
  const { gateUp } = expertNames(architecture);
  if (place && place.rest === gateUp) {
    const [experts = 0, both = 0, channels = 0] = shape;
    return [true, false].map((isGate) => ({
      name: `blk.${place.layer}.${isGate ? STACKS.gate : STACKS.up}.weight`,
      ...{ shape: [experts, both / 2, channels], rowOf: gateRows(both / 2, isGate) },
    }));
  }
  const [, layer] = /\.(\d+)\./.exec(name) ?? [];
  if (mixture?.choiceBias && name === `${blocks ?? 'model.layers'}.${layer}.${mixture.choiceBias}`)
    return [{ name: `blk.${layer}.${CHOICE_BIAS}.bias`, shape: shape.slice(-1) }];
  const file = fileName(architecture, name);
  const [, of] = /\.attn_(q|k|qkv)\.(?:weight|bias)$/.exec(file) ?? [];
  if (of === 'qkv' && joined) return [{ name: file, shape, rowOf: joinedRows(sizes) }];
  if (isPaired && (of === 'q' || of === 'k')) {
    return [{ name: file, shape, rowOf: (row) => pairedRow(row, dim) }];
  }
  // A gate of the shared expert is a vector in the file.
  return [{ name: file, shape: file.includes('ffn_gate_inp_shexp') ? shape.slice(1) : shape }];
}

/** Returns the name in the file of a tensor with Hugging Face's name. Throws DS_ARGUMENT. */
function fileName(architecture: GgufArchitecture, name: string): string {
  const [, stem = '', suffix = ''] = /^(.*)\.(weight|bias)$/.exec(name) ?? [];
  const stored = storedName(architecture, stem) ?? stackName(architecture, stem);
  const { lacksBiases = false } = architecture;
  const mayBias = lacksBiases === 'feed' ? !/\.ffn_(?!norm)/.test(stored ?? '') : !lacksBiases;
  const isIgnored = suffix === 'bias' && !mayBias && !/norm/.test(stored ?? '');
  if (stored !== undefined && !isIgnored) return `${stored}.${suffix}`;
  throw refused('saveGguf', `tensors of ${architecture.name} in llama.cpp`, name);
}

function stackName(architecture: GgufArchitecture, stem: string): string | undefined {
  const place = placeOf(architecture, stem);
  const pattern = place?.rest.replace(/\.\d+\./, '.*.');
  const names = Object.entries(expertNames(architecture));
  const kind = names.find(([, name]) => name === pattern)?.[0] as keyof typeof STACKS | undefined;
  return kind && place ? `blk.${place.layer}.${STACKS[kind]}` : undefined;
}

/** Whether a layer gets more bits in llama.cpp's mixture. */
const hasMoreBits = (layer: number, layers: number): boolean => {
  const eighth = Math.floor(layers / 8);
  return layer < eighth || layer >= Math.floor((7 * layers) / 8) || (layer - eighth) % 3 === 2;
};

function typeOf(
  name: string,
  type: GgufType,
  { layers, isTied }: { layers: number; isTied: boolean },
): PackedType {
  // Vectors and routers are small and sensitive.
  if (!name.endsWith('.weight') || /norm|ffn_gate_inp/.test(name)) return 'F32';
  if (type !== 'Q4_K_M') return type;
  if (name === 'output.weight' || (isTied && name === 'token_embd.weight')) return 'Q6_K';
  const [, layer] = /^blk\.(\d+)\.(?:attn_v|attn_qkv|ffn_down)/.exec(name) ?? [];
  return layer !== undefined && hasMoreBits(Number(layer), layers) ? 'Q6_K' : 'Q4_K';
}

/** Returns the wanted type if its blocks fit the rows of the shape, else Q8_0 or F16. */
function fitting(wanted: PackedType, shape: readonly number[]): PackedType {
  const types: PackedType[] = [wanted, 'Q8_0', 'F16'];
  const width = shape.at(-1) ?? 1;
  return types.find((type) => width % blockValues(type) === 0) ?? 'F16';
}

async function* bytesOf({
  tensor,
  sources,
  values,
  ...changes
}: Piece): AsyncGenerator<Uint8Array> {
  if (values) yield packed(tensor.type, Float32Array.from(values));
  for (const source of sources) {
    const all = changeValues(await valuesOf(source), source.shape, changes);
    if (tensor.type !== 'F32') requireRange(source.name, all);
    for (let at = 0; at < all.length; at += CHUNK) {
      yield packed(tensor.type, all.subarray(at, at + CHUNK));
      // Lets other work of the thread run between chunks.
      await new Promise(setImmediate);
    }
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

async function valuesOf({ values }: TensorSource): Promise<Float32Array> {
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

/** Returns the values in the row order of the file. */
function changeValues(
  values: Float32Array,
  shape: readonly number[],
  { rowOf, add = 0 }: Pick<Piece, 'rowOf' | 'add'>,
): Float32Array {
  if (add !== 0) return values.map((value) => value + add);
  if (!rowOf) return values;
  const width = shape.length > 1 ? required(shape.at(-1)) : 1;
  const places = Array.from({ length: values.length / width }, (_, row) => rowOf(row));
  const out = new Float32Array(places.filter((place) => place !== null).length * width);
  for (const [row, place] of places.entries()) {
    if (place === null) continue;
    out.set(values.subarray(row * width, (row + 1) * width), place * width);
  }
  return out;
}
