// The model and the tokenizer of an evaluation, checked and in evaluation mode.
import { setImmediate as turn } from 'node:timers/promises';
import { distributed } from '../comm/index.js';
import { localFolder } from '../hub/local-folder.js';
import { CausalLM } from '../models/index.js';
import { sourceFolderOf } from '../nn/source-folder.js';
import type { Device } from '../runtime/device.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { requireInteger } from '../runtime/require-number.js';
import { noGrad, scope, trainerOf } from '../tensor/index.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';
import { Tokenizer } from '../text/index.js';
import { TOKENIZER_FILE } from '../text/tokenizer-folder.js';

/** Options of every evaluation. */
export interface EvaluatedOptions {
  /** A tokenizer, or its folder. Default: the tokenizer in the folder of the model. */
  tokenizer?: Tokenizer | string;
  /** Rows of a forward. Default 8. */
  batchSize?: number;
  /** Called after each batch with the finished and all rows. */
  onProgress?: (done: number, total: number) => void;
}

/** The parts of an evaluation. */
export interface Evaluated {
  model: CausalLM;
  tokenizer: Tokenizer;
  device: Device;
  batchSize: number;
}

const BATCH = 8;

/**
 * Checks the model and the options that all evaluations share. Throws DS_ARGUMENT for a model that
 * is no language model, that an engine owns, or that has no tokenizer, and for a job of several
 * ranks.
 */
export async function requireEvaluated(
  op: string,
  model: unknown,
  { tokenizer, batchSize = BATCH }: EvaluatedOptions,
): Promise<Evaluated> {
  if (!(model instanceof CausalLM)) {
    throw valueError(`${op} model`, 'a causal language model (nn.models)', model);
  }
  const [first] = model.parameters();
  if (!first || model.parameters().some((parameter) => trainerOf(parameter) !== null)) {
    const hint = 'Trainer.evaluate() evaluates a model in training.';
    throw argumentError(`${op} model`, 'a model without an engine', 'a model of an engine', hint);
  }
  const ranks = distributed()?.worldSize ?? 1;
  if (ranks > 1) {
    const hint = 'Trainer.evaluate() divides the rows among ranks.';
    throw argumentError(op, 'a job of one process', `a job of ${ranks} ranks`, hint);
  }
  return {
    model,
    tokenizer: await tokenizerOf(op, model, tokenizer),
    device: first.device,
    batchSize: requireInteger(`${op} batchSize`, batchSize, 1),
  };
}

async function tokenizerOf(
  op: string,
  model: CausalLM,
  given: Tokenizer | string | undefined,
): Promise<Tokenizer> {
  if (given instanceof Tokenizer) return given;
  if (given !== undefined && typeof given !== 'string') {
    throw valueError(`${op} tokenizer`, 'a Tokenizer, or the folder of one', given);
  }
  const place = given ?? sourceFolderOf(model);
  const folder = place && (await localFolder(op, place, { need: 'tokenizer' }));
  if (folder && (given !== undefined || hasTokenizer(folder)))
    return Tokenizer.fromPretrained(folder);
  const got = folder ? `${folder} without ${TOKENIZER_FILE}` : 'a model without a folder';
  throw argumentError(`${op} tokenizer`, 'a tokenizer', got, 'Set `tokenizer`.');
}

/**
 * Divides the rows of a batch: each is alone if the rotary angles of the model depend on the length
 * of its batch.
 */
export function sameAngles<Row>(
  model: CausalLM,
  rows: readonly Row[],
  lengthOf: (row: Row) => number,
): (readonly Row[])[] {
  const lengths = rows.map(lengthOf);
  const differ = model.rereads(Math.min(...lengths), Math.max(...lengths));
  return differ ? rows.map((row) => [row]) : [rows];
}

/**
 * Runs `step` on each batch of `rows` in evaluation mode, without a tape. Other work of the process
 * runs between two batches.
 */
export async function eachBatch<Row>(
  { model, batchSize }: Evaluated,
  rows: { length: number; get(index: number): Row },
  step: (batch: Row[], first: number) => void,
  onProgress: EvaluatedOptions['onProgress'],
): Promise<void> {
  const { training } = model;
  model.eval();
  try {
    for (let first = 0; first < rows.length; first += batchSize) {
      const count = Math.min(batchSize, rows.length - first);
      const batch = Array.from({ length: count }, (_, i) => rows.get(first + i));
      noGrad(() => scope(() => step(batch, first)));
      onProgress?.(first + count, rows.length);
      await turn();
    }
  } finally {
    if (training) model.train();
  }
}
