// How a model is cut: a style for each kind of layer, by the path of its module.
import type { HeadCounts } from './share.js';

/** What becomes of a module. */
export type StyleName =
  /** A linear layer of whose outputs each rank has some; what follows works on them alone. */
  | 'column'
  /** The same, whose outputs are then gathered on every rank. */
  | 'columnGathered'
  /** A linear layer of whose inputs each rank has some; its outputs are summed over the ranks. */
  | 'row'
  /** The same, whose inputs are whole on every rank. */
  | 'rowScattered'
  /** A token table of whose rows each rank has some. */
  | 'vocabulary'
  /**
   * A linear layer to logits, of whose rows each rank has some, or a head that is the token table;
   * the loss is made of the logits where they are.
   */
  | 'head'
  /** What lies between columns and rows of heads, whose dropout has to know which heads it has. */
  | 'attention'
  /** Parameters that all ranks have, each for its own heads or channels: gradients are parts. */
  | 'perHead'
  /** Experts (nn.Experts), of which each rank has some, whole; their sums are added. */
  | 'experts'
  /** A dropout between a column and a row. */
  | 'channelDropout'
  /** The module stays as it is, whatever a later pattern says. */
  | 'whole';

/** A style, and where a layer may be cut. */
export interface LayerStyle {
  /** What becomes of the module. */
  readonly style: StyleName;
  /**
   * Whose heads its pieces are: those of queries, or those of keys and values; of several parts
   * that lie side by side, part by part.
   */
  readonly heads?: keyof HeadCounts | readonly (keyof HeadCounts)[];
  /** Pieces that stay whole. Default: single channels, or the heads. */
  readonly pieces?: number;
  /** Equal parts side by side, each of which is cut: 3 of a packed q, k, v. Default 1. */
  readonly parts?: number;
}

/** Where activations may be shared out by tokens (sequence parallelism), by module path. */
export interface SequencePlan {
  /** Takes tokens [B, T], gives hidden states [B, T, C]. */
  readonly body: string;
  /** The first module inside it that takes activations [B, T, C], as its first input. */
  readonly first: string;
  /** Patterns of what works on each token by itself there: norms, for example. */
  readonly byToken: readonly string[];
}

/** How ranks share a model's layers between them. */
export interface TensorPlan {
  /** Heads of its attention, where styles speak of them. */
  readonly heads?: HeadCounts;
  /**
   * Styles by module path: the first pattern that fits counts, and modules that none fits stay
   * whole. In a string, `*` is any one name between two dots; a RegExp is for the whole path.
   */
  readonly layers:
    | Readonly<Record<string, StyleName | LayerStyle>>
    | readonly (readonly [path: string | RegExp, style: StyleName | LayerStyle])[];
  /** Where sequence parallelism is; without it there is none. */
  readonly sequence?: SequencePlan;
  /** Told how many heads this rank has, once the model is cut. */
  readonly taken?: (here: HeadCounts) => void;
}

/** A pattern of a plan, ready to be compared. */
export interface PathStyle {
  readonly pattern: string | RegExp;
  readonly style: LayerStyle;
  fits(path: string): boolean;
}

/** The patterns of a plan, in order. */
export function patternsOf({ layers }: TensorPlan): PathStyle[] {
  const list = Array.isArray(layers) ? layers : Object.entries(layers);
  return list.map(([pattern, style]: [string | RegExp, StyleName | LayerStyle]) => ({
    pattern,
    style: typeof style === 'string' ? { style } : style,
    fits: fitting(pattern),
  }));
}

/** Whether a module path is one of a pattern's. */
export function fitting(pattern: string | RegExp): (path: string) => boolean {
  if (pattern instanceof RegExp) return (path) => pattern.test(path);
  const words = pattern.split('.');
  return (path) => {
    const names = path.split('.');
    return names.length === words.length && words.every((w, i) => w === '*' || w === names[i]);
  };
}
