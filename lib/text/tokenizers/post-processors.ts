// Post-processors put special tokens around the ids of a text.

import { dataError } from '../../runtime/input-errors.js';
import { leading } from '../../runtime/required.js';
import { Fields, requireId } from './fields.js';

type PostProcessor = (ids: readonly number[]) => readonly number[];
type IdOf = (token: string) => number | undefined;

/** Tokens around every text. */
export interface Bounds {
  readonly prefix: readonly number[];
  readonly suffix: readonly number[];
}

/** Placeholder for the ids of the text. */
const TEXT = -1;

/**
 * Returns the tokens that the post-processor of a tokenizer.json puts around a text. Throws DS_DATA
 * if it changes more than both ends of the text.
 */
export function readBounds(location: string, content: unknown, idOf: IdOf): Bounds {
  if (content === null || content === undefined) return { prefix: [], suffix: [] };
  const ids = new Fields(location, content).build(createBuilders(idOf))([TEXT]);
  const at = ids.indexOf(TEXT);
  if (at < 0 || ids.includes(TEXT, at + 1)) {
    const expected = 'a post-processor that only adds tokens before and after a text';
    throw dataError(
      location,
      expected,
      'another kind of post-processor',
      'Use a tokenizer without it: this kind is not supported.',
    );
  }
  return { prefix: ids.slice(0, at), suffix: ids.slice(at + 1) };
}

/** An id of a pair, and the index of its text. */
interface TypedId {
  readonly id: number;
  readonly type: number;
}

/** A part of a pair: the ids of one text, or a special token. */
type PairPart = { readonly text: 0 | 1; readonly type: number } | TypedId;

/**
 * Returns the parts of an encoded pair, by the post-processor of a tokenizer.json. Without one, the
 * second text follows the first. Throws DS_DATA for an unknown type or a token outside the
 * vocabulary.
 */
export function readPair(location: string, content: unknown, idOf: IdOf): readonly PairPart[] {
  const both: PairPart[] = [
    { text: 0, type: 0 },
    { text: 1, type: 1 },
  ];
  if (content === null || content === undefined) return both;
  return readPairParts(new Fields(location, content), idOf) ?? both;
}

/** Returns the parts of a pair; null for steps that add no ids. */
function readPairParts(fields: Fields, idOf: IdOf): PairPart[] | null {
  const kind = fields.get('type');
  if (kind === 'Sequence') {
    const steps = fields.each('processors').map((step) => readPairParts(step, idOf));
    return steps.find((parts) => parts !== null) ?? null;
  }
  if (kind === 'BertProcessing' || kind === 'RobertaProcessing') {
    const [first, last] = leading(
      ['cls', 'sep'].map((key) => requireId(`${fields.location}.${key}[1]`, fields.list(key)[1])),
      2,
    );
    // RoBERTa has two tokens between the texts, and the same type for both.
    const second = kind === 'BertProcessing' ? 1 : 0;
    const between = kind === 'BertProcessing' ? [] : [{ id: last, type: 0 }];
    return [
      { id: first, type: 0 },
      { text: 0, type: 0 },
      { id: last, type: 0 },
      ...between,
      { text: 1, type: second },
      { id: last, type: second },
    ];
  }
  return kind === 'TemplateProcessing' ? readPairTemplate(fields, idOf) : null;
}

function readPairTemplate(fields: Fields, idOf: IdOf): PairPart[] {
  const tokens = fields.object('special_tokens');
  return fields.each('pair').flatMap((item): PairPart[] => {
    if (item.get('Sequence') !== undefined) {
      const sequence = item.object('Sequence');
      const type = sequence.count('type_id', 0);
      return [{ text: sequence.text('id') === 'B' ? 1 : 0, type }];
    }
    const special = item.object('SpecialToken');
    const [token, type] = [special.text('id'), special.count('type_id', 0)];
    const ids = tokens.get(token) === undefined ? [idOf(token)] : tokens.object(token).list('ids');
    return ids.map((id) => ({ id: requireId(`${item.location}.SpecialToken.id`, id), type }));
  });
}

function createBuilders(idOf: IdOf): ReadonlyMap<string, (fields: Fields) => PostProcessor> {
  const builders = new Map<string, (fields: Fields) => PostProcessor>([
    ['BertProcessing', createPair],
    ['ByteLevel', () => (ids) => ids],
    ['RobertaProcessing', createPair],
    ['TemplateProcessing', (fields) => createTemplate(fields, idOf)],
  ]);
  return builders.set('Sequence', (fields) => {
    const steps = fields.each('processors').map((step) => step.build(builders));
    return (ids) => steps.reduce((form, step) => step(form), ids);
  });
}

/** Creates [CLS] text [SEP]; each key has a token and its id. */
function createPair(fields: Fields): PostProcessor {
  const [first, last] = leading(
    ['cls', 'sep'].map((key) => requireId(`${fields.location}.${key}[1]`, fields.list(key)[1])),
    2,
  );
  return (ids) => [first, ...ids, last];
}

function createTemplate(fields: Fields, idOf: IdOf): PostProcessor {
  const tokens = fields.object('special_tokens');
  const parts = fields.each('single').map((item) => {
    if (item.get('Sequence') !== undefined) return null;
    const token = item.object('SpecialToken').text('id');
    if (tokens.get(token) === undefined) {
      return [requireId(`${item.location}.SpecialToken.id`, idOf(token))];
    }
    const tokenFields = tokens.object(token);
    return tokenFields.list('ids').map((id) => requireId(`${tokenFields.location}.ids`, id));
  });
  return (ids) => parts.flatMap((part) => part ?? ids);
}
