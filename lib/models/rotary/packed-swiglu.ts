// The gated feed-forward block of families with gate and up as one matrix in their files.
import { type Joinable, joinedGate } from '../../nn/joined-linears.js';
import { Linear } from '../../nn/linear.js';
import { Module } from '../../nn/module.js';
import { swiglu, type Tensor } from '../../tensor/index.js';

/** nn.SwiGLU with one projection for gate and up, under Phi's names. */
export class PackedSwiGLU extends Module implements Joinable {
  /** From channels to 2 * hidden: the gate, then the up projection. */
  readonly gate_up_proj: Linear;
  /** Maps hidden back to channels. */
  readonly down_proj: Linear;
  private isJoined = false;

  /** gate_up_proj is [2 hidden, channels], down_proj is [channels, hidden]. */
  constructor(channels: number, hidden: number, { bias }: { bias: boolean }) {
    super();
    this.gate_up_proj = new Linear(channels, 2 * hidden, { bias });
    this.down_proj = new Linear(hidden, channels, { bias });
  }

  /** Maps [.., channels] to the same shape: down(silu(gate x) * up x). */
  override forward(x: Tensor): Tensor {
    const { gate_up_proj } = this;
    const gated = this.isJoined ? joinedGate(x, [gate_up_proj]) : null;
    return this.down_proj.call(gated ?? swiglu(gate_up_proj.call(x)));
  }

  /** @internal See Joinable: the two are already one matrix. */
  joinLinears(): void {
    this.isJoined = true;
  }
}
