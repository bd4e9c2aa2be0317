// Normalizers: from a text to the text that is split and encoded. Source: the Rust crate
// tokenizers.

import { dataError } from '../../runtime/refused.js';
import { errorMessage } from '../../runtime/system-error.js';
import { charsmapOf } from '../charsmap.js';
import { lowercase, spaceEnd, spaceStart, spellBytes } from './characters.js';
import { Fields } from './fields.js';
import { readReplacement } from './pattern.js';

export type Normalizer = (text: string) => string;

const SPACES = /\p{White_Space}/gu;
/** Controls of the BERT normalizer; its clean-up keeps tabs and line breaks as spaces. */
const CONTROLS = /\uFFFD|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu;
const CHINESE =
  /[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu;
/** Controls that Nmt keeps, or makes spaces of, are left out. */
const NMT_DROPPED = /(?![\0\t\n\f\r\u0080-\u008E\u0090-\u009E])\p{Cc}/gu;
const NMT_SPACES = /[\t\n\f\r\u1680\u200B-\u200F\u2028\u2029\u2581\uFEFF\uFFFD]/g;

const form = (name: 'NFC' | 'NFD' | 'NFKC' | 'NFKD') => (): Normalizer => (text) =>
  text.normalize(name);

const BUILDERS: ReadonlyMap<string, (fields: Fields) => Normalizer> = new Map([
  ['BertNormalizer', bert],
  ['Lowercase', () => lowercase],
  ['NFC', form('NFC')],
  ['NFD', form('NFD')],
  ['NFKC', form('NFKC')],
  ['NFKD', form('NFKD')],
  ['Nmt', () => (text: string) => text.replace(NMT_DROPPED, '').replace(NMT_SPACES, ' ')],
  ['Strip', strip],
  ['StripAccents', () => (text: string) => text.replace(/\p{M}/gu, '')],
  ['Replace', readReplacement],
  ['Prepend', prepend],
  ['Precompiled', precompiled],
  ['ByteLevel', () => spellBytes],
  ['Sequence', sequence],
]);

/** The normalizer of a tokenizer.json; null without one. Throws DS_DATA. */
export function normalizerOf(location: string, content: unknown): Normalizer | null {
  return content === null || content === undefined
    ? null
    : new Fields(location, content).build(BUILDERS);
}

function sequence(fields: Fields): Normalizer {
  const steps = fields.each('normalizers').map((step) => step.build(BUILDERS));
  return (text) => steps.reduce((form, step) => step(form), text);
}

function bert(fields: Fields): Normalizer {
  const cleans = fields.flag('clean_text', true);
  const isolates = fields.flag('handle_chinese_chars', true);
  const lowers = fields.flag('lowercase', true);
  const strips = fields.flag('strip_accents', lowers);
  return (given) => {
    let text = given;
    if (cleans) text = text.replace(CONTROLS, '').replace(SPACES, ' ');
    if (isolates) text = text.replace(CHINESE, ' $& ');
    if (strips) text = text.normalize('NFD').replace(/\p{Mn}/gu, '');
    return lowers ? lowercase(text) : text;
  };
}

function strip(fields: Fields): Normalizer {
  const [left, right] = [fields.flag('strip_left', true), fields.flag('strip_right', true)];
  return (text) => {
    const start = left ? spaceEnd(text) : 0;
    return text.slice(start, right ? spaceStart(text, start) : text.length);
  };
}

function prepend(fields: Fields): Normalizer {
  const prefix = fields.text('prepend');
  return (text) => (text === '' ? '' : prefix + text);
}

function precompiled(fields: Fields): Normalizer {
  try {
    return charsmapOf(fields.get('precompiled_charsmap'));
  } catch (cause) {
    throw dataError(fields.location, 'a table of SentencePiece', errorMessage(cause));
  }
}
