// Tests OpenAI parameters that the server does not support: values without effect are accepted, as
// clients send them by default; others are refused.
import { RequestFields } from '../../lib/serve/request-fields.js';
import { requireSupported, requireSupportedInTexts } from '../../lib/serve/unsupported.js';

type Value = ConstructorParameters<typeof RequestFields>[0][string];
const chat = (name: string, value: Value): void =>
  requireSupported(new RequestFields({ [name]: value }));
const text = (name: string, value: Value): void =>
  requireSupportedInTexts(new RequestFields({ [name]: value }));

test.each<[name: string, accepted: readonly Value[], refused: Value]>([
  ['functions', [[]], [{ name: 'f' }]],
  ['function_call', ['none', 'auto'], { name: 'f' }],
  ['modalities', [['text']], ['text', 'audio']],
  ['audio', [], { voice: 'x' }],
  ['web_search_options', [], {}],
  ['suffix', [''], 'end'],
  ['best_of', [1], 2],
  ['verbosity', ['medium'], 'low'],
])('%s: %j has no effect, %j is refused', (name, accepted, refused) => {
  for (const check of [chat, text]) {
    for (const value of [...accepted, null]) expect(() => check(name, value)).not.toThrow();
    expect(() => check(name, refused)).toThrow(name);
  }
});

test.each<[name: string, accepted: readonly Value[], refused: Value]>([
  ['tools', [[]], [{ type: 'function' }]],
  ['tool_choice', ['none', 'auto'], 'required'],
  ['reasoning_effort', [], 'high'],
])('%s belongs to chats', (name, accepted, refused) => {
  for (const value of [...accepted, refused]) expect(() => chat(name, value)).not.toThrow();
  for (const value of accepted) expect(() => text(name, value)).not.toThrow();
  expect(() => text(name, refused)).toThrow(name);
});

test.each(['user', 'metadata', 'service_tier', 'store'])('%s has no effect', (name) =>
  expect(() => chat(name, 'x')).not.toThrow(),
);
