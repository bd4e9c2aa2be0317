// A model's folder as Hugging Face's transformers writes it: config.json, and safetensors in one file or in several.
import { stat } from 'node:fs/promises';

import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Tensor } from '../tensor/index.js';
import { asDsError, leadsNowhere } from './file-error.js';
import type { TensorEntry } from './header.js';
import { CONFIG_FILE, WeightFiles } from './weight-files.js';

export class PretrainedFolder {
  private constructor(
    readonly path: string,
    readonly config: JsonObject,
    private readonly weights: WeightFiles,
  ) {}

  /** Throws DS_CHECKPOINT when the folder has no config.json, or weights that WeightFiles.open refuses. */
  static async open(path: string): Promise<PretrainedFolder> {
    await requireFolder(path);
    const weights = await WeightFiles.open(path);
    const { config } = weights;
    if (config) return new PretrainedFolder(path, config, weights);
    await weights.close();
    throw notPretrained(path, `none called ${CONFIG_FILE}`);
  }

  /** See WeightFiles. */
  requireUnchanged(): Promise<void> {
    return this.weights.requireUnchanged();
  }

  close(): Promise<void> {
    return this.weights.close();
  }

  /** Every tensor. */
  get tensors(): ReadonlyMap<string, TensorEntry> {
    return this.weights.tensors;
  }

  /** See WeightFiles.read. */
  read(name: string): Promise<Tensor> {
    return this.weights.read(name);
  }
}

async function requireFolder(path: string): Promise<void> {
  const found = await stat(path).catch((cause: Error) => {
    throw leadsNowhere(cause) ? notPretrained(path, cause.message) : asDsError(cause, path);
  });
  if (!found.isDirectory()) throw notPretrained(path, 'a file');
}

function notPretrained(op: string, got: string): DsError {
  return new DsError({
    code: 'DS_CHECKPOINT',
    op,
    expected: 'a folder with config.json and safetensors',
    got,
    hint: 'Nothing is downloaded: get a model of the Hugging Face hub by `hf download NAME --local-dir DIR` first.',
  });
}
