// Tests hostile formats: each ends in an error or a grammar within bounds, never in a crash.
import { DsError } from '../../../lib/index.js';
import type { FormatSource } from '../../../lib/inference/grammar/format.js';
import { compileRules } from '../../../lib/inference/grammar/rules.js';
import { NativeGrammar } from '../../../lib/runtime/grammar.js';
import { randomSchema } from './random-schemas.js';
import { Seeded, smallTrie, walk } from './walk.js';

/** Compiles and walks a format; returns the code of its error, or null. */
async function outcome(source: FormatSource): Promise<string | null> {
  try {
    const grammar = await NativeGrammar.build(await smallTrie(), compileRules(source));
    walk(grammar, new Seeded(1), 40);
    grammar.dispose();
    return null;
  } catch (error) {
    if (error instanceof DsError) return error.code;
    throw error;
  }
}

const nest = (depth: number, inner: object): object =>
  depth === 0 ? inner : { type: 'array', items: nest(depth - 1, inner), minItems: 1 };
const twice: Record<string, unknown> = {};
for (let i = 0; i < 40; ++i)
  twice[`d${i}`] = { anyOf: [{ $ref: `#/$defs/d${i + 1}` }, { $ref: `#/$defs/d${i + 1}` }] };
twice.d40 = { type: 'null' };

test.each<[string, FormatSource, (string | null)[]]>([
  ['a circle of references', { kind: 'schema', schema: { $ref: '#' } }, ['DS_ARGUMENT']],
  [
    'a circle through allOf',
    { kind: 'schema', schema: { allOf: [{ $ref: '#' }] } },
    ['DS_ARGUMENT'],
  ],
  [
    'exponential references',
    { kind: 'schema', schema: { $ref: '#/$defs/d0', $defs: twice } },
    ['DS_ARGUMENT'],
  ],
  [
    'endless items',
    { kind: 'schema', schema: { type: 'array', items: { $ref: '#' }, minItems: 1 } },
    ['DS_ARGUMENT'],
  ],
  [
    'deep schemas',
    { kind: 'schema', schema: nest(500, {}) as Record<string, unknown> },
    ['DS_ARGUMENT'],
  ],
  [
    'long strings',
    { kind: 'schema', schema: { type: 'string', minLength: 2e9, maxLength: 2e9 } },
    [null],
  ],
  [
    'an empty intersection',
    { kind: 'schema', schema: { type: 'string', pattern: '^a{3}$', maxLength: 2 } },
    ['DS_ARGUMENT'],
  ],
  [
    'a hard intersection',
    {
      kind: 'schema',
      schema: {
        allOf: [{ type: 'string', pattern: '(a|b)*a(a|b){18}$' }, { pattern: '(a|b)*b(a|b){17}$' }],
      },
    },
    [null, 'DS_LIMIT'],
  ],
  [
    'nested repetitions',
    { kind: 'regex', regex: '((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}' },
    [null, 'DS_LIMIT'],
  ],
  [
    'a pattern that backtracks',
    { kind: 'regex', regex: '(a*)*(a|aa)+(a?){200}a{200}' },
    [null, 'DS_LIMIT'],
  ],
  [
    'deep groups',
    { kind: 'regex', regex: `${'('.repeat(5000)}a${')'.repeat(5000)}` },
    ['DS_ARGUMENT'],
  ],
  [
    'many alternatives',
    { kind: 'choice', choice: Array.from({ length: 20_000 }, (_, i) => `${i}`) },
    [null],
  ],
  [
    'an ambiguous grammar',
    { kind: 'grammar', grammar: 'root ::= "a" root root | "a" root | "a"' },
    [null, 'DS_LIMIT'],
  ],
  [
    'hidden left recursion',
    { kind: 'grammar', grammar: 'root ::= x root "a" | "b"\nx ::= "c"?' },
    ['DS_ARGUMENT'],
  ],
  ['a rule without end', { kind: 'grammar', grammar: 'root ::= "a" root' }, ['DS_ARGUMENT']],
  [
    'many optional properties',
    {
      kind: 'schema',
      schema: {
        properties: Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [`p${i}`, {}])),
      },
    },
    [null, 'DS_LIMIT'],
  ],
  [
    'a huge multiple',
    { kind: 'schema', schema: { type: 'integer', multipleOf: 1_999, minimum: 5e15 } },
    [null, 'DS_LIMIT'],
  ],
  [
    'an enum of long texts',
    {
      kind: 'schema',
      schema: { enum: Array.from({ length: 50 }, (_, i) => 'x'.repeat(2000) + i) },
    },
    [null],
  ],
])('%s', async (_, source, codes) => {
  expect(codes).toContain(await outcome(source));
});

test('invalid schemas always give an error', async () => {
  const odd = [
    null,
    -1,
    Number.POSITIVE_INFINITY,
    '',
    'x',
    [],
    {},
    [1],
    { a: 1 },
    '#',
    true,
    2 ** 40,
    '(',
    '\\',
  ];
  const keywords = [
    ...[
      'type',
      'properties',
      'required',
      'additionalProperties',
      'enum',
      'const',
      'anyOf',
      'oneOf',
    ],
    ...['allOf', '$ref', 'items', 'prefixItems', 'minItems', 'maxItems', 'minLength', 'maxLength'],
    ...['pattern', 'minimum', 'exclusiveMaximum', 'multipleOf', 'format', 'patternProperties'],
    ...[
      'minProperties',
      'maxProperties',
      'not',
      'if',
      'uniqueItems',
      'contains',
      'x-note',
      'title',
    ],
  ];
  for (let seed = 0; seed < 400; ++seed) {
    const random = new Seeded(seed);
    const base = random.chance(0.5) ? randomSchema(random) : {};
    const schema: Record<string, unknown> = { ...(base as object) };
    for (let i = random.integer(1, 4); i > 0; --i) schema[random.pick(keywords)] = random.pick(odd);
    const code = await outcome({ kind: 'schema', schema });
    expect([null, 'DS_ARGUMENT', 'DS_LIMIT']).toContain(code);
  }
});

test('damaged descriptions are errors', async () => {
  const trie = await smallTrie();
  const good = compileRules({ kind: 'schema', schema: { type: 'string', maxLength: 3 } });
  for (let seed = 0; seed < 500; ++seed) {
    const random = new Seeded(seed);
    const words = good.slice(0, random.chance(0.3) ? random.integer(0, good.length) : good.length);
    for (let i = 0; i < 3 && words.length > 0; ++i) {
      words[random.integer(0, words.length)] = random.pick([
        -1,
        0,
        1,
        7,
        2 ** 31 - 1,
        -(2 ** 31),
        99,
      ]);
    }
    const result = await NativeGrammar.build(trie, words).catch((error: unknown) => error);
    if (result instanceof NativeGrammar) result.dispose();
    else expect((result as DsError).code).toMatch(/DS_ARGUMENT|DS_LIMIT/);
  }
});
