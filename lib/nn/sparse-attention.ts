// Sparse attention: patterns as attention layers take them, DeepSpeed's SparseSelfAttention, and
// the switch for all attention of a model.
import { DsError } from '../errors.js';
import { formatValue } from '../runtime/format-value.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/view.js';
import { attention, BlockLayout, type HeadShare, sharedTokens, Tensor } from '../tensor/index.js';
import { requireTensor } from '../tensor/ops/shapes.js';
import { Module } from './module.js';
import {
  readSparsity,
  type Sparsity,
  type SparsityOptions,
  seenBlocks,
  sparsityNames,
} from './sparse-patterns.js';

export type { SparsityOptions } from './sparse-patterns.js';

/**
 * The layout of `tokens` tokens for `heads` heads, a function of its arguments alone: the same on
 * every rank, where DeepSpeed broadcasts that of rank 0. `tokens` need be no multiple of the block.
 * DeepSpeed's make_layout, but for what chance draws, and for rows that draw from fewer blocks than
 * asked, which see all of them. Options that were left out have their defaults. Throws DS_ARGUMENT.
 */
export function sparseLayout(given: SparsityOptions, heads: number, tokens: number): BlockLayout {
  const { fill, ...sizes } = seenBlocks(given, heads, tokens);
  return new BlockLayout(sizes, fill);
}

/** Layouts that are kept; those of the last lengths. */
const KEPT = 8;

/** A pattern with the layouts that were made of it; layers of one model share one. */
export class SparsePattern {
  /** What it is, with all defaults. */
  readonly options: Sparsity;
  private readonly made = new Map<string, BlockLayout>();

  /** Throws DS_ARGUMENT, naming the option. */
  constructor(options: SparsityOptions = {}) {
    this.options = readSparsity(options);
  }

  /** Whether everything is seen. */
  get isDense(): boolean {
    return this.options.mode === 'dense';
  }

  /**
   * For `heads` heads, those of all ranks, and the text of which `tokens` tokens are here; null
   * where everything is seen. Throws DS_ARGUMENT.
   */
  layout(heads: number, tokens: number): BlockLayout | null {
    const { block, differentLayoutPerHead } = this.options;
    if (this.isDense) return null;
    const share = sharedTokens();
    const all = share?.heads ? share.whole : tokens;
    const key = `${Math.ceil(all / block)} ${differentLayoutPerHead ? heads : 1}`;
    const found = this.made.get(key) ?? sparseLayout(this.options, heads, all);
    this.made.delete(key);
    for (const oldest of [...this.made.keys()].slice(0, -KEPT + 1)) this.made.delete(oldest);
    this.made.set(key, found);
    return found;
  }

  /** layout() as a mask [1, 1 or heads, queries, keys] of the last queries; null as there. */
  mask(queries: Tensor, keys: number, share: HeadShare | null): Tensor | null {
    const [heads, T] = [queries.size(1), queries.size(2)];
    const layout = this.layout(share?.whole ?? heads, keys);
    const mask = layout?.mask(T, keys, queries.device) ?? null;
    return mask && mask.size(1) > heads ? mask.narrow(1, share?.first ?? 0, heads) : mask;
  }
}

/** Options of SparseSelfAttention. */
export interface SparseSelfAttentionOptions extends SparsityOptions {
  /** Whether numbers of keyPaddingMask are added, or hide where they are 0. Default "add". */
  keyPaddingMaskMode?: 'add' | 'mul';
  /** The same of attnMask. Default "mul". */
  attnMaskMode?: 'add' | 'mul';
}

const OPTIONS: OptionNames<SparseSelfAttentionOptions> = {
  ...sparsityNames,
  ...{ keyPaddingMaskMode: true, attnMaskMode: true },
};

/** What one call of SparseSelfAttention takes beside queries, keys and values. */
export interface SparseAttentionCall {
  /** Added to the scaled scores: broadcasts to [B, H, T, T]. */
  rpe?: Tensor | null;
  /** [B, T], by keyPaddingMaskMode. */
  keyPaddingMask?: Tensor | null;
  /** [T, T], by attnMaskMode. */
  attnMask?: Tensor | null;
  /** Queries see no later tokens; costs less than a mask that says so. Default false. */
  causal?: boolean;
}

const CALL: OptionNames<SparseAttentionCall> = {
  ...{ rpe: true, keyPaddingMask: true, attnMask: true, causal: true },
};

/** A number that hides its key. */
const HIDING = -1e38;

/**
 * Attention of a pattern's blocks alone: blocks that no query of a tile sees are neither read nor
 * computed. Any floating dtype and any number of tokens, where DeepSpeed's takes f16 and whole
 * blocks. Layouts are the same on all ranks without being sent. Source: DeepSpeed's
 * SparseSelfAttention; Child et al. 2019.
 */
export class SparseSelfAttention extends Module {
  /** Which blocks are seen. */
  readonly sparsity: SparsePattern;
  private readonly keyMaskMode: 'add' | 'mul';
  private readonly maskMode: 'add' | 'mul';

