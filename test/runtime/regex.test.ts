// Regular expressions in linear time give the matches of engines that backtrack.
import { RegexFault } from '../../lib/runtime/regex/fault.js';
import { Regex, type RegexOptions } from '../../lib/runtime/regex/regex.js';
import { seededRandom } from '../support/random.js';

/** [pattern, text, pieces] of the Rust crate tokenizers 0.23.2: Split with "Isolated". */
const RECORDED: readonly [string, string, string[]][] = [
  ['\\w', 'a²_é\u200d', ['a', '²', '_', 'é', '\u200d']],
  ['[\\w]', 'a²b', ['a', '²', 'b']],
  ['\\b', 'x² ]', ['x²', ' ]']],
  ['\\s', 'a\u0085b\ufeffc\u00a0', ['a', '\u0085', 'b\ufeffc', '\u00a0']],
  ['(?i:s)', 'sS\u017fx', ['s', 'S', '\u017f', 'x']],
  ['(?i)k|x', 'kK\u212aX', ['k', 'K', '\u212a', 'X']],
  ['[[:punct:]]', 'a.+$', ['a', '.', '+', '$']],
  ['\\p{Punct}', 'a.+$', ['a', '.', '+$']],
  ['[\\w&&[^a]]+', 'abca', ['a', 'bc', 'a']],
  ['^b|b$', 'ab\nb\nab', ['a', 'b', '\n', 'b', '\na', 'b']],
  ['^', 'a\n', ['a\n']],
  ['a(?i)b|c', 'aBACab', ['aB', 'AC', 'ab']],
  ['\\R', 'a\r\n\r\nb', ['a', '\r\n', '\r\n', 'b']],
  ['a{2}+', 'aaaaa', ['aaaa', 'a']],
  ['a{2}?b', 'aabb', ['aab', 'b']],
  ['a{,2}', 'aaab', ['aa', 'a', 'b']],
  ['[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+', 'a .b\n c', ['a', ' ', '.b', '\n', ' c']],
  ['\\s*+\\n', 'a  \n b', ['a  \n b']],
  ['(?>a+)b', 'aab', ['aab']],
  ['[]a]', ']a[', [']', 'a', '[']],
  ['\\h+', '0fg', ['0f', 'g']],
  ['(?m:a.)', 'a\nab', ['a\n', 'ab']],
  ['(?<=a)b(?!c)', 'abcab', ['abca', 'b']],
  ['\\p{^L}', 'a1b', ['a', '1', 'b']],
  ['\\p{Han}+', 'a中文b', ['a', '中文', 'b']],
  ['😀+', 'a😀😀', ['a', '😀😀']],
  ['\\x{e9}|\\u00e9', 'éa', ['é', 'a']],
  ['[^[:^alpha:]]', 'a1', ['a', '1']],
  ['\\Aa|a\\z', 'aaa', ['a', 'a', 'a']],
  ['a\\Z', 'a\n', ['a', '\n']],
  ['(?<!a.)c', 'abcxbc', ['abcxb', 'c']],
  ['\\s+(?!\\S)|\\s+', 'a   b  ', ['a', '  ', ' ', 'b', '  ']],
  ['(?#note)a', 'ba', ['b', 'a']],
  ['a{', 'a{a', ['a{', 'a']],
  ['[a-]', 'a-b', ['a', '-', 'b']],
];

function pieces(text: string, bounds: readonly number[]): string[] {
  const cuts = [...new Set([0, ...bounds, text.length])];
  return cuts.slice(1).map((end, i) => text.slice(cuts[i], end));
}

test.each(RECORDED)('%s in %j matches as in Oniguruma', (pattern, text, expected) => {
  const found = new Regex(pattern, { dialect: 'oniguruma' }).bounds(text);
  expect(pieces(text, found)).toEqual(expected);
});

const ATOMS = [
  ...[
    'a',
    'b',
    '[ab]',
    '[^a]',
    '.',
    '\\S',
    '\\d',
    '\\p{L}',
    '[^\\p{L}\\p{N}]',
    ' ',
    'é',
    '😀',
    '\\n',
    'x',
  ],
];
const LETTERS = ['a', 'b', 'c', ' ', '\n', '1', 'é', '😀', 'x', 'A'];

