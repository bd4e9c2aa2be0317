// What one rank has of a model that others share with it: a part of each layer, and some of the
// layers.
import type { Elements, ModelSizes } from './model-sizes.js';
import type { Setup } from './setup.js';

/**
 * Of what a block keeps of a token, in widths of the residual stream, all ranks that share the
 * block have their own copy: inputs and outputs of its two norms. Source: Korthikanti et al. 2022.
 */
const REPLICATED_WIDTHS = 4;
/** The same of what its backward adds: a gradient of the stream and one on its way. */
const REPLICATED_IN_BACKWARD = 2;

/**
 * Sizes of the rank with the most: embedding and head, and no fewer blocks than any other. All of a
 * block's weights are counted as shared out; norms and the biases that each rank has are less than
 * a thousandth.
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
    ...{ root, block, layers, parameters },
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

/** `count` of such elements, of which as large a share has a dtype of its own. */
function scaledTo(count: number, { count: all, own }: Elements): Elements {
  const share = all === 0 ? 0 : count / all;
  return { count, own: { count: own.count * share, bytes: own.bytes * share } };
}
