// Reads the low-rank factors of an adapter folder without a model. Inference keeps the factors of
// several adapters for one model.

import { join } from 'node:path';
import { WeightFiles } from '../checkpoint/index.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { isFloating } from '../runtime/dtype.js';
import { required } from '../runtime/required.js';
import { describe } from '../runtime/view.js';
import type { Tensor } from '../tensor/index.js';
import { parseAdapterConfig } from './adapter-config.js';
import { PREFIX } from './adapter-files.js';
import { CONFIG, readJson, WEIGHTS } from './adapter-json.js';
import { sizesOf } from './lora.js';
import type { LoraConfig } from './lora-options.js';

/** The adapter of one linear layer in the files. */
interface AdapterFactors {
  /** Path of the layer in the model. */
  readonly path: string;
  readonly rank: number;
  readonly scaling: number;
  /** Name of A [rank, inputs] in the files. */
  readonly a: string;
  /** Name of B [outputs, rank]. */
  readonly b: string;
  readonly inputs: number;
  readonly outputs: number;
}

const SHOWN = 4;

/** An open folder of an adapter that consists of low-rank factors only. The caller closes it. */
export class AdapterReader {
  private constructor(
    readonly path: string,
    private readonly files: WeightFiles,
    /** Factors by the path of the layer. */
    readonly layers: ReadonlyMap<string, AdapterFactors>,
  ) {}

  /**
   * Opens a folder in PEFT's format, or a name on the hub. Rejects with DS_CHECKPOINT for DoRA,
   * trained biases, whole modules and other tensors, for factors without their counterpart, and for
   * ranks that differ from adapter_config.json. Rejects with DS_HUB if a download fails.
   */
  static async open(op: string, location: string): Promise<AdapterReader> {
    const dir = await findOrPullFolder(op, location, { need: 'adapter' });
    const path = join(dir, CONFIG);
    const config = parseAdapterConfig(path, await readJson(path));
    requireFactorsOnly(path, config);
    const files = await WeightFiles.open(join(dir, WEIGHTS));
    try {
      return new AdapterReader(dir, files, layersOf(files, config));
    } catch (error) {
      await files.close();
      throw error;
    }
  }

  /** The largest rank of a layer. */
  get rank(): number {
    return Math.max(0, ...Array.from(this.layers.values(), ({ rank }) => rank));
  }

  /** Reads A [rank, inputs] and B [outputs, rank] in their dtypes. The caller owns both. */
  async read({ a, b }: AdapterFactors): Promise<[Tensor, Tensor]> {
    const first = await this.files.read(a);
    try {
      return [first, await this.files.read(b)];
    } catch (error) {
      first.release();
      throw error;
    }
  }

  /** Rejects with DS_IO if a file was written in place since it was opened. */
  requireUnchanged(): Promise<void> {
    return this.files.requireUnchanged();
  }

  close(): Promise<void> {
    return this.files.close();
  }
}

function requireFactorsOnly(path: string, config: LoraConfig): void {
  const { useDora, bias, modulesToSave } = config;
  const refuse = (key: string, expected: string, got: unknown): never => {
    throw new DsError({
      code: 'DS_CHECKPOINT',
      op: `${path}: ${key}`,
      expected: `${expected}, for one of several adapters`,
      got: JSON.stringify(got),
      hint: 'Serve it merged: give the folder of the adapter as the model, or run ds merge.',
    });
  };
  if (useDora) refuse('use_dora', 'false', true);
  if (bias !== 'none') refuse('bias', '"none"', bias);
  if (modulesToSave.length > 0) refuse('modules_to_save', 'no modules', modulesToSave);
}

function layersOf(files: WeightFiles, config: LoraConfig): Map<string, AdapterFactors> {
  const names = new Map<string, { a?: string; b?: string }>();
  const others: string[] = [];
  for (const name of files.tensors.keys()) {
    const plain = name.replace(/\.default(?=\.|$)/, '');
    const match = /^(.+)\.lora_(A|B)\.weight$/.exec(plain);
    if (!match || !plain.startsWith(PREFIX)) {
      others.push(name);
      continue;
    }
    const path = required(match[1]).slice(PREFIX.length);
    const pair = names.get(path) ?? {};
    pair[match[2] === 'A' ? 'a' : 'b'] = name;
    names.set(path, pair);
  }
  if (others.length > 0 || names.size === 0) {
    const got = others.length > 0 ? others.slice(0, SHOWN).join(', ') : 'no tensor';
    throw refusedFile(files, 'low-rank factors of linear layers only', got);
  }
  return new Map(
    Array.from(names, ([path, { a, b }]) => {
      if (a === undefined || b === undefined) {
        const got = `only lora_${a === undefined ? 'B' : 'A'}`;
        throw refusedFile(files, `lora_A and lora_B of ${path}`, got);
      }
      return [path, factorsOf(files, config, { path, a, b })];
    }),
  );
}

function factorsOf(
  files: WeightFiles,
  config: LoraConfig,
  names: { path: string; a: string; b: string },
): AdapterFactors {
  const { path, a, b } = names;
  const [first, second] = [required(files.tensors.get(a)), required(files.tensors.get(b))];
  const { r, scaling } = sizesOf(path, config);
  const [inputs = 0, outputs = 0] = [first.shape[1], second.shape[0]];
  for (const [name, entry, shape] of [
    [a, first, [r, inputs]],
    [b, second, [outputs, r]],
  ] as const) {
    const isFitting = entry.shape.length === 2 && entry.shape.join() === shape.join();
    if (isFitting && isFloating(entry.dtype)) continue;
    const expected = `floating-point numbers [${shape.join(', ')}] by the rank of ${CONFIG}`;
    throw refusedFile(files, `${expected} as ${name}`, describe(entry));
  }
  return { ...names, rank: r, scaling, inputs, outputs };
}

function refusedFile(files: WeightFiles, expected: string, got: string): DsError {
  return new DsError({ code: 'DS_CHECKPOINT', op: files.path, expected, got });
}
