// Tests patterns, lists and grammars against JavaScript's RegExp, and masks against accept().
import { DsError } from '../../../lib/index.js';
import type { FormatSource } from '../../../lib/inference/grammar/format.js';
import { compileRules } from '../../../lib/inference/grammar/rules.js';
import { Matcher, NativeGrammar } from '../../../lib/runtime/grammar.js';
import { required } from '../../../lib/runtime/required.js';
import { END, Masks, Seeded, smallTrie, TOKENS, tokenOf, walk } from './walk.js';

const grammarOf = async (source: FormatSource): Promise<NativeGrammar> =>
  NativeGrammar.build(await smallTrie(), compileRules(source));

/** A random pattern without lookaround. */
function randomPattern(random: Seeded, depth = 3): string {
  const atoms = [
    ...['a', 'b', '[a-c]', '[^a]', '\\d', '\\w', '.', 'é', '😀', '\\s', '\\u00e9', '[\\d_-]'],
    ...['\\.', '\\x41', '\\p{Lu}', '\\u{1F600}', '[^\\w\\s]', '\\cA', '\\D'],
  ];
  const part = (): string => {
    if (depth === 0 || random.chance(0.5)) return random.pick(atoms);
    return `(${random.pick(['', '?:', '?<n>'])}${randomPattern(random, depth - 1)})`;
  };
  const counts = ['', '', '', '*', '+', '?', '{2}', '{1,3}', '{2,}', '*?', '{0}'];
  const sequence = (): string =>
    Array.from({ length: random.integer(1, 4) }, () => part() + random.pick(counts)).join('');
  const parts = Array.from({ length: random.integer(1, 3) }, sequence);
  // A name may occur once.
  return parts.join('|').replaceAll('?<n>', '?:');
}

test('texts of random patterns match them', async () => {
  let finished = 0;
  for (let seed = 0; seed < 30; ++seed) {
    const random = new Seeded(seed);
    const pattern = randomPattern(random);
    const grammar = await grammarOf({ kind: 'regex', regex: pattern });
    for (let again = 0; again < 3; ++again) {
      const { text, isFinished } = walk(grammar, random, 60);
      if (!isFinished) continue;
      finished++;
      expect(text).toMatch(new RegExp(`^(?:${pattern})$`, 'u'));
    }
    grammar.dispose();
  }
  expect(finished).toBeGreaterThan(30);
});

/** Whether the grammar accepts a whole text, byte by byte. */
function accepts(grammar: NativeGrammar, text: string): boolean {
  const matcher = new Matcher(grammar, [END]);
  const isTaken = [...Buffer.from(text)].every((byte) => matcher.accept(byte));
  const isWhole = isTaken && matcher.isComplete;
  matcher.dispose();
  return isWhole;
}

test('a pattern accepts exactly the texts that RegExp matches', async () => {
  const random = new Seeded(99);
  const letters = ['a', 'b', 'A', '1', '_', '-', ' ', 'é', '😀', '.', '\n'];
  for (let seed = 0; seed < 60; ++seed) {
    const pattern = randomPattern(new Seeded(seed), 2);
    const expected = new RegExp(`^(?:${pattern})$`, 'u');
    const grammar = await grammarOf({ kind: 'regex', regex: pattern });
    for (let again = 0; again < 40; ++again) {
      const text = Array.from({ length: random.integer(0, 6) }, () => random.pick(letters)).join(
        '',
      );
      expect([pattern, text, accepts(grammar, text)]).toEqual([pattern, text, expected.test(text)]);
    }
    grammar.dispose();
  }
});

test.each([
  ['^a', 'ab', 'ba'],
  ['a$', 'ba', 'ab'],
  ['a', 'xay', 'xyz'],
  ['^(a|b$)', 'ax', 'xa'],
  ['^$', '', 'a'],
  ['', 'x"\\', null],
])('a schema finds the pattern %j inside texts', async (pattern, yes, no) => {
  const grammar = await grammarOf({ kind: 'schema', schema: { type: 'string', pattern } });
  expect(accepts(grammar, JSON.stringify(yes))).toBe(true);
  if (no !== null) expect(accepts(grammar, JSON.stringify(no))).toBe(false);
});

