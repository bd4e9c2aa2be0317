// Checks the model and the tokenizer of an evaluation, and runs batches in evaluation mode.

import { distributed } from '../comm/index.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { CausalLM, type TaskModel } from '../models/index.js';
import type { Module } from '../nn/module.js';
import { sourceFolderOf } from '../nn/source-folder.js';
import type { Device } from '../runtime/device.js';
import { waitForEventLoop } from '../runtime/event-loop.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { requireInteger } from '../runtime/require-number.js';
import { requireType } from '../runtime/require-type.js';
import { noGrad, scope, trainerOf } from '../tensor/index.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';
import { Tokenizer } from '../text/index.js';
import { TOKENIZER_FILE } from '../text/tokenizer-folder.js';

/** Options of every evaluation. */
export interface EvaluatedOptions {
  /** A tokenizer, or its folder. Default: the tokenizer in the folder of the model. */
  tokenizer?: Tokenizer | string;
  /** Number of rows per forward pass. Default: 8. */
  batchSize?: number;
  /** Called after each batch with the numbers of finished and of all rows. */
  onProgress?: (done: number, total: number) => void;
}

/** The checked model, tokenizer and options of an evaluation. */
export interface EvaluationSetup<Model extends CausalLM | TaskModel = CausalLM> {
  model: Model;
  tokenizer: Tokenizer;
  device: Device;
  batchSize: number;
}

const DEFAULT_BATCH = 8;

/** A class of models, and its name in errors. */
interface ModelKind<Model> {
  is(model: unknown): model is Model;
  name: string;
}

/** Language models. */
export const LANGUAGE_MODELS: ModelKind<CausalLM> = {
  is: (model) => model instanceof CausalLM,
  name: 'a causal language model (nn.models)',
};

/**
 * Checks the model and the options that all evaluations share. Throws DS_ARGUMENT for an object
 * that is not a model of `kind`, a model that an engine owns or that has no tokenizer, and for a
 * job of several ranks.
 */
export async function prepareEvaluation<Model extends CausalLM | TaskModel>(
  op: string,
  model: unknown,
  { tokenizer, batchSize = DEFAULT_BATCH }: EvaluatedOptions,
  kind: ModelKind<Model>,
): Promise<EvaluationSetup<Model>> {
  if (!kind.is(model)) throw valueError(`${op} model`, kind.name, model);
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
    tokenizer: await openTokenizer(op, model, tokenizer),
    device: first.device,
    batchSize: requireInteger(`${op} batchSize`, batchSize, 1),
  };
}

async function openTokenizer(
  op: string,
  model: Module,
  tokenizer: Tokenizer | string | undefined,
): Promise<Tokenizer> {
  if (tokenizer instanceof Tokenizer) return tokenizer;
  if (tokenizer !== undefined && typeof tokenizer !== 'string') {
    throw valueError(`${op} tokenizer`, 'a Tokenizer, or the folder of one', tokenizer);
  }
  const source = tokenizer ?? sourceFolderOf(model);
  const folder = source && (await findOrPullFolder(op, source, { need: 'tokenizer' }));
  if (folder && (tokenizer !== undefined || hasTokenizer(folder)))
    return Tokenizer.fromPretrained(folder);
  const got = folder ? `${folder} without ${TOKENIZER_FILE}` : 'a model without a folder';
  throw argumentError(`${op} tokenizer`, 'a tokenizer', got, 'Set `tokenizer`.');
}

/**
 * Divides the rows of a batch into groups with equal rotary angles: each row is a group if the
 * model's angles depend on the length of the batch.
 */
export function groupByAngles<Row>(
  model: CausalLM,
  rows: readonly Row[],
  lengthOf: (row: Row) => number,
): (readonly Row[])[] {
  const lengths = rows.map(lengthOf);
  const differ = model.rereads(Math.min(...lengths), Math.max(...lengths));
  return differ ? rows.map((row) => [row]) : [rows];
}

/**
 * Runs `step` on each batch of `rows` in evaluation mode, without a tape. Yields to the event loop
 * between two batches.
 */
export async function runBatches<Row>(
  { model, batchSize }: EvaluationSetup<CausalLM | TaskModel>,
  rows: { length: number; get(index: number): Row },
  step: (batch: Row[], first: number) => void,
  onProgress: EvaluatedOptions['onProgress'],
): Promise<void> {
  if (onProgress !== undefined) requireType('evaluation onProgress', onProgress, 'function');
  const { training } = model;
  model.eval();
  try {
    for (let first = 0; first < rows.length; first += batchSize) {
      const count = Math.min(batchSize, rows.length - first);
      const batch = Array.from({ length: count }, (_, i) => rows.get(first + i));
      noGrad(() => scope(() => step(batch, first)));
      onProgress?.(first + count, rows.length);
      await waitForEventLoop();
    }
  } finally {
    if (training) model.train();
  }
}
