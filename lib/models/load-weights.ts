// loadWeights: loads safetensors files into a module.

import {
  converted,
  type ExportFormat,
  type FileSlice,
  fileSlicesOf,
  readSliceNames,
  type SliceNames,
  WeightFiles,
} from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { copyCut } from '../nn/cut-values.js';
import { requireLoadable } from '../nn/loadable.js';
import type { Module } from '../nn/module.js';
import { hintForNames, isFactor, OTHER_MODEL } from '../nn/name-mismatch.js';
import { Parameter } from '../nn/parameter.js';
import { requireModule } from '../nn/require-module.js';
import type { StoredValues } from '../nn/stored-values.js';
import { positionIn, wholeBox } from '../runtime/box.js';
import { cpu } from '../runtime/device.js';
import { type DType, isFloating } from '../runtime/dtype.js';
import { formatValue } from '../runtime/format-value.js';
import * as kernels from '../runtime/kernels.generated.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import { held, noGrad, scope, Tensor, trainerOf } from '../tensor/index.js';
import { markChanged } from '../tensor/tape.js';
import { OpenWeights, SlicedWeights, StoredWeights } from './stored-weights.js';

/** Strictness of loadWeights(), and the layout of the files. */
export interface LoadWeightsOptions {
  /** Whether missing and unexpected names are errors. Default: true. */
  strict?: boolean;
  /**
   * Layout of the files; it matters if describe() of the module names transposed parameters.
   * Default: "hf" if a config.json with the model_type of describe() lies in the folder, else
   * "native".
   */
  format?: ExportFormat;
}

/** Names that only the files or only the module have; empty with `strict`. */
export interface LoadedWeights {
  /** Names of the module that the files lack: their tensors keep their values. */
  missing: string[];
  /** Names of the files that the module lacks. */
  unexpected: string[];
}

/** Names and layouts of a module's tensors in files. */
export interface Layout {
  /** Names of the module's parameters that files store as the transpose. */
  readonly transposed: ReadonlySet<string>;
  /** Parameters that files store in slices, by the module's names. Default: none. */
  readonly slices?: SliceNames;
  /** Returns the module's name for a name in the files; null if it is not a weight. */
  nameOf(name: string): string | null;
  /** Names of the module's tensors that are already loaded. Default: none. */
  readonly filled?: ReadonlySet<string>;
  /** Parameters with another encoding in the files, whose tensors nameOf() hides. Default: none. */
  readonly decoded?: ReadonlyMap<string, (open: OpenWeights) => StoredValues>;
  /** Parameters of a new head, which keep their initial values if the files lack them. */
  readonly head?: HeadLayout;
}

/** A head that the files may lack. */
interface HeadLayout {
  /** Returns whether a parameter belongs to the head. */
  has(name: string): boolean;
  /** Whether a head of another size is replaced. */
  readonly replaces: boolean;
  /** Returns whether an adapter loads a parameter next, so that no notice is due. */
  readonly isAdapted?: (name: string) => boolean;
}

/** Source of the files for messages, and their layout. */
interface WeightSource {
  op: string;
  layout: Layout;
}

/** A parameter or buffer of the module, and its names in the files. */
interface WeightDestination {
  target: Tensor;
  sources: string[];
  /** Slices of the parameter in the files, if it is stored in slices. */
  slices: FileSlice[];
  transposed: boolean;
}

interface MatchedWeight extends LoadedWeights {
  found: WeightDestination[];
  /** Parameters of a head that the files lack. */
  random: string[];
  /** Descriptions of tensors with another shape or dtype. */
  mismatched: string[];
}

/** Names of one kind in an error. */
const SHOWN = 40;

/**
 * Fills the parameters and buffers of `module` by name from a safetensors file, or from a folder
 * with model.safetensors or several files and their index. engine.save16bitModel(),
 * `ds export` and other programs write such files. Call it before initialize(), on every rank:
 * an engine keeps master weights.
 *
 * Floating values are converted to the dtype of their target and stay on its device. An unused
 * parameter becomes f32 on the CPU, and initialize() starts from its values. Other dtypes must
 * match. A tied parameter may be stored under one of its names, or under several with equal values.
 * Host memory in addition to the module's: twice the largest tensor.
 *
 * Throws DS_CHECKPOINT with the missing, unexpected and mismatched names (40 of a kind) before any
 * change; without `strict` only for mismatches, and resolves with the other names. Also throws
 * DS_CHECKPOINT for damaged files and for tied names with different values, DS_NONFINITE for values
 * that f16 cannot hold, DS_ARGUMENT for a module that an engine trains. DS_IO may leave the module
 * partially filled: load again. Source: PyTorch's load_state_dict and safetensors' load_model.
 */
