// Filters of attention in addition to causality: documents, windows, masks and lengths, in the
// kernels' format.

import { DsError } from '../../errors.js';
import { isFloating } from '../../runtime/dtype.js';
import { valueError } from '../../runtime/input-errors.js';
import { requireInteger } from '../../runtime/require-number.js';
import { leading } from '../../runtime/required.js';
import { describe, type View } from '../../runtime/view.js';
import type { HeadShare } from '../head-exchange.js';
import { isGradEnabled } from '../tape.js';
import { Tensor } from '../tensor.js';
import { BlockLayout } from './block-layout.js';
import { cast } from './creation.js';
import { expandedStrides, requireSameDevice, shapeError, toRowMajor, viewOf } from './shapes.js';

/** Documents of tokens if there are more keys than queries. */
export interface DocumentPair {
  /** Documents of the queries [B, T], i32 or i64. */
  queries: Tensor;
  /** Documents of the keys [B, S]. */
  keys: Tensor;
}

/** Range of keys that a query sees. The kernels skip tiles of keys that are hidden as a whole. */
export interface AttentionReach {
  /**
   * Document numbers, i32 or i64: a query sees the keys of its own document. A negative number is
   * padding, which sees nothing and is seen by nothing. [B, T] for queries and keys; a pair if
   * there are more keys.
   */
  documents?: Tensor | DocumentPair | null;
  /**
   * Number of nearest keys that a query sees, including its own: query t sees keys s > t + (S - T)
   * - window and, unless causal, s < t + (S - T) + window. `sliding_window` of Hugging Face;
   * flash-attention's window_size is (window - 1, window - 1).
   */
  window?: number | null;
  /**
   * Blocks that the block of a query sees, for all heads or for each head. Needs as many keys as
   * queries.
   */
  layout?: BlockLayout | null;
}

/** Sizes of an attention: B rows, T queries of `heads` heads, S keys. */
interface AttentionExtent {
  B: number;
  T: number;
  S: number;
  heads: number;
  /** The share of all heads that this call has; null: all. */
  share: HeadShare | null;
}

/**
 * Conditions for the keys that a query sees. A query sees a key if all conditions allow it. A query
 * that sees no key gives 0 and has a gradient of 0.
 */
export interface KeyFilter extends AttentionReach {
  /**
   * Broadcasts to [B, H, T, S]. Bool: true means that the query sees the key, as in PyTorch's
   * scaled_dot_product_attention. (PyTorch's modules and nn.MultiheadAttention here mean the
   * opposite.) Numbers: added to the scaled scores; minus infinity and values below -1e30 hide.
   * Read in place: repeated dims cost nothing.
   */
  mask?: Tensor | null;
  /** A mask of the keys of each row, [B, S], for all heads and queries. Combines with `mask`. */
  keyMask?: Tensor | null;
  /**
   * [B] i32 or i64, or a list: queries see only the first keys of each row, and the kernels skip
   * the rest. A tensor's numbers above S count as S.
   */
  keyLengths?: Tensor | readonly number[] | null;
}

/** The filter as arguments of the kernels, and the tensors that must outlive the backward. */
export interface FilterOperands {
  views: {
    mask: View | null;
    keyMask: View | null;
    keyLengths: View | null;
    queryDocuments: View | null;
    keyDocuments: View | null;
    layout: View | null;
    window: number;
    block: number;
  };
  saved: Tensor[];
}

const noFilter: FilterOperands['views'] = {
  mask: null,
  keyMask: null,
  keyLengths: null,
  queryDocuments: null,
  keyDocuments: null,
  window: 0,
  layout: null,
  block: 0,
};

const MASK_HINT = 'Convert a mask of ones and zeros (Hugging Face) to bool: mask.ne(0).';

/**
 * Converts `mask` to a dtype that the kernels read: bool, f32 or the dtype of q. Throws DS_DTYPE
 * for an integer mask, DS_DEVICE for a mask on another device, DS_AUTOGRAD for a mask that requires
 * a gradient.
 */
