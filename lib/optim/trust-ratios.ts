// TrustRatios: reads the trust ratios of LAMB for the parameters that this rank updates.
import { required } from '../runtime/required.js';
import type { Tensor } from '../tensor/index.js';
import type { ParameterPlace, UpdateTensors } from './optimizer.js';
import type { UpdateKernels } from './update-kernels.js';

/** Reads the trust ratios of one range. */
interface Reader {
  places: readonly ParameterPlace[];
  kernels: UpdateKernels;
}

/** Trust ratios of the last updates. */
export class TrustRatios {
  private readonly readers = new Map<Tensor, Reader>();

  /** Returns the tensor of a range's ratios, which its update writes. */
  of({ places, state }: UpdateTensors, kernels: UpdateKernels): Tensor {
    const ratios = state.trust_ratio!;
    this.readers.set(ratios, { places, kernels });
    return ratios;
  }

  /**
   * Returns a copy of all ratios by parameter name. Waits for the last update. Throws DS_RELEASED
   * after the optimizer's state is freed.
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
