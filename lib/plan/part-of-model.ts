// Computes the sizes of one rank's part of a model under tensor and pipeline parallelism.
import type { Elements, ModelSizes } from './model-sizes.js';
import type { Setup } from './setup.js';

/**
 * Activations per token that every tensor-parallel rank holds in full, in widths of the residual
 * stream: the inputs and outputs of the two norms. Source: Korthikanti et al. 2022.
 */
const REPLICATED_WIDTHS = 4;
/** Temporaries of the backward, in widths: a gradient of the stream, and a gradient in transfer. */
const REPLICATED_IN_BACKWARD = 2;

/**
 * Returns the sizes of the largest rank, as if it had the embedding, the head and the most blocks.
 * All weights of a block count as sharded: norms and replicated biases are below a thousandth.
 */
export function sizesOfRank(sizes: ModelSizes, { tensor, stages }: Setup): ModelSizes {
  if (tensor === 1 && stages === 1) return sizes;
  const { channels, activations } = sizes;
  const layers = Math.ceil(sizes.layers / stages);
  const [root, block] = [sizes.root / tensor, sizes.block / tensor];
  const divideWidths = (elements: number, widths: number): number => {
    const copied = Math.min(elements, widths * channels);
    return copied + (elements - copied) / tensor;
  };
  const parameters = root + layers * block;
  const { weights, trained, unpacked, packed, adapters } = sizes;
  const blockShare = layers / sizes.layers / tensor;
  const trainedPart = { root: trained.root / tensor, block: trained.block / tensor };
  return {
    ...sizes,
    root,
    block,
    layers,
    parameters,
    weights: scaleElements(parameters, weights),
    trained: {
      ...trained,
      ...trainedPart,
      ...scaleElements(trainedPart.root + layers * trainedPart.block, trained),
    },
    unpacked: unpacked / tensor,
    packed: {
      count: packed.count * blockShare,
      elements: packed.elements * blockShare,
      bytes: packed.bytes * blockShare,
    },
    adapters: {
      ...adapters,
      lengths: adapters.lengths / tensor,
      streamed: adapters.streamed * blockShare,
    },
    idle: (sizes.idle * layers) / sizes.layers / tensor,
    attentionWidth: sizes.attentionWidth / tensor,
    vocabulary: Math.ceil(sizes.vocabulary / tensor),
    paddedVocabulary: Math.ceil(sizes.paddedVocabulary / tensor),
    activations: {
      ...activations,
      kept: divideWidths(activations.kept, REPLICATED_WIDTHS),
      backward: divideWidths(activations.backward, REPLICATED_IN_BACKWARD),
      replayed: divideWidths(activations.replayed, REPLICATED_IN_BACKWARD),
    },
  };
}

/** Returns `count` elements with the same fraction of fixed dtypes. */
function scaleElements(count: number, { count: all, inFixedDtype }: Elements): Elements {
  const share = all === 0 ? 0 : count / all;
  return {
    count,
    inFixedDtype: { count: inFixedDtype.count * share, bytes: inFixedDtype.bytes * share },
  };
}
