// Sizes of GPT-2 models, published and custom, and the modes of their activations.
import { DsError } from '../../errors.js';
import { namesOf, readOptions } from '../../runtime/options.js';
import { requireFinite, requireInteger } from '../../runtime/require-number.js';

/** Sizes of a GPT-2, and the mode of its activations. */
export interface GPT2Config {
  /** Number of tokens in the vocabulary. */
  vocabSize: number;
  /** The longest sequence (n_positions). */
  maxSeq: number;
  /** Blocks. */
  layers: number;
  /** Heads of each attention; must divide the channels. */
  heads: number;
  /** Width of the residual stream. */
  channels: number;
  /** Dropout after the embeddings and on both residual branches; default 0. */
  dropout?: number;
  /**
   * Standard deviation of the initial weights. For projections onto the residual stream it is
   * divided by sqrt(2 layers). Default: 0.02.
   */
  initializerRange?: number;
  /**
   * true: keep one tensor per segment and recompute the rest in the backward. "selective": keep
   * everything except the outputs of norms and GELUs, which are recomputed. Default: false.
   */
  activationCheckpointing?: boolean | 'selective';
  /**
   * Segments of blocks if activationCheckpointing is true; default number_checkpoints, else
   * `layers`.
   */
  numberCheckpoints?: number;
  /**
   * Fuse GELU into the preceding GEMM, from its unrounded result: faster, and in 16 bits the last
   * bit may differ. Default: true, except with "selective", which recomputes GELU from the rounded
   * values.
   */
  fusedGelu?: boolean;
  /** Targets that do not count; default -100. */
  ignoreIndex?: number;
}

/** The sizes that a folder of weights fixes. */
export type GPT2Sizes = Pick<
  GPT2Config,
  'vocabSize' | 'maxSeq' | 'layers' | 'heads' | 'channels' | 'initializerRange'
>;

/** Options of fromPretrained(); the folder has the rest. */
export type GPT2Options = Omit<Partial<GPT2Config>, keyof GPT2Sizes>;

const SIZES = ['vocabSize', 'maxSeq', 'layers', 'heads', 'channels'] as const;

/** @internal initializerRange of `config`, or that of the published models. */
export const resolveInitializerRange = ({ initializerRange = 0.02 }: GPT2Config): number =>
  initializerRange;

const published = { vocabSize: 50257, maxSeq: 1024 };

/**
 * 10B is the model of DeepSpeed's ZeRO-Offload tutorial; 13B and 40B come from table 2 of its paper
 * (Ren et al. 2021).
 */
const configs: Record<string, GPT2Config> = {
  tiny: { vocabSize: 50257, maxSeq: 128, layers: 4, heads: 4, channels: 128 },
  '124M': { ...published, layers: 12, heads: 12, channels: 768 },
  '355M': { ...published, layers: 24, heads: 16, channels: 1024 },
  '774M': { ...published, layers: 36, heads: 20, channels: 1280 },
  '1558M': { ...published, layers: 48, heads: 25, channels: 1600 },
  '10B': { ...published, layers: 50, heads: 32, channels: 4096 },
  '13B': { ...published, layers: 65, heads: 32, channels: 4096 },
  '40B': { ...published, layers: 50, heads: 64, channels: 8192 },
};

/**
 * The sizes of "tiny", "124M", "355M", "774M", "1558M", "10B", "13B" or "40B" (with or without
 * "gpt2-"). Throws DS_ARGUMENT for another name.
 */
export function findPublishedGpt2(name: string): GPT2Config {
  const sizes = configs[name.replace(/^gpt2-/, '')];
  if (sizes) return { ...sizes };
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'GPT2.config',
    expected: Object.keys(configs).join(', '),
    got: JSON.stringify(name),
    hint: 'For another model, name its folder or its name on the hub, such as Qwen/Qwen3-8B.',
  });
}

/**
 * Returns `options` by its own names. Throws DS_ARGUMENT for an unknown option and for invalid
 * sizes.
 */
export function readGpt2Config(options: GPT2Config): GPT2Config {
  const config = readOptions('GPT2', options, namesOf.GPT2Config);
  for (const size of SIZES) requireInteger(`GPT2 ${size}`, config[size], 1);
  requireFinite('GPT2 initializerRange', resolveInitializerRange(config), 0);
  if (config.channels % config.heads === 0) return config;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'GPT2',
    expected: `channels that ${config.heads} heads divide`,
    got: String(config.channels),
  });
}
