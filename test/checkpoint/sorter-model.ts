// A module of a program's own for exports: blocks, a tied table, buffers of two kinds, and odd
// sizes.
import { linear, nn, noGrad, scope, Tensor } from '../../lib/index.js';

const SIZES = { words: 11, channels: 5 };

class Block extends nn.Module {
  readonly up = new nn.Linear(SIZES.channels, 7);
  readonly down = new nn.Linear(7, SIZES.channels, { bias: false });

  override forward(x: Tensor): Tensor {
    return this.down.call(this.up.call(x).tanh()).add(x);
  }
}

class Head extends nn.Module {
  constructor(readonly weight: nn.Parameter) {
    super();
  }

  override forward(x: Tensor): Tensor {
    return linear(x, this.weight, null);
  }
}

export class Sorter extends nn.Module {
  readonly table = new nn.Embedding(SIZES.words, SIZES.channels);
  readonly blocks = [new Block(), new Block()];
  readonly norm = new nn.LayerNorm(SIZES.channels);
  readonly head = new Head(this.table.weight);
  readonly shift = Tensor.from(new Float32Array(SIZES.channels));
  readonly seen = Tensor.from(new Int32Array(3));

  override forward(words: Tensor): Tensor {
    const x = this.table.call(words).to('f32').add(this.shift);
    const hidden = this.blocks.reduce((y, block) => block.call(y), x.to(this.table.weight.dtype));
    return this.head.call(this.norm.call(hidden)).to('f32').square().mean();
  }

  /** The output for some words, and the buffers. */
  evaluate(): number[] {
    return noGrad(() =>
      scope(() => {
        const words = Tensor.from(Int32Array.from([1, 4, 9, 10]), { device: this.shift.device });
        const out = this.forward(words).item();
        return [out, ...this.shift.toArray(), ...this.seen.toArray()];
      }),
    );
  }
}
