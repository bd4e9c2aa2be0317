// The trust ratios of LAMB's parameters, as far as this rank updates them, and who reads them.
import type { Tensor } from '../tensor/index.js';
import type { ParameterPlace, UpdateTensors } from './optimizer.js';
import type { UpdateKernels } from './update-kernels.js';

/** What reads the trust ratios of one range. */
interface Reader {
  places: readonly ParameterPlace[];
  kernels: UpdateKernels;
}

/** Where updates have left them. */
export class TrustRatios {
  private readonly readers = new Map<Tensor, Reader>();

  /** Where those of a range are, which its update is about to write. */
  of({ places, state }: UpdateTensors, kernels: UpdateKernels): Tensor {
    const ratios = state.trust_ratio!;
    this.readers.set(ratios, { places, kernels });
    return ratios;
  }

  /**
   * All of them by the parameters' names: a copy. Waits for the last update. Throws DS_RELEASED.
   */
  read(): Map<string, number> {
    const all = new Map<string, number>();
    for (const [ratios, { places, kernels }] of this.readers) {
      const values = kernels.read(ratios);
      places.forEach(({ name }, i) => {
        all.set(name, values[i] as number);
      });
    }
    return all;
  }
}
