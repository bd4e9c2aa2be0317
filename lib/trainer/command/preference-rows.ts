// Opens the rows, the models and the method of `ds train --method`.
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
import { fromArguments } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { revisionOf } from './hub-model.js';
import { oneLoss } from './methods.js';
import { openRows } from './rows.js';
import { openModel, openTaskModel } from './trained-model.js';
import type { Evaluation } from './trainer-options.js';

/** The default of --max_length; a smaller limit of the model wins. */
const MAX_LENGTH = 1024;

/** Model and data of a method. */
export interface PreferenceMaterial {
  model: CausalLM | TaskModel;
  method: TrainingMethod;
  train: unknown;
  eval?: EvalOptions<unknown, unknown>;
  /** A description of each dataset, one line each. */
  lines: string[];
}

/** The tokenizer of the rows, the device, and how the Trainer evaluates. */
interface RowContext {
  tokenizer: Tokenizer;
  /** Device of this rank. */
  device: Device;
  evaluation: Evaluation | null;
}

/** Reads the rows and the models. Throws DS_DATA, DS_CHECKPOINT, DS_IO, DS_ARGUMENT. */
export async function openPreferences(
  args: CheckedArguments,
  name: string,
  around: RowContext,
): Promise<PreferenceMaterial> {
  if (name === 'reward') return openReward(args, around);
  const model = await openModel(args);
  if (name === 'gkd') return openDistillation(args, model, around);
  const rows = { ...around, maxSeq: model.maxSeq };
  if (name === 'kto') {
    const data = await openBoth(args, rows, UnpairedDataset.open, describedAnswers);
    const reference = await openReference(args, false);
    const loss = oneLoss(args) as KtoLossName | undefined;
    const options = { ...fromArguments(KTO, args), ...(loss && { loss }) };
    return { ...data, model, method: kto({ ...options, ...(reference && { reference }) }) };
  }
  const { sets, ...data } = await openBoth(args, rows, PairDataset.open, describedPairs);
  if (name === 'orpo') return { ...data, model, method: orpo(fromArguments(ORPO, args)) };
  if (name === 'cpo') {
    const loss = oneLoss(args) as CpoLossName | undefined;
    const options = { ...fromArguments(CPO, args), ...(loss && { loss }) };
    return { ...data, model, method: cpo(options) };
  }
  const reference = await openReference(
    args,
    sets.every(({ hasReference }) => hasReference),
  );
  const options = { ...fromArguments(DPO, args), ...lossesOf(args) };
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
  const known = precompute(args, sets, reference ?? model, around);
  const [train, held] = known as [PairDataset, PairDataset?];
  const judged = data.eval && { eval: { ...data.eval, data: held as never } };
  return { ...data, ...judged, train, model, method: dpo(options) };
}

/**
 * Returns log-probabilities of the reference for all rows. Before training, a model with new
 * adapters is its own reference, because they change nothing. Each rank uses its own device.
 */
function precompute(
  args: CheckedArguments,
  sets: readonly PairDataset[],
  reference: CausalLM,
  { tokenizer, device }: RowContext,
): PairDataset[] {
  const { dataset_cache_dir: folder, per_device_train_batch_size: size = 8 } = args;
  const { precompute_ref_batch_size: batchSize = size } = args;
  const { device: home } = reference.computesIn;
  reference.to(device);
  const found = sets.map((set, i) =>
    precomputeReference(set, reference, {
      batchSize,
      pad: tokenizer.padId ?? tokenizer.eosId ?? 0,
      ...(folder !== undefined && { cache: join(folder, `reference-${i}.json`) }),
    }),
  );
  reference.to(home);
  return found;
}

/** The losses of dpo() and their weights. --rpo_alpha adds the loss of chosen answers. */
function lossesOf({ loss_type, loss_weights, rpo_alpha: alpha }: CheckedArguments): {
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
  const ownType = (loss_type ?? ['sigmoid']) as readonly PairLossName[];
  const before = weights ?? ownType.map(() => 1);
  return { loss: [...ownType, 'sft'], weights: [...before, alpha] };
}

type Opened<Set> = Pick<PreferenceMaterial, 'train' | 'eval' | 'lines'> & { sets: readonly Set[] };

