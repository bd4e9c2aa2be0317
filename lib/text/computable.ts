// Rewrites a tokenizer.json so that @huggingface/tokenizers returns the results of the Rust crate.
import { charsmapOf } from './charsmap.js';

type Step = Record<string, unknown>;

/** The crate's is_numeric(). */
const NUMERIC = '\\p{N}';
const PUNCTUATION = '[\\p{P}!-/:-@\\[-`{-~]';
/** The crate's \w, joiners included. */
const LETTER = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';
const WORDS = `[${LETTER}]+|[^${LETTER}\\s]+`;
/** GPT-2's. */
const PIECES = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const split = (Regex: string, behavior = 'Isolated', invert = false): Step => ({
  ...{ type: 'Split', pattern: { Regex }, behavior, invert },
});

/**
 * Steps that the library splits differently, rewritten as splits by regular expressions.
 * JavaScript's own classes cover only ASCII, or other white space.
 */
const REWRITTEN: Readonly<Record<string, (step: Step) => Step>> = {
  Digits: ({ individual_digits: single }) => split(single ? NUMERIC : `${NUMERIC}+`),
  Punctuation: ({ behavior = 'Isolated' }) =>
    behavior === 'Contiguous' ? split(`${PUNCTUATION}+`) : split(PUNCTUATION, behavior as string),
  Whitespace: () => split(WORDS, 'Removed', true),
  BertPreTokenizer: () => sequence([split('\\s+', 'Removed'), split(PUNCTUATION)]),
  FixedLength: ({ length = 5 }) => split(`[\\s\\S]{1,${length}}`),
  WhitespaceSplit: () => split('\\s+', 'Removed'),
  Split: isolated,
  ByteLevel: (step) =>
    step.use_regex === false || step.add_prefix_space
      ? step
      : sequence([split(PIECES), { ...step, use_regex: false }]),
  Metaspace: marked,
  Sequence: (step) => sequence((step.pretokenizers as Step[]).map(rewritten)),
};

const sequence = (pretokenizers: readonly Step[]): Step => ({ type: 'Sequence', pretokenizers });

/** `invert` has no effect on isolated splits. A literal pattern is escaped. */
function isolated(step: Step): Step {
  const { pattern, behavior = 'Isolated' } = step;
  const { String: text } = (pattern ?? {}) as { String?: string };
  const invert = behavior === 'Isolated' ? false : step.invert;
  const own = text === undefined ? {} : { pattern: { Regex: escaped(text) } };
  return { ...step, behavior, invert, ...own };
}

/** A Metaspace by its scheme: before there was one, false meant "never". */
export function prefixing(step: Step): Step {
  return step.add_prefix_space === false ? { ...step, prepend_scheme: 'never' } : step;
}

/** Splits before each mark. */
function marked(step: Step): Step {
  const { replacement = '▁', split: isCut = true } = step;
  const own = prefixing(step);
  const mark = escaped(replacement as string);
  return isCut ? sequence([own, split(`${mark}[^${mark}]*|[^${mark}]+`)]) : own;
}

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

const rewritten = (step: Step): Step => REWRITTEN[String(step.type)]?.(step) ?? step;

/**
 * The library replaces a Precompiled table by NFKC. A Replace step with a function applies the
 * table itself.
 */
function normalizing(step: unknown): unknown {
  if (typeof step !== 'object' || step === null) return step;
  const { type, normalizers, precompiled_charsmap: table } = step as Step;
  if (type === 'Precompiled') {
    return { type: 'Replace', pattern: { Regex: '[\\s\\S]+' }, content: charsmapOf(table) };
  }
  return Array.isArray(normalizers) ? { ...step, normalizers: normalizers.map(normalizing) } : step;
}

/** `tokenizer`, the content of a tokenizer.json, with steps that the library takes as meant. */
export function computable<T extends object>(tokenizer: T): T {
  const { pre_tokenizer: step, normalizer } = tokenizer as Record<string, unknown>;
  const own = {
    ...(typeof step === 'object' && step !== null
      ? { pre_tokenizer: rewritten(step as Step) }
      : {}),
    ...(normalizer === undefined ? {} : { normalizer: normalizing(normalizer) }),
  };
  return { ...tokenizer, ...own };
}
