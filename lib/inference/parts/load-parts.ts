// Loads a model from the files that an inference checkpoint lists.

import { WeightFiles } from '../../checkpoint/index.js';
import type { DsError } from '../../errors.js';
import { type CausalLM, layoutOf } from '../../models/index.js';
import { OpenWeights, StoredWeights } from '../../models/stored-weights.js';
import type { Parameter } from '../../nn/parameter.js';
import type { StoredValues } from '../../nn/stored-values.js';
import type { Box } from '../../runtime/box.js';
import { type DType, isFloating } from '../../runtime/dtype.js';
import { argumentError } from '../../runtime/input-errors.js';
import { numel } from '../../runtime/view.js';
import type { Tensor } from '../../tensor/index.js';
import { damagedError, type PartsList } from './parts-list.js';

/** The reading rank and its target dtype. */
interface PartsReader {
  /** Rank within the group that shares the model. */
  rank: number;
  ranks: number;
  /** Dtype of the parameters; null keeps the dtype of the files. */
  dtype: DType | null;
}

/**
 * Attaches the values in the files to the parameters of `model`, which must be sharded and without
 * values. Each rank reads its slice of whole tensors, and its own file of parts. Values are read on
 * first use. Rejects with DS_CHECKPOINT if a tensor is missing or has another shape, or if the
 * number of ranks differs. Rejects with DS_ARGUMENT for a model with values, and with DS_IO.
 */
export async function loadParts(
  model: CausalLM,
  list: PartsList,
  { rank, ranks, dtype }: PartsReader,
): Promise<void> {
  const { location, whole, parts } = list;
  const used = [...model.namedParameters()].find(([, parameter]) => parameter.isMaterialized);
  if (used) throw alreadyMaterializedError(used[0]);
  if (parts && Math.max(1, parts.length) !== ranks) {
    const hint = `Start with tensor_parallel.tp_size ${Math.max(1, parts.length)}, or list whole tensors.`;
    throw damagedError(
      location,
      `parts of ${ranks} ranks`,
      `parts of ${Math.max(1, parts.length)}`,
      hint,
    );
  }
  const left = new Map(model.namedParameters());
  const layout = parts ? null : layoutOf(model);
  const attachFile = async (path: string, isPart: boolean): Promise<void> => {
    const files = await WeightFiles.open(path);
    const open = new OpenWeights(files).retain();
    try {
      for (const [name, entry] of files.tensors) {
        const partName = layout ? layout.nameOf(name) : name;
        const parameter = partName === null ? undefined : left.get(partName);
        if (partName === null || !parameter) continue;
        const transposed = layout?.transposed.has(partName) === true;
        const expected = isPart ? parameter.shape : parameter.region.whole;
        const shape = transposed ? [...expected].reverse() : expected;
        if (entry.shape.join() !== shape.join()) {
          throw damagedError(
            `${path}: ${name}`,
            `[${shape.join(', ')}]`,
            `[${entry.shape.join(', ')}]`,
          );
        }
        const targetDtype = isFloating(entry.dtype) ? (dtype ?? entry.dtype) : entry.dtype;
        const stored = new StoredWeights(open, { name, dtype: targetDtype, transposed });
        parameter.startFrom(isPart && parameter.isCut ? new RankPart(stored, parameter) : stored);
        left.delete(partName);
      }
    } finally {
      open.release();
    }
  };
  for (const path of whole) await attachFile(path, false);
  const ownFile = parts?.[rank];
  if (ownFile) await attachFile(ownFile, true);
  const [missing] = left.keys();
  if (missing === undefined) return;
  throw damagedError(
    location,
    'all parameters of the model',
    `${left.size} without a tensor, such as ${missing}`,
  );
}

/** Stored values of this rank's part of a parameter. */
class RankPart implements StoredValues {
  readonly dtype: DType;
  readonly origin: string;

  constructor(
    private readonly stored: StoredValues,
    private readonly parameter: Parameter,
  ) {
    this.dtype = stored.dtype;
    this.origin = stored.origin;
  }

  /** Reads the boxes of the part, which the file stores one after another. */
  read(out: Tensor, from: number, box?: Box): void {
    const { boxes } = this.parameter.region;
    const at = box ? boxes.findIndex((item) => item.offset.join() === box.offset.join()) : 0;
    const before = boxes.slice(0, at).reduce((sum, { shape }) => sum + numel(shape), 0);
    this.stored.read(out, before + from);
  }

  done(): void {
    this.stored.done();
  }
}

function alreadyMaterializedError(name: string): DsError {
  return argumentError(
    'initInference checkpoint',
    'a model without values',
    `values of ${name}`,
    'Create it with nn.models.fromConfig(), or pass the folder of its config.json.',
  );
}
