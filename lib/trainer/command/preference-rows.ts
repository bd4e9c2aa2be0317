// Opens the pairs, the model and the reference of `ds train --method dpo`.
import { type CausalLM, fromPretrained } from '../../models/index.js';
import { refused } from '../../runtime/refused.js';
import { requireOneOf } from '../../runtime/require-type.js';
import { PairDataset, type Tokenizer } from '../../text/index.js';
import type { EvalOptions } from '../evaluation-options.js';
import { DPO, dpo } from '../methods/dpo.js';
import type { TrainingMethod } from '../methods/method.js';
import type { PairLossName } from '../methods/pair-losses.js';
import { fromArguments } from './arguments.js';
import type { CheckedArguments } from './check-arguments.js';
import { revisionOf } from './hub-model.js';
import { openModel } from './trained-model.js';
import type { Evaluation } from './trainer-options.js';

const METHODS = ['sft', 'dpo'];

/** The default of --max_length; a smaller limit of the model wins. */
const MAX_LENGTH = 1024;

/** Arguments that apply only to rows of text. */
const OF_TEXTS = [
  ...(['packing', 'eval_packing', 'packing_strategy', 'completion_only_loss', 'task'] as const),
  ...(['assistant_only_loss', 'streaming', 'dataset_text_field', 'sample'] as const),
];

/** Names of next-token losses in TRL's SFT. */
const NEXT_TOKENS = ['nll', 'chunked_nll'];

/** Model and data of a method. */
export interface PreferenceMaterial {
  model: CausalLM;
  method: TrainingMethod;
  train: PairDataset;
  eval?: EvalOptions<unknown, unknown>;
  /** A description of each dataset, one line each. */
  lines: string[];
}

/**
 * Whether the arguments select preference optimization. Throws DS_ARGUMENT for an unknown method,
 * and for arguments that belong to the other method.
 */
export function isPreference(args: CheckedArguments): boolean {
  const { method = 'sft', loss_type: losses = [] } = args;
  requireOneOf('--method', method, METHODS);
  if (method === 'dpo') {
    const odd = OF_TEXTS.find((name) => args[name] !== undefined && args[name] !== false);
    if (odd) throw refused(`--${odd}`, 'no --method dpo', 'both');
    return true;
  }
  const isPlain = losses.every((name) => NEXT_TOKENS.includes(name));
  const own = {
    ...fromArguments(DPO, args),
    loss_type: isPlain ? undefined : losses,
    ref_model_name_or_path: args.ref_model_name_or_path,
  };
  const alone = Object.entries(own).find(([, value]) => value !== undefined)?.[0];
  if (alone) throw refused(`--method ${method}`, `--method dpo beside ${alone}`, method);
  return false;
}

/** Reads the rows and the models. Throws DS_DATA, DS_CHECKPOINT, DS_IO, DS_ARGUMENT. */
export async function openPreferences(
  args: CheckedArguments,
  { tokenizer, evaluation }: { tokenizer: Tokenizer; evaluation: Evaluation | null },
): Promise<PreferenceMaterial> {
  const { train_file: files, validation_file: judged } = args;
  const model = await openModel(args);
  const { maxSeq } = model;
  const { max_length: length = Math.min(MAX_LENGTH, maxSeq) } = args;
  if (length > maxSeq || length < 2) {
    throw refused('--max_length', `2 to ${maxSeq}, which the model takes`, String(length));
  }
  const open = (rows: readonly string[]) => PairDataset.open({ tokenizer, files: rows, length });
  const train = await open(files);
  const lines = [`learns from ${files.join(', ')}: ${described(train)}`];
  const held = evaluation && judged ? await open(judged) : null;
  if (held) lines.push(`judged by ${judged?.join(', ')}: ${described(held)}`);
  const isKnown = train.hasReference && held?.hasReference !== false;
  const reference = await openReference(args, isKnown);
  const method = dpo({
    ...fromArguments(DPO, args),
    ...(args.loss_type && { loss: args.loss_type as readonly PairLossName[] }),
    ...(reference && { reference }),
  });
  if (!evaluation || !held) return { model, method, train, lines };
  return { model, method, train, eval: { ...evaluation, data: held as never }, lines };
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
  throw refused('--config_name', 'a model or --use_peft for --method dpo', 'new weights', hint);
}

function described({ report: { pairs, dropped, cut } }: PairDataset): string {
  const lost = dropped > 0 ? [`${dropped} left out, without room for an answer`] : [];
  return [`${pairs} pairs`, ...lost, ...(cut > 0 ? [`${cut} with a cut answer`] : [])].join(', ');
}
