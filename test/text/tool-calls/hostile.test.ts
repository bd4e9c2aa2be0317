// Answers that no model should give: damaged, unclosed and nested calls, and very long ones.
import { AnswerReader, type FunctionTool } from '../../../lib/text/tool-calls/answer-reader.js';
import {
  CALL_FAMILIES,
  type CallFamily,
  detectFamily,
  detectReasoning,
} from '../../../lib/text/tool-calls/families.js';

const tools: FunctionTool[] = [{ type: 'function', function: { name: 'f' } }];
const families = Object.entries(CALL_FAMILIES) as [string, CallFamily][];

function read(family: CallFamily, text: string, piece = text.length) {
  const reader = new AnswerReader({ family, reasoning: null, tools });
  const events = [];
  for (let at = 0; at < text.length; at += piece) {
    events.push(...reader.push(text.slice(at, at + piece)));
  }
  return [...events, ...reader.end()];
}

/** The text of all events. */
const sum = (events: ReturnType<typeof read>): number =>
  events.reduce((total, item) => total + ('text' in item ? item.text.length : item.name.length), 0);

const MIB = 2 ** 20;
const OPENINGS = [
  ...['<tool_call>', '<tool_call>{"name": "', '<tool_call>{"name": "f", "arguments": {"a": '],
  ...['<function=', '<function=f><parameter=a>', '</parameter>', '<arg_key>a</arg_key><arg_value>'],
  ...['[TOOL_CALLS]', '[TOOL_CALLS][', '[TOOL_CALLS]f[ARGS]{', 'functools[', 'functools[{"name"'],
  ...[
    '<｜tool▁call▁begin｜>',
    '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{',
    '<|python_tag|>{"name": "f"',
  ],
  ...['<|start|>', '<|channel|>commentary to=functions.f<|message|>{', '<|start_function_call>'],
  ...['<start_function_call>call:f{a:', '<|tool_call>call:f{a:[', '[f(a=', '[f(a=[', '[f(a="\\'],
  ...['{', '[', '"', '\\', ' ', '\n', '<', '{"a":', '<tool_call>f\n', '<|"|>', '<escape>'],
];

test.each(families)('%s: 64 KiB of each opening, repeated', (_, family) => {
  for (const opening of OPENINGS) {
    const text = opening.repeat(Math.floor(MIB / 16 / opening.length));
    // JSON escapes make texts longer, at most six times.
    expect(sum(read(family, text, 5))).toBeLessThanOrEqual(6 * text.length + 64);
  }
});

test.each([
  ['hermes', '<tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'],
  ['mistral', '[TOOL_CALLS]f[ARGS]{"a": "', '"}'],
  [
    'qwen3-coder',
    '<tool_call><function=f><parameter=a>\n',
    '\n</parameter></function></tool_call>',
  ],
  ['gemma', '<|tool_call>call:f{a:<|"|>', '<|"|>}<tool_call|>'],
  ['llama', '[f(a="', '")]'],
] as const)('%s: a call with a MiB of arguments', (name, before, after) => {
  const value = 'x</'.repeat(Math.floor(MIB / 3));
  const events = read(CALL_FAMILIES[name], before + value + after, 7);
  const argumentText = events
    .flatMap((event) => (event.type === 'arguments' ? [event.text] : []))
    .join('');
  expect(JSON.parse(argumentText)).toEqual({ a: value });
});

/** Texts that are no calls stay content. */
test.each([
  ['hermes', '<tool_call>\nnot JSON\n</tool_call>'],
  ['hermes', '<tool_call>{"name": "f"'],
  ['hermes', 'Use <tool_call> tags.'],
  ['hermes', '<tool_call>{"arguments": {}}</tool_call>'],
  ['hermes', '<tool_call>{"name": "f", "arguments": 5}</tool_call>'],
  ['llama', '{"name": "John", "age": 3}'],
  ['llama', '[1, 2, 3]'],
  ['llama', '[f(a=1)'.replace('f', 'g')],
  ['mistral', '[TOOL_CALLS] none'],
  ['phi', 'functools are tools'],
  ['deepseek', '<｜tool▁call▁begin｜>no separator'],
  ['qwen3-coder', '<tool_call>\nplain\n</tool_call>'],
  ['glm', '<tool_call></tool_call>'],
  ['function-gemma', '<start_function_call>hello'],
] as const)('%s: %j is content', (name, text) => {
  expect(
    read(CALL_FAMILIES[name], text, 1)
      .map((item) => 'text' in item && item.text)
      .join(''),
  ).toBe(text);
});

test('a call that is cut off keeps its arguments', () => {
  const events = read(CALL_FAMILIES.hermes, '<tool_call>{"name": "f", "arguments": {"a": "b');
  expect(events).toEqual([
    { type: 'call', index: 0, name: 'f' },
    { type: 'arguments', index: 0, text: '{"a": "b' },
  ]);
});

test.each([
  ["{{ '<tool_call>' }}", 'hermes', null],
  ["{{ '<think></think><tool_call><function=' }}", 'qwen3-coder', 'think'],
  ["{{ '[TOOL_CALLS]' }}{{ '[THINK]' }}", 'mistral', 'mistral'],
  ["{{ '<|python_tag|>' }}", 'llama', null],
  ["{{ '<｜tool▁calls▁begin｜>' }}", 'deepseek', null],
  ["{{ '<|channel|>analysis' }}", 'gpt-oss', null],
  ["{{ '<|channel>thought' }}{{ '<|tool_call>' }}", 'gemma', 'gemma'],
  ["{{ '<start_function_call>' }}", 'function-gemma', null],
  ["{{ '<arg_key>' }}{{ '<tool_call>' }}", 'glm', null],
  ["{{ '<|tool|>' }}", 'phi', null],
  ['{{ messages }}', null, null],
])('the template %j has the family %s', (template, family, reasoning) => {
  expect([detectFamily(template), detectReasoning(template)]).toEqual([family, reasoning]);
});
