// Initial values of a parameter that stay in a file until they are needed.
import type { Box } from '../runtime/box.js';
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';

/** Values that stay in a file, for example, until they are needed. */
export interface StoredValues {
  /** The dtype of a parameter that takes the values unchanged. */
  readonly dtype: DType;
  /** Description of the source: ranks that read the same values have the same text. */
  readonly origin: string;
  /**
   * Writes the elements from `from` on, row-major, of `box` or of the whole tensor into `out`:
   * contiguous, of any floating dtype, on any device. Blocks until the data is there. Throws DS_IO,
   * DS_NONFINITE.
   */
  read(out: Tensor, from: number, box?: Box): void;
  /** Called when no reader remains. */
  done(): void;
}
