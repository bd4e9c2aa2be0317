// Reads and writes 4-bit layers in the format of transformers with bitsandbytes.
import type { JsonObject } from '../../types/json.js';
import { readSliceNames, type TensorSource, type WeightFiles } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { Embedding } from '../nn/embedding.js';
import { Linear, LinearGelu } from '../nn/linear.js';
import type { Module } from '../nn/module.js';
import { HEADS, matchesPath } from '../nn/pack-linears.js';
import type { Parameter } from '../nn/parameter.js';
import { replaceModules } from '../nn/replace-modules.js';
import { argumentError } from '../runtime/input-errors.js';
import { parseJson } from '../runtime/parse-json.js';
import { numel } from '../runtime/view.js';
import { held, scope, Tensor } from '../tensor/index.js';
import { lorasOf } from './lora.js';
import { LoraLayer } from './lora-layer.js';
import { NF4Matrices } from './nf4-experts.js';
import { NF4Linear } from './nf4-linear.js';

const STATE = '.weight.quant_state.bitsandbytes__nf4';

/** Fields by tensor-name suffix in the files. nested_offset is in the JSON tensor instead. */
const ENDS: Readonly<Record<string, keyof NF4Linear & string>> = {
  '.weight': 'weight',
  '.weight.absmax': 'absmax',
  '.weight.quant_map': 'quant_map',
  '.weight.nested_absmax': 'nested_absmax',
  '.weight.nested_quant_map': 'nested_quant_map',
};

/** @internal Tensors of a folder that readQuantized() has read. */
export interface ReadQuantized {
  /** Tensor names in the files. */
  consumed: ReadonlySet<string>;
  /** Names of the model's tensors that got values. */
  filled: ReadonlySet<string>;
}

/** The JSON tensor of a layer. */
interface QuantState {
  shape: number[];
  blockSize: number;
  /** Null for f32 scales. */
  offset: number | null;
}

/**
 * @internal Replaces each linear layer with 4-bit weights in `files` by an NF4Linear with these
 * weights. The caller reads the biases. Throws DS_CHECKPOINT for other formats than NF4, for an
 * unknown layer, and for tensors of another size.
 */
export async function readQuantized(model: Module, files: WeightFiles): Promise<ReadQuantized> {
  const layers = new Map(model.namedModules());
  const transposed = new Set(model.describe()?.transposed);
  const [consumed, filled] = [new Set<string>(), new Set<string>()];
  const instead = new Map<Module, Module>();
  for (const name of files.tensors.keys()) {
    if (!name.endsWith(STATE)) continue;
    const path = name.slice(0, -STATE.length);
    const layer = layers.get(path);
    if (!(layer instanceof Linear) || transposed.has(`${path}.weight`)) {
      throw damagedError(
        `${files.path}: ${name}`,
        'a linear layer of the model',
        `${path}, which is not a linear layer`,
      );
    }
    const state = parseState(`${files.path}: ${name}`, await textOf(files, name), layer);
    const quantized = emptyLayer(layer, state);
    instead.set(layer, quantized);
    consumed.add(name);
    for (const [end, field] of Object.entries(ENDS)) {
      const parameter = quantized[field] as Parameter | null;
      if (!parameter) continue;
      await fill(files, path + end, parameter);
      consumed.add(path + end);
    }
    for (const [name, parameter] of quantized.namedParameters()) {
      if (parameter !== quantized.bias) filled.add(`${path}.${name}`);
    }
  }
  replaceModules(model, instead);
  return { consumed, filled };
}

function emptyLayer(layer: Linear, { shape, blockSize, offset }: QuantState): NF4Linear {
  const { bias } = layer;
  const layout = { shape, blockSize, doubleQuant: offset !== null };
  const quantized = new NF4Linear({ ...layout, hasGelu: layer instanceof LinearGelu }, bias);
  if (offset !== null) {
    const values = held(() => Tensor.from(Float32Array.of(offset)));
    quantized.nested_offset?.place(values);
    values.release();
  }
  return quantized;
}

async function fill(files: WeightFiles, name: string, parameter: Parameter): Promise<void> {
  const entry = files.tensors.get(name);
  const isSame = entry?.dtype === parameter.dtype && numel(entry.shape) === parameter.numel;
  if (!isSame) {
    const expected = `${parameter.numel} elements of ${parameter.dtype}`;
    const got = entry ? `${numel(entry.shape)} of ${entry.dtype}` : 'no such tensor';
    throw damagedError(`${files.path}: ${name}`, expected, got);
  }
  const values = await files.read(name);
  parameter.place(values);
  values.release();
}

async function textOf(files: WeightFiles, name: string): Promise<string> {
  const bytes = await files.read(name);
  try {
    return Buffer.from(bytes.toRaw() as Uint8Array).toString('utf8');
  } finally {
    bytes.release();
  }
}