  /** Throws DS_ARGUMENT, naming the option. */
  constructor(given: SparseSelfAttentionOptions = {}) {
    super();
    const {
      keyPaddingMaskMode = 'add',
      attnMaskMode = 'mul',
      ...rest
    } = readOptions('SparseSelfAttention', given, OPTIONS);
    for (const [name, mode] of Object.entries({ keyPaddingMaskMode, attnMaskMode })) {
      if (mode === 'add' || mode === 'mul') continue;
      const op = `SparseSelfAttention ${name}`;
      throw new DsError({
        ...{ code: 'DS_ARGUMENT', op, expected: '"add" or "mul"', got: formatValue(mode) },
      });
    }
    this.keyMaskMode = keyPaddingMaskMode;
    this.maskMode = attnMaskMode;
    this.sparsity = new SparsePattern(rest);
  }

  /** q, k and v [B, H, T, D] of one text; returns [B, H, T, D]. Throws as attention(). */
  override forward(q: Tensor, k: Tensor, v: Tensor, given: SparseAttentionCall = {}): Tensor {
    const call = readOptions('SparseSelfAttention.call', given, CALL);
    const { rpe = null, keyPaddingMask = null, attnMask = null, causal = false } = call;
    if (!(q instanceof Tensor) || q.ndim !== 4) {
      throw new DsError({
        code: 'DS_SHAPE',
        op: 'SparseSelfAttention',
        expected: 'q [B, H, T, D]',
        got: q instanceof Tensor ? describe(q) : formatValue(q),
      });
    }
    for (const [name, one] of Object.entries({ rpe, keyPaddingMask, attnMask })) {
      if (one !== null) requireTensor(`SparseSelfAttention ${name}`, one);
    }
    const mask = attnMask && asMask(attnMask, this.maskMode);
    return attention(q, k, v, {
      causal,
      layout: this.sparsity.layout(q.size(1), q.size(2)),
      mask: rpe && mask ? asNumbers(rpe).add(asNumbers(mask)) : (rpe ?? mask),
      keyMask: keyPaddingMask && asMask(keyPaddingMask, this.keyMaskMode),
    });
  }
}

/** A mask as attention() takes it: "mul" hides where it is 0. */
function asMask(mask: Tensor, mode: 'add' | 'mul'): Tensor {
  return mode === 'mul' && mask.dtype !== 'bool' ? mask.ne(0) : mask;
}

/** What is added to scores, in a dtype that has HIDING and that attention() takes beside any. */
function asNumbers(mask: Tensor): Tensor {
  return mask.dtype === 'bool' ? mask.logicalNot().to('f32').mul(HIDING) : mask.to('f32');
}

/** An attention layer that can be told which blocks it is to see. */
interface Sparsifiable extends Module {
  sparsity: SparsePattern | null;
}

function attentionsOf(model: Module): Sparsifiable[] {
  const modules = [...model.namedModules()].map(([, module]) => module);
  return modules.filter(isSparsifiable);
}

/** A field of that name may hold something else. */
function isSparsifiable(module: Module): module is Sparsifiable {
  if (!('sparsity' in module) || module instanceof SparseSelfAttention) return false;
  return module.sparsity === null || module.sparsity instanceof SparsePattern;
}

/**
 * Makes all attention of `model` sparse: the layers of the models here, and nn.MultiheadAttention
 * of a text to itself; or dense again with null. Layers of your own with a field `sparsity` that is
 * null or a pattern are told as well. Returns what restores it as it was. Throws DS_ARGUMENT for
 * what is no model, for wrong options, and for a model without such a layer.
 */
export function sparsify(model: Module, options: SparsityOptions | null): () => void {
  if (!(model instanceof Module)) throw misused('a model', formatValue(model));
  if (options === undefined) throw misused('options of a pattern, or null', 'undefined');
  const layers = attentionsOf(model);
  const pattern = options === null ? null : new SparsePattern(options);
  if (pattern && layers.length === 0) {
    throw new DsError({
      code: 'DS_ARGUMENT',
      op: 'sparsify',
      expected: 'a model with attention that can be sparse',
      got: `a ${model.constructor.name} without any`,
      hint: 'The models here and nn.MultiheadAttention have it; give a layer of your own a field `sparsity` that is null, and its layout() to attention(), or use nn.SparseSelfAttention.',
    });
  }
  const before = layers.map((layer) => layer.sparsity);
  for (const layer of layers) layer.sparsity = pattern;
  return () => {
    layers.forEach((layer, i) => {
      layer.sparsity = before[i] as SparsePattern | null;
    });
  };
}

function misused(expected: string, got: string): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: 'sparsify', expected, got });
}

/** Throws DS_ARGUMENT where `model` has been made sparse, for what would attend to everything. */
export function requireDense(op: string, model: Module): void {
  const sparse = attentionsOf(model).find(({ sparsity }) => sparsity && !sparsity.isDense);
  if (!sparse) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op,
    expected: 'a model whose attention is dense',
    got: `the pattern "${sparse.sparsity?.options.mode}"`,
    hint: 'Caches in blocks know no patterns: model.generate() keeps to them; nn.sparsify(model, null) leaves them out.',
  });
}
