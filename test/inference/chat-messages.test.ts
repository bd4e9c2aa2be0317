// Messages of programs: what the chat template leaves out is refused.
import { encodeConversation } from '../../lib/inference/chat-prompt.js';
import { tokenizer } from '../serve/fake-engine.js';

/** Writes three roles, and the field `mood` of messages. */
const TEMPLATE = `{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}
<{{ m.role }}{% if m.mood %} {{ m.mood }}{% endif %}>{{ m.content }}{% endif %}{% endfor %}`;

const user = { role: 'user', content: 'Hello' };
const promptOf = (messages: unknown, template = TEMPLATE): string =>
  tokenizer.decode(
    encodeConversation('generate', tokenizer, { messages: messages as never, template }),
  );

test.each([
  [[{ role: 'critic', content: 'Be exact.' }, user], /messages\[0\]\.role: .* got "critic" with/],
  [[user, { role: 'tool', content: '12' }], /messages\[1\]\.role: .* got "tool" with content/],
  [[{ ...user, text: 'World' }], /messages\[0\]: expected fields .* got "text"/],
  [[{ ...user, reasoning: 'Hm' }], /got "reasoning"\. Name it "reasoning_content"/],
  [[{ role: 'user' }], /messages\[0\]\.content: expected a string, or a list .* got undefined/],
  [[{ role: 'user', contents: 'Hello' }], /messages\[0\]\.content: .* got undefined/],
  [[{ role: 'system', content: null }, user], /messages\[0\]\.content: .* got null/],
  [[{ role: 'user', content: 7 }], /messages\[0\]\.content: .* got 7/],
  [[{ role: 'user', content: { text: 'Hello' } }], /messages\[0\]\.content: expected a string/],
  [
    [{ role: 'user', content: [{ type: 'text', text: 'a' }, { type: 'image_url' }] }],
    /content\[1\]: expected \{ type: "text", text: "\.\.\." \}, got type "image_url"\. .* only text/,
  ],
])('%j is refused', (messages, message) => {
  expect(() => promptOf(messages)).toThrow(message);
  expect(() => promptOf(messages)).toThrow(expect.objectContaining({ code: 'DS_ARGUMENT' }));
});

test('text parts are joined, and fields that the template reads are kept', () => {
  const content = ['Hello', 'World'].map((text) => ({ type: 'text', text }));
  expect(promptOf([{ role: 'user', content }])).toBe('<user>Hello\nWorld');
  expect(promptOf([{ ...user, mood: 'calm' }])).toBe('<user calm>Hello');
  expect(promptOf([{ ...user, mood: '' }])).toBe('<user>Hello');
  const sent = { ...user, id: 'm1', name: 'Ann', refusal: null, audio: undefined };
  expect(promptOf([sent])).toBe('<user>Hello');
});

test('a developer is the system for a template without developers', () => {
  const messages = [{ role: 'developer', content: 'Be brief.' }, user];
  expect(promptOf(messages)).toBe('<system>Be brief.<user>Hello');
  const own = TEMPLATE.replace("'system'", "'developer'");
  expect(promptOf(messages, own)).toBe('<developer>Be brief.<user>Hello');
});

test('the oldest turns may be left out', () => {
  const last = '{{ messages[-1].content }}';
  expect(promptOf([{ ...user, content: 'First' }, user], last)).toBe('Hello');
});
