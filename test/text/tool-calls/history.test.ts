// Calls in histories: templates read their arguments as objects or as text, with text or null.
import { renderableHistory } from '../../../lib/text/tool-calls/history.js';
import { tokenizer } from '../../serve/fake-engine.js';

const CALL = { type: 'function', function: { name: 'add', arguments: { a: 1, b: '"' } } };
const messages = [
  { role: 'user', content: 'Add.' },
  { role: 'assistant', content: '', tool_calls: [CALL] },
  { role: 'tool', content: '2' },
];

const writeCalls = (call: string, when = 'm.tool_calls') =>
  `{% for m in messages %}[{{ m.role }}]{% if ${when} %}{% for c in m.tool_calls %}${call}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}`;
const render = (template: string) => (messages: readonly { role: string }[]) =>
  tokenizer.chatText(messages as never, { template });

/** A template's name, its text, and the text of the call in its prompt. */
test.each([
  [
    'an object',
    writeCalls("{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}"),
    '{"name": "add", "arguments": {"a": 1, "b": "\\""}}',
  ],
  [
    'text',
    writeCalls("{{ c.function.name + ' ' + c.function.arguments }}"),
    'add {"a":1,"b":"\\""}',
  ],
  [
    'calls of null content only',
    writeCalls('{{ c.function.name }}', 'm.content is none'),
    '[assistant]add[tool]',
  ],
])('a template that reads %s', (_, template, expected) => {
  const history = renderableHistory(messages, render(template));
  if ('lost' in history) throw new Error('lost');
  expect(render(template)(history.messages)).toContain(expected);
});

test('a template that drops calls, although it names their functions', () => {
  const template = "{% for m in messages %}add {{ m.content or '' }}{% endfor %}";
  expect(renderableHistory(messages, render(template))).toEqual({ lost: 1 });
});

test('the error of a template that refuses every form', () => {
  const template = "{{ raise_exception('no calls') }}";
  expect(() => renderableHistory(messages, render(template))).toThrow(/no calls/);
});

test('a history without calls stays as it is', () => {
  const plain = messages.slice(0, 1);
  expect(renderableHistory(plain, render('x'))).toEqual({ messages: plain });
});
