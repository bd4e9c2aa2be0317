// Evaluates multiple-choice tasks: the accuracy of the choice with the largest log-likelihood.
import type { CausalLM } from '../models/index.js';
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireType } from '../runtime/require-type.js';
import { required } from '../runtime/required.js';
import { readColumns } from '../text/columns.js';
import { divideFiles, findFiles } from '../text/row-files.js';
import { type LocatedRow, readRows } from '../text/row-reader.js';
import { LANGUAGE_MODELS, prepareEvaluation } from './evaluated-model.js';
import {
  computeLikelihoods,
  encodeRequest,
  type LikelihoodOptions,
  requireBos,
} from './log-likelihoods.js';

/** Options of evaluateChoices(). */
export interface ChoiceOptions extends LikelihoodOptions {
  /** Files, folders and patterns, as in TextOptions.files. */
  files: string | readonly string[];
  /** New names of columns by their names in the files. Default: none. */
  columns?: Readonly<Record<string, string>>;
  /** Text between a context and a choice. Default: one space. */
  delimiter?: string;
}

/** The answer of the model to one question. */
export interface Answer {
  /** The log-likelihood of each choice. */
  logLikelihoods: number[];
  /** Index of the choice with the largest log-likelihood. */
  choice: number;
  /** Index of the choice with the largest log-likelihood per character. */
  normalizedChoice: number;
  /** Indices of the correct choices. */
  correct: readonly number[];
}

/** Result of evaluateChoices(). */
export interface ChoiceEvaluation {
  /** Fraction of correctly answered questions. */
  accuracy: number;
  /** Standard error of `accuracy`; null for a single question. */
  accuracyStderr: number | null;
  /** `accuracy` with log-likelihoods divided by the number of characters of the choice. */
  normalizedAccuracy: number;
  /** Standard error of `normalizedAccuracy`; null for a single question. */
  normalizedAccuracyStderr: number | null;
  /** Number of questions in the files. */
  questions: number;
  /** Number of choices with a context that was cut from the left. */
  cut: number;
  /** The answer to each question, in the order of the files. */
  answers: Answer[];
}

/**
 * Answers multiple-choice questions by log-likelihood. A row of the files is { context (or prompt),
 * choices, answer }; `answer` is the index of a choice, its text, or a list of these. The model
 * scores context + delimiter + choice as logLikelihoods() does. For equal scores, the first choice
 * counts. Source: the output type multiple_choice of lm-evaluation-harness, with acc and acc_norm.
 *
 * Rejects as logLikelihoods() does, and with DS_DATA for rows of another form.
 */
export async function evaluateChoices(
  model: CausalLM,
  given: ChoiceOptions,
): Promise<ChoiceEvaluation> {
  const op = 'evaluateChoices';
  const options = readOptions(op, given, namesOf.ChoiceOptions);
  const { delimiter = ' ', addBos = false, onProgress } = options;
  requireType(`${op} delimiter`, delimiter, 'string');
  const parts = await prepareEvaluation(op, model, options, LANGUAGE_MODELS);
  requireBos(op, addBos, parts.tokenizer);
  const questions = await readQuestions(op, options);
  const requests = questions.flatMap(({ context, choices, location }) =>
    choices.map((choice) =>
      encodeRequest(parts, { context, continuation: `${delimiter}${choice}`, addBos, location }),
    ),
  );
  const likelihoods = await computeLikelihoods(parts, requests, onProgress);
  let next = 0;
  const answers = questions.map(({ choices, correct }): Answer => {
    const scores = choices.map(() => required(likelihoods[next++]?.logLikelihood));
    const perCharacter = scores.map((score, i) => score / countCharacters(required(choices[i])));
    return {
      logLikelihoods: scores,
      choice: findLargest(scores),
      normalizedChoice: findLargest(perCharacter),
      correct,
    };
  });
  const hits = answers.map(({ choice, correct }) => Number(correct.includes(choice)));
  const normalizedHits = answers.map((answer) =>
    Number(answer.correct.includes(answer.normalizedChoice)),
  );
  return {
    accuracy: computeMean(hits),
    accuracyStderr: computeStandardError(hits),
    normalizedAccuracy: computeMean(normalizedHits),
    normalizedAccuracyStderr: computeStandardError(normalizedHits),
    questions: questions.length,
    cut: likelihoods.filter(({ cut }) => cut > 0).length,
    answers,
  };
}

/** Returns the number of code points, which are Python's characters. */
const countCharacters = (text: string): number => [...text].length;

/** Returns the index of the first largest value; NaN is never the largest. */
const findLargest = (values: readonly number[]): number =>
  values.reduce((best, value, i) => (value > required(values[best]) ? i : best), 0);

const computeMean = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * Returns the standard error of the mean, from the sample standard deviation; null for fewer than
 * two values.
 */
function computeStandardError(values: readonly number[]): number | null {
  const { length } = values;
  if (length < 2) return null;
  const center = computeMean(values);
  const squares = values.reduce((sum, value) => sum + (value - center) ** 2, 0);
  return Math.sqrt(squares / (length - 1) / length);
}

// Reads the questions of multiple-choice files.

/** A question with its choices. */
interface Question {
  context: string;
  choices: readonly string[];
  /** Indices of the correct choices. */
  correct: readonly number[];
  /** The file and the line of the question, for errors. */
  location: string;
}

/**
 * Returns all questions of the files. Throws DS_ARGUMENT if no file matches, DS_DATA with file and
 * line for invalid rows.
 */
async function readQuestions(op: string, { files, columns }: ChoiceOptions): Promise<Question[]> {
  const paths = findFiles(`${op} files`, files);
  const renamed = readColumns(`${op} columns`, columns);
  const questions: Question[] = [];
  for (const part of await divideFiles(paths, false, renamed)) {
    for await (const row of readRows(part)) questions.push(parseQuestion(row));
  }
  if (questions.length > 0) return questions;
  throw dataError(paths.slice(0, 3).join(', '), 'at least one row with a question', 'none');
}

function parseQuestion({ row, location: formatLocation }: LocatedRow): Question {
  const location = formatLocation();
  const { context = row.prompt, choices, answer } = row;
  if (typeof context !== 'string') {
    throw dataError(location, 'a string "context" or "prompt"', formatValue(context));
  }
  const isText = (value: unknown): boolean => typeof value === 'string' && value !== '';
  if (!Array.isArray(choices) || choices.length < 2 || !choices.every(isText)) {
    throw dataError(location, '"choices", a list of two strings or more', formatValue(choices));
  }
  const answers = Array.isArray(answer) ? answer : [answer];
  const correct = answers.map((answer) =>
    typeof answer === 'string' ? choices.indexOf(answer) : answer,
  );
  const isChoice = (value: unknown): boolean =>
    typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < choices.length;
  if (correct.length === 0 || !correct.every(isChoice)) {
    const expected = `"answer", a number from 0 to ${choices.length - 1} or the text of a choice`;
    throw dataError(location, expected, formatValue(answer));
  }
  return { context, choices, correct: correct as number[], location };
}
