// A small model that a test splits over ranks by hand, so that engine tests do not depend on
// lib/parallel.
import type { ProcessGroup } from '../../lib/comm/index.js';
import {
  crossEntropy,
  linear,
  nn,
  noGrad,
  PipelineModule,
  scope,
  Tensor,
} from '../../lib/index.js';
import type { Region } from '../../lib/runtime/box.js';
import { cat, customFunction } from '../../lib/tensor/index.js';

export const SIZES = { vocabulary: 19, channels: 8, hidden: 12, heads: 4, blocks: 4 };

/** The heads of a rank: an equal number, or one more on the first ranks. */
function share(rank: number, ranks: number): { from: number; count: number } {
  const { heads } = SIZES;
  const first = (n: number): number => Math.floor((n * heads) / ranks);
  return { from: first(rank), count: first(rank + 1) - first(rank) };
}

/** Initialized with its part of the whole tensor's values. */
function partOf(region: Region, shape: readonly number[], init: nn.Initializer): nn.Parameter {
  const cut: nn.Initializer = (out) =>
    noGrad(() =>
      scope(() => {
        const fullTensor = Tensor.empty(region.whole, 'f32', out.device);
        init(fullTensor);
        const parts = region.boxes.map(({ offset, shape: sizes }) =>
          offset.reduce((x, from, d) => x.narrow(d, from, sizes[d] as number), fullTensor),
        );
        const dim = parts.length > 1 ? 0 : undefined;
        const all = dim === undefined ? (parts[0] as Tensor) : cat(parts, dim);
        out.copy_(all.contiguous());
      }),
    );
  return new nn.Parameter(shape, cut).partOf(region);
}

/** The identity with a gradient summed over ranks, and the sum with an unchanged gradient. */
function across(group: ProcessGroup) {
  const sumOverRanks = (x: Tensor): Tensor => {
    const sum = x.contiguous().clone();
    group.allReduce(sum, { purpose: 'partial results' }).wait();
    return sum;
  };
  return {
    copied: customFunction({
      name: 'copied',
      forward: (_, x) => x as Tensor,
      backward: (_, grad) => sumOverRanks(grad as Tensor),
    }),
    summed: customFunction({
      name: 'summed',
      forward: (_, x) => sumOverRanks(x as Tensor),
      backward: (_, grad) => grad as Tensor,
    }),
  };
}

const overflowing = customFunction({
  name: 'overflowing',
  forward: (_, x) => x as Tensor,
  backward: (_, grad) => (grad as Tensor).mul(Number.POSITIVE_INFINITY),
});

/**
 * Gate and values in one projection that is split by heads, and an output projection split by
 * inputs.
 */
export class Gated extends nn.Module {
  readonly norm = new nn.LayerNorm(SIZES.channels);
  readonly up: nn.Parameter;
  readonly upBias: nn.Parameter;
  readonly down: nn.Parameter;
  readonly downBias = new nn.Parameter([SIZES.channels], nn.init.normal(0.1));
  /** Whether gradients of this rank's part of `up` are infinite. */
  overflows = false;

  constructor(private readonly group: ProcessGroup) {
    super();
    const { channels, hidden, heads } = SIZES;
    const { from, count } = share(group.rank, group.size);
    const [first, width] = [(from * hidden) / heads, (count * hidden) / heads];
    const halves = (inner: readonly number[]): Region => ({
      whole: [2 * hidden, ...inner],
      boxes: [0, hidden].map((half) => ({
        offset: [half + first, ...inner.map(() => 0)],
        shape: [width, ...inner],
      })),
    });
    this.up = partOf(halves([channels]), [2 * width, channels], nn.init.normal(0.5));
    this.upBias = partOf(halves([]), [2 * width], nn.init.normal(0.1));
    const columns = {
      whole: [channels, hidden],
      boxes: [{ offset: [0, first], shape: [channels, width] }],
    };
    this.down = partOf(columns, [channels, width], nn.init.normal(0.5));
  }

  override forward(x: Tensor): Tensor {
    const { copied, summed } = across(this.group);
    const width = this.down.shape[1] as number;
    const up = this.overflows ? overflowing(this.up) : this.up;
    const both = linear(copied(this.norm.call(x)), up, this.upBias);
    const gated = both
      .narrow(-1, 0, width)
      .tanh()
      .mul(both.narrow(-1, width, width));
    return x.add(summed(linear(gated, this.down))).add(this.downBias);
  }
}

/** Layers in order: an embedding, blocks, a norm and a head. */
function layersOf(group: ProcessGroup): nn.Module[] {
  const { vocabulary, channels, blocks } = SIZES;
  return [
    new nn.Embedding(vocabulary, channels),
    ...Array.from({ length: blocks }, () => new Gated(group)),
    new nn.LayerNorm(channels),
    new nn.Linear(channels, vocabulary),
  ];
}

const lossOf = (logits: Tensor, targets: Tensor): Tensor =>
  crossEntropy(logits.reshape([-1, SIZES.vocabulary]), targets.reshape([-1]));

/** As one module, with the parameter names of a pipeline. */
export class CutModel extends nn.Module {
  readonly layers: Record<string, nn.Module>;

  constructor(group: ProcessGroup) {
    super();
    this.layers = Object.fromEntries(layersOf(group).map((layer, i) => [i, layer]));
  }

  override forward(tokens: Tensor, targets: Tensor): Tensor {
    const logits = Object.values(this.layers).reduce<Tensor>((x, layer) => layer.call(x), tokens);
    return lossOf(logits, targets);
  }
}

export const inStages = (group: ProcessGroup): PipelineModule =>
  new PipelineModule({ layers: layersOf(group), lossFn: lossOf, partitionMethod: 'uniform' });
