// Measures the time of a grammar mask on one thread, for a vocabulary of 100,000 tokens and several
// kinds of schemas.
import { compileRules } from '../lib/inference/grammar/rules.js';
import { Matcher, NativeGrammar, TokenTrie } from '../lib/runtime/grammar.js';
import { vocabulary } from './formats.js';
import type { Options } from './main.js';
import { median, quantile } from './report.js';

const text = { type: 'string' };
const person = {
  type: 'object',
  properties: {
    name: text,
    age: { type: 'integer', minimum: 0 },
    email: { ...text, format: 'email' },
  },
  required: ['name', 'age', 'email'],
  additionalProperties: false,
};
const call = {
  type: 'object',
  properties: {
    tool: { enum: ['search', 'read_file', 'tools/call', 'write'] },
    arguments: {
      type: 'object',
      properties: {
        path: { ...text, maxLength: 200 },
        lines: { type: 'array', items: { type: 'integer' } },
      },
      required: ['path'],
    },
  },
  required: ['tool', 'arguments'],
};
const tree = {
  type: 'object',
  properties: { label: text, children: { type: 'array', items: { $ref: '#' } } },
  required: ['label', 'children'],
};
const many = {
  type: 'object',
  properties: Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`field_${i}`, text])),
};
const union = { anyOf: [person, call, tree, { type: 'array', items: person, maxItems: 5 }] };

/** Schemas by name; null for any JSON object. */
const SCHEMAS: Readonly<Record<string, Record<string, unknown> | null>> = {
  person,
  call,
  tree,
  many,
  union,
  any: null,
};

/** Draws tokens; the shortest text of an allowed token ends strings and lists now and then. */
function drawToken(words: Int32Array, random: () => number, closers: readonly number[]): number {
  const has = (token: number): boolean => (((words[token >> 5] ?? 0) >>> (token & 31)) & 1) === 1;
  if (random() < 0.1) {
    const closer = closers.find(has);
    if (closer !== undefined) return closer;
  }
  const size = words.length * 32;
  const start = Math.floor(random() * size);
  for (let i = 0; i < size; ++i) if (has((start + i) % size)) return (start + i) % size;
  return -1;
}

/** Mask times of all kinds, the first mask of a grammar apart. */
export async function grammarBench({ steps = '400' }: Options): Promise<object> {
  const tokens = [...vocabulary(), new Uint8Array(0)];
  const end = tokens.length - 1;
  let begin = performance.now();
  const trie = await TokenTrie.build(tokens);
  const trieMs = performance.now() - begin;
  const closers = ['"', '}', ']'].map((text) =>
    tokens.findIndex((token) => Buffer.from(token).toString() === text),
  );
  const words = new Int32Array(trie.words);
  const all: number[] = [];
  const firsts: number[] = [];
  const kinds: Record<string, object> = {};
  for (const [name, schema] of Object.entries(SCHEMAS)) {
    begin = performance.now();
    const rules = compileRules(schema ? { kind: 'schema', schema } : { kind: 'jsonObject' });
    const grammar = await NativeGrammar.build(trie, rules);
    const compileMs = performance.now() - begin;
    const localValues: number[] = [];
    let state = 1;
    const random = (): number => {
      state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
      return state / 2 ** 31;
    };
    while (localValues.length < Number(steps)) {
      const matcher = new Matcher(grammar, [end]);
      for (let step = 0; step < 200 && localValues.length < Number(steps); ++step) {
        const from = process.hrtime.bigint();
        matcher.fill(words);
        localValues.push(Number(process.hrtime.bigint() - from) / 1000);
        const token = matcher.isComplete ? end : drawToken(words, random, closers);
        if (token === end || !matcher.accept(token)) break;
      }
      matcher.dispose();
    }
    const [first = 0, ...rest] = localValues;
    firsts.push(first);
    all.push(...rest);
    kinds[name] = { ...summary(rest), first_us: round(first), compile_ms: round(compileMs) };
  }
  return { tokens: tokens.length, trie_ms: round(trieMs), all: summary(all), kinds };
}

const round = (x: number): number => Math.round(x * 10) / 10;
const summary = (times: readonly number[]): object => ({
  masks: times.length,
  p50_us: round(median(times)),
  p90_us: round(quantile(times, 0.9)),
  p99_us: round(quantile(times, 0.99)),
  max_us: round(Math.max(...times)),
});
