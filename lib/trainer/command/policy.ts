// Opens the prompts, the rewards and the models of `ds train --method grpo` and `rloo`.
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { fromPretrained } from '../../models/index.js';
import { TaskModel } from '../../models/tasks/task-model.js';
import { argumentError } from '../../runtime/input-errors.js';
import { ownValue } from '../../runtime/own-value.js';
import { PromptDataset, Tokenizer } from '../../text/index.js';
import { GRPO, grpo, RLOO, type RolloutSampling, rloo } from '../methods/grpo.js';
import type { TrainingMethod } from '../methods/method.js';
import type { PolicyLossName } from '../methods/policy-losses.js';
import * as rewards from '../rollouts/built-in-rewards.js';
import type { Reward, WeightedReward } from '../rollouts/reward.js';
import { readOptionsOf, SAMPLING_OF_ROLLOUTS } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { findRevision } from './hub-model.js';
import { requireOneLoss } from './methods.js';
import type { PreferenceMaterial } from './preference-rows.js';
import { openModel } from './trained-model.js';
import type { Evaluation } from './trainer-options.js';

/** Fraction of the limit of tokens over which the reward get_soft_overlong_punishment falls. */
const OVERLONG_CACHE = 0.2;
/** Default of --max_completion_length. Half of the model's maximum is used if it is smaller. */
const MAX_TOKENS = 512;

/**
 * Built-in rewards, by their names in TRL and open-r1. `max`: maximum number of tokens of a
 * completion.
 */
const BUILT_IN: Readonly<Record<string, (max: number) => Reward>> = {
  accuracy_reward: () => rewards.accuracy,
  think_format_reward: () => rewards.format,
  get_soft_overlong_punishment: (limit) =>
    rewards.overlong({ limit, cache: Math.max(1, Math.ceil(OVERLONG_CACHE * limit)) }),
  get_repetition_penalty_reward: () => rewards.repetition(),
};

/** Returns whether the method learns from rewards of completions. */
export const isPolicy = (method: string): boolean => method === 'grpo' || method === 'rloo';

/** Opens prompts, rewards and models. Throws DS_DATA, DS_CHECKPOINT, DS_IO, DS_ARGUMENT. */
export async function openPolicy(
  args: CheckedArguments,
  name: string,
  { tokenizer, evaluation }: { tokenizer: Tokenizer; evaluation: Evaluation | null },
): Promise<PreferenceMaterial> {
  const { train_file: files, validation_file: evalFiles } = args;
  const model = await openModel(args);
  const half = Math.max(1, Math.floor(model.maxSeq / 2));
  const { max_completion_length: max = Math.min(MAX_TOKENS, half) } = args;
  const length = model.maxSeq - max;
  const { columns } = args;
  const open = (rows: readonly string[]) =>
    PromptDataset.open({ tokenizer, files: rows, length, columns });
  const method = await createMethod(args, name, max);
  const train = await open(files);
  const lines = [`learns from ${files.join(', ')}: ${describePrompts(train)}`];
  const evalPrompts = evaluation && evalFiles ? await open(evalFiles) : null;
  if (evalPrompts)
    lines.push(`judged by ${evalFiles?.join(', ')}: ${describePrompts(evalPrompts)}`);
  const material = { model, method, train: train as never, lines };
  if (!evaluation || !evalPrompts) return material;
  return { ...material, eval: { ...evaluation, data: evalPrompts as never } };
}

async function createMethod(
  args: CheckedArguments,
  name: string,
  max: number,
): Promise<TrainingMethod> {
  const sampling = {
    ...readOptionsOf(SAMPLING_OF_ROLLOUTS, args),
    maxNewTokens: max,
  } as RolloutSampling;
  const reference = await openReference(args);
  const shared = {
    rewards: await openRewards(args, max),
    sampling,
    ...(reference && { reference }),
  };
  if (name === 'rloo') return rloo({ ...readOptionsOf(RLOO, args), ...shared });
  const loss = requireOneLoss(args) as PolicyLossName | undefined;
  return grpo({ ...readOptionsOf(GRPO, args), ...shared, ...(loss && { loss }) });
}

/**
 * Opens the reference model if beta is above 0. Returns null if the method needs no reference, or
 * if the model without adapters is the reference.
 */
async function openReference(args: CheckedArguments) {
  const { method, beta = method === 'rloo' ? RLOO.beta.default : 0 } = args;
  const { ref_model_name_or_path: ref, use_peft: isAdapted = false } = args;
  if (!(Number(beta) > 0) || (ref === undefined && isAdapted)) return null;
  const place = ref ?? args.model_name_or_path;
  if (place !== undefined) return fromPretrained(place, { revision: findRevision(place, args) });
  const hint = '--ref_model_name_or_path names the reference.';
  throw argumentError(
    '--config_name',
    'a model or --use_peft for a beta above 0',
    'new weights',
    hint,
  );
}

async function openRewards(args: CheckedArguments, max: number): Promise<WeightedReward[]> {
  const { reward_funcs: names = [], reward_weights: weights = [] } = args;
  const { reward_model_name_or_path: rewardModelPlace } = args;
  const opened: WeightedReward[] = [];
  for (const name of names) opened.push(await openReward(name, max));
  if (rewardModelPlace !== undefined)
    opened.push({ of: await openRewardModel(rewardModelPlace, args) });
  if (opened.length === 0) {
    const expected = `a name of ${Object.keys(BUILT_IN).join(', ')}, or ./file.mjs#name`;
    throw argumentError('--reward_funcs', expected, 'nothing');
  }
  if (weights.length > 0 && weights.length !== opened.length) {
    throw argumentError('--reward_weights', `${opened.length} numbers`, `${weights.length}`);
  }
  return opened.map((reward, i) => ({ ...reward, weight: weights[i] ?? 1 }));
}

/** Opens a built-in reward, or one that a file of the user exports. */
async function openReward(name: string, max: number): Promise<WeightedReward> {
  const createReward = ownValue(BUILT_IN, name);
  if (createReward) return { of: createReward(max), name };
  const [file = '', exported = 'default'] = name.split('#');
  const op = `--reward_funcs ${name}`;
  if (!/[./\\]/.test(file)) {
    throw argumentError(op, `${Object.keys(BUILT_IN).join(', ')}, or ./file.mjs#name`, name);
  }
  const module = await import(pathToFileURL(resolve(file)).href).catch((error: unknown) => {
    throw argumentError(op, 'a module that can be imported', String(error));
  });
  const of = (module as Record<string, unknown>)[exported];
  if (typeof of === 'function') {
    const exportName = exported === 'default' ? of.name || 'default' : exported;
    return { of: of as Reward, name: exportName };
  }
  const got = Object.keys(module as object).join(', ') || 'no exports';
  throw argumentError(op, `an exported function "${exported}"`, got);
}

async function openRewardModel(place: string, args: CheckedArguments): Promise<Reward> {
  const revision = findRevision(place, args);
  const task = 'sequence-classification';
  const model = await fromPretrained(place, { task, revision });
  if (!(model instanceof TaskModel)) {
    throw argumentError('--reward_model_name_or_path', 'a classifier with one label', place);
  }
  return rewards.model({ model, tokenizer: Tokenizer.fromPretrained(place) });
}

function describePrompts({ report: { prompts, dropped } }: PromptDataset): string {
  const droppedText = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  return [`${prompts} prompts`, ...droppedText].join(', ');
}
