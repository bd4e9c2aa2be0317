// Calls of every family: the same calls for every cut of the text into pieces.

import type { AnswerEvent } from '../../../lib/text/tool-calls/answer-events.js';
import {
  type AnswerForm,
  AnswerReader,
  type FunctionTool,
} from '../../../lib/text/tool-calls/answer-reader.js';
import { CALL_FAMILIES, type CallFamily } from '../../../lib/text/tool-calls/families.js';
import { REASONING } from '../../../lib/text/tool-calls/reasoning.js';
import { seededRandom } from '../../support/random.js';
import { type Call, callsOf, NAMES, schemaFor, WRITERS } from './family-texts.js';

const OUTPUTS = 200;

interface Answer {
  content: string;
  reasoning: string;
  calls: { name: string; arguments: string }[];
}

/** The answer in the pieces between `cuts`. */
function read(form: AnswerForm, text: string, cuts: readonly number[], prompt = ''): Answer {
  const reader = new AnswerReader(form, prompt);
  const bounds = [0, ...cuts, text.length];
  const events: AnswerEvent[] = [];
  for (const [i, at] of bounds.slice(1).entries()) {
    events.push(...reader.push(text.slice(bounds[i], at)));
  }
  events.push(...reader.end());
  const answer: Answer = { content: '', reasoning: '', calls: [] };
  for (const event of events) {
    if (event.type === 'call') {
      if (event.index !== answer.calls.length) throw new Error(`index ${event.index}`);
      answer.calls.push({ name: event.name, arguments: '' });
    } else if (event.type === 'arguments') {
      const call = answer.calls[event.index];
      if (call) call.arguments += event.text;
    } else answer[event.type] += event.text;
  }
  return answer;
}

/** Cuts at each place, at all places, and at random ones. */
function expectSame(form: AnswerForm, text: string, prompt = '', draw = seededRandom(1)): Answer {
  const fullAnswer = read(form, text, [], prompt);
  for (let at = 1; at < text.length; ++at) expectEqual(read(form, text, [at], prompt), fullAnswer);
  const all = Array.from({ length: text.length }, (_, i) => i);
  expectEqual(read(form, text, all, prompt), fullAnswer);
  const some = all.filter(() => draw() < 0.2);
  expectEqual(read(form, text, some, prompt), fullAnswer);
  return fullAnswer;
}

/** A comparison of texts is much faster than expect(). */
function expectEqual(found: Answer, fullAnswer: Answer): void {
  if (JSON.stringify(found) !== JSON.stringify(fullAnswer)) expect(found).toEqual(fullAnswer);
}

const toolsOf = (calls: readonly Call[]): FunctionTool[] =>
  NAMES.map((name) => ({
    type: 'function',
    function: { name, parameters: schemaFor(calls, name) },
  }));

/** Raw texts have no type: a parameter is text everywhere, or nowhere. */
function withOneType(calls: Call[]): Call[] {
  for (const { name, arguments: own } of calls) {
    const { properties } = schemaFor(calls, name) as {
      properties: Record<string, { type: string }>;
    };
    for (const [key, value] of Object.entries(own)) {
      if (properties[key]?.type === 'string' && typeof value !== 'string') own[key] = 'text';
    }
  }
  return calls;
}

const RAW = new Set(['qwen3-coder', 'glm']);

test.each(Object.entries(WRITERS))('%s', (form, { family, write, bare }) => {
  const draw = seededRandom(form.length);
  // Python's names have no hyphens or dots.
  const names = form === 'llama, Python' ? NAMES.slice(0, 2) : NAMES;
  for (let i = 0; i < OUTPUTS; ++i) {
    const calls = withOneType(callsOf(draw, names)).map((call) =>
      // A raw value loses one line break at each end; markers cannot stand in these texts.
      RAW.has(family) ? { ...call, arguments: withoutTags(call.arguments) } : call,
    );
    const before = bare || draw() < 0.5 ? '' : 'Let me see.\n\n';
    const tools = toolsOf(calls);
    const plan = { family: CALL_FAMILIES[family] as CallFamily, reasoning: null, tools };
    const text = before + write(calls);
    const found = i < 8 ? expectSame(plan, text, '', draw) : read(plan, text, everywhere(text));
    const shown = found.calls.map((call) => ({ ...call, arguments: JSON.parse(call.arguments) }));
    expect({ text, shown, content: found.content }).toEqual({
      text,
      shown: calls,
      content: before.trim(),
    });
  }
});

const everywhere = (text: string): number[] => Array.from(text, (_, i) => i);

const withoutTags = (localArguments: Call['arguments']): Call['arguments'] =>
  JSON.parse(JSON.stringify(localArguments).replaceAll(/<\/?tool_call>/g, 'tag'));

const hermes: CallFamily = CALL_FAMILIES.hermes;
const tools = toolsOf([]);

test.each([
  ['<think>', 'A\n<think>\n', 'Let me add.\n</think>\n\nIt is 3.'],
  ['<think>', 'A\n', '<think>\nLet me add.\n</think>\n\nIt is 3.'],
  ['[THINK]', '', '[THINK]Let me add.[/THINK]It is 3.'],
  ['Gemma 4', 'model\n', '<|channel>thought\nLet me add.\n<channel|>It is 3.'],
])('reasoning in %s after the prompt %j', (name, prompt, text) => {
  const settings = { '<think>': 'think', '[THINK]': 'mistral', 'Gemma 4': 'gemma' } as const;
  const reasoning = REASONING[settings[name as keyof typeof settings]];
  const found = expectSame({ family: hermes, reasoning, tools }, text, prompt);
  expect(found).toEqual({ reasoning: 'Let me add.', content: 'It is 3.', calls: [] });
});

test('a prompt with closed reasoning, and a marker in the middle of an answer', () => {
  const form = { family: hermes, reasoning: REASONING.think, tools };
  const prompt = '<think>\n\n</think>\n\n';
  const text = 'Write <think>x</think> so.';
  expect(expectSame(form, text, prompt)).toEqual({ reasoning: '', content: text, calls: [] });
});

test('a call inside reasoning is ignored; the call after it counts', () => {
  const call = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>';
  const text = `<think>I write ${call}.</think>\n\n${call}`;
  const found = expectSame({ family: hermes, reasoning: REASONING.think, tools }, text);
  expect(found).toEqual({
    reasoning: `I write ${call}.`,
    content: '',
    calls: [{ name: 'add', arguments: '{"n": 1}' }],
  });
});

test('gpt-oss: analysis, a preamble and a final message', () => {
  const form = { family: CALL_FAMILIES['gpt-oss'], reasoning: null, tools };
  const text =
    '<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Done.';
  const prompt = '<|start|>user<|message|>Hi<|end|><|start|>assistant';
  const found = expectSame(form, text, prompt);
  expect(found).toEqual({ reasoning: 'Think.', content: 'Done.', calls: [] });
});

test('at most one call', () => {
  const form = { family: hermes, reasoning: null, tools, maxCalls: 1 };
  const call = '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>';
  const found = expectSame(form, `${call}\n${call}`);
  expect(found.calls).toEqual([{ name: 'add', arguments: '{"n": 1}' }]);
});
