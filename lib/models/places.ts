// Positions of the tokens in a forward of a language model, and the blocks that process them.
import { DsError } from '../errors.js';
import type { LayerCache } from '../nn/attention.js';
import type { RouterLoads } from '../nn/routers.js';
import { formatValue } from '../runtime/format-value.js';
import { describe } from '../runtime/view.js';
import { documentPositions, Tensor } from '../tensor/index.js';
import { requireFactors } from './layer-factors.js';
import { type LayerTokens, requireTokens } from './token-drop.js';

/** Optional inputs of a forward about its tokens. */
export interface PlaceInputs {
  /**
   * The document of each token, [B, T] i32, non-decreasing along a row; a negative number is
   * padding. Attention stays inside a document. Default: each row is one.
   */
  documents?: Tensor | null;
  /**
   * The position of each token, [B, T] i32. Default: 0, 1, .. along the row, restarting in each
   * document when `documents` is given.
   */
  positions?: Tensor | null;
  /**
   * Scale of each block's branches before they join the residual stream; a block with 0 does not
   * run. Default: 1. See progressive_layer_drop.
   */
  layerFactors?: readonly number[] | null;
  /** Blocks that see some tokens of each row, drawn at random. Default: none. See random_ltd. */
  layerTokens?: LayerTokens | null;
}

/** Positions, documents and caches of the tokens of a forward. */
export interface Places {
  /**
   * The document of each token, [B, T]; null if each row is one document. With sequence
   * parallelism, it covers all tokens.
   */
  documents: Tensor | null;
  /** The position of each token, [B, T]; null if they are consecutive. */
  positions: Tensor | null;
  /**
   * The longest sequence that `positions` may refer to; null if positions lie inside the documents
   * or rows of these tokens.
   */
  reach: number | null;
  /** A common length for the angles of all sequences; null: each uses its own length. */
  angleLength?: number | null;
  /** The position of the first token of each row, if `positions` is null. */
  start: number;
  /** Key-value caches of each layer, or null. */
  caches: readonly LayerCache[] | null;
  /** Receives routing statistics; absent: not collected. */
  loads?: RouterLoads;
  /** Scale of each block's branches; null: 1. */
  factors?: readonly number[] | null;
  /** Blocks that process only some tokens; null: none. */
  layerTokens?: LayerTokens | null;
  /**
   * @internal Receives hidden states; absent: none. Only models with rotary positions give them.
   */
  taps?: HiddenTaps;
}

/** Hidden states that a forward hands out. */
interface HiddenTaps {
  /** Blocks whose inputs count, ascending. */
  readonly layers: readonly number[];
  /** Called with each of these inputs [B, T, C], in order. */
  take(stream: Tensor): void;
}

/** Each row is a text. */
export const inRows: Places = {
  documents: null,
  positions: null,
  reach: null,
  start: 0,
  caches: null,
};

/** Reads the positions and documents of tokens [B, T]. Throws DS_ARGUMENT, DS_SHAPE, DS_DTYPE. */
export function readPlaces(
  op: string,
  tokens: Tensor,
  { documents = null, positions = null, layerFactors = null, layerTokens = null }: PlaceInputs,
  { maxSeq, layers }: { maxSeq: number; layers: number },
): Places {
  if (layerTokens !== null) requireTokens(`${op}.layerTokens`, layerTokens, layers);
  if (layerFactors !== null) requireFactors(`${op}.layerFactors`, layerFactors, layers);
  if (documents !== null) requireTokenShape(`${op}.documents`, documents, tokens);
  if (positions !== null) requireTokenShape(`${op}.positions`, positions, tokens);
  return {
    ...inRows,
    documents,
    positions: positions ?? (documents && documentPositions(documents)),
    reach: positions && (documents ? tokens.size(1) : maxSeq),
    factors: layerFactors,
    layerTokens,
  };
}

/** Throws unless there is an integer for each token. */
function requireTokenShape(op: string, values: Tensor, tokens: Tensor): void {
  const expected = `a tensor [${tokens.shape.join(', ')}] i32, a number for each token`;
  if (!(values instanceof Tensor)) {
    throw new DsError({ code: 'DS_ARGUMENT', op, expected, got: formatValue(values) });
  }
  const isWhole = values.dtype === 'i32' || values.dtype === 'i64';
  if (isWhole && values.shape.join() === tokens.shape.join()) return;
  const code = isWhole ? 'DS_SHAPE' : 'DS_DTYPE';
  throw new DsError({ code, op, expected, got: describe(values) });
}
