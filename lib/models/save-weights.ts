// saveWeights: writes the values of a module as safetensors.

import type { JsonObject } from '../../types/json.js';
import {
  converted,
  EXPORT_DTYPES,
  type ExportDType,
  type ExportFormat,
  inFileSlices,
  readSliceNames,
  requireFree,
  type TensorSource,
  TORCH_DTYPES,
  writeAlone,
  writeFolder,
} from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { Fp8Linear } from '../nn/fp8-linear.js';
import type { Module } from '../nn/module.js';
import { StoredParameter } from '../nn/packed-linear.js';
import { Parameter } from '../nn/parameter.js';
import type { PretrainedDescription } from '../nn/pretrained-description.js';
import {
  lorasOf,
  quantizationConfig,
  quantizedNames,
  quantStates,
  requireUnmerged,
  requireWholeExperts,
} from '../peft/index.js';
import { cpu } from '../runtime/device.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { held, noGrad, scope, Tensor, to, trainerOf } from '../tensor/index.js';
import { mxfp4Config } from './quantized/mxfp4.js';
import {
  findPackedLayers,
  packedConfig,
  packedSources,
  repackedNames,
} from './quantized/write-packed.js';

/** How saveWeights() writes the tensors. */
export interface SaveWeightsOptions {
  /** Dtype of floating-point parameters, except quantized weights. Default: unchanged. */
  dtype?: ExportDType;
  /**
   * Layout of the files; it matters to a module with describe(). Default: "hf", with a config.json,
   * for a folder of such a module, else "native".
   */
  format?: ExportFormat;
  /** Bytes of tensors in one file of a folder, unless one tensor has more. Default: 5e9. */
  maxShardBytes?: number;
}

const DTYPE_NAMES = Object.entries(EXPORT_DTYPES);

/**
 * Writes the parameters and buffers of `module` by name. If `path` ends in ".safetensors", writes
 * one file. Else `path` is a new or empty folder: it receives model.safetensors or, above
 * maxShardBytes, several files and their index. The write is atomic: it leaves a complete file or
 * folder or nothing, and replaces an existing file at once. loadWeights() reads both back, bit for
 * bit. Tied parameters are written once.
 *
 * Call it on one process; for a model that an engine trains use engine.save16bitModel() or
 * `ds export`. Host memory in addition to buffers: twice the largest tensor. Resolves with the
 * paths of the files in the folder, or with the path of the file. Throws DS_ARGUMENT for a model
 * that an engine trains, merged adapters in the native layout, a folder that is not empty and wrong
 * options. Throws DS_CHECKPOINT if `path` holds other data, DS_NONFINITE for values that f16 cannot
 * hold, DS_IO.
 */
export function saveWeights(
  module: Module,
  path: string,
  given: SaveWeightsOptions = {},
): Promise<string[]> {
  return saveWithFiles(module, path, given, []);
}

/** @internal Runs saveWeights() and copies the files `copies` to the folder. */
export async function saveWithFiles(
  module: Module,
  path: string,
  given: SaveWeightsOptions,
  copies: readonly string[],
): Promise<string[]> {
  const options = readOptions('saveWeights', given, namesOf.SaveWeightsOptions);
  requireType('saveWeights path', path, 'string');
  const isFile = path.endsWith('.safetensors');
  requireChoice('dtype', options.dtype, Object.keys(EXPORT_DTYPES));
  requireChoice('format', options.format, ['hf', 'native']);
  const description = module.describe();
  if (options.format === 'hf' && !description) {
    throw argumentError('saveWeights format', '"native" for a module without describe()', '"hf"');
  }
  const format = options.format ?? (description && !isFile ? 'hf' : 'native');
  if (format === 'native') requireUnmerged('saveWeights', module);
  const layout = format === 'hf' ? description : null;
  const { sources, torch } = layout
    ? pretrainedSources(module, layout, options.dtype)
    : nativeSources(module, options.dtype);
  if (isFile) {
    await writeAlone(path, sources);
    return [path];
  }
  const home = await requireFree(path);
  const quantization_config =
    packedConfig(module) ??
    mxfp4Config(module) ??
    quantizationConfig(module, torch.torch_dtype ?? 'float32');
  const config = layout && {
    ...layout.config,
    ...torch,
    ...(quantization_config && { quantization_config }),
  };
  const generation = (layout?.generation ?? null) as JsonObject | null;
  const { maxShardBytes = 5e9 } = options;
  const content = { sources, config, generation, copies, maxShardBytes };
  const files = await writeFolder(home, content);
  return files.map((file) => `${path.replace(/\/$/, '')}/${file}`);
}

/** Tensors of a save, and the dtype entry of config.json. */
interface SaveSources {
  sources: TensorSource[];
  torch: { torch_dtype?: string };
}

function nativeSources(module: Module, dtype: ExportDType | undefined): SaveSources {
  const sources = createSources(module, dtype, new Set());
  return { sources, torch: torchDType(sources) };
}

/**
 * @internal Returns the tensors of `module` under the names of Hugging Face's files. Throws
 * DS_ARGUMENT if an engine has taken over a tensor, or a rank holds a part of it.
 */
