// Multiple-choice tasks: the accuracy of the likeliest choice.
import type { CausalLM } from '../models/index.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { type OptionNames, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { divideFiles, findFiles } from '../text/row-files.js';
import { type LocatedRow, readRows } from '../text/row-reader.js';
import { requireEvaluated } from './evaluated-model.js';
import { type LikelihoodOptions, likelihoodsOf, requestOf, requireBos } from './log-likelihoods.js';

/** Options of evaluateChoices(). */
export interface ChoiceOptions extends LikelihoodOptions {
  /** Files, folders and patterns, as TextOptions.files. */
  files: string | readonly string[];
  /** Text between a context and a choice. Default: one space. */
  delimiter?: string;
}

/** The answer of the model to one question. */
export interface Answer {
  /** The log-likelihood of each choice. */
  logLikelihoods: number[];
  /** Number of the likeliest choice. */
  choice: number;
  /** Number of the choice with the largest log-likelihood per character. */
  normalizedChoice: number;
  /** Numbers of the correct choices. */
  correct: readonly number[];
}

/** Result of evaluateChoices(). */
export interface ChoiceEvaluation {
  /** Fraction of correctly answered questions. */
  accuracy: number;
  /** Standard error of `accuracy`; null for a single question. */
  accuracyStderr: number | null;
  /** `accuracy` with log-likelihoods divided by the characters of the choice. */
  normalizedAccuracy: number;
  /** Standard error of `normalizedAccuracy`; null for a single question. */
  normalizedAccuracyStderr: number | null;
  /** Questions of the files. */
  questions: number;
  /** Number of choices with a context that was cut from the left. */
  cut: number;
  /** One for each question, in the order of the files. */
  answers: Answer[];
}

const OPTIONS: OptionNames<ChoiceOptions> = {
  tokenizer: true,
  batchSize: true,
  onProgress: true,
  addBos: true,
  files: true,
  delimiter: true,
};

/**
 * Answers multiple-choice questions by log-likelihood. A row of the files is { context (or prompt),
 * choices, answer }; `answer` is the number of a choice from 0, its text, or a list of these. The
 * model scores context + delimiter + choice as logLikelihoods() does. Of equal scores, the first
 * choice counts. Source: the output type multiple_choice of lm-evaluation-harness, with acc and
 * acc_norm.
 *
 * Rejects as logLikelihoods() does, and with DS_DATA for rows of another form.
 */
export async function evaluateChoices(
  model: CausalLM,
  given: ChoiceOptions,
): Promise<ChoiceEvaluation> {
  const op = 'evaluateChoices';
  const options = readOptions(op, given, OPTIONS);
  const { files, delimiter = ' ', addBos = false, onProgress } = options;
  requireType(`${op} delimiter`, delimiter, 'string');
  const parts = await requireEvaluated(op, model, options);
  requireBos(op, addBos, parts.tokenizer);
  const questions = await readQuestions(`${op} files`, files);
  const requests = questions.flatMap(({ context, choices, place }) =>
    choices.map((choice) =>
      requestOf(parts, { context, continuation: `${delimiter}${choice}`, addBos, place }),
    ),
  );
  const found = await likelihoodsOf(parts, requests, onProgress);
  let next = 0;
  const answers = questions.map(({ choices, correct }): Answer => {
    const scores = choices.map(() => required(found[next++]?.logLikelihood));
    const perCharacter = scores.map((score, i) => score / charactersOf(required(choices[i])));
    return {
      logLikelihoods: scores,
      choice: largest(scores),
      normalizedChoice: largest(perCharacter),
      correct,
    };
  });
  const hits = answers.map(({ choice, correct }) => Number(correct.includes(choice)));
  const normal = answers.map((answer) => Number(answer.correct.includes(answer.normalizedChoice)));
  return {
    accuracy: mean(hits),
    accuracyStderr: stderr(hits),
    normalizedAccuracy: mean(normal),
    normalizedAccuracyStderr: stderr(normal),
    questions: questions.length,
    cut: found.filter(({ cut }) => cut > 0).length,
    answers,
  };
}

/** Code points, as Python counts characters. */
const charactersOf = (text: string): number => [...text].length;

/** The first of the largest values; NaN is never the largest. */
const largest = (values: readonly number[]): number =>
  values.reduce((best, value, i) => (value > required(values[best]) ? i : best), 0);

const mean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

/** Standard error of the mean, by the sample's standard deviation. */
function stderr(values: readonly number[]): number | null {
  const { length } = values;
  if (length < 2) return null;
  const center = mean(values);
  const squares = values.reduce((sum, value) => sum + (value - center) ** 2, 0);
  return Math.sqrt(squares / (length - 1) / length);
}

// Reads the questions of multiple-choice files.

/** A question with its choices. */
interface Question {
  context: string;
  choices: readonly string[];
  /** Numbers of the correct choices, from 0. */
  correct: readonly number[];
  /** File and line. */
  place: string;
}

/** Reads all questions of the files. Throws DS_DATA with file and line, DS_ARGUMENT. */
async function readQuestions(op: string, files: unknown): Promise<Question[]> {
  const found = findFiles(op, files);
  const questions: Question[] = [];
  for (const part of await divideFiles(found, false)) {
    for await (const row of readRows(part)) questions.push(questionOf(row));
  }
  if (questions.length > 0) return questions;
  throw dataError(found.slice(0, 3).join(', '), 'at least one row with a question', 'none');
}

function questionOf({ row, location: placeOf }: LocatedRow): Question {
  const place = placeOf();
  const { context = row.prompt, choices, answer } = row;
  if (typeof context !== 'string') {
    throw dataError(place, 'a string "context" or "prompt"', formatValue(context));
  }
  const isText = (value: unknown): boolean => typeof value === 'string' && value !== '';
  if (!Array.isArray(choices) || choices.length < 2 || !choices.every(isText)) {
    throw dataError(place, '"choices", a list of two strings or more', formatValue(choices));
  }
  const answers = Array.isArray(answer) ? answer : [answer];
  const correct = answers.map((answer) =>
    typeof answer === 'string' ? choices.indexOf(answer) : answer,
  );
  const isChoice = (value: unknown): boolean =>
    typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < choices.length;
  if (correct.length === 0 || !correct.every(isChoice)) {
    const expected = `"answer", a number from 0 to ${choices.length - 1} or the text of a choice`;
    throw dataError(place, expected, formatValue(answer));
  }
  return { context, choices, correct: correct as number[], place };
}
