// Reads the questions of multiple-choice files.
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/refused.js';
import { findFiles, partsOf } from '../text/row-files.js';
import { type LocatedRow, rowsOf } from '../text/row-reader.js';

/** A question with its choices. */
export interface Question {
  context: string;
  choices: readonly string[];
  /** Numbers of the correct choices, from 0. */
  correct: readonly number[];
  /** File and line. */
  place: string;
}

/** Reads all questions of the files. Throws DS_DATA with file and line, DS_ARGUMENT. */
export async function readQuestions(op: string, files: unknown): Promise<Question[]> {
  const found = findFiles(op, files);
  const questions: Question[] = [];
  for (const part of await partsOf(found, false)) {
    for await (const row of rowsOf(part)) questions.push(questionOf(row));
  }
  if (questions.length > 0) return questions;
  throw dataError(found.slice(0, 3).join(', '), 'a row with a question', 'none');
}

function questionOf({ row, location: placeOf }: LocatedRow): Question {
  const place = placeOf();
  const { context = row.prompt, choices, answer } = row;
  if (typeof context !== 'string') {
    throw dataError(place, 'a text "context" or "prompt"', formatValue(context));
  }
  const isText = (one: unknown): boolean => typeof one === 'string' && one !== '';
  if (!Array.isArray(choices) || choices.length < 2 || !choices.every(isText)) {
    throw dataError(place, '"choices", a list of two texts or more', formatValue(choices));
  }
  const answers = Array.isArray(answer) ? answer : [answer];
  const correct = answers.map((one) => (typeof one === 'string' ? choices.indexOf(one) : one));
  const isChoice = (one: unknown): boolean =>
    typeof one === 'number' && Number.isInteger(one) && one >= 0 && one < choices.length;
  if (correct.length === 0 || !correct.every(isChoice)) {
    const expected = `"answer", a number from 0 to ${choices.length - 1} or the text of a choice`;
    throw dataError(place, expected, formatValue(answer));
  }
  return { context, choices, correct: correct as number[], place };
}