export async function loadWeights(
  module: Module,
  path: string,
  given: LoadWeightsOptions = {},
): Promise<LoadedWeights> {
  requireModule('loadWeights', module);
  requireType('loadWeights path', path, 'string');
  const { strict = true, format } = readOptions('loadWeights', given, namesOf.LoadWeightsOptions);
  requireFree(module.namedParameters());
  requireLoadable('loadWeights', module.namedParameters());
  const files = await WeightFiles.open(path);
  try {
    const layout = chooseLayout(module, files, format);
    return await load(module, files, { op: 'loadWeights', layout, strict });
  } finally {
    await files.close();
  }
}

/**
 * Lets all unused parameters of `module` start with the values of the files, in `dtype`. Values are
 * read when needed, and the files close after the last one. The files may contain no other tensors,
 * except ones that their layout ignores. Returns the names of a head that the files lack. Throws as
 * loadWeights.
 */
export async function startFromFiles(
  module: Module,
  files: WeightFiles,
  { op, layout, dtype }: WeightSource & { dtype: DType },
): Promise<string[]> {
  const { found: matched, random } = await matchFitting(module, files, {
    op,
    layout,
    strict: true,
  });
  const open = new OpenWeights(files);
  for (const { target, sources, slices, transposed } of matched) {
    const [name] = sources;
    const targetDtype = (target as Parameter).fixedDtype ?? dtype;
    const stored =
      name === undefined
        ? new SlicedWeights(open, wholeShape(target), slices, targetDtype)
        : new StoredWeights(open, { name, dtype: targetDtype, transposed });
    (target as Parameter).startFrom(stored);
  }
  const parameters = new Map(module.namedParameters());
  for (const [name, make] of layout.decoded ?? []) {
    required(parameters.get(name)).startFrom(make(open));
  }
  return random;
}

async function load(
  module: Module,
  files: WeightFiles,
  source: WeightSource & { strict: boolean },
): Promise<LoadedWeights> {
  const { found: matched, missing, unexpected } = await matchFitting(module, files, source);
  // Only f16 refuses values. Its files are read twice, so that no tensor changes before an error.
  for (const destination of matched) {
    if (fileDtype(destination) === 'f16') (await readValues(destination, files)).release();
  }
  for (const destination of matched) await fill(destination, files);
  await files.requireUnchanged();
  return { missing, unexpected };
}

/**
 * Matches the tensors of the files with their targets. Throws before any change if a tensor does
 * not fit.
 */
async function matchFitting(
  module: Module,
  files: WeightFiles,
  { op, layout, strict }: WeightSource & { strict: boolean },
): Promise<MatchedWeight> {
  const location = `${op} ${files.path}`;
  const matched = match(module, files, layout);
  if (layout.head) ignoreHead(files.path, matched, layout.head);
  requireFit(op, files.path, matched, strict);
  for (const { sources } of matched.found) await requireEqual(location, files, sources);
  return matched;
}

/** Returns the layout of the files. */
function chooseLayout(
  module: Module,
  files: WeightFiles,
  format: ExportFormat | undefined,
): Layout {
  const description = module.describe();
  if (format !== undefined && format !== 'hf' && format !== 'native') {
    throw misusedError('format', '"hf" or "native"', formatValue(format));
  }
  if (format === 'hf' && !description) {
    throw misusedError('format', '"native" for a module without describe()', '"hf"');
  }
  const nameOf = (name: string): string => name;
  const isTheirs = files.config?.model_type === description?.config.model_type;
  if (!description || format === 'native' || (format !== 'hf' && !(files.config && isTheirs))) {
    return { transposed: new Set(), nameOf };
  }
  const slices = readSliceNames(description.pieces) ?? {};
  return { transposed: new Set(description.transposed), slices, nameOf };
}