const SOURCES: FormatSource[] = [
  { kind: 'jsonObject' },
  { kind: 'choice', choice: ['name', 'nam', '日本', 'x"y'] },
  { kind: 'regex', regex: '(ab|abc|a)*|\\d{2,5}é?' },
  {
    kind: 'grammar',
    grammar: 'root ::= item ("," item)*\nitem ::= "(" root ")" | [a-c]{1,3} | ""',
  },
  { kind: 'grammar', grammar: 'root ::= "a" root root | "ab" | "b"  # ambiguous' },
  // One token may return from any number of rules.
  { kind: 'grammar', grammar: 'root ::= "a" root " "* | "[" root "]" " "* | "b"' },
  {
    kind: 'schema',
    schema: { type: 'array', items: { type: ['string', 'number'], maxLength: 3 } },
  },
  { kind: 'schema', schema: { anyOf: [{ type: 'integer' }, { type: 'number' }, { const: 12.5 }] } },
  {
    kind: 'schema',
    schema: { properties: { name: true, id: { type: 'string', pattern: '^a+b?$' } } },
  },
];

test.each(SOURCES)('bit i of a mask is accept(i): %j', async (source) => {
  const grammar = await grammarOf(source);
  const masks = new Masks(TOKENS.length);
  for (let seed = 0; seed < 4; ++seed) {
    const random = new Seeded(seed);
    const matcher = new Matcher(grammar, [END]);
    for (let step = 0; step < 25; ++step) {
      const allowed = masks.of(matcher);
      const accepted = TOKENS.flatMap((_, token) => {
        if (!matcher.accept(token)) return [];
        matcher.rollback(1);
        return [token];
      });
      expect(allowed).toEqual(accepted);
      const next = random.pick(allowed);
      if (next === END) break;
      expect(matcher.accept(next)).toBe(true);
    }
    matcher.dispose();
  }
});

test('a rollback restores every earlier mask', async () => {
  const grammar = await grammarOf({ kind: 'jsonObject' });
  const { tokens } = walk(grammar, new Seeded(5), 60);
  const masks = new Masks(TOKENS.length);
  const matcher = new Matcher(grammar, [END]);
  const seen: number[][] = [];
  for (const token of tokens) {
    seen.push(masks.of(matcher));
    matcher.accept(token);
  }
  for (let left = tokens.length; left > 0; ) {
    const back = Math.min(left, 7);
    matcher.rollback(back);
    left -= back;
    expect(masks.of(matcher)).toEqual(seen[left]);
  }
  expect(() => matcher.rollback(1)).toThrow(DsError);
  expect(matcher.accept(256)).toBe(false);
  expect(matcher.accept(tokenOf('{'))).toBe(true);
});

test('forced text is the only possible continuation', async () => {
  const schema = {
    type: 'object',
    properties: { name: { enum: ['Anna', 'Anno'] } },
    required: ['name'],
  };
  const grammar = await grammarOf({ kind: 'choice', choice: ['Anna é', 'Anno é'] });
  const matcher = new Matcher(grammar, [END]);
  expect(matcher.forced()).toBe('Ann');
  for (const byte of Buffer.from('Anna')) matcher.accept(byte);
  expect(matcher.forced()).toBe(' é');
  const object = new Matcher(await grammarOf({ kind: 'schema', schema }), [END]);
  expect(object.forced()).toBe('{');
});

test('an end token is allowed only after a complete text', async () => {
  const matcher = new Matcher(await grammarOf({ kind: 'regex', regex: 'ab?' }), [END]);
  expect([matcher.accept(END), matcher.accept(97), matcher.isComplete]).toEqual([
    false,
    true,
    true,
  ]);
  expect([matcher.isDone, matcher.accept(END), matcher.isDone]).toEqual([false, true, true]);
  const masks = new Masks(TOKENS.length);
  expect(masks.of(matcher)).toEqual([]);
  expect(matcher.accept(required(TOKENS[98])[0] ?? 98)).toBe(false);
});
