// The methods of `ds train --method`: their arguments and metrics.
import { argumentError } from '../../runtime/input-errors.js';
import { requireOneOf } from '../../runtime/require-type.js';
import { CPO } from '../methods/cpo.js';
import { DPO } from '../methods/dpo.js';
import { GKD } from '../methods/gkd.js';
import { GRPO, RLOO } from '../methods/grpo.js';
import { KTO } from '../methods/kto.js';
import { ORPO } from '../methods/orpo.js';
import { PAIR_METRICS } from '../methods/pair-metrics.js';
import { REWARD } from '../methods/reward.js';
import { SAMPLING_OF_ROLLOUTS, type TrainArguments } from './arguments.js';

/** The arguments and the metrics of a method. */
interface CommandMethod {
  /** Arguments that this method accepts and that not all methods accept. */
  readonly argumentNames: readonly string[];
  /** Names of the method's evaluation metrics, without "loss". */
  readonly metrics: readonly string[];
}

const listFlags = (declared: object): string[] =>
  Object.values(declared as Record<string, { flag?: string }>).flatMap(({ flag }) => flag ?? []);

const LENGTHS = ['max_prompt_length', 'max_completion_length'];
const REFERENCE = [
  'ref_model_name_or_path',
  'loss_type',
  'precompute_ref_log_probs',
  'precompute_ref_batch_size',
];

const ROLLOUTS = [
  'reward_funcs',
  'reward_weights',
  'reward_model_name_or_path',
  'ref_model_name_or_path',
  'max_completion_length',
  ...listFlags(SAMPLING_OF_ROLLOUTS),
];
const REWARD_METRICS = ['reward', 'reward_std'];

/** All methods except "sft". */
export const METHODS: Readonly<Record<string, CommandMethod>> = {
  dpo: {
    argumentNames: [...listFlags(DPO), ...REFERENCE, ...LENGTHS, 'loss_weights', 'rpo_alpha'],
    metrics: PAIR_METRICS,
  },
  kto: {
    argumentNames: [...listFlags(KTO), 'ref_model_name_or_path', 'loss_type', ...LENGTHS],
    metrics: [...PAIR_METRICS.filter((name) => name !== 'rewards/accuracies'), 'kl'],
  },
  orpo: {
    argumentNames: [...listFlags(ORPO), ...LENGTHS],
    metrics: [...PAIR_METRICS, 'nll_loss', 'log_odds_ratio', 'log_odds_chosen'],
  },
  cpo: {
    argumentNames: [...listFlags(CPO), 'loss_type', ...LENGTHS],
    metrics: [...PAIR_METRICS, 'nll_loss'],
  },
  reward: { argumentNames: listFlags(REWARD), metrics: ['accuracy', 'margin', 'mean_reward'] },
  grpo: { argumentNames: [...listFlags(GRPO), ...ROLLOUTS, 'loss_type'], metrics: REWARD_METRICS },
  rloo: { argumentNames: [...listFlags(RLOO), ...ROLLOUTS], metrics: REWARD_METRICS },
  gkd: {
    argumentNames: [...listFlags(GKD), 'teacher_model_name_or_path', 'temperature'],
    metrics: [],
  },
};

/** Arguments for rows of text, which methods with other rows do not accept. */
const TEXT_ARGUMENTS = [
  'packing',
  'eval_packing',
  'packing_strategy',
  'completion_only_loss',
  'task',
  'assistant_only_loss',
  'streaming',
  'dataset_text_field',
  'sample',
] as const;
/** Arguments for rows of text that gkd() accepts. */
const GKD_TEXT_ARGUMENTS: readonly string[] = [
  'completion_only_loss',
  'assistant_only_loss',
  'dataset_text_field',
];

/** Names in TRL of the loss that "sft" uses. */
const NEXT_TOKENS = ['nll', 'chunked_nll'];

const isGiven = (value: unknown): boolean => value !== undefined && value !== false;

/**
 * Returns the name of the method; null for "sft". Throws DS_ARGUMENT if the method is unknown, or
 * does not accept a given argument.
 */
export function readMethod(args: TrainArguments): string | null {
  const { method = 'sft' } = args;
  requireOneOf('--method', method, ['sft', ...Object.keys(METHODS)]);
  const accepted = METHODS[method]?.argumentNames ?? [];
  const values: Readonly<Record<string, unknown>> = { ...args };
  for (const name of new Set(
    Object.values(METHODS).flatMap(({ argumentNames }) => argumentNames),
  )) {
    if (accepted.includes(name) || !isGiven(values[name])) continue;
    if (name === 'loss_type' && method === 'sft' && hasNextTokenLosses(args)) continue;
    const users = Object.keys(METHODS).filter((key) => METHODS[key]?.argumentNames.includes(name));
    throw argumentError(`--${name}`, `--method ${users.join(' or ')}`, method);
  }
  if (method === 'sft') return null;
  const conflicting = TEXT_ARGUMENTS.find(
    (name) => isGiven(args[name]) && !(method === 'gkd' && GKD_TEXT_ARGUMENTS.includes(name)),
  );
  if (conflicting)
    throw argumentError(`--${conflicting}`, `another method than --method ${method}`, 'both');
  return method;
}

const hasNextTokenLosses = ({ loss_type: losses = [] }: TrainArguments): boolean =>
  losses.every((name) => NEXT_TOKENS.includes(name));

/** Returns the name of the loss, if any. Throws DS_ARGUMENT if there are several. */
export function requireOneLoss({ method, loss_type: losses }: TrainArguments): string | undefined {
  if (losses === undefined || losses.length === 1) return losses?.[0];
  throw argumentError('--loss_type', `one loss for --method ${method}`, losses.join(' '));
}
