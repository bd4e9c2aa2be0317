// Expert parallelism: each rank has some whole experts, and the ranks sum their results. All ranks
// route all tokens in the same way, so no tokens are exchanged and the host needs no token counts.

import type { ProcessGroup } from '../comm/index.js';
import { type Experts, runExperts } from '../nn/experts.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { RouterLoads, TokenRouter } from '../nn/routers.js';
import { required } from '../runtime/required.js';
import { scope, type Tensor } from '../tensor/index.js';
import { cutAlong, type Range, rangesFor } from './rank-ranges.js';
import type { Stream } from './stream.js';

/**
 * The experts of this rank, which replace an Experts module. All ranks pass the same x [..,
 * channels] and the same router. The gradients of both are then partial sums.
 */
export class CutExperts extends Module {
  /**
   * [experts here, 2 hidden, channels]; with inputsFirst, [experts here, channels, 2 hidden].
   * Experts without gates have hidden in place of 2 hidden.
   */
  readonly gate_up_proj: Parameter;
  /** [experts here, 2 hidden], or null without a bias. */
  readonly gate_up_proj_bias: Parameter | null;
  /** [experts here, channels, hidden]; with inputsFirst, [experts here, hidden, channels]. */
  readonly down_proj: Parameter;
  /** [experts here, channels], or null without a bias. */
  readonly down_proj_bias: Parameter | null;
  /** Maximum of gate and up; see Experts. Null: no maximum. */
  readonly limit: number | null;
  /** The activation of the gate, or of the hidden values without gates; see Experts. */
  readonly activation: Experts['activation'];
  /** Whether weights are stored as [in, out] instead of [out, in]. */
  readonly inputsFirst: boolean;
  private readonly range: Range;

  /**
   * Takes over the parameters of `original`. Throws DS_ARGUMENT if there are more ranks than
   * experts.
   */
  constructor(
    original: Experts,
    /** The ranks that split the experts. */
    readonly group: ProcessGroup,
    private readonly stream: Stream,
  ) {
    super();
    const count = original.gate_up_proj.size(0);
    const ranges = rangesFor('experts', count, group);
    this.range = required(ranges[group.rank]);
    this.gate_up_proj = original.gate_up_proj;
    this.gate_up_proj_bias = original.gate_up_proj_bias;
    this.down_proj = original.down_proj;
    this.down_proj_bias = original.down_proj_bias;
    this.limit = original.limit;
    this.activation = original.activation;
    this.inputsFirst = original.inputsFirst;
    for (const parameter of original.parameters()) {
      cutAlong(parameter, 0, [{ ranges, pieces: count }], group.rank);
    }
  }

  /**
   * Maps x [.., channels] to the same shape by the experts that `router` selects for each token.
   * The router reads `routed` if it is given, else x. `loads` counts the tokens of each expert.
   */
  override forward(
    x: Tensor,
    router: TokenRouter,
    loads: RouterLoads | null = null,
    routed: Tensor | null = null,
  ): Tensor {
    const { stream, group, range } = this;
    return scope(() => {
      const all = stream.enter(x);
      const tokens = all.reshape([-1, all.size(-1)]);
      const read = routed ? stream.enter(routed).reshape([-1, routed.size(-1)]) : tokens;
      const routes = router.call(read, loads, group.rank === 0);
      const sum = runExperts(this, tokens, routes, range.first);
      return stream.leave(sum.reshape(all.shape));
    });
  }
}
