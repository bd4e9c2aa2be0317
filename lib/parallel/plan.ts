// TensorPlan: how parallelize() splits each layer of a model, by the path of its module.
import type { HeadCounts } from './rank-ranges.js';

/** How parallelize() treats a module. */
export type StyleName =
  /**
   * A linear layer that is split along its outputs. Later layers use only the outputs of their
   * rank.
   */
  | 'column'
  /** Like 'column', but every rank gets all outputs. */
  | 'columnGathered'
  /** A linear layer that is split along its inputs. The ranks sum its outputs. */
  | 'row'
  /** Like 'row', but every rank passes all inputs. */
  | 'rowScattered'
  /** A token table that is split along its rows. */
  | 'vocabulary'
  /**
   * The layer that computes logits, split along its rows, or a head that is the token table. The
   * loss is computed without gathering all logits.
   */
  | 'head'
  /**
   * An attention between split projections. Each rank computes its heads, with the dropout of these
   * heads.
   */
  | 'attention'
  /**
   * A module with parameters that all ranks have and use for their own heads or channels. The
   * gradients are partial sums.
   */
  | 'perHead'
  /**
   * An RMSNorm over all heads together. Each rank has the weights of its heads; the ranks sum the
   * squares.
   */
  | 'headsNorm'
  /** An nn.Experts. Each rank has some whole experts; the ranks sum the results. */
  | 'experts'
  /** A dropout between a 'column' and a 'row' layer. */
  | 'channelDropout'
  /** A module that does not change, even if a later pattern matches it. */
  | 'whole';

/** A style, and the borders at which the layer may be split. */
export interface LayerStyle {
  /** How the module is treated. */
  readonly style: StyleName;
  /**
   * The heads that the layer's split follows: of queries, or of keys and values. For concatenated
   * parts, a list with one entry per part.
   */
  readonly heads?: keyof HeadCounts | readonly (keyof HeadCounts)[];
  /** Numbers of heads of the attention that contains the module. Default: `heads` of the plan. */
  readonly counts?: HeadCounts;
  /** Number of pieces that no border cuts. Default: the number of channels, or of heads. */
  readonly pieces?: number;
  /**
   * Number of equal concatenated parts that are split separately: 3 for concatenated q, k and v.
   * Default: 1.
   */
  readonly parts?: number;
}

/** Where activations of a model may be split by tokens (sequence parallelism), by module path. */
export interface SequencePlan {
  /** Path of the module that maps tokens [B, T] to hidden states [B, T, C]. */
  readonly body: string;
  /** Path of the first module inside it with a first input [B, T, C]. */
  readonly first: string;
  /** Patterns of modules inside it that process each token independently, such as norms. */
  readonly byToken: readonly string[];
}

/** How the layers of a model are split over ranks. */
export interface TensorPlan {
  /** Numbers of heads of the model's attention, if styles refer to heads. */
  readonly heads?: HeadCounts;
  /**
   * Styles by module path. The first pattern that matches a path counts; modules without a match
   * stay whole. In a string, `*` matches one name between two dots. A RegExp is tested on the whole
   * path.
   */
  readonly layers:
    | Readonly<Record<string, StyleName | LayerStyle>>
    | readonly (readonly [path: string | RegExp, style: StyleName | LayerStyle])[];
  /** Where the tokens may be split. Absent: the model does not support sequence parallelism. */
  readonly sequence?: SequencePlan;
  /**
   * Is called after the model is split, with this rank's numbers of heads. `of` converts other
   * numbers of heads to this rank's numbers.
   */
  readonly taken?: (here: HeadCounts, of: (counts: HeadCounts) => HeadCounts) => void;
}

/** A pattern of a plan, parsed. */
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

/** Returns a function that tests whether a pattern matches a module path. */
export function matcherOf(pattern: string | RegExp): (path: string) => boolean {
  if (pattern instanceof RegExp) return (path) => pattern.test(path);
  const words = pattern.split('.');
  return (path) => {
    const names = path.split('.');
    return names.length === words.length && words.every((w, i) => w === '*' || w === names[i]);
  };
}
