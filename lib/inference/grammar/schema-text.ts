// Builds nodes for strings of JSON schemas: lengths, patterns and formats.
import { formatValue } from '../../runtime/format-value.js';
import { argumentError } from '../../runtime/input-errors.js';
import { ALL_CHARACTERS, anyJsonCharacterNode, jsonCharacterNode, utf8Node } from './characters.js';
import type { GrammarBuilder, Node } from './description.js';
import { patternNode } from './pattern.js';

const OCTET = '(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const LABEL = '[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?';
const NAME = `${LABEL}(\\.${LABEL})*`;
/** The last label must not be all digits: URL parsers would read an IPv4 address. */
const HOST = `(${LABEL}\\.)*[a-zA-Z]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`;
const TIME = '([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?';
const ZONE = '(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)';
/** Valid days of each month; 29 February in leap years only. */
const DATE = [
  '\\d{4}-(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])',
  '\\d{4}-(0[469]|11)-(0[1-9]|[12]\\d|30)',
  '\\d{4}-02-(0[1-9]|1\\d|2[0-8])',
  '(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29',
].join('|');
const HEX = '[0-9a-fA-F]';
const ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";

/** Regular expression of each format. */
const FORMATS: Readonly<Record<string, string>> = {
  date: `^(${DATE})$`,
  time: `^${TIME}${ZONE}$`,
  'date-time': `^(${DATE})T${TIME}${ZONE}$`,
  email: `^${ATOM}(\\.${ATOM})*@${LABEL}(\\.${LABEL})+$`,
  uuid: `^${HEX}{8}-${HEX}{4}-${HEX}{4}-${HEX}{4}-${HEX}{12}$`,
  ipv4: `^${OCTET}(\\.${OCTET}){3}$`,
  hostname: `^${NAME}$`,
  uri: `^https?://${HOST}(:[1-9]\\d{0,3})?(/([a-zA-Z0-9._~!$&'()*+,;=:@-]|%${HEX}{2})*)*(\\?([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%${HEX}{2})*)?(#([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%${HEX}{2})*)?$`,
};

/** Maximum length of a host name. */
const MAX_HOSTNAME = 253;

const FORMAT_NAMES = Object.keys(FORMATS);

/** Keywords of a string. */
interface TextRules {
  readonly min: number;
  readonly max: number;
  readonly patterns: readonly { readonly source: string; readonly path: string }[];
  readonly formats: readonly { readonly name: unknown; readonly path: string }[];
}

/** Maximum number of characters of an unquoted name that is not in the schema. */
const MAX_NAME = 64;

/** Builds the string nodes of one grammar. */
export class StringNodes {
  private readonly any: Node;
  private readonly character: Node;
  private readonly quote: Node;
  /** Characters of a string that ends only at its marker; null in JSON, which escapes quotes. */
  private readonly plain: Node | null;
  /** Matches any string. */
  readonly free: Node;

  /**
   * With `marker`, strings are raw text between two markers, and names are unquoted. Null: JSON.
   */
  constructor(
    private readonly to: GrammarBuilder,
    private readonly marker: string | null = null,
  ) {
    const all = to.star(to.bytes([0, 255]));
    const isJson = marker === null;
    this.any = isJson ? to.markCharacter(anyJsonCharacterNode(to)) : utf8Node(to, ALL_CHARACTERS);
    this.character = isJson ? jsonCharacterNode(to, ALL_CHARACTERS) : this.any;
    this.quote = to.text(marker ?? '"');
    this.plain = isJson ? null : to.without(to.seq(all, this.quote, all));
    this.free = to.callNewRule(this.quoted(this.inside(to.star(this.any))));
  }

  private inside(...parts: readonly Node[]): Node {
    return this.to.all(...parts, ...(this.plain === null ? [] : [this.plain]));
  }

  /**
   * Returns a node that matches a string with these rules, quotes included. Throws DS_ARGUMENT with
   * the path.
   */
  string({ min, max, patterns, formats }: TextRules): Node {
    const { to } = this;
    const isFree = patterns.length + formats.length === 0;
    if (isFree && min === 0 && max === Number.POSITIVE_INFINITY) return this.free;
    if (isFree) return to.callNewRule(this.quoted(this.inside(to.repeat(this.any, min, max))));
    const parts = [
      ...patterns.map(({ source, path }) => this.pattern(source, path)),
      ...formats.map(({ name, path }) => this.format(name, path)),
    ];
    const isBounded = min > 0 || max < Number.POSITIVE_INFINITY;
    if (isBounded) parts.push(to.repeat(this.character, min, max));
    return to.callNewRule(this.quoted(this.inside(...parts)));
  }

  /**
   * Returns a node that matches one string. Throws DS_ARGUMENT if a raw text contains the marker.
   */
  constant(text: string): Node {
    if (this.marker === null) return this.to.text(JSON.stringify(text));
    if (!text.includes(this.marker)) return this.quoted(this.to.text(text));
    throw argumentError('format schema', `a string without ${this.marker}`, formatValue(text));
  }

  /**
   * Returns a node that matches a property name without quotes. Throws DS_ARGUMENT if a marker ends
   * names, and the name has other characters than letters, digits, "_", "." and "-".
   */
  name(name: string): Node {
    return this.to.text(this.spellName(name));
  }

  private spellName(name: string): string {
    if (this.marker === null) return JSON.stringify(name).slice(1, -1);
    if (/^[\w.-]+$/.test(name)) return name;
    throw argumentError(
      'format schema',
      'names of letters, digits and "_" in calls',
      formatValue(name),
    );
  }

  /** Returns a node that matches a name as the key of a value. */
  key(name: Node): Node {
    return this.marker === null ? this.quoted(name) : name;
  }

  /**
   * Returns a node that matches names that are not in `known`, match all of `matched` and none of
   * `others`.
   */
  otherNames(known: readonly string[], matched: readonly Node[], others: readonly Node[]): Node {
    const { to } = this;
    if (this.marker !== null && matched.length + others.length > 0) {
      throw argumentError(
        'format schema',
        'no patternProperties in calls with bare names',
        'patternProperties',
      );
    }
    const excluded = [...others, ...(known.length > 0 ? [this.names(known)] : [])];
    const letters = to.bytes([48, 57], [65, 90], [95, 95], [97, 122]);
    const isJson = this.marker === null;
    const all = isJson ? to.star(this.character) : to.repeat(letters, 1, MAX_NAME);
    const parts = [...(matched.length > 0 ? matched : [all])];
    if (excluded.length > 0) parts.push(to.without(to.any(...excluded)));
    return to.all(...parts);
  }

  private names(names: readonly string[]): Node {
    return this.to.texts(names.map((name) => this.spellName(name)));
  }

  /** Returns a node that matches the contents of strings in which the pattern matches somewhere. */
  pattern(source: string, path: string): Node {
    const { to } = this;
    const spell = this.marker === null ? jsonCharacterNode : utf8Node;
    const character = (points: Parameters<typeof jsonCharacterNode>[1]): Node => spell(to, points);
    return patternNode(to, source, { op: path, character, isSearch: true });
  }

  quoted(inner: Node): Node {
    return this.to.seq(this.quote, inner, this.quote);
  }

  private format(name: unknown, path: string): Node {
    const source = typeof name === 'string' ? FORMATS[name] : undefined;
    if (source === undefined || !Object.hasOwn(FORMATS, String(name))) {
      throw argumentError(path, `a format of ${FORMAT_NAMES.join(', ')}`, formatValue(name));
    }
    const node = this.pattern(source, path);
    if (name !== 'hostname') return node;
    return this.to.all(node, this.to.repeat(this.character, 0, MAX_HOSTNAME));
  }
}
