// Computes loss, perplexity and accuracy of a language model on files of rows.
import type { CausalLM } from '../models/index.js';
import { argumentError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireInteger } from '../runtime/require-number.js';
import { LossReport } from '../tensor/index.js';
import { collateSamples, TextDataset, type TextOptions, targetsOf } from '../text/index.js';
import {
  type EvaluatedOptions,
  type EvaluationSetup,
  groupByAngles,
  LANGUAGE_MODELS,
  prepareEvaluation,
  runBatches,
} from './evaluated-model.js';

/** Options of evaluate(): the rows, as TextDataset reads them, and the batches. */
export interface EvaluationOptions
  extends EvaluatedOptions,
    Omit<TextOptions, 'tokenizer' | 'length'> {
  /** Tokens of a sample. Default: 1024, or the model's maximum if lower. */
  length?: number;
}

/** Result of evaluate(). */
export interface Evaluation {
  /** Mean negative log-likelihood of a token, in nats. */
  loss: number;
  /** exp(loss). */
  perplexity: number;
  /** Fraction of tokens with the largest logit. */
  accuracy: number;
  /** Number of tokens that the loss counts. */
  tokens: number;
  /** Number of samples that the model reads: rows, or packed rows. */
  samples: number;
  /** Number of rows in the files. */
  rows: number;
  /** Number of rows that are longer than a sample. */
  cutRows: number;
}

const DEFAULT_LENGTH = 1024;

/**
 * Computes the mean loss of `model` over the tokens of `options.files`. Rows become samples as in
 * training; without `packing`, each row is a sample of its own. The loss is the
 * cross-entropy without the loss of routers. The model stays on its device, in its dtype and mode.
 *
 * Rejects with DS_ARGUMENT for wrong options, a model that an engine owns, and a job of several
 * ranks; DS_DATA for rows that cannot be read.
 */
export async function evaluate(model: CausalLM, given: EvaluationOptions): Promise<Evaluation> {
  const op = 'evaluate';
  const {
    tokenizer: tokenizerOption,
    batchSize,
    ...options
  } = readOptions(op, given, namesOf.EvaluationOptions);
  const evaluated = await prepareEvaluation(
    op,
    model,
    { tokenizer: tokenizerOption, batchSize },
    LANGUAGE_MODELS,
  );
  const {
    onProgress,
    length = Math.min(DEFAULT_LENGTH, model.maxSeq),
    packing = false,
    ...textOptions
  } = options;
  requireInteger(`${op} length`, length, 2);
  if (length > model.maxSeq) {
    throw argumentError(
      `${op} length`,
      `at most ${model.maxSeq}, the maximum of the model`,
      String(length),
    );
  }
  const { tokenizer } = evaluated;
  const data = await TextDataset.open({ ...textOptions, length, packing, tokenizer });
  const sums = await sumLosses(evaluated, data, packing, onProgress);
  const loss = sums.loss / sums.counted;
  const { rows = 0, cutRows = 0 } = data.report ?? {};
  return {
    loss,
    perplexity: Math.exp(loss),
    accuracy: sums.correct / sums.counted,
    tokens: sums.counted,
    samples: data.length,
    rows,
    cutRows,
  };
}

/** The sum of the losses of counted tokens, their number, and the number with the largest logit. */
interface LossSums {
  loss: number;
  counted: number;
  correct: number;
}

/** Runs the model on all samples of `data`. `isPacked`: a sample may have several documents. */
async function sumLosses(
  evaluated: EvaluationSetup,
  data: TextDataset,
  isPacked: boolean,
  onProgress: EvaluatedOptions['onProgress'],
): Promise<LossSums> {
  const { model, tokenizer, device } = evaluated;
  const collate = collateSamples(tokenizer.padId ?? tokenizer.eosId ?? 0);
  const report = new LossReport(device);
  const sums: LossSums = { loss: 0, counted: 0, correct: 0 };
  try {
    await runBatches(
      evaluated,
      data,
      (batch) => {
        for (const samples of groupByAngles(model, batch, ({ ids }) => ids.length)) {
          const { ids, labels, documents, positions } = collate([...samples], device);
          report.reset();
          // A single document needs no mask: attention is causal, and padding is on the right.
          const inputs = { ...(isPacked && { documents, positions }), loss: { report } };
          const loss = model.tokenLoss(ids, targetsOf(labels), inputs).item();
          const { counted, correct } = report.read();
          if (counted > 0) sums.loss += loss * counted;
          sums.counted += counted;
          sums.correct += correct;
        }
      },
      onProgress,
    );
  } finally {
    report.dispose();
  }
  return sums;
}