function parseState(op: string, text: string, { weight }: Linear): QuantState {
  let state: JsonObject = {};
  try {
    const value: unknown = parseJson(text);
    if (typeof value === 'object' && value !== null) state = value as JsonObject;
  } catch {
    // Reported below.
  }
  const { shape, blocksize, quant_type, nested_blocksize, nested_offset = null } = state;
  const require = (holds: boolean, expected: string, got: unknown): void => {
    if (!holds) throw damagedError(op, expected, JSON.stringify(got) ?? 'nothing');
  };
  require(quant_type === 'nf4', 'quant_type "nf4"', quant_type);
  require(String(shape) === weight.shape.join(), `shape [${weight.shape.join(', ')}]`, shape);
  const isBlock =
    Number.isSafeInteger(blocksize) && Number(blocksize) > 0 && Number(blocksize) % 2 === 0;
  require(isBlock, 'a positive, even blocksize', blocksize);
  require(nested_offset === null ||
    Number.isFinite(nested_offset), 'a number as nested_offset', nested_offset);
  require(nested_offset === null ||
    nested_blocksize === 256, 'nested_blocksize 256', nested_blocksize);
  return {
    shape: [...weight.shape],
    blockSize: Number(blocksize),
    offset: nested_offset === null ? null : Number(nested_offset),
  };
}

/** Returns the 4-bit layers by path. */
function quantizedOf(model: Module): Map<string, NF4Linear> {
  const layers = new Map<string, NF4Linear>();
  for (const [name, module] of model.namedModules()) {
    if (module instanceof NF4Linear) layers.set(name, module);
  }
  return layers;
}

/**
 * @internal Returns whether a model has neither adapters nor 4-bit layers, so that its tensors
 * match its describe().
 */
export function isPlain(model: Module): boolean {
  return quantizedOf(model).size === 0 && lorasOf(model).size === 0;
}

/** @internal Throws DS_ARGUMENT for experts in NF4: bitsandbytes has no file format for them. */
export function requireWholeExperts(op: string, model: Module): void {
  for (const [path, module] of model.namedModules()) {
    if (!(module instanceof NF4Matrices)) continue;
    const hint = 'peft.saveAdapter() saves the adapters. Merge them into the unquantized model.';
    throw argumentError(op, 'experts that are not quantized', `experts in NF4: ${path}`, hint);
  }
}

/**
 * @internal Returns bitsandbytes' names of the parameters; null for values that are not in tensors.
 */
export function quantizedNames(model: Module): Map<string, string | null> {
  const names = new Map<string, string | null>();
  for (const path of quantizedOf(model).keys()) {
    for (const [end, field] of Object.entries(ENDS)) names.set(`${path}.${field}`, path + end);
    names.set(`${path}.nested_offset`, null);
  }
  return names;
}

/** @internal Returns the JSON tensor of each layer; `torchDType` as in config.json. */
export function quantStates(model: Module, torchDType: string): TensorSource[] {
  return Array.from(quantizedOf(model), ([path, layer]) => {
    const { shape, blockSize, nested_offset: offset } = layer;
    const text = JSON.stringify({
      quant_type: 'nf4',
      blocksize: blockSize,
      dtype: torchDType,
      shape,
      ...(offset && {
        nested_blocksize: layer.nestedBlockSize,
        nested_dtype: 'float32',
        nested_offset: offset.toArray()[0],
      }),
    });
    const bytes = new TextEncoder().encode(text);
    const values = async (): Promise<Tensor> => held(() => scope(() => Tensor.from(bytes)));
    return { name: path + STATE, dtype: 'u8' as const, shape: [bytes.length], values };
  });
}

/**
 * @internal Returns the quantization_config section of config.json; null for a model without 4-bit
 * layers.
 */
export function quantizationConfig(model: Module, torchDType: string): JsonObject | null {
  const [first] = quantizedOf(model).values();
  if (!first) return null;
  return {
    quant_method: 'bitsandbytes',
    load_in_4bit: true,
    load_in_8bit: false,
    _load_in_4bit: true,
    _load_in_8bit: false,
    bnb_4bit_quant_type: 'nf4',
    bnb_4bit_use_double_quant: first.nested_offset !== null,
    bnb_4bit_compute_dtype: torchDType,
    bnb_4bit_quant_storage: 'uint8',
    llm_int8_skip_modules: skippedOf(model),
    llm_int8_threshold: 6,
  };
}

/**
 * Returns the unquantized layers for llm_int8_skip_modules; null if only the head is unquantized,
 * the default of transformers. Routers and experts get the names of the files: transformers before
 * version 5 has linear layers there.
 */
function skippedOf(model: Module): string[] | null {
  const slices = readSliceNames(model.describe()?.pieces) ?? {};
  const whole = [...model.namedModules()].filter(([path, module]) => isWhole(path, module));
  const paths = new Set(
    whole.flatMap(([path, module]) => {
      const others = ownNames(module).flatMap((key) => slices[`${path}.${key}`] ?? []);
      return others.length > 0
        ? others.map((name) => name.replace(/(\.\*.*|\.weight)$/, ''))
        : [path];
    }),
  );
  const named = [...paths];
  const heads = [...model.namedModules()].filter(([path]) => isHead(path)).length;
  return named.every(isHead) && named.length === heads ? null : named;
}

function isWhole(path: string, module: Module): boolean {
  const plain = module instanceof LoraLayer ? module.base : module;
  if (plain instanceof NF4Linear || (plain instanceof Embedding && !isHead(path))) return false;
  if (plain instanceof Linear || isHead(path)) return true;
  return ownNames(plain).some((key) => (plain[key as never] as Parameter).ndim > 1);
}

/** Names of a module's own parameters, without its children's. */
const ownNames = (module: Module): string[] =>
  [...module.namedParameters()].map(([key]) => key).filter((key) => !key.includes('.'));

const isHead = (path: string): boolean => matchesPath(path, HEADS);

function damagedError(op: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op, expected, got });
}