/** Reads the rows to learn from, and those that evaluations read. */
async function openBoth<Set>(
  args: CheckedArguments,
  { tokenizer, evaluation, maxSeq }: RowContext & { maxSeq: number },
  open: (options: {
    tokenizer: Tokenizer;
    files: readonly string[];
    length: number;
    promptLength?: number;
    answerLength?: number;
  }) => Promise<Set>,
  described: (set: Set) => string,
): Promise<Opened<Set>> {
  const { train_file: files, validation_file: judged } = args;
  const { max_prompt_length: promptLength, max_completion_length: answerLength } = args;
  const lengths = {
    length: lengthOf(args, maxSeq),
    ...(promptLength !== undefined && { promptLength }),
    ...(answerLength !== undefined && { answerLength }),
  };
  const train = await open({ tokenizer, files, ...lengths });
  const lines = [`learns from ${files.join(', ')}: ${described(train)}`];
  if (!evaluation || !judged) return { train, lines, sets: [train] };
  const held = await open({ tokenizer, files: judged, ...lengths });
  lines.push(`judged by ${judged.join(', ')}: ${described(held)}`);
  return { train, eval: { ...evaluation, data: held as never }, lines, sets: [train, held] };
}

function lengthOf({ max_length: given }: CheckedArguments, maxSeq: number): number {
  const length = given ?? Math.min(MAX_LENGTH, maxSeq);
  if (length <= maxSeq && length >= 2) return length;
  throw argumentError('--max_length', `2 to ${maxSeq}, which the model takes`, String(length));
}

/**
 * The model of --ref_model_name_or_path, else a second copy of the model; null if adapters or
 * numbers of the rows take its place. Throws DS_ARGUMENT for a new model without any of these.
 */
async function openReference(args: CheckedArguments, isKnown: boolean): Promise<CausalLM | null> {
  const { ref_model_name_or_path: ref, use_peft: isAdapted = false } = args;
  if (ref === undefined && (isAdapted || isKnown)) return null;
  const place = ref ?? args.model_name_or_path;
  if (place !== undefined) return fromPretrained(place, { revision: revisionOf(place, args) });
  const hint = '--ref_model_name_or_path names the reference.';
  const expected = `a model or --use_peft for --method ${args.method}`;
  throw argumentError('--config_name', expected, 'new weights', hint);
}

/** A classifier with one label, and pairs as whole texts. */
async function openReward(args: CheckedArguments, around: RowContext): Promise<PreferenceMaterial> {
  const head = { task: 'sequence-classification', labels: ['reward'] } as const;
  const model = await openTaskModel(args, head);
  const open = (options: Parameters<typeof PairDataset.open>[0]) =>
    PairDataset.open({ ...options, whole: true, overlong: 'drop' });
  const rows = { ...around, maxSeq: model.maxSeq };
  const { sets: _, ...data } = await openBoth(args, rows, open, describedPairs);
  return { ...data, model, method: reward(fromArguments(REWARD, args)) };
}

/** Rows of text, and a teacher. */
async function openDistillation(
  args: CheckedArguments,
  model: CausalLM,
  { tokenizer, evaluation }: RowContext,
): Promise<PreferenceMaterial> {
  const { teacher_model_name_or_path: place } = args;
  if (place === undefined) {
    throw argumentError('--teacher_model_name_or_path', 'a value with --method gkd', 'none');
  }
  const teacher = await fromPretrained(place, { revision: revisionOf(place, args) });
  const { train, lines, ...rest } = await openRows(args, evaluation, {
    tokenizer,
    maxSeq: model.maxSeq,
  });
  const { temperature } = args;
  const sampled = temperature === undefined ? {} : { temperature };
  const method = gkd({ ...fromArguments(GKD, args), ...sampled, teacher });
  const judged = rest.eval as EvalOptions<unknown, unknown> | undefined;
  return { model, method, train, ...(judged && { eval: judged }), lines: [...lines] };
}

const cutOf = (cut: number): string[] => (cut > 0 ? [`${cut} with a cut answer`] : []);

function describedPairs({ report: { pairs, dropped, cut } }: PairDataset): string {
  const lost = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  return [`${pairs} pairs`, ...lost, ...cutOf(cut)].join(', ');
}

function describedAnswers({ report }: UnpairedDataset): string {
  const { desirable, undesirable, dropped, cut } = report;
  const lost = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  const all = `${desirable + undesirable} answers, ${desirable} of them desirable`;
  return [all, ...lost, ...cutOf(cut)].join(', ');
}
