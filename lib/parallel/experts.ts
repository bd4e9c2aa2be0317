// Expert parallelism: each rank has some whole experts, and the ranks' results are summed. All
// ranks route all tokens in the same way, so tokens do not move and the host needs no counts.

import type { ProcessGroup } from '../comm/index.js';
import { type Experts, runExperts } from '../nn/experts.js';
import { Module } from '../nn/module.js';
import type { Parameter } from '../nn/parameter.js';
import type { RouterLoads, TokenRouter } from '../nn/routers.js';
import { required } from '../runtime/required.js';
import { scope, type Tensor } from '../tensor/index.js';
import { cutAlong, type Range, rangesFor } from './share.js';
import type { Stream } from './stream.js';

/**
 * The experts of this rank: [experts here, ..]. All ranks pass the same x [.., channels] and the
 * same router. The gradients of both are partial sums.
 */
export class CutExperts extends Module {
  /** [experts here, 2 hidden, channels], or the transpose; see Experts. */
  readonly gate_up_proj: Parameter;
  /** [experts here, 2 hidden], or null. */
  readonly gate_up_proj_bias: Parameter | null;
  /** [experts here, channels, hidden], or the transpose. */
  readonly down_proj: Parameter;
  /** [experts here, channels], or null. */
  readonly down_proj_bias: Parameter | null;
  /** Bound of gate and up, or null. */
  readonly limit: number | null;
  /** The function of the gate. */
  readonly activation: Experts['activation'];
  /** Whether matrices are stored as [in, out]. */
  readonly inputsFirst: boolean;
  private readonly range: Range;

  /** Moves the parameters of `original` here. Throws DS_ARGUMENT for more ranks than experts. */
  constructor(
    original: Experts,
    /** The ranks that share them. */
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
   * Maps x [.., channels] to the same shape, by the experts that `router` selects for each token.
   * The router reads `routed` if given, else x.
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
      const read = routed ? stream.enter(routed).reshape(tokens.shape) : tokens;
      const routes = router.call(read, loads, group.rank === 0);
      const sum = runExperts(this, tokens, routes, range.first);
      return stream.leave(sum.reshape(all.shape));
    });
  }
}
