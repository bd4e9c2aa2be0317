// Formats of whole answers: reasoning, then calls or a text, walked token by token.
import { readFormat } from '../../../lib/inference/grammar/format.js';
import { compileRules } from '../../../lib/inference/grammar/rules.js';
import { Matcher, NativeGrammar } from '../../../lib/runtime/grammar.js';
import { required } from '../../../lib/runtime/required.js';
import { END, Masks, Seeded, smallTrie, TOKENS } from './walk.js';

const THINK = { begin: '<think>', end: '</think>' };
const OPEN = { begin: null, end: '</think>' };
const city = {
  type: 'object',
  properties: { city: { enum: ['Rome', 'Oslo'] } },
  required: ['city'],
};
const call = {
  type: 'object',
  properties: { name: { const: 'go' }, arguments: city },
  required: ['name', 'arguments'],
  additionalProperties: false,
};
const forms = [{ before: '', schema: call, after: '' }];
const CALLS = { begin: '<tool_call>', end: '</tool_call>', forms, isSingle: false };
const GO = '<tool_call>\n{"name": "go", "arguments": {"city": "Oslo"}}\n</tool_call>';
const masks = new Masks(TOKENS.length);

async function grammarOf(answer: object): Promise<NativeGrammar> {
  const { source } = readFormat('test', { '~answer': answer });
  return NativeGrammar.build(await smallTrie(), compileRules(source));
}

/** How many bytes of `text` the grammar takes, and whether the text may end after them. */
async function takeText(
  answer: object,
  text: string,
): Promise<[bytes: number, isComplete: boolean]> {
  const matcher = new Matcher(await grammarOf(answer), [END]);
  let bytes = 0;
  for (const byte of Buffer.from(text)) {
    if (!matcher.accept(byte)) break;
    bytes++;
  }
  const isComplete = matcher.isComplete;
  matcher.dispose();
  return [bytes, isComplete];
}

const whole = async (answer: object, text: string): Promise<boolean> => {
  const [bytes, isComplete] = await takeText(answer, text);
  return bytes === Buffer.byteLength(text) && isComplete;
};

describe('a format after reasoning that the prompt has opened', () => {
  const answer = { reasoning: OPEN, calls: null, format: city };
  test.each([
    ['<b> "é" {"city": 5} </thin></think>\n\n{"city": "Rome"}', true],
    ['</think>{"city": "Rome"}', true],
    ['{"city": "Rome"}', false],
    ['thought', false],
    ['a</think>\n\n{"city": "Rome"} ', false],
  ])('%j: %j', async (text, isWhole) => {
    expect(await whole(answer, text)).toBe(isWhole);
  });

  test('holds from the end tag on', async () => {
    const [bytes] = await takeText(answer, 'a</think>\n\n{"city": "Paris"}');
    expect(bytes).toBe('a</think>\n\n{"city": "'.length);
    expect(await takeText(answer, 'a</think>plain')).toEqual(['a</think>'.length, false]);
  });
});

describe('a format after optional reasoning', () => {
  const answer = { reasoning: THINK, calls: null, format: { choice: ['yes', 'no'] } };
  test.each([
    ['yes', true],
    ['<think>hm, no or yes</think>\n\nno', true],
    ['\n<think>\n</think>yes', true],
    ['perhaps', false],
    ['<think>yes', false],
  ])('%j: %j', async (text, isWhole) => {
    expect(await whole(answer, text)).toBe(isWhole);
  });
});

describe('calls of strict functions inside any text', () => {
  const answer = { reasoning: null, calls: CALLS, format: null };
  test.each([
    ['plain text', true],
    ['', true],
    [GO, true],
    [`I call <tool and ${GO}\n${GO} done`, true],
    [GO.replace('Oslo', 'Paris'), false],
    [GO.replace('go', 'stay'), false],
    ['<tool_call>', false],
    [GO.slice(0, -3), false],
  ])('%j: %j', async (text, isWhole) => {
    expect(await whole(answer, text)).toBe(isWhole);
  });

  test('one call with parallel_tool_calls: false', async () => {
    const single = { ...answer, calls: { ...CALLS, isSingle: true } };
    expect(await whole(single, `a ${GO} b`)).toBe(true);
    expect(await whole(single, `${GO}${GO}`)).toBe(false);
  });

  test('reasoning may name the tag freely', async () => {
    const thinking = { ...answer, reasoning: OPEN };
    expect(await whole(thinking, `maybe <tool_call> or not</think>\n${GO}`)).toBe(true);
    expect(await whole(thinking, '</think>a <tool_call>no')).toBe(false);
  });
});

test('with a format, calls are an alternative to its text', async () => {
  const answer = { reasoning: null, calls: CALLS, format: city };
  expect(await whole(answer, '{"city": "Rome"}')).toBe(true);
  expect(await whole(answer, `${GO}\n${GO}`)).toBe(true);
  expect(await whole(answer, 'text')).toBe(false);
  expect(await whole(answer, `text ${GO}`)).toBe(false);
  expect(await whole(answer, `${GO} {"city": "Rome"}`)).toBe(false);
});

test('in free text every token but the end is allowed; the end only if the answer is complete', async () => {
  const thinking = new Matcher(await grammarOf({ reasoning: OPEN, calls: null, format: city }), [
    END,
  ]);
  const spelled = TOKENS.filter(({ length }) => length > 0).length;
  expect(masks.of(thinking)).toHaveLength(spelled);
  expect(masks.of(thinking)).not.toContain(END);
  const free = new Matcher(await grammarOf({ reasoning: null, calls: CALLS, format: null }), [END]);
  expect(masks.of(free)).toContain(END);
});

test('random walks: text before tags is free, and every complete answer parses', async () => {
  const matcherOf = async (): Promise<Matcher> =>
    new Matcher(await grammarOf({ reasoning: OPEN, calls: CALLS, format: city }), [END]);
  for (let one = 0; one < 40; ++one) {
    const random = new Seeded(one);
    const matcher = await matcherOf();
    const bytes: number[] = [...Buffer.from('a</think>')];
    for (const byte of bytes) expect(matcher.accept(byte)).toBe(true);
    while (!matcher.isDone && bytes.length < 2000) {
      const allowed = masks.of(matcher).filter((token) => token !== END);
      const isOver = matcher.isComplete && (allowed.length === 0 || random.chance(0.5));
      if (isOver) break;
      const token = random.pick(allowed);
      expect(matcher.accept(token)).toBe(true);
      bytes.push(...required(TOKENS[token]));
    }
    const text = Buffer.from(bytes).toString().replace('a</think>', '').trim();
    if (matcher.isComplete && text.startsWith('{'))
      expect(JSON.parse(text).city).toMatch(/Rome|Oslo/);
    else if (matcher.isComplete) {
      for (const [, json] of text.matchAll(/<tool_call>(.*?)<\/tool_call>/gs)) {
        expect(JSON.parse(json as string)).toMatchObject({ name: 'go' });
      }
    }
    matcher.dispose();
  }
});