function match(
  module: Module,
  files: WeightFiles,
  { transposed, slices: patterns = {}, nameOf, filled, decoded, head }: Layout,
): MatchedWeight {
  const destinations = new Map<string, WeightDestination>();
  const inSlices = new Map<string, { destination: WeightDestination; slice: FileSlice }>();
  for (const [name, target] of Object.entries(module.stateDict())) {
    if (filled?.has(name) || decoded?.has(name)) continue;
    const destination = { target, sources: [], slices: [], transposed: transposed.has(name) };
    destinations.set(name, destination);
    for (const slice of fileSlicesOf(patterns[name] ?? [], wholeShape(target))) {
      inSlices.set(slice.name, { destination, slice });
    }
  }
  const tied = module.tiedNames();
  const unexpected: string[] = [];
  const mismatched: string[] = [];
  for (const [name, entry] of files.tensors) {
    const called = nameOf(name);
    if (called === null) continue;
    const part = inSlices.get(called);
    const destination = part?.destination ?? destinations.get(tied.get(called) ?? called);
    if (!destination) {
      unexpected.push(name);
      continue;
    }
    inSlices.delete(called);
    if (part) destination.slices.push({ ...part.slice, name });
    else destination.sources.push(name);
    const { target } = destination;
    const wholeDims = part ? part.slice.shape : wholeShape(target);
    const shape = destination.transposed ? [...wholeDims].reverse() : wholeDims;
    const isSameKind = isFloating(target.dtype)
      ? isFloating(entry.dtype)
      : entry.dtype === target.dtype;
    if (isSameKind && entry.shape.join() === shape.join()) continue;
    if (head?.replaces && head.has(called)) {
      destination.sources.pop();
      continue;
    }
    const expectedText = describe({ dtype: target.dtype, shape });
    mismatched.push(`${name} (${describe(entry)}, not ${expectedText})`);
  }
  // A tensor may be stored whole, under this library's name, or in all of its slices.
  const absent = [...inSlices].filter(([, { destination }]) => destination.sources.length === 0);
  const incomplete = new Set(absent.map(([, { destination }]) => destination));
  const isPresent = (destination: WeightDestination): boolean =>
    destination.sources.length > 0 ||
    (destination.slices.length > 0 && !incomplete.has(destination));
  const missing = [...destinations].flatMap(([name, destination]) =>
    isPresent(destination) || incomplete.has(destination) ? [] : [name],
  );
  missing.push(...absent.map(([name]) => name));
  const matched = [...destinations.values()].filter(isPresent);
  return { found: matched, random: [], missing, unexpected, mismatched };
}

/** Moves the parameters of a head from `missing` to `random`, with a warning. */
function ignoreHead(path: string, matched: MatchedWeight, head: HeadLayout): void {
  matched.random = matched.missing.filter((name) => head.has(name));
  matched.missing = matched.missing.filter((name) => !head.has(name));
  const noticed = matched.random.filter((name) => !head.isAdapted?.(name));
  if (noticed.length === 0) return;
  const text = `${path} has no values for ${formatNames(noticed)}: this head starts with random values and needs training.`;
  process.emitWarning(text, { type: 'DsNotice', code: 'DS_NOTICE' });
}

const wholeShape = (target: Tensor): readonly number[] =>
  target instanceof Parameter ? target.region.whole : target.shape;

function requireFit(op: string, path: string, matched: MatchedWeight, strict: boolean): void {
  const { missing, unexpected, mismatched } = matched;
  const problems: string[] = [];
  if (strict && missing.length > 0) problems.push(`without ${formatNames(missing)}`);
  if (strict && unexpected.length > 0) problems.push(`with unexpected ${formatNames(unexpected)}`);
  if (mismatched.length > 0)
    problems.push(`with other shapes or types: ${formatNames(mismatched)}`);
  if (problems.length === 0) return;
  throw new DsError({
    code: 'DS_CHECKPOINT',
    op: `${op} ${path}`,
    expected: 'the tensors of the module',
    got: `files ${problems.join('; ')}`,
    hint: hintFor(op, matched),
  });
}

function hintFor(op: string, { missing, unexpected, mismatched }: MatchedWeight): string {
  if (unexpected.some((name) => OF_COMPRESSION.test(name))) {
    return 'The files belong to a model in compression: save it after redundancyClean(), or call initCompression() on this model.';
  }
  if (op === 'fromPretrained' && unexpected.some(isFactor)) {
    return 'The file includes adapters. Build the model with nn.models.fromConfig(folder), call the same peft.addLora(), then nn.loadWeights(model, folder, { format: "native" }).';
  }
  if (mismatched.length > 0) return OTHER_MODEL;
  return hintForNames({ missing, unexpected }, 'nn.loadWeights with { strict: false }');
}

