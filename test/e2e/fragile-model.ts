// A small model that fails on demand during initialize().
import { nn, Tensor } from '../../lib/index.js';
import { Parameter } from '../../lib/nn/parameter.js';
import type { Device } from '../../lib/runtime/device.js';

/** Three units in a row; the initial values of the last bias can fail. */
export class Fragile extends nn.Module {
  /** The call that fails while this is set: the initial values, or the second call of units(). */
  breaks: 'values' | 'hooks' | null = null;
  readonly layers = [new nn.Linear(64, 64), new nn.Linear(64, 64), new nn.Linear(64, 64)];
  readonly shift = new Parameter([64], (out) => this.shiftValues(out));
  private asked = 0;

  override forward(x: Tensor): Tensor {
    let y = x;
    for (const layer of this.layers) y = layer.call(y).tanh();
    return y.add(this.shift).square().mean();
  }

  override units(): nn.NamedModule[] {
    if (this.breaks === 'hooks' && this.asked++ > 0) throw new Error('units at the end');
    return super.units();
  }

  /** Frees the parameters' memory. */
  dispose(): void {
    for (const parameter of this.parameters()) parameter.dispose();
  }

  static input(device: Device): Tensor {
    const values = Float32Array.from({ length: 128 }, (_, i) => Math.sin(i));
    return Tensor.from(values, { shape: [2, 64], device }).keep();
  }

  private shiftValues(out: Tensor): void {
    if (this.breaks === 'values') throw new Error('initial values');
    out.buffer.write(out.offset * 4, new Float32Array(64).fill(0.5));
  }
}
