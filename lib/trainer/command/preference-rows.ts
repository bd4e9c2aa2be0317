// Opens the rows, the models and the method of `ds train --method` for preferences and
// distillation.
import { join } from 'node:path';
import { type CausalLM, fromPretrained, type TaskModel } from '../../models/index.js';
import type { Device } from '../../runtime/device.js';
import { argumentError } from '../../runtime/input-errors.js';
import { PairDataset, type Tokenizer, UnpairedDataset } from '../../text/index.js';
import type { EvalOptions } from '../evaluation-options.js';
import { CPO, type CpoLossName, cpo } from '../methods/cpo.js';
import { DPO, dpo } from '../methods/dpo.js';
import { GKD, gkd } from '../methods/gkd.js';
import { KTO, type KtoLossName, kto } from '../methods/kto.js';
import type { TrainingMethod } from '../methods/method.js';
import { ORPO, orpo } from '../methods/orpo.js';
import type { PairLossName } from '../methods/pair-losses.js';
import { precomputeReference } from '../methods/precompute.js';
import { REWARD, reward } from '../methods/reward.js';
import { readOptionsOf } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { findRevision } from './hub-model.js';
import { requireOneLoss } from './methods.js';
import { openRows } from './rows.js';
import { openModel, openTaskModel } from './trained-model.js';
import type { Evaluation } from './trainer-options.js';

/** Default of --max_length. The model's maximum is used if it is smaller. */
const MAX_LENGTH = 1024;

/** Model, method and data of a run. */
export interface PreferenceMaterial {
  model: CausalLM | TaskModel;
  method: TrainingMethod;
  train: unknown;
  eval?: EvalOptions<unknown, unknown>;
  /** One line about each dataset, to print. */
  lines: string[];
}

/** Inputs for opening rows: tokenizer, device, and the evaluation options of the Trainer. */
interface RowContext {
  tokenizer: Tokenizer;
  /** Device of this rank. */
  device: Device;
  evaluation: Evaluation | null;
}

/**
 * Opens rows and models for the method `name`. Throws DS_DATA, DS_CHECKPOINT, DS_IO, DS_ARGUMENT.
 */
export async function openPreferences(
  args: CheckedArguments,
  name: string,
  context: RowContext,
): Promise<PreferenceMaterial> {
  if (name === 'reward') return openReward(args, context);
  const model = await openModel(args);
  if (name === 'gkd') return openDistillation(args, model, context);
  const rows = { ...context, maxSeq: model.maxSeq };
  if (name === 'kto') {
    const data = await openSets(args, rows, UnpairedDataset.open, describeAnswers);
    const reference = await openReference(args, false);
    const loss = requireOneLoss(args) as KtoLossName | undefined;
    const options = { ...readOptionsOf(KTO, args), ...(loss && { loss }) };
    return { ...data, model, method: kto({ ...options, ...(reference && { reference }) }) };
  }
  const { sets, ...data } = await openSets(args, rows, PairDataset.open, describePairs);
  if (name === 'orpo') return { ...data, model, method: orpo(readOptionsOf(ORPO, args)) };
  if (name === 'cpo') {
    const loss = requireOneLoss(args) as CpoLossName | undefined;
    const options = { ...readOptionsOf(CPO, args), ...(loss && { loss }) };
    return { ...data, model, method: cpo(options) };
  }
  const reference = await openReference(
    args,
    sets.every(({ hasReference }) => hasReference),
  );
  const options = { ...readOptionsOf(DPO, args), ...readLosses(args) };
  if (!args.precompute_ref_log_probs || sets.every(({ hasReference }) => hasReference)) {
    return { ...data, model, method: dpo({ ...options, ...(reference && { reference }) }) };
  }
  if (options.syncRefModel) {
    throw argumentError(
      '--precompute_ref_log_probs',
      'either --precompute_ref_log_probs or --sync_ref_model',
      'both',
    );
  }
  const precomputed = precomputeSets(args, sets, reference ?? model, context);
  const [train, evalPairs] = precomputed as [PairDataset, PairDataset?];
  const evaluated = data.eval && { eval: { ...data.eval, data: evalPairs as never } };
  return { ...data, ...evaluated, train, model, method: dpo(options) };
}

/**
 * Computes the reference's log-probabilities of all rows. A model with new adapters can be its own
 * reference before training, because new adapters do not change its outputs. Each rank computes on
 * its own device.
 */
function precomputeSets(
  args: CheckedArguments,
  sets: readonly PairDataset[],
  reference: CausalLM,
  { tokenizer, device }: RowContext,
): PairDataset[] {
  const { dataset_cache_dir: folder, per_device_train_batch_size: size = 8 } = args;
  const { precompute_ref_batch_size: batchSize = size } = args;
  const { device: originalDevice } = reference.computesIn;
  reference.to(device);
  const precomputed = sets.map((set, i) =>
    precomputeReference(set, reference, {
      batchSize,
      pad: tokenizer.padId ?? tokenizer.eosId ?? 0,
      ...(folder !== undefined && { cache: join(folder, `reference-${i}.json`) }),
    }),
  );
  reference.to(originalDevice);
  return precomputed;
}

/**
 * Returns the losses of dpo() and their weights. --rpo_alpha adds the loss "sft" of chosen answers.
 */
