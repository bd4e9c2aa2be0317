// Reads experts of multimodal folders that store [experts, inputs, outputs]; the model has
// [experts, outputs, inputs].
import type { WeightFiles } from '../checkpoint/index.js';
import type { Module } from '../nn/module.js';
import type { StoredValues } from '../nn/stored-values.js';
import { type Box, boxesOf, wholeBox } from '../runtime/box.js';
import { cpu } from '../runtime/device.js';
import type { DType } from '../runtime/dtype.js';
import * as kernels from '../runtime/kernels.generated.js';
import { leading } from '../runtime/required.js';
import { held, noGrad, scope, Tensor } from '../tensor/index.js';
import type { Layout } from './load-weights.js';
import { type OpenWeights, StoredWeights } from './stored-weights.js';

/** Values of model_type of such folders. */
const TYPES: readonly unknown[] = ['qwen3_vl_moe'];

const MATRIX = /\.mlp\.experts\.(?:gate_up_proj|down_proj)$/;

/**
 * Returns `layout`, which also transposes the experts that `files` store as [experts, inputs,
 * outputs].
 */
export function wrapTransposedLayout(
  model: Module,
  files: WeightFiles,
  layout: Layout,
  dtype: DType,
): Layout {
  if (!TYPES.includes(files.config?.model_type)) return layout;
  const parameters = new Map(model.namedParameters());
  const read = new Set<string>();
  const decoded = new Map<string, (open: OpenWeights) => StoredValues>();
  for (const [name, { shape }] of files.tensors) {
    const modelName = MATRIX.test(name) ? layout.nameOf(name) : null;
    const wholeDims = modelName === null ? undefined : parameters.get(modelName)?.region.whole;
    if (modelName === null || wholeDims?.length !== 3) continue;
    const [experts, outputs, inputs] = leading(wholeDims, 3);
    // transformers 5 saves them in the model's layout.
    if (shape.join() === wholeDims.join() || shape.join() !== `${[experts, inputs, outputs]}`)
      continue;
    read.add(name);
    decoded.set(
      modelName,
      (open) => new TransposedExperts(open, name, { shape: wholeDims, dtype }),
    );
  }
  const nameOf = (name: string): string | null => (read.has(name) ? null : layout.nameOf(name));
  return { ...layout, nameOf, decoded };
}

/** Stored [experts, inputs, outputs] as values [experts, outputs, inputs]. */
class TransposedExperts implements StoredValues {
  readonly dtype: DType;
  readonly origin: string;
  private readonly stored: StoredWeights;
  private readonly shape: readonly number[];

  constructor(
    open: OpenWeights,
    name: string,
    { shape, dtype }: { shape: readonly number[]; dtype: DType },
  ) {
    this.stored = new StoredWeights(open, { name, dtype, transposed: false });
    this.shape = shape;
    this.dtype = dtype;
    this.origin = this.stored.origin;
  }

  read(out: Tensor, from: number, box: Box = wholeBox(this.shape)): void {
    let at = out.offset;
    for (const part of boxesOf({ box, from, numel: out.numel })) {
      const [first, output, input] = leading(part.offset, 3);
      const [experts, outputs, inputs] = leading(part.shape, 3);
      for (let expert = first; expert < first + experts; ++expert) {
        const target = out.alias([outputs * inputs], undefined, at);
        const matrix = { offset: [expert, input, output], shape: [1, inputs, outputs] };
        noGrad(() => scope(() => this.copy(matrix, target)));
        at += outputs * inputs;
      }
    }
  }

  done(): void {
    this.stored.done();
  }

  /** Fills `target` with the transpose of a matrix in the file. */
  private copy(matrix: Box, target: Tensor): void {
    const [, inputs, outputs] = leading(matrix.shape, 3);
    const values = held(() => Tensor.empty([inputs, outputs], target.dtype, cpu()));
    this.stored.read(values.alias([values.numel]), 0, matrix);
    const turned = held(() => values.transpose(0, 1).contiguous());
    kernels.copy({ in: turned.to(target.device).alias([turned.numel]), out: target });
    for (const tensor of [values, turned]) tensor.release();
  }
}