export function pretrainedSources(
  module: Module,
  { transposed, pieces }: PretrainedDescription,
  dtype?: ExportDType,
): SaveSources {
  const sources = createSources(module, dtype, new Set(transposed));
  const torch = torchDType(sources);
  const slices = readSliceNames(pieces) ?? {};
  const named = describeForTransformers(module, sources, torch.torch_dtype ?? 'float32');
  return { sources: named.flatMap((source) => inFileSlices(source, slices[source.name])), torch };
}

function createSources(
  module: Module,
  dtype: ExportDType | undefined,
  transposed: ReadonlySet<string>,
): TensorSource[] {
  const parameters = new Set<Tensor>(module.parameters());
  return Object.entries(module.stateDict()).map(([name, tensor]) => {
    if (trainerOf(tensor) !== null) throw trainedError(name);
    if (tensor instanceof Parameter && tensor.isCut) throw partialError(name);
    const isFree = parameters.has(tensor) && !(tensor instanceof StoredParameter);
    const isConverted = dtype && isFree && isFloating(tensor.dtype);
    const fileDtype = isConverted ? EXPORT_DTYPES[dtype] : tensor.dtype;
    const isTransposed = transposed.has(name);
    const shape = isTransposed ? [...tensor.shape].reverse() : tensor.shape;
    const values = async () =>
      copyTensor(name, tensor, { dtype: fileDtype, transposed: isTransposed });
    return { name, dtype: fileDtype, shape, values };
  });
}

/**
 * Sources with transformers' names: bitsandbytes' names for 4-bit layers, and the base weights of
 * layers with adapters. Throws DS_ARGUMENT if these lack the adapters' updates.
 */
function describeForTransformers(
  module: Module,
  sources: readonly TensorSource[],
  torchName: string,
): TensorSource[] {
  const apart = [...lorasOf(module)].find(([, { isMerged }]) => !isMerged);
  if (apart) {
    const hint =
      'peft.merge(model) adds them to the weights; peft.saveAdapter() saves only the adapters.';
    throw argumentError(
      'saveWeights',
      'merged adapters',
      `an unmerged adapter of ${apart[0]}`,
      hint,
    );
  }
  requireWholeExperts('saveWeights', module);
  if (module.modules().some((child) => child instanceof Fp8Linear)) {
    const hint = 'Save the model before quantizeModel(), which computes the same codes again.';
    throw argumentError('saveWeights', 'layers in a format of these files', 'layers in FP8', hint);
  }
  const [names, repacked] = [quantizedNames(module), repackedNames(module)];
  if (names.size > 0 && findPackedLayers(module).size > 0) {
    const hint = 'No file format supports both.';
    throw argumentError('saveWeights', 'layers in NF4 or in integer formats', 'both kinds', hint);
  }
  const adapters = new Set([...lorasOf(module).values()].flatMap(({ added }) => added));
  const parameters = new Map(module.namedParameters());
  const plainSources = sources.flatMap((source) => {
    const name = names.get(source.name) ?? source.name;
    const parameter = parameters.get(source.name); // A buffer is no parameter.
    const isAdapter = parameter !== undefined && adapters.has(parameter);
    const isElsewhere = names.get(source.name) === null || repacked.has(source.name);
    return isAdapter || isElsewhere ? [] : [{ ...source, name }];
  });
  return [...plainSources, ...quantStates(module, torchName), ...packedSources(module)];
}

/** Returns a copy on the host. The caller releases it. */
function copyTensor(
  name: string,
  tensor: Tensor,
  target: { dtype: DType; transposed: boolean },
): Tensor {
  const copy = held(
    () => firstSource(tensor) ?? noGrad(() => scope(() => to(tensor, cpu()).clone())),
  );
  return held(() => converted(name, copy, target));
}

/** Reads the stored initial values of a parameter for this save; null if it is materialized. */
function firstSource(tensor: Tensor): Tensor | null {
  if (!(tensor instanceof Parameter) || !tensor.stored) return null;
  const values = Tensor.empty(tensor.shape, tensor.dtype, cpu());
  tensor.writeInitial(values);
  return values;
}

/** The dtype entry of config.json: that of the first floating parameter. */
function torchDType(sources: readonly TensorSource[]): { torch_dtype?: string } {
  const floating = sources.find(({ dtype }) => isFloating(dtype));
  const [name] = DTYPE_NAMES.find(([, dtype]) => dtype === floating?.dtype) ?? [];
  return name ? { torch_dtype: TORCH_DTYPES[name as ExportDType] } : {};
}

function requireChoice(option: string, value: unknown, choices: readonly string[]): void {
  if (value === undefined || choices.includes(value as string)) return;
  throw argumentError(`saveWeights ${option}`, choices.join(', '), formatValue(value));
}

function partialError(name: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'saveWeights',
    expected: 'a model without tensor parallelism',
    got: `a model with a part of ${name}`,
    hint: 'Save a checkpoint of its engine; `ds export` converts it to weight files.',
  });
}

function trainedError(name: string): DsError {
  const hint = 'Use engine.save16bitModel(), or engine.saveCheckpoint() and `ds export`.';
  const got = `a module with ${name} owned by an engine`;
  return argumentError('saveWeights', 'a module without an engine', got, hint);
}
