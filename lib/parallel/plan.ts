// A plan: a style for each kind of layer, by the path of its module.
import type { HeadCounts } from './share.js';

/** Treatment of a module. */
export type StyleName =
  /** A linear layer that is split along its outputs; later layers use only the local part. */
  | 'column'
  /** 'column' with outputs gathered on every rank. */
  | 'columnGathered'
  /** A linear layer that is split along its inputs; its outputs are summed over the ranks. */
  | 'row'
  /** 'row' with whole inputs on every rank. */
  | 'rowScattered'
  /** A token table that is split along its rows. */
  | 'vocabulary'
  /**
   * The layer to logits, split along its rows, or a head that is the token table. The loss is
   * computed from the local logits.
   */
  | 'head'
  /** Attention between split projections. Its dropout depends on the local heads. */
  | 'attention'
  /**
   * Parameters that all ranks have and use for their own heads or channels: gradients are partial
   * sums.
   */
  | 'perHead'
  /**
   * An RMS norm over all heads together: each rank has the weights of its heads, and the ranks sum
   * the squares.
   */
  | 'headsNorm'
  /** Experts (nn.Experts): each rank has some whole ones; their results are summed. */
  | 'experts'
  /** A dropout between a column and a row. */
  | 'channelDropout'
  /** The module stays unchanged, even if a later pattern matches. */
  | 'whole';

/** A style, and the borders at which a layer may be split. */
export interface LayerStyle {
  /** Treatment of the module. */
  readonly style: StyleName;
  /**
   * The heads that its pieces follow: of queries, or of keys and values; a list for concatenated
   * parts.
   */
  readonly heads?: keyof HeadCounts | readonly (keyof HeadCounts)[];
  /** Heads of the attention that the module belongs to. Default: those of the plan. */
  readonly counts?: HeadCounts;
  /** Number of pieces that stay whole. Default: the channels, or the heads. */
  readonly pieces?: number;
  /**
   * Number of equal concatenated parts that are split separately: 3 for packed q, k, v. Default: 1.
   */
  readonly parts?: number;
}

/**
 * The part of a model where activations may be split by tokens (sequence parallelism), by module
 * path.
 */
export interface SequencePlan {
  /** Maps tokens [B, T] to hidden states [B, T, C]. */
  readonly body: string;
  /** The first module inside it with activations [B, T, C] as its first input. */
  readonly first: string;
  /** Patterns of modules that process each token independently there: norms, for example. */
  readonly byToken: readonly string[];
}

/** The split of a model's layers over ranks. */
export interface TensorPlan {
  /** Heads of its attention, if styles refer to them. */
  readonly heads?: HeadCounts;
  /**
   * Styles by module path: the first matching pattern counts, and unmatched modules stay whole. In
   * a string, `*` matches one name between two dots; a RegExp matches the whole path.
   */
  readonly layers:
    | Readonly<Record<string, StyleName | LayerStyle>>
    | readonly (readonly [path: string | RegExp, style: StyleName | LayerStyle])[];
  /** The location of sequence parallelism; absent: not supported. */
  readonly sequence?: SequencePlan;
  /**
   * Receives this rank's number of heads, once the model is split; `of` returns it for layers with
   * other counts.
   */
  readonly taken?: (here: HeadCounts, of: (counts: HeadCounts) => HeadCounts) => void;
}

/** A parsed pattern of a plan. */
export interface PathStyle {
  readonly pattern: string | RegExp;
  readonly style: LayerStyle;
  fits(path: string): boolean;
}

/** Returns the patterns of a plan, in order. */
export function patternsOf({ layers }: TensorPlan): PathStyle[] {
  const list = Array.isArray(layers) ? layers : Object.entries(layers);
  return list.map(([pattern, style]: [string | RegExp, StyleName | LayerStyle]) => ({
    pattern,
    style: typeof style === 'string' ? { style } : style,
    fits: matcherOf(pattern),
  }));
}

/** Returns a test whether a module path matches a pattern. */
export function matcherOf(pattern: string | RegExp): (path: string) => boolean {
  if (pattern instanceof RegExp) return (path) => pattern.test(path);
  const words = pattern.split('.');
  return (path) => {
    const names = path.split('.');
    return names.length === words.length && words.every((w, i) => w === '*' || w === names[i]);
  };
}
