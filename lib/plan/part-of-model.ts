// Sizes of one rank's part under tensor and pipeline parallelism.
import type { Elements, ModelSizes } from './model-sizes.js';
import type { Setup } from './setup.js';

/**
 * Activations per token that every tensor-parallel rank holds in full, in widths of the residual
 * stream: the inputs and outputs of the two norms. Source: Korthikanti et al. 2022.
 */
const REPLICATED_WIDTHS = 4;
/** Widths of temporaries of the backward: a gradient of the stream and one in transfer. */
const REPLICATED_IN_BACKWARD = 2;

/**
 * Returns the sizes of the largest rank: embedding, head and the most blocks. All weights of a
 * block count as sharded: norms and replicated biases are below a thousandth.
 */
export function partOf(sizes: ModelSizes, { tensor, stages }: Setup): ModelSizes {
  if (tensor === 1 && stages === 1) return sizes;
  const { channels, activations } = sizes;
  const layers = Math.ceil(sizes.layers / stages);
  const [root, block] = [sizes.root / tensor, sizes.block / tensor];
  const shared = (elements: number, widths: number): number => {
    const copied = Math.min(elements, widths * channels);
    return copied + (elements - copied) / tensor;
  };
  const parameters = root + layers * block;
  const { weights, trained, unpacked, packed, adapters } = sizes;
  const here = layers / sizes.layers / tensor;
  const learns = { root: trained.root / tensor, block: trained.block / tensor };
  return {
    ...sizes,
    root,
    block,
    layers,
    parameters,
    weights: scaledTo(parameters, weights),
    trained: { ...trained, ...learns, ...scaledTo(learns.root + layers * learns.block, trained) },
    unpacked: unpacked / tensor,
    packed: {
      count: packed.count * here,
      elements: packed.elements * here,
      bytes: packed.bytes * here,
    },
    adapters: {
      ...adapters,
      lengths: adapters.lengths / tensor,
      streamed: adapters.streamed * here,
    },
    idle: (sizes.idle * layers) / sizes.layers / tensor,
    attentionWidth: sizes.attentionWidth / tensor,
    vocabulary: Math.ceil(sizes.vocabulary / tensor),
    paddedVocabulary: Math.ceil(sizes.paddedVocabulary / tensor),
    activations: {
      ...activations,
      kept: shared(activations.kept, REPLICATED_WIDTHS),
      backward: shared(activations.backward, REPLICATED_IN_BACKWARD),
      replayed: shared(activations.replayed, REPLICATED_IN_BACKWARD),
    },
  };
}

/** Scales to `count` elements with the same fraction of fixed dtypes. */
function scaledTo(count: number, { count: all, own }: Elements): Elements {
  const share = all === 0 ? 0 : count / all;
  return { count, own: { count: own.count * share, bytes: own.bytes * share } };
}