function readLosses({ loss_type, loss_weights, rpo_alpha: alpha }: CheckedArguments): {
  loss?: readonly PairLossName[];
  weights?: readonly number[];
} {
  const weights = loss_weights?.map(Number);
  if (alpha === undefined) {
    return {
      ...(loss_type && { loss: loss_type as readonly PairLossName[] }),
      ...(weights && { weights }),
    };
  }
  const losses = (loss_type ?? ['sigmoid']) as readonly PairLossName[];
  const lossWeights = weights ?? losses.map(() => 1);
  return { loss: [...losses, 'sft'], weights: [...lossWeights, alpha] };
}

type OpenedSets<Set> = Pick<PreferenceMaterial, 'train' | 'eval' | 'lines'> & {
  sets: readonly Set[];
};

/** Opens the rows for training and, if they are given, for evaluation. */
async function openSets<Set>(
  args: CheckedArguments,
  { tokenizer, evaluation, maxSeq }: RowContext & { maxSeq: number },
  open: (options: {
    tokenizer: Tokenizer;
    files: readonly string[];
    columns?: Readonly<Record<string, string>>;
    length: number;
    promptLength?: number;
    answerLength?: number;
  }) => Promise<Set>,
  describe: (set: Set) => string,
): Promise<OpenedSets<Set>> {
  const { train_file: files, validation_file: evalFiles } = args;
  const { max_prompt_length: promptLength, max_completion_length: answerLength } = args;
  const lengths = {
    columns: args.columns,
    length: readLength(args, maxSeq),
    ...(promptLength !== undefined && { promptLength }),
    ...(answerLength !== undefined && { answerLength }),
  };
  const train = await open({ tokenizer, files, ...lengths });
  const lines = [`learns from ${files.join(', ')}: ${describe(train)}`];
  if (!evaluation || !evalFiles) return { train, lines, sets: [train] };
  const evalSet = await open({ tokenizer, files: evalFiles, ...lengths });
  lines.push(`judged by ${evalFiles.join(', ')}: ${describe(evalSet)}`);
  return { train, eval: { ...evaluation, data: evalSet as never }, lines, sets: [train, evalSet] };
}

function readLength({ max_length: given }: CheckedArguments, maxSeq: number): number {
  const length = given ?? Math.min(MAX_LENGTH, maxSeq);
  if (length <= maxSeq && length >= 2) return length;
  throw argumentError('--max_length', `2 to ${maxSeq}, which the model takes`, String(length));
}

/**
 * Opens the model of --ref_model_name_or_path or, by default, a second copy of the model. Returns
 * null if the model without adapters is the reference, or if the rows contain the
 * log-probabilities. Throws DS_ARGUMENT if the model is new and there is no other reference.
 */
async function openReference(
  args: CheckedArguments,
  isPrecomputed: boolean,
): Promise<CausalLM | null> {
  const { ref_model_name_or_path: ref, use_peft: isAdapted = false } = args;
  if (ref === undefined && (isAdapted || isPrecomputed)) return null;
  const place = ref ?? args.model_name_or_path;
  if (place !== undefined) return fromPretrained(place, { revision: findRevision(place, args) });
  const hint = '--ref_model_name_or_path names the reference.';
  const expected = `a model or --use_peft for --method ${args.method}`;
  throw argumentError('--config_name', expected, 'new weights', hint);
}

/** Opens a classifier with one label, and pairs of whole texts. */
async function openReward(
  args: CheckedArguments,
  context: RowContext,
): Promise<PreferenceMaterial> {
  const head = { task: 'sequence-classification', labels: ['reward'] } as const;
  const model = await openTaskModel(args, head);
  const open = (options: Parameters<typeof PairDataset.open>[0]) =>
    PairDataset.open({ ...options, whole: true, overlong: 'drop' });
  const rows = { ...context, maxSeq: model.maxSeq };
  const { sets: _, ...data } = await openSets(args, rows, open, describePairs);
  return { ...data, model, method: reward(readOptionsOf(REWARD, args)) };
}

/** Opens rows of text, and the teacher. */
async function openDistillation(
  args: CheckedArguments,
  model: CausalLM,
  { tokenizer, evaluation }: RowContext,
): Promise<PreferenceMaterial> {
  const { teacher_model_name_or_path: place } = args;
  if (place === undefined) {
    throw argumentError('--teacher_model_name_or_path', 'a value with --method gkd', 'none');
  }
  const teacher = await fromPretrained(place, { revision: findRevision(place, args) });
  const { train, lines, ...rowData } = await openRows(args, evaluation, { tokenizer, model });
  const { temperature } = args;
  const sampling = temperature === undefined ? {} : { temperature };
  const method = gkd({ ...readOptionsOf(GKD, args), ...sampling, teacher });
  const evaluated = rowData.eval as EvalOptions<unknown, unknown> | undefined;
  return { model, method, train, ...(evaluated && { eval: evaluated }), lines: [...lines] };
}

const describeCut = (cut: number): string[] => (cut > 0 ? [`${cut} with a cut answer`] : []);

function describePairs({ report: { pairs, dropped, cut } }: PairDataset): string {
  const lost = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  return [`${pairs} pairs`, ...lost, ...describeCut(cut)].join(', ');
}

function describeAnswers({ report }: UnpairedDataset): string {
  const { desirable, undesirable, dropped, cut } = report;
  const lost = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  const all = `${desirable + undesirable} answers, ${desirable} of them desirable`;
  return [all, ...lost, ...describeCut(cut)].join(', ');
}
