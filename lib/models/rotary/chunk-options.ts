// Options of models with layers that attend within chunks of tokens. Source: Llama 4.
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';

/** Scale of queries in layers that do not rotate: 1 + factor ln(1 + floor((p + 1) / floor)). */
export interface QueryScale {
  /** Tokens after which the scale grows (floor_scale). */
  floor: number;
  /** Factor of the logarithm (attn_scale). */
  factor: number;
}

/** Options of these families. */
export interface ChunkOptions {
  /**
   * Layers that rotate see the tokens of their own chunk of this many tokens
   * (attention_chunk_size); null: all tokens. Default: null.
   */
  attentionChunk?: number | null;
  /** Scale of queries in layers that do not rotate; null: none. Default: null. */
  queryScale?: QueryScale | null;
}

/** Returns the complete options. Throws DS_ARGUMENT. */
export function readChunked(
  name: string,
  { attentionChunk = null, queryScale = null }: ChunkOptions,
): Required<ChunkOptions> {
  if (attentionChunk !== null) requireInteger(`${name} attentionChunk`, attentionChunk, 1);
  if (queryScale === null) return { attentionChunk, queryScale };
  const op = `${name} queryScale`;
  const { floor, factor } = readOptions(op, queryScale, namesOf.QueryScale);
  requireInteger(`${op} floor`, floor, 1);
  requireFinite(`${op} factor`, factor, 0);
  return { attentionChunk, queryScale: { floor, factor } };
}
