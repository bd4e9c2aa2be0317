// Layers that attend within chunks of tokens, and queries of the other layers, which are scaled by
// their position instead of rotated. Source: Llama 4.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject } from '../../../types/json.js';
import { chunkOf } from '../../nn/chunked-attention.js';
import { arange, type Tensor } from '../../tensor/index.js';
import type { ModelConfig } from '../model-config.js';
import type { Places } from '../places.js';
import type { ChunkOptions } from './chunk-options.js';
import type { BodySizes, RotaryConfig, RotarySizes } from './config.js';
import { RotaryTable } from './rotary-table.js';
import type { RotaryTraits } from './traits.js';

const CHUNK = 'attention_chunk_size';
const TUNING = 'attn_temperature_tuning';
const [FLOOR, FACTOR] = ['floor_scale', 'attn_scale'];

const listKinds = (rotates: readonly boolean[]): string[] =>
  rotates.map((rotating) => (rotating ? 'chunked_attention' : 'full_attention'));

/** Reads these options of a config.json. Throws DS_CHECKPOINT. */
export function parseChunked(
  { chunked }: RotaryTraits,
  config: ModelConfig,
  { ropeLayers = [] }: Pick<RotaryConfig, 'ropeLayers'>,
): ChunkOptions {
  if (!chunked) return {};
  const kinds = config.get('layer_types');
  if (kinds !== null && !isDeepStrictEqual(kinds, listKinds(ropeLayers))) {
    const expected = '"chunked_attention" for each layer that rotates, else "full_attention"';
    throw config.refusalError('layer_types', expected, kinds);
  }
  // Published folders have the number 4.
  const tuning = config.get(TUNING, true);
  const isTuned = typeof tuning === 'number' ? tuning !== 0 : config.flag(TUNING, true);
  const scale = { floor: config.size(FLOOR, 8192), factor: config.positive(FACTOR, 0.1) };
  return {
    attentionChunk: config.get(CHUNK) === null ? null : config.size(CHUNK),
    queryScale: isTuned ? scale : null,
  };
}

/** Returns the keys of a config.json. */
export function describeChunked(
  { chunked }: RotaryTraits,
  { attentionChunk = null, queryScale = null, ropeLayers = [] }: RotarySizes,
): JsonObject {
  if (!chunked) return {};
  return {
    [CHUNK]: attentionChunk,
    [TUNING]: queryScale !== null,
    ...(queryScale && { [FLOOR]: queryScale.floor, [FACTOR]: queryScale.factor }),
    layer_types: listKinds(ropeLayers),
  };
}

/**
 * Returns a table that scales all channels of queries by their position and rotates nothing: all
 * frequencies are 0. The factors are `factorAt`, or follow from the options; null: no such scale.
 */
export function createScaleTable(
  { queryScale, headDim, ropeTheta, maxSeq }: BodySizes,
  factorAt: ((position: number) => number) | null,
): RotaryTable | null {
  if (!queryScale && !factorAt) return null;
  const { floor = 1, factor = 0 } = queryScale ?? {};
  const tunedAt = (position: number): number =>
    1 + factor * Math.log1p(Math.floor((position + 1) / floor));
  const scaling = { type: 'proportional', share: 0 } as const;
  return new RotaryTable({ rotaryDim: headDim, ropeTheta }, scaling, maxSeq, factorAt ?? tunedAt);
}

/**
 * Returns a number for each chunk of each document, by token of x [B, ..]: [B, tokens] i32; null if
 * all tokens of a document are in one chunk. `reach`: see Places.
 */
export function numberChunks(
  { attentionChunk, maxSeq }: Pick<BodySizes, 'attentionChunk' | 'maxSeq'>,
  tokens: number,
  { documents, positions, reach }: Pick<Places, 'documents' | 'positions' | 'reach'>,
  { shape: [B = 1], device }: Tensor,
): Tensor | null {
  // Given positions may start within a chunk.
  if (!attentionChunk || (reach === null && tokens <= attentionChunk)) return null;
  const places = positions ?? arange(tokens, { dtype: 'i32', device }).unsqueeze(0);
  const inDocument = chunkOf(places, attentionChunk);
  if (!documents) return inDocument.expand([B, tokens]);
  return documents.mul(Math.ceil(maxSeq / attentionChunk)).add(inDocument);
}
