// The sizes of Llamas, how their positions are read, and how their activations are kept.
import { DsError } from '../../errors.js';
import { type OptionNames, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';
import { requireType } from '../../runtime/require-type.js';
import { type RopeScaling, requireScaling } from './rotary.js';

/** The sizes of a Llama, and how its activations are kept. */
export interface LlamaConfig {
  /** Tokens that there are. */
  vocabSize: number;
  /** The longest sequence (max_position_embeddings). */
  maxSeq: number;
  /** Blocks. */
  layers: number;
  /** Heads of queries. */
  heads: number;
  /** Width of the residual stream (hidden_size). */
  channels: number;
  /** Width inside the feed-forward block (intermediate_size). */
  hidden: number;
  /** Heads of keys and values, each for heads / kvHeads heads of queries. Default `heads`. */
  kvHeads?: number;
  /** Width of a head, even. Default channels / heads. */
  headDim?: number;
  /** Of the norms. Default 1e-6. */
  eps?: number;
  /** The base of the rotary frequencies. Default 10000. */
  ropeTheta?: number;
  /** How frequencies change for longer sequences. Default: they do not. */
  ropeScaling?: RopeScaling | null;
  /** Whether the head is the token embedding. Default false. */
  tied?: boolean;
  /** Whether the projections of attention have a bias. Default false. */
  attentionBias?: boolean;
  /** Whether those of the feed-forward block have one. Default false. */
  mlpBias?: boolean;
  /** Standard deviation of the first weights. Default 0.02. */
  initializerRange?: number;
  /** Whether one tensor per segment is kept, and the rest computed again in the backward. */
  activationCheckpointing?: boolean;
  /**
   * Segments of blocks under activationCheckpointing; default number_checkpoints, else `layers`.
   */
  numberCheckpoints?: number;
  /** Targets that do not count; default -100. */
  ignoreIndex?: number;
}

/** What fromPretrained() may be told: the rest is in the folder. */
export type LlamaOptions = Pick<
  LlamaConfig,
  'activationCheckpointing' | 'numberCheckpoints' | 'ignoreIndex'
>;

/** A LlamaConfig whose sizes are all said. */
export type LlamaSizes = LlamaConfig &
  Required<Omit<LlamaConfig, 'numberCheckpoints' | 'ignoreIndex'>>;

const NAMES: OptionNames<LlamaConfig> = {
  ...{ vocabSize: true, maxSeq: true, layers: true, heads: true, channels: true, hidden: true },
  ...{ kvHeads: true, headDim: true, eps: true, ropeTheta: true, ropeScaling: true, tied: true },
  ...{ attentionBias: true, mlpBias: true, initializerRange: true },
  ...{ activationCheckpointing: true, numberCheckpoints: true, ignoreIndex: true },
};
const COUNTS = ['vocabSize', 'maxSeq', 'layers', 'heads', 'channels', 'hidden'] as const;
const FLAGS = ['tied', 'attentionBias', 'mlpBias', 'activationCheckpointing'] as const;

/**
 * `given` by its own names, complete. Throws DS_ARGUMENT for an unknown option and for sizes that
 * are none.
 */
export function readLlamaConfig(given: LlamaConfig): LlamaSizes {
  const config = readOptions('Llama', given, NAMES);
  for (const name of COUNTS) requireInteger(`Llama ${name}`, config[name], 1);
  for (const name of FLAGS) requireType(`Llama ${name}`, config[name] ?? false, 'boolean');
  const { heads, channels, kvHeads = heads, headDim = channels / heads } = config;
  requireInteger('Llama kvHeads', kvHeads, 1);
  if (!Number.isInteger(headDim) || headDim < 2 || headDim % 2 !== 0) {
    throw refused('headDim', 'an even width of heads: channels / heads, or headDim', headDim);
  }
  if (heads % kvHeads !== 0) throw refused('kvHeads', `a divisor of ${heads} heads`, kvHeads);
  const { ropeScaling = null } = config;
  if (ropeScaling) requireScaling(ropeScaling);
  const { tied = false, attentionBias = false, mlpBias = false } = config;
  const { activationCheckpointing = false } = config;
  return {
    ...config,
    ...{ kvHeads, headDim, ropeScaling, tied, attentionBias, mlpBias, activationCheckpointing },
    eps: requireFinite('Llama eps', config.eps ?? 1e-6, 0),
    ropeTheta: requireFinite('Llama ropeTheta', config.ropeTheta ?? 10_000, Number.MIN_VALUE),
    initializerRange: requireFinite('Llama initializerRange', config.initializerRange ?? 0.02, 0),
  };
}

function refused(name: string, expected: string, got: number): DsError {
  return new DsError({ code: 'DS_ARGUMENT', op: `Llama ${name}`, expected, got: String(got) });
}