function readableMask(op: string, mask: Tensor, q: Tensor): Tensor {
  requireSameDevice(op, mask, q);
  if (mask.dtype !== 'bool' && !isFloating(mask.dtype)) {
    const expected = 'a mask of dtype bool, or of numbers to add to the scores';
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(mask), hint: MASK_HINT });
  }
  if (isGradEnabled() && mask.requiresGrad) {
    throw new DsError({
      code: 'DS_AUTOGRAD',
      op,
      expected: 'a mask without requiresGrad: attention computes no gradient of masks',
      got: describe(mask),
      hint: 'detach() it, or train it by composition: matmul(softmax(matmul(q, k.transpose()).mul(scale).add(mask)), v).',
    });
  }
  if (mask.dtype === 'bool' || mask.dtype === 'f32' || mask.dtype === q.dtype) return mask;
  return cast(mask, q.dtype === 'f64' ? 'f64' : 'f32');
}

/** Broadcasts `mask` to `shape`. */
function broadcastMask(op: string, mask: Tensor, shape: readonly number[], hint: string): View {
  const lead = shape.length - mask.ndim;
  const fits = lead >= 0 && mask.shape.every((size, d) => size === 1 || size === shape[lead + d]);
  if (fits) return viewOf(mask, shape, expandedStrides(mask, shape));
  throw shapeError(op, `shapes that broadcast to [${shape.join(', ')}]`, describe(mask), hint);
}

function requireLength(op: string, length: unknown, keys: number): void {
  if (typeof length === 'number' && Number.isInteger(length) && length >= 0 && length <= keys)
    return;
  const expected = `lengths between 0 and the ${keys} keys`;
  throw valueError(op, expected, length);
}

/**
 * Returns key lengths, a tensor or a list, as [B] i32 on the device of q. Throws DS_SHAPE unless
 * there is a length of each row, DS_ARGUMENT for a length above `keys`, DS_DTYPE or DS_DEVICE for a
 * tensor that the kernels cannot read.
 */
function lengthsOf(lengths: Tensor | readonly number[], q: Tensor, keys: number): Tensor {
  const op = 'attention keyLengths';
  const [B] = leading(q.shape, 1);
  const hint = 'One length for each row of the batch.';
  if (!(lengths instanceof Tensor)) {
    if (!Array.isArray(lengths)) {
      const expected = `a tensor or list of ${B} integers`;
      throw valueError(op, expected, lengths);
    }
    if (lengths.length !== B) throw shapeError(op, `${B} lengths`, `${lengths.length}`, hint);
    for (const length of lengths) requireLength(op, length, keys);
    return Tensor.from(lengths as number[], { shape: [B], dtype: 'i32', device: q.device });
  }
  requireSameDevice(op, lengths, q);
  if (lengths.dtype !== 'i32' && lengths.dtype !== 'i64') {
    const expected = 'lengths of dtype i32 or i64';
    throw new DsError({ code: 'DS_DTYPE', op, expected, got: describe(lengths) });
  }
  if (lengths.ndim !== 1 || lengths.size(0) !== B)
    throw shapeError(op, `[${B}]`, describe(lengths), hint);
  return toRowMajor(cast(lengths, 'i32'));
}

/**
 * Returns documents as [B, tokens] i32. Throws unless they are such a tensor of i32 or i64 on the
 * device of `like`.
 */
function documentsOf(what: string, documents: unknown, like: Tensor, shape: number[]): Tensor {
  const op = `attention ${what}`;
  if (!(documents instanceof Tensor)) {
    const expected = `a tensor [${shape.join(', ')}] i32`;
    throw valueError(op, expected, documents);
  }
  requireSameDevice(op, documents, like);
  if (documents.dtype !== 'i32' && documents.dtype !== 'i64') {
    const expected = 'numbers of documents of dtype i32 or i64';
    throw new DsError({
      code: 'DS_DTYPE',
      op,
      expected,
      got: describe(documents),
      hint: DOCUMENT_HINT,
    });
  }
  if (documents.ndim === 2 && documents.size(0) === shape[0] && documents.size(1) === shape[1])
    return cast(documents, 'i32');
  throw shapeError(op, `[${shape.join(', ')}]`, describe(documents), DOCUMENT_HINT);
}

const DOCUMENT_HINT =
  'Number the document of each token and use -1 for padding, as text.collateSamples does. With more keys than queries (a cache), pass { queries, keys }.';

/**
 * Returns the part of `layout` for the heads of this call, on the device of `like`. Throws
 * DS_ARGUMENT for another object, DS_SHAPE if its heads or blocks do not fit the call.
 */
