// TensorDataset: rows of tensors are the samples. Source: torch.utils.data.TensorDataset.
import { DsError } from '../errors.js';
import type { Device } from '../runtime/device.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { requireInteger } from '../runtime/require-number.js';
import { describe } from '../runtime/view.js';
import { noGrad, scope, Tensor } from '../tensor/index.js';
import type { Dataset } from './dataset.js';

/**
 * A dataset of rows of tensors. Sample i is [x[i], y[i], ...], row i of each tensor. A batch has
 * the stacked rows, [B, ...] for each tensor; one op per tensor selects them on the tensor's
 * device. The caller keeps ownership of the tensors. It has no workers, because tensors cannot be
 * sent to threads.
 */
export class TensorDataset implements Dataset<Tensor[]> {
  /** The tensors that were passed to the constructor. */
  readonly tensors: readonly Tensor[];
  /** Number of rows of each tensor. */
  readonly length: number;

  /** Throws DS_ARGUMENT if no tensors are passed, DS_SHAPE if their first dims differ. */
  constructor(...tensors: Tensor[]) {
    const [first] = tensors;
    const other = tensors.find((tensor) => !(tensor instanceof Tensor));
    if (!first || other !== undefined) {
      throw argumentError(
        'TensorDataset',
        'tensors',
        first ? formatValue(other) : 'none',
        'Pass them one by one: new TensorDataset(x, y).',
      );
    }
    this.tensors = tensors;
    this.length = first.shape[0] ?? 0;
    for (const tensor of tensors) {
      if (tensor.ndim > 0 && tensor.shape[0] === this.length) continue;
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'TensorDataset',
        expected: `tensors with as many rows as the first, ${describe(first)}`,
        got: describe(tensor),
      });
    }
  }

  /**
   * Returns views of row `index`, which the caller owns. Throws DS_ARGUMENT unless `index` is an
   * integer of at least 0, DS_INDEX if there is no such row.
   */
  get(index: number): Tensor[] {
    requireInteger('TensorDataset.get', index, 0);
    return noGrad(() => this.tensors.map((tensor) => tensor.select(0, index)));
  }

  /**
   * Returns the rows `indices` of each tensor on `device`. The caller owns them. Throws DS_ARGUMENT
   * unless the indices are integers of at least 0, DS_INDEX if there is no such row.
   */
  batch(indices: Uint32Array, device: Device): Tensor[] {
    const op = 'TensorDataset.batch';
    if (!(Symbol.iterator in Object(indices)))
      throw valueError(`${op} indices`, 'numbers of rows', indices);
    for (const index of indices) requireInteger(`${op} indices`, index, 0);
    return noGrad(() =>
      this.tensors.map((tensor) =>
        scope(() => {
          const index = Tensor.from(Int32Array.from(indices), { device: tensor.device });
          return tensor.indexSelect(0, index).to(device);
        }),
      ),
    );
  }
}
