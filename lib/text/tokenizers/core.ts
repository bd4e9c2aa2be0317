// Runs a tokenizer.json like the Rust crate tokenizers: added tokens, normalizer, pre-tokenizer,
// model, post-processor and decoder.
import { formatValue } from '../../runtime/format-value.js';
import { dataError } from '../../runtime/input-errors.js';
import { isObject } from '../../runtime/is-object.js';
import { type AddedToken, AddedTokens } from './added-tokens.js';
import { createDecoder, type Decoder } from './decoders.js';
import { Fields, requireId } from './fields.js';
import type { Model } from './model.js';
import { createModel } from './models.js';
import { createNormalizer, type Normalizer } from './normalizers.js';
import { countLeading } from './pattern.js';
import { type Bounds, readBounds, readPair } from './post-processors.js';
import { createPreTokenizer, type PreTokenizer } from './pre-tokenizers.js';

/**
 * Maximum characters that countLead() normalizes to find the normalized form of the first
 * character.
 */
const MAX_PROBED = 1000;

export class CoreTokenizer {
  /** Tokens by id; undefined for an unused id. */
  readonly vocab: readonly (string | undefined)[];
  readonly added: ReadonlyMap<number, AddedToken>;
  /** Tokens that the post-processor puts around a text. */
  readonly bounds: Bounds;
  private readonly processor: readonly [location: string, content: unknown];
  private parts: ReturnType<typeof readPair> | null = null;
  private readonly model: Model;
  private readonly normalizer: Normalizer | null;
  private readonly preTokenizer: PreTokenizer | null;
  private readonly decoder: Decoder | null;
  private readonly partialDecoder: Decoder | null;
  /** Whether a Metaspace step marks only pieces at the start of a text. */
  private readonly marksStart: boolean;
  private readonly addedIds: ReadonlyMap<string, number>;
  /** Normalized spelling of added tokens, by id. */
  private readonly spellings: ReadonlyMap<number, string>;
  private readonly raw: AddedTokens;
  private readonly normalized: AddedTokens;

  /**
   * `content` is the parsed tokenizer.json at `location`. Throws DS_DATA for a missing, invalid or
   * unsupported part.
   */
  constructor(location: string, content: Readonly<Record<string, unknown>>) {
    this.model = createModel(`${location} model`, content.model);
    const normalizer = createNormalizer(`${location} normalizer`, content.normalizer);
    this.normalizer = normalizer;
    this.preTokenizer = createPreTokenizer(`${location} pre_tokenizer`, content.pre_tokenizer);
    this.decoder = createDecoder(`${location} decoder`, content.decoder, false);
    this.partialDecoder = createDecoder(`${location} decoder`, content.decoder, true);
    this.marksStart = /"first"/i.test(JSON.stringify(content.pre_tokenizer ?? null));
    const added = readAdded(location, content.added_tokens);
    this.added = new Map(added.map((token) => [token.id, token]));
    this.addedIds = new Map(added.map(({ content: text, id }) => [text, id]));
    const vocab: (string | undefined)[] = [];
    for (const [token, id] of this.model.ids) vocab[id] = token;
    for (const { content: text, id } of added) vocab[id] = text;
    this.vocab = vocab;
    const find = (tokens: readonly AddedToken[], form: Normalizer): AddedTokens =>
      new AddedTokens(
        tokens,
        tokens.map((token) => form(token.content)),
      );
    // Special tokens take precedence, as in the crate.
    const ordered = [...added].sort((a, b) => Number(b.special) - Number(a.special));
    this.raw = find(
      ordered.filter((token) => !token.normalized),
      (text) => text,
    );
    this.normalized = find(
      ordered.filter((token) => token.normalized),
      normalizer ?? ((text) => text),
    );
    const changed = normalizer ? added.filter((token) => token.normalized) : [];
    this.spellings = new Map(
      changed.map(({ id, content: text }) => [id, normalizer?.(text) ?? text]),
    );
    this.processor = [`${location} post_processor`, content.post_processor];
    this.bounds = readBounds(...this.processor, (token) => this.idOf(token));
  }

  /**
   * Ids around and between two texts. Throws DS_DATA if a special token is not in the vocabulary.
   */
  get pair(): ReturnType<typeof readPair> {
    this.parts ??= readPair(...this.processor, (token) => this.idOf(token));
    return this.parts;
  }

  /** Returns the id of a token; undefined if the vocabulary lacks it. */
  idOf(token: string): number | undefined {
    return this.addedIds.get(token) ?? this.model.ids.get(token);
  }

  /**
   * Returns the ids of a text, without the tokens around it. Throws DS_DATA if the vocabulary
   * covers the text neither by a token nor by an unknown token.
   */
  encode(text: string): number[] {
    const ids: number[] = [];
    for (const { start, end, token } of this.raw.split(text)) {
      if (token) ids.push(token.id);
      else this.encodeSection(text.slice(start, end), start === 0, ids);
    }
    return ids;
  }

  private encodeSection(section: string, isStart: boolean, ids: number[]): void {
    const text = this.normalizer ? this.normalizer(section) : section;
    const lead = isStart && this.marksStart ? this.countLead(section) : 0;
    for (const { start, end, token } of this.normalized.split(text)) {
      if (token) {
        ids.push(token.id);
        continue;
      }
      const cut = { pieces: [text.slice(start, end)], leads: [Math.max(0, lead - start)] };
      const { pieces } = this.preTokenizer ? this.preTokenizer(cut) : cut;
      for (const piece of pieces) this.model.encode(piece, ids);
    }
  }

  /** Returns the number of units of the normalized text that come from the first character. */
  private countLead(section: string): number {
    const text = section.slice(0, MAX_PROBED);
    const first = String.fromCodePoint(text.codePointAt(0) ?? 0);
    return this.normalizer ? countLeading(this.normalizer, text, first.length) : first.length;
  }

  /**
   * Returns the text of ids. Skips ids without a token. Normalized tokens decode to their
   * normalized form. With `isPartial`, only the bytes of incomplete characters become U+FFFD, not
   * the whole run of bytes.
   */
  decode(ids: readonly number[], isPartial = false): string {
    const tokens = ids.flatMap((id) => this.spellings.get(id) ?? this.vocab[id] ?? []);
    const decoder = isPartial ? this.partialDecoder : this.decoder;
    return decoder ? decoder(tokens).join('') : tokens.join(' ');
  }
}

function readAdded(location: string, given: unknown): AddedToken[] {
  const expected = '"added_tokens", a list of objects with a string "content"';
  if (!Array.isArray(given))
    throw dataError(
      location,
      expected,
      formatValue(given),
      'Copy or download it again: it may be truncated.',
    );
  return given.map((item, i) => {
    if (!isObject<Record<string, unknown>>(item) || typeof item.content !== 'string') {
      throw dataError(
        location,
        expected,
        `${formatValue(item)} at ${i}`,
        'Copy or download it again: it may be truncated.',
      );
    }
    const fields = new Fields(`${location} added_tokens[${i}]`, item);
    const special = fields.flag('special', false);
    return {
      content: item.content,
      id: requireId(`${fields.location}.id`, item.id),
      single_word: fields.flag('single_word', false),
      lstrip: fields.flag('lstrip', false),
      rstrip: fields.flag('rstrip', false),
      normalized: fields.flag('normalized', !special),
      special,
    };
  });
}