/**
 * Tensors that compression_training stores next to a weight. Loading without them prunes nothing.
 */
const OF_COMPRESSION = /\.(sparse|row|head)_(pruning|mask)_(mask|scores)$/;

/** Throws unless a tied parameter has one value under all of its names. */
async function requireEqual(
  location: string,
  files: WeightFiles,
  [first, ...others]: string[],
): Promise<void> {
  if (first === undefined || others.length === 0) return;
  const expected = await readBits(files, first);
  for (const name of others) {
    if (expected.equals(await readBits(files, name))) continue;
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${location}: ${name}`,
      expected: `the values of ${first} (tied in the module)`,
      got: 'different values',
    });
  }
}

async function readBits(files: WeightFiles, name: string): Promise<Buffer> {
  const values = await files.read(name);
  try {
    const raw = values.toRaw();
    return Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
  } finally {
    values.release();
  }
}

const isNew = (target: Tensor): target is Parameter =>
  target instanceof Parameter && !target.isMaterialized && !target.isDisposed;

const fileDtype = ({ target }: WeightDestination): DType => (isNew(target) ? 'f32' : target.dtype);

const nameOf = ({ sources, slices }: WeightDestination): string =>
  sources[0] ?? required(slices[0]?.name);

/**
 * Reads this rank's part of a tensor and converts it. Throws DS_NONFINITE if a finite value
 * overflows in the new dtype.
 */
async function readValues(destination: WeightDestination, files: WeightFiles): Promise<Tensor> {
  const { target, sources, slices, transposed } = destination;
  const name = nameOf(destination);
  const read =
    sources.length > 0 ? await files.read(name) : await joinSlices(target, slices, files);
  const values = converted(name, read, { dtype: fileDtype(destination), transposed });
  return target instanceof Parameter ? takeOwnPart(target, values) : values;
}

async function fill(destination: WeightDestination, files: WeightFiles): Promise<void> {
  const { target } = destination;
  const values = await readValues(destination, files);
  try {
    requireFree([[nameOf(destination), target]]); // A concurrent initialize() may have run since.
    if (isNew(target)) target.place(values);
    else noGrad(() => scope(() => kernels.copy({ in: values.to(target.device), out: target })));
    markChanged(target);
  } finally {
    values.release();
  }
}

/** Joins a tensor that the files store in slices, in the dtype of the first. */
async function joinSlices(target: Tensor, slices: readonly FileSlice[], files: WeightFiles) {
  const shape = wholeShape(target);
  const { dtype } = files.tensors.get(required(slices[0]).name) as { dtype: DType };
  const joined = held(() => Tensor.empty(shape, dtype, cpu()));
  for (const { name, box } of slices) {
    const read = await files.read(name);
    const place = joined.alias(
      read.shape,
      undefined,
      joined.offset + positionIn(wholeBox(shape), box.offset),
    );
    kernels.copy({ in: read, out: place });
    place.dispose();
    read.release();
  }
  return joined;
}

/** @internal Returns this parameter's part of a whole tensor; frees the rest. */
export function takeOwnPart(parameter: Parameter, whole: Tensor): Tensor {
  if (!parameter.isCut) return whole;
  const { shape, region } = parameter;
  const part = held(() => Tensor.empty(shape, whole.dtype, whole.device));
  noGrad(() => scope(() => copyCut(whole, region.boxes, part)));
  whole.release();
  return part;
}

function requireFree(tensors: Iterable<[string, Tensor]>): void {
  const owned = [...tensors].find(([, tensor]) => trainerOf(tensor) !== null);
  if (!owned) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'loadWeights',
    expected: 'a module without an engine',
    got: `a module with ${owned[0]} owned by an engine`,
    hint: 'Load before initialize(), or resume with engine.loadCheckpoint().',
  });
}

function formatNames(names: readonly string[]): string {
  const listed = names.slice(0, SHOWN).join(', ');
  return names.length > SHOWN ? `${listed} and ${names.length - SHOWN} more` : listed;
}

function misusedError(option: string, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `loadWeights ${option}`, expected, got });
}