test('random patterns match as JavaScript matches them', () => {
  const random = seededRandom(31);
  const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
  const pattern = (depth: number): string => {
    const kind = depth === 0 ? 0 : Math.floor(random() * 6);
    if (kind === 0) return pick(ATOMS);
    const inner = pattern(depth - 1);
    if (kind === 1) return inner + pattern(depth - 1);
    if (kind === 2) return `(?:${inner}|${pattern(depth - 1)})`;
    // Only JavaScript skips empty iterations.
    if (kind === 3)
      return `(?:${pick(ATOMS)}${inner})${pick(['*', '+', '?', '{2}', '{1,3}', '*?', '+?', '{2,}'])}`;
    if (kind === 4) return `${pick(['(?=', '(?!'])}${inner})${pick(ATOMS)}`;
    return `${pick(ATOMS)}${pick(['(?<=', '(?<!'])}${inner})`;
  };
  let matches = 0;
  for (let round = 0; round < 400; ++round) {
    const source = pattern(3);
    const text = Array.from({ length: Math.floor(random() * 12) }, () => pick(LETTERS)).join('');
    const expected = [...text.matchAll(new RegExp(source, 'gu'))].flatMap(({ 0: found, index }) => [
      index,
      index + found.length,
    ]);
    expect([source, text, new Regex(source).bounds(text)]).toEqual([source, text, expected]);
    matches += expected.length;
  }
  expect(matches).toBeGreaterThan(400);
});

test.each([
  ['(a+)+$', `${'a'.repeat(50_000)}b`, 0],
  ['(a|a)*b', 'a'.repeat(50_000), 0],
  ['(?=a*b)a', 'a'.repeat(50_000), 0],
  ['\\s+$', `${' '.repeat(50_000)}x`, 0],
  ['(.*){1,100}=', 'x'.repeat(50_000), 0],
  ['(?<=(a+)+b)c', `${'a'.repeat(50_000)}bc`, 1],
])('%s takes time in proportion to the text', (pattern, text, count) => {
  expect(new Regex(pattern).bounds(text)).toHaveLength(2 * count);
});

test('a search beyond the bound is refused by its pattern', () => {
  expect(() => new Regex('a*b|a').bounds('a'.repeat(20_000))).toThrow(
    /too many steps, in the pattern "a\*b\|a"/,
  );
});

test.each<[string, RegexOptions['dialect'], RegExp]>([
  ['(a)\\1', 'oniguruma', /\\1 is not supported at 3, in the pattern "\(a\)/],
  ['(?>ab|a)', 'oniguruma', /atomic groups/],
  ['(ab)++', 'oniguruma', /possessive/],
  ['\\Ga', 'oniguruma', /\\G is not supported/],
  ['(?x:a)', 'python', /the flag "x"/],
  ['(?(1)a)', 'python', /the group "\(\?\(1"/],
  ['\\p{Nope}', 'oniguruma', /the property \\p\{Nope\} is unknown/],
  ['[[:nope:]]', 'oniguruma', /\[:nope:\] is unknown/],
  ['(a', 'python', /expected "\)" for the "\(" at 0/],
  ['a)', 'python', /unexpected "\)"/],
  ['*a', 'python', /nothing to repeat/],
  ['[b-a]', 'python', /ascending/],
  ['[a', 'python', /expected "\]"/],
  ['a{3,2}', 'python', /ascending/],
  ['(?:a{1000}){1000}', 'python', /counts are too large/],
  ['(?:){100000}{100000}a{200000}', 'python', /counts up to 100000/],
  ['('.repeat(300), 'python', /too deeply/],
  ['(?=ab)'.repeat(9), 'python', /at most 8 lookarounds/],
])('%s is refused', (pattern, dialect, message) => {
  const make = (): Regex => new Regex(pattern, { dialect });
  expect(make).toThrow(RegexFault);
  expect(make).toThrow(message);
});

test('Python anchors, whole matches and matches from the start', () => {
  expect(new Regex('^b').test('a\nb')).toBe(false);
  expect(new Regex('a$').test('a\n')).toBe(true);
  expect(new Regex('a\\Z').test('a\n')).toBe(false);
  expect(new Regex('a|ab', { isWhole: true }).matchesStart('ab')).toBe(true);
  expect(new Regex('a|ab', { isWhole: true }).matchesStart('abc')).toBe(false);
  expect(new Regex('b').matchesStart('ab')).toBe(false);
  expect(new Regex('(?i)LINEAR', {}).test('a Linear')).toBe(true);
  expect(new Regex('linear', { ignoresCase: true }).test('a Linear')).toBe(true);
});
