// Sparse attention: patterns for attention layers, DeepSpeed's SparseSelfAttention, and a switch
// for all attention of a model.

import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/view.js';
import { attention, BlockLayout, type HeadShare, sharedTokens, Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { Module } from './module.js';
import {
  createLayoutRequest,
  readSparsity,
  type Sparsity,
  type SparsityOptions,
} from './sparse-patterns.js';

export type { SparsityOptions } from './sparse-patterns.js';

/**
 * Returns the layout of `tokens` tokens for `heads` heads. It depends only on its arguments, so all
 * ranks get the same (DeepSpeed broadcasts the layout of rank 0). `tokens` need not be a multiple
 * of the block. The layout equals that of DeepSpeed's make_layout, with two exceptions: random
 * blocks differ, and a row with fewer blocks than requested sees all of them. Omitted options have
 * their defaults. Throws DS_ARGUMENT for an unknown option, or a number out of its range.
 */
export function sparseLayout(given: SparsityOptions, heads: number, tokens: number): BlockLayout {
  const { fill, ...sizes } = createLayoutRequest(given, heads, tokens);
  return new BlockLayout(sizes, fill);
}

/** Number of cached layouts, for the most recent lengths. */
const CACHED_LAYOUTS = 8;

/** A pattern with its cached layouts; the layers of a model share one. */
export class SparsePattern {
  /** The options with all defaults. */
  readonly options: Sparsity;
  private readonly layouts = new Map<string, BlockLayout>();

  /** Throws DS_ARGUMENT with the name of an invalid option. */
  constructor(options: SparsityOptions = {}) {
    this.options = readSparsity(options);
  }

  /** Whether every query sees every key. */
  get isDense(): boolean {
    return this.options.mode === 'dense';
  }

  /**
   * Returns the layout for `heads` heads of all ranks and sequences of `tokens` tokens; null if
   * every query attends to every key. Throws DS_ARGUMENT unless `heads` and `tokens` are integers
   * in their ranges.
   */
  layout(heads: number, tokens: number): BlockLayout | null {
    const { block, differentLayoutPerHead } = this.options;
    if (this.isDense) return null;
    const share = sharedTokens();
    const all = share?.heads ? share.whole : tokens;
    const key = `${Math.ceil(all / block)} ${differentLayoutPerHead ? heads : 1}`;
    const found = this.layouts.get(key) ?? sparseLayout(this.options, heads, all);
    this.layouts.delete(key);
    for (const oldest of [...this.layouts.keys()].slice(0, -CACHED_LAYOUTS + 1))
      this.layouts.delete(oldest);
    this.layouts.set(key, found);
    return found;
  }

  /**
   * Returns layout() as a mask [1, 1 or heads, queries, keys] of the last queries; null if every
   * key is seen.
   */
  mask(queries: Tensor, keys: number, share: HeadShare | null): Tensor | null {
    const [heads, T] = [queries.size(1), queries.size(2)];
    const layout = this.layout(share?.whole ?? heads, keys);
    const mask = layout?.mask(T, keys, queries.device) ?? null;
    return mask && mask.size(1) > heads ? mask.narrow(1, share?.first ?? 0, heads) : mask;
  }
}

/** Options of SparseSelfAttention. */
export interface SparseSelfAttentionOptions extends SparsityOptions {
  /** Whether numbers of keyPaddingMask are added ("add"), or 0 hides ("mul"). Default: "add". */
  keyPaddingMaskMode?: 'add' | 'mul';
  /** Whether numbers of attnMask are added ("add"), or 0 hides ("mul"). Default: "mul". */
  attnMaskMode?: 'add' | 'mul';
}

/** Options of one call of SparseSelfAttention. */
export interface SparseAttentionCall {
  /** Relative position embedding: added to the scaled scores, broadcast to [B, H, T, T]. */
  rpe?: Tensor | null;
  /** Mask of keys [B, T], by keyPaddingMaskMode. */
  keyPaddingMask?: Tensor | null;
  /** Mask of pairs [T, T], by attnMaskMode. */
  attnMask?: Tensor | null;
  /** Whether queries see no later tokens; cheaper than a mask. Default: false. */
  causal?: boolean;
}

/** A number that hides a key if it is added to its score. */
const HIDING = -1e38;

/**
 * Attention within a pattern of blocks: blocks that no query of a tile sees are neither read nor
 * computed. Accepts any floating dtype and any number of tokens (DeepSpeed: f16 and whole blocks).
 * Layouts are the same on all ranks without communication. Source: DeepSpeed's SparseSelfAttention;
 * Child et al. 2019.
 */
export class SparseSelfAttention extends Module {
  /** The pattern of visible blocks. */
  readonly sparsity: SparsePattern;
  private readonly keyMaskMode: 'add' | 'mul';
  private readonly maskMode: 'add' | 'mul';

  /** Throws DS_ARGUMENT with the name of an invalid option. */
  constructor(given: SparseSelfAttentionOptions = {}) {
    super();
    const {
      keyPaddingMaskMode = 'add',
      attnMaskMode = 'mul',
      ...rest
    } = readOptions('SparseSelfAttention', given, namesOf.SparseSelfAttentionOptions);
    for (const [name, mode] of Object.entries({ keyPaddingMaskMode, attnMaskMode })) {
      if (mode === 'add' || mode === 'mul') continue;
      const op = `SparseSelfAttention ${name}`;
      throw valueError(op, '"add" or "mul"', mode);
    }
    this.keyMaskMode = keyPaddingMaskMode;
    this.maskMode = attnMaskMode;
    this.sparsity = new SparsePattern(rest);
  }

  /**
   * Returns the attention [B, H, T, D] of q, k and v [B, H, T, D] of one sequence. Throws as
   * attention().
   */
  override forward(q: Tensor, k: Tensor, v: Tensor, given: SparseAttentionCall = {}): Tensor {
    const call = readOptions('SparseSelfAttention.call', given, namesOf.SparseAttentionCall);
    const { rpe = null, keyPaddingMask = null, attnMask = null, causal = false } = call;
    if (!(q instanceof Tensor) || q.ndim !== 4) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'SparseSelfAttention',
        expected: 'q [B, H, T, D]',
        got: q instanceof Tensor ? describe(q) : formatValue(q),
      });
    }
    for (const [name, value] of Object.entries({ rpe, keyPaddingMask, attnMask })) {
      if (value !== null) requireTensor(`SparseSelfAttention ${name}`, value);
    }
    const mask = attnMask && convertMask(attnMask, this.maskMode);
    return attention(q, k, v, {
      causal,
      layout: this.sparsity.layout(q.size(1), q.size(2)),
      mask: rpe && mask ? toAddends(rpe).add(toAddends(mask)) : (rpe ?? mask),
      keyMask: keyPaddingMask && convertMask(keyPaddingMask, this.keyMaskMode),
    });
  }
}

