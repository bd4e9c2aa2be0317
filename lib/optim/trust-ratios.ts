// TrustRatios: finds and reads the trust ratios of LAMB and 1-bit LAMB.
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { ParameterPlace, UpdateTensors } from './optimizer.js';
import type { UpdateKernels } from './update-kernels.js';

/** Names the parameters of one range, and reads its ratios. */
interface Reader {
  places: readonly ParameterPlace[];
  kernels: UpdateKernels;
}

/** The trust ratios of the last update, for the parameters that this rank updates. */
export class TrustRatios {
  private readonly readers = new Map<Tensor, Reader>();

  /**
   * Returns the tensor for the ratios of an update of the range, and remembers it for read().
   */
  of({ places, state }: UpdateTensors, kernels: UpdateKernels): Tensor {
    const ratios = state.trust_ratio!;
    this.readers.set(ratios, { places, kernels });
    return ratios;
  }

  /**
   * Returns all ratios by parameter name. Waits for the last update. Throws DS_RELEASED after the
   * optimizer's state is freed.
   */
  read(): Map<string, number> {
    const all = new Map<string, number>();
    for (const [ratios, { places, kernels }] of this.readers) {
      const values = kernels.read(ratios);
      places.forEach(({ name }, i) => {
        all.set(name, required(values[i]));
      });
    }
    return all;
  }
}
