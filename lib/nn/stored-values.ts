// The interface of initial values of a parameter that stay in a file until they are needed.
import type { Box } from '../runtime/box.js';
import type { DType } from '../runtime/dtype.js';
import type { Tensor } from '../tensor/index.js';

/** Initial values of a parameter, which stay in a file, for example, until a reader needs them. */
export interface StoredValues {
  /** The dtype of a parameter that takes the values unchanged. */
  readonly dtype: DType;
  /** Description of the source: ranks that read the same values have the same text. */
  readonly origin: string;
  /**
   * Writes the elements from `from` on, row-major, of `box` or of the whole tensor into `out`:
   * contiguous, of any floating dtype, on any device. Blocks until the data is there. Throws DS_IO
   * if the file cannot be read, DS_NONFINITE for values that are not finite.
   */
  read(out: Tensor, from: number, box?: Box): void;
  /** Releases the source. The parameter calls it when no reader remains. */
  done(): void;
}