/** Converts a mask to the format of attention(); with "mul", 0 hides. */
function convertMask(mask: Tensor, mode: 'add' | 'mul'): Tensor {
  return mode === 'mul' && mask.dtype !== 'bool' ? mask.ne(0) : mask;
}

/** Converts a mask to addends of scores, in a dtype that can represent HIDING. */
function toAddends(mask: Tensor): Tensor {
  return mask.dtype === 'bool' ? mask.logicalNot().to('f32').mul(HIDING) : mask.to('f32');
}

/** An attention layer with a configurable block pattern. */
interface Sparsifiable extends Module {
  sparsity: SparsePattern | null;
}

function attentionsOf(model: Module): Sparsifiable[] {
  const modules = [...model.namedModules()].map(([, module]) => module);
  return modules.filter(isSparsifiable);
}

/** Returns whether a module has a pattern: a field `sparsity` may also have another value. */
function isSparsifiable(module: Module): module is Sparsifiable {
  if (!('sparsity' in module) || module instanceof SparseSelfAttention) return false;
  return module.sparsity === null || module.sparsity instanceof SparsePattern;
}

/**
 * Makes all attention of `model` sparse: the layers of the library's models, and self-attention of
 * nn.MultiheadAttention; null makes it dense again. Also sets the field `sparsity` of custom layers
 * if it is null or a pattern. Returns a function that restores the previous state. Throws
 * DS_ARGUMENT if `model` is not a model, for wrong options, and for a model without such a layer.
 */
export function sparsify(model: Module, options: SparsityOptions | null): () => void {
  if (!(model instanceof Module)) throw misusedError('a model', formatValue(model));
  if (options === undefined) throw misusedError('options of a pattern, or null', 'undefined');
  const layers = attentionsOf(model);
  const pattern = options === null ? null : new SparsePattern(options);
  if (pattern && layers.length === 0) {
    throw argumentError(
      'sparsify',
      'a model with attention layers that support sparsity',
      `a ${model.constructor.name} without such layers`,
      'Use nn.MultiheadAttention or nn.SparseSelfAttention, or add the field `sparsity = null` to a custom layer and pass its layout() to attention().',
    );
  }
  const before = layers.map((layer) => layer.sparsity);
  for (const layer of layers) layer.sparsity = pattern;
  return () => {
    layers.forEach((layer, i) => {
      layer.sparsity = before[i] as SparsePattern | null;
    });
  };
}

function misusedError(expected: string, got: string): DsError {
  return argumentError('sparsify', expected, got);
}

/** Throws DS_ARGUMENT if `model` is sparse, for operations that need dense attention. */
export function requireDense(op: string, model: Module): void {
  const sparse = attentionsOf(model).find(({ sparsity }) => sparsity && !sparsity.isDense);
  if (!sparse) return;
  throw argumentError(
    op,
    'a model with dense attention',
    `the pattern "${sparse.sparsity?.options.mode}"`,
    'Paged caches do not support patterns. Use model.generate(), or nn.sparsify(model, null) for dense attention.',
  );
}
