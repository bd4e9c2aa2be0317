// Options of models with layers of several kinds. Source: Gemma 4.

import { argumentError, valueError } from '../../runtime/input-errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireInteger } from '../../runtime/require-number.js';

/** Heads of layers without a window, where they differ from those of other layers. */
export interface FullHeads {
  /** Width of a head (global_head_dim), even. */
  headDim: number;
  /** Key and value heads (num_global_key_value_heads). Default: kvHeads of the model. */
  kvHeads?: number;
  /** Whether values are the projected keys (attention_k_eq_v). Default: false. */
  keysAsValues?: boolean;
}

/** The last layers, which read keys and values of an earlier layer of their kind. */
export interface SharedKeys {
  /** Number of these layers (num_kv_shared_layers). */
  layers: number;
  /**
   * Whether their feed-forward blocks have twice the width (use_double_wide_mlp). Default: false.
   */
  doubled?: boolean;
}

/** Options of these models. */
interface LayerKinds {
  full: Required<FullHeads> | null;
  sharedKeys: Required<SharedKeys> | null;
  layerInputDim: number | null;
}

interface KindOptions {
  full?: FullHeads | null;
  sharedKeys?: SharedKeys | null;
  layerInputDim?: number | null;
}

/** Returns the complete options. Throws DS_ARGUMENT; `isFull` has the kind of each layer. */
export function readLayerKinds(
  name: string,
  { full, sharedKeys, layerInputDim = null }: KindOptions,
  { heads, kvHeads, isFull }: { heads: number; kvHeads: number; isFull: readonly boolean[] },
): LayerKinds {
  if (layerInputDim !== null) requireInteger(`${name} layerInputDim`, layerInputDim, 1);
  return {
    full: full ? readFull(name, full, { heads, kvHeads }) : null,
    sharedKeys: sharedKeys ? readShared(name, sharedKeys, isFull) : null,
    layerInputDim,
  };
}

function readFull(
  name: string,
  full: FullHeads,
  { heads, kvHeads: usual }: { heads: number; kvHeads: number },
): Required<FullHeads> {
  const op = `${name} full`;
  const read = readOptions(op, full, namesOf.FullHeads);
  const { headDim, kvHeads = usual, keysAsValues = false } = read;
  if (!Number.isInteger(headDim) || headDim < 2 || headDim % 2 !== 0) {
    throw valueError(`${op} headDim`, 'an even width of heads', headDim);
  }
  requireInteger(`${op} kvHeads`, kvHeads, 1);
  if (heads % kvHeads !== 0) throw valueError(`${op} kvHeads`, `a divisor of ${heads}`, kvHeads);
  if (!keysAsValues && kvHeads !== usual) {
    throw valueError(`${op} kvHeads`, `${usual} without keysAsValues`, kvHeads);
  }
  return { headDim, kvHeads, keysAsValues };
}

function readShared(
  name: string,
  shared: SharedKeys,
  isFull: readonly boolean[],
): Required<SharedKeys> {
  const op = `${name} sharedKeys`;
  const { layers, doubled = false } = readOptions(op, shared, namesOf.SharedKeys);
  requireInteger(`${op} layers`, layers, 1);
  const readersFull = isFull.slice(0, Math.max(0, isFull.length - layers));
  if (isFull.every((kind) => readersFull.includes(kind))) return { layers, doubled };
  const expected = 'an earlier layer of its kind for each of the last layers';
  throw argumentError(`${op} layers`, expected, `${layers} of ${isFull.length} layers`);
}
