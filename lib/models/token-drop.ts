// Blocks that process a random part of each row's tokens.
import { DsError } from '../errors.js';
import type { SparsePattern } from '../nn/sparse-attention.js';
import { formatValue } from '../runtime/format-value.js';
import { readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import {
  chooseTokens,
  drawOf,
  indicesOfTokens,
  replaceRows,
  scope,
  sharedTokens,
  type Tensor,
  takeRows,
} from '../tensor/index.js';

/** The blocks that see only some tokens of each row, and the number of tokens. */
export interface LayerTokens {
  /** Numbers of the blocks, from 0. */
  layers: readonly number[];
  /**
   * Tokens of each row that these blocks see, drawn for each block and row; all if there are fewer.
   */
  reserved: number;
}

/**
 * The random tokens of a forward: [blocks that drop, B, reserved] i32, and the draw index of each
 * block.
 */
export interface DrawnTokens {
  chosen: Tensor;
  /** Numbers of the draws, by block. */
  draws: ReadonlyMap<number, number>;
}

/**
 * Throws DS_ARGUMENT unless `dropped` lists layers of the model, each once, and `reserved` is
 * positive.
 */
export function requireTokens(op: string, dropped: LayerTokens, layers: number): void {
  const read = readOptions<LayerTokens>(op, dropped, { layers: true, reserved: true });
  requireInteger(`${op}.reserved`, read.reserved, 1);
  const list: unknown = read.layers;
  const isLayer = (value: unknown): boolean =>
    typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < layers;
  // Array.from() instead of every(), which skips holes.
  const each = Array.isArray(list) ? Array.from(list, isLayer) : [false];
  if (each.every(Boolean) && new Set(list as number[]).size === each.length) return;
  const got = Array.isArray(list) ? `[${list.map(formatValue).join(', ')}]` : formatValue(list);
  const expected = `different numbers of blocks, from 0 to ${layers - 1}`;
  throw new DsError({ code: 'DS_ARGUMENT', op: `${op}.layers`, expected, got });
}

/**
 * Draws tokens for the rows of x [B, T, C]; returns null if every block sees all tokens.
 * `patternOf` returns the attention pattern of a block.
 */
export function drawTokens(
  x: Tensor,
  drop: LayerTokens | null = null,
  patternOf: (layer: number) => SparsePattern | null = () => null,
): DrawnTokens | null {
  if (!drop || drop.layers.length === 0 || drop.reserved >= x.size(1)) return null;
  if (sharedTokens())
    throw droppedTokensError('sequence parallelism', 'Train without sequence parallelism');
  const { layers, reserved } = drop;
  const isSparse = layers.some((layer) => patternOf(layer)?.isDense === false);
  if (isSparse) throw droppedTokensError('sparse attention', 'Call nn.sparsify(model, null)');
  const [rows = 0, tokens = 0] = x.shape;
  const draw = { rows, tokens, draws: layers.length, chosen: reserved };
  return { chosen: chooseTokens(draw, x), draws: new Map(layers.map((layer, i) => [layer, i])) };
}

/** @internal Creates the error for features that layers with dropped tokens do not support. */
export function droppedTokensError(got: string, way: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'layerTokens',
    expected: 'blocks that may see a random part of each row',
    got,
    hint: `${way}, or disable random_ltd.`,
  });
}

/**
 * Returns the stream x [B, T, C] after `through`, which processes only the tokens `chosen` [B, R].
 */
export function replaceChosen(
  x: Tensor,
  chosen: Tensor,
  through: (part: Tensor) => Tensor,
): Tensor {
  return scope(() => {
    const [rows = 0, tokens = 0, channels = 0] = x.shape;
    const indices = indicesOfTokens(chosen, tokens);
    const flat = x.reshape([rows * tokens, channels]);
    const part = takeRows(flat, indices).reshape([rows, chosen.size(1), channels]);
    const out = through(part).reshape([-1, channels]);
    return replaceRows(flat, indices, out).reshape([rows, tokens, channels]);
  });
}

/** Returns the tokens [B, R] that block `index` sees; null: all. */
export function selectChosen(
  drawn: DrawnTokens | null,
  index: number,
  chosen: Tensor | null = drawn?.chosen ?? null,
): Tensor | null {
  const draw = drawn?.draws.get(index);
  return draw === undefined || !chosen ? null : drawOf(chosen, draw);
}
