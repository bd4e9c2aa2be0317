// The methods of `ds train --method`: their options, arguments and metrics.
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

/** Properties of a method that the command needs. */
interface CommandMethod {
  /** Arguments that only some methods take. */
  readonly takes: readonly string[];
  /** Metrics of evaluations. */
  readonly metrics: readonly string[];
}

const flagsOf = (declared: object): string[] =>
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
  ...flagsOf(SAMPLING_OF_ROLLOUTS),
];
const REWARD_METRICS = ['reward', 'reward_std'];

/** The methods beside "sft". */
export const METHODS: Readonly<Record<string, CommandMethod>> = {
  dpo: {
    takes: [...flagsOf(DPO), ...REFERENCE, ...LENGTHS, 'loss_weights', 'rpo_alpha'],
    metrics: PAIR_METRICS,
  },
  kto: {
    takes: [...flagsOf(KTO), 'ref_model_name_or_path', 'loss_type', ...LENGTHS],
    metrics: [...PAIR_METRICS.filter((name) => name !== 'rewards/accuracies'), 'kl'],
  },
  orpo: {
    takes: [...flagsOf(ORPO), ...LENGTHS],
    metrics: [...PAIR_METRICS, 'nll_loss', 'log_odds_ratio', 'log_odds_chosen'],
  },
  cpo: {
    takes: [...flagsOf(CPO), 'loss_type', ...LENGTHS],
    metrics: [...PAIR_METRICS, 'nll_loss'],
  },
  reward: { takes: flagsOf(REWARD), metrics: ['accuracy', 'margin', 'mean_reward'] },
  grpo: { takes: [...flagsOf(GRPO), ...ROLLOUTS, 'loss_type'], metrics: REWARD_METRICS },
  rloo: { takes: [...flagsOf(RLOO), ...ROLLOUTS], metrics: REWARD_METRICS },
  gkd: {
    takes: [...flagsOf(GKD), 'teacher_model_name_or_path', 'temperature'],
    metrics: [],
  },
};

/** Arguments that apply only to rows of text. */
const OF_TEXTS = [
  ...(['packing', 'eval_packing', 'packing_strategy', 'completion_only_loss', 'task'] as const),
  ...(['assistant_only_loss', 'streaming', 'dataset_text_field', 'sample'] as const),
];
/** gkd() takes these arguments, because its rows are texts. */
const OF_GKD: readonly string[] = [
  'completion_only_loss',
  'assistant_only_loss',
  'dataset_text_field',
];

/** Names of next-token losses in TRL's SFT. */
const NEXT_TOKENS = ['nll', 'chunked_nll'];

const isGiven = (value: unknown): boolean => value !== undefined && value !== false;

/**
 * Returns the name of the method; null for next tokens. Throws DS_ARGUMENT for an unknown method,
 * and for arguments that belong to other methods.
 */
export function methodIn(args: TrainArguments): string | null {
  const { method = 'sft' } = args;
  requireOneOf('--method', method, ['sft', ...Object.keys(METHODS)]);
  const own = METHODS[method]?.takes ?? [];
  const given: Readonly<Record<string, unknown>> = { ...args };
  for (const name of new Set(Object.values(METHODS).flatMap(({ takes }) => takes))) {
    if (own.includes(name) || !isGiven(given[name])) continue;
    if (name === 'loss_type' && method === 'sft' && isPlain(args)) continue;
    const users = Object.keys(METHODS).filter((key) => METHODS[key]?.takes.includes(name));
    throw argumentError(`--${name}`, `--method ${users.join(' or ')}`, method);
  }
  if (method === 'sft') return null;
  const odd = OF_TEXTS.find(
    (name) => isGiven(args[name]) && !(method === 'gkd' && OF_GKD.includes(name)),
  );
  if (odd) throw argumentError(`--${odd}`, `another method than --method ${method}`, 'both');
  return method;
}

const isPlain = ({ loss_type: losses = [] }: TrainArguments): boolean =>
  losses.every((name) => NEXT_TOKENS.includes(name));

/** The name of the only loss. Throws DS_ARGUMENT for several losses. */
export function oneLoss({ method, loss_type: losses }: TrainArguments): string | undefined {
  if (losses === undefined || losses.length === 1) return losses?.[0];
  throw argumentError('--loss_type', `one loss for --method ${method}`, losses.join(' '));
}
