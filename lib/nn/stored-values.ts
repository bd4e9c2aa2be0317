// What a parameter starts with that lies somewhere else, until somebody needs it.
import type { Box } from '../runtime/box.js';
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';

/** Values that lie somewhere else, as in a file, until they are needed. */
export interface StoredValues {
  /** What a parameter has that takes them over as they are. */
  readonly dtype: DType;
  /** Where they lie, in words: ranks that read the same say the same. */
  readonly origin: string;
  /**
   * Writes the elements from `from` on, row-major, of `box` of them or of all, into `out`:
   * contiguous, of any floating dtype, on any device. Blocks until they are there. Throws DS_IO,
   * DS_NONFINITE.
   */
  read(out: Tensor, from: number, box?: Box): void;
  /** Nobody will read them any more. */
  done(): void;
}
