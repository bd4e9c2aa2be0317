// Finds the answer in a row of question answering, in the two forms of SQuAD.
import { formatValue } from '../runtime/format-value.js';
import { dataError } from '../runtime/input-errors.js';
import { isObject } from '../runtime/is-object.js';
import { plainNumber } from './labelled-rows.js';
import type { LocatedRow } from './row-reader.js';

/** The answer in a context; `start` counts UTF-16 units, as strings of JavaScript do. */
interface Answer {
  text: string;
  start: number;
}

const FORM =
  '"answers" as { text: [..], answer_start: [..] }, or as a list of { text, answer_start }';
const SHOWN = 40;

/**
 * Returns the first answer of a row; null if the row has none, or an empty one. Throws DS_DATA for
 * answers in another form, and for a text that the context does not have at its start.
 */
export function readAnswer({ row, location }: LocatedRow, context: string): Answer | null {
  const { answers } = row;
  if (answers === undefined || answers === null) return null;
  const first = firstOf(answers);
  if (first === null) return null;
  const { text, start } = first;
  if (typeof text !== 'string' || !Number.isSafeInteger(start)) {
    throw dataError(location(), FORM, formatValue(answers));
  }
  if (text === '') return null; // Some sets mark questions without an answer by "" at -1.
  // Python counts code points, JavaScript UTF-16 units.
  const at = [unitsBefore(context, start as number), start as number].find(
    (units) => (start as number) >= 0 && context.startsWith(text, units),
  );
  if (at !== undefined) return { text, start: at };
  const expected = `the answer ${formatValue(text)} at character ${start} of the context`;
  const from = Math.max(0, start as number);
  const got = formatValue(context.slice(from, from + SHOWN));
  throw dataError(location(), expected, got, 'Correct answer_start.');
}

/** Returns the first answer, unchecked; null for an empty list. */
function firstOf(answers: unknown): { text: unknown; start: unknown } | null {
  if (Array.isArray(answers)) {
    const [first] = answers;
    if (first === undefined) return null;
    const { text, answer_start: start } = isObject(first) ? first : {};
    return { text, start: plainNumber(start) };
  }
  const { text: texts, answer_start: starts } = isObject(answers) ? answers : {};
  if (Array.isArray(texts) && texts.length === 0) return null;
  const [text] = Array.isArray(texts) ? texts : [undefined];
  const [start] = Array.isArray(starts) ? starts : [undefined];
  return { text, start: plainNumber(start) };
}

/** Returns the number of UTF-16 units of the first `points` code points. */
function unitsBefore(text: string, points: number): number {
  let units = 0;
  for (let i = 0; i < points && units < text.length; ++i) {
    units += (text.codePointAt(units) ?? 0) > 0xffff ? 2 : 1;
  }
  return units;
}
