// Reads a recorded model: weights, batch, and the results of PyTorch.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { SafetensorsFile } from '../../lib/checkpoint/safetensors-file.js';
import * as models from '../../lib/models/index.js';
import type { Device } from '../../lib/runtime/device.js';
import { Tensor } from '../../lib/tensor/index.js';

export interface Description {
  config: { vocabSize: number; maxSeq: number; channels: number; layers: number; heads: number };
  ignoreIndex: number;
  loss: number;
  lossBf16?: number;
  adamw?: { lr: number; beta1: number; beta2: number; eps: number; weightDecay: number };
  adamwLosses?: number[];
}

/** The output of scripts/record-golden.py as CPU tensors; release() frees them. */
export class Golden {
  private constructor(
    readonly description: Description,
    private readonly tensors: ReadonlyMap<string, Tensor>,
  ) {}

  /** `path` without the extension. */
  static async read(path: string, device: Device): Promise<Golden> {
    const description = JSON.parse(readFileSync(`${path}.json`, 'utf8')) as Description;
    const file = await SafetensorsFile.open(`${path}.safetensors`);
    const tensors = new Map<string, Tensor>();
    for (const entry of file.entries) {
      const tensor = Tensor.empty(entry.shape, entry.dtype, device).keep();
      await file.readInto(entry, tensor);
      tensors.set(entry.name, tensor);
    }
    return new Golden(description, tensors);
  }

  tensor(name: string): Tensor {
    const found = this.tensors.get(name);
    assert.ok(found, `the golden file has no ${name}`);
    return found;
  }

  /** Tensors with names that start with `prefix`, under the rest of the name. */
  group(prefix: string): [string, Tensor][] {
    return [...this.tensors]
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, tensor]) => [name.slice(prefix.length), tensor]);
  }

  /** The recorded model in the recorded weights. */
  model(device: Device): models.GPT2 {
    const { config, ignoreIndex } = this.description;
    const model = new models.GPT2({ ...config, ignoreIndex }).to(device);
    model.loadStateDict(Object.fromEntries(this.group('weight.')));
    return model;
  }

  release(): void {
    for (const tensor of this.tensors.values()) tensor.dispose();
  }
}

/** max |a - b| / max |b|, finite or it fails. */
export function relativeError(a: ArrayLike<number>, b: ArrayLike<number>): number {
  assert.equal(a.length, b.length);
  let difference = 0;
  let largest = 0;
  for (let i = 0; i < b.length; ++i) {
    assert.ok(Number.isFinite(a[i]), `element ${i} is ${a[i]}`);
    difference = Math.max(difference, Math.abs((a[i] as number) - (b[i] as number)));
    largest = Math.max(largest, Math.abs(b[i] as number));
  }
  return largest === 0 ? difference : difference / largest;
}