function layoutOperand(
  layout: BlockLayout,
  like: Tensor,
  { T, S, heads, share }: AttentionExtent,
): Tensor {
  const op = 'attention layout';
  if (!(layout instanceof BlockLayout)) {
    const hint = 'nn.sparseLayout() creates it from the options of a pattern.';
    throw valueError(op, 'a BlockLayout', layout, hint);
  }
  const totalHeads = share?.whole ?? heads;
  const blocks = Math.ceil(T / layout.block);
  if (T !== S) {
    const hint = 'A layout needs queries and keys of one text: use a mask for cross-attention.';
    throw shapeError(op, 'as many keys as queries', `${T} queries and ${S} keys`, hint);
  }
  if (layout.blocks !== blocks) {
    const got = `${layout.blocks} blocks of ${layout.block}`;
    throw shapeError(op, `${blocks} blocks for ${T} tokens`, got);
  }
  if (layout.heads === 1) return layout.on(like.device);
  if (layout.heads !== totalHeads)
    throw shapeError(op, `1 or ${totalHeads} heads`, `${layout.heads}`);
  const all = layout.on(like.device);
  return heads === totalHeads ? all : all.narrow(0, share?.first ?? 0, heads);
}

/** Returns the kernel arguments of a reach, on the device of `like`. Throws as filterOperands(). */
export function reachOperands(
  like: Tensor,
  extent: AttentionExtent,
  { documents, window, layout }: AttentionReach,
): FilterOperands {
  const { B, T, S } = extent;
  const views = { ...noFilter };
  const saved: Tensor[] = [];
  if (window !== undefined && window !== null)
    views.window = requireInteger('attention window', window, 1);
  if (layout !== undefined && layout !== null) {
    const layoutBits = layoutOperand(layout, like, extent);
    saved.push(layoutBits);
    views.layout = layoutBits;
    views.block = layout.block;
  }
  if (documents === undefined || documents === null) return { views, saved };
  const isPair = typeof documents === 'object' && 'queries' in documents && 'keys' in documents;
  const [queries, keys] = isPair
    ? [
        documentsOf('documents.queries', documents.queries, like, [B, T]),
        documentsOf('documents.keys', documents.keys, like, [B, S]),
      ]
    : [documentsOf('documents', documents, like, [B, S]), null];
  if (!keys && T !== S) {
    const expected = `documents { queries [${B}, ${T}], keys [${B}, ${S}] }`;
    throw shapeError('attention', expected, describe(queries), DOCUMENT_HINT);
  }
  views.queryDocuments = queries;
  views.keyDocuments = keys ?? queries;
  saved.push(...(keys ? [queries, keys] : [queries]));
  return { views, saved };
}

/**
 * Returns the kernel arguments of the filter between q [B, H, T, D] and k [B, Hk, S, D]. Throws
 * DS_SHAPE, DS_DTYPE, DS_DEVICE, DS_AUTOGRAD, DS_ARGUMENT.
 */
export function filterOperands(
  q: Tensor,
  k: Tensor,
  filter: KeyFilter,
  share: HeadShare | null,
): FilterOperands {
  const [B, H, T] = leading(q.shape, 3);
  const S = k.size(2);
  const { views, saved } = reachOperands(q, { B, T, S, heads: H, share }, filter);
  if (filter.mask) {
    const mask = readableMask('attention mask', filter.mask, q);
    const hint = 'Pass a mask of keys [B, S] as keyMask.';
    views.mask = broadcastMask('attention mask', mask, [B, H, T, S], hint);
    saved.push(mask);
  }
  if (filter.keyMask) {
    const mask = readableMask('attention keyMask', filter.keyMask, q);
    const hint = 'Pass a mask by head or query as mask.';
    views.keyMask = broadcastMask('attention keyMask', mask, [B, S], hint);
    saved.push(mask);
  }
  if (filter.keyLengths) {
    const lengths = lengthsOf(filter.keyLengths, q, S);
    views.keyLengths = lengths;
    saved.push(lengths);
  }
  return { views, saved };
}

/** Returns the average number of keys that a query sees; masks and documents do not count. */
export function keysPerQuery(
  { T, S }: { T: number; S: number },
  { window, causal }: { window: number; causal: boolean },
): number {
  const withoutWindow = causal ? Math.max(0, S - (T - 1) / 2) : S;
  const withinWindow = causal ? window : 2 * window - 1;
  return window > 0 ? Math.min(withoutWindow, withinWindow) : withoutWindow;
}
