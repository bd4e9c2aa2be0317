// Differences and comparisons of the keys and items of dicts, which Python has for sets.
import { Template } from '../../lib/text/template/template.js';

const render = (template: string): string =>
  new Template(template).render({ d: { a: 1, b: 2, c: [3] } }).text;

test.each<[string, string]>([
  ["{{ d.keys() - ['a', 'c'] }}", "{'b'}"],
  [
    "{{ (d.keys() - ['a'])|sort }} {{ (d.keys() - ['a'])|length }} {{ 'b' in d.keys() - ['a'] }}",
    "['b', 'c'] 2 True",
  ],
  ["{{ ['b', 'x'] - d.keys() }}", "{'x'}"],
  ['{{ d.keys() - d }} {% if d.keys() - d %}more{% else %}none{% endif %}', 'set() none'],
  ["{{ {'a': 1}.items() - [('a', 1)] }}", 'set()'],
  [
    "{{ d.keys() <= {'a': 0, 'b': 0, 'c': 0, 'd': 0}.keys() }} {{ d.keys() < d.keys() }} {{ d.keys() >= {'a': 0}.keys() }} {{ d.keys() > {'x': 0}.keys() }}",
    'True False True False',
  ],
  [
    "{{ (d.keys() - ['a']) == {'c': 0, 'b': 0}.keys() }} {{ (d.keys() - ['a']) - (d.keys() - ['c']) }}",
    "True {'c'}",
  ],
  ["{{ (d.keys()-['a','b'])|first }}", 'c'],
  ["{{ (d.keys()-['a'])|string|length }}", '10'],
  ['{{ d.values() in d }} {{ {d.values(): 1}|length }}', 'False 1'],
])('%s', (template, text) => expect(render(template)).toBe(text));

test.each<[string, string]>([
  ['{{ d.keys() - 3 }}', 'TypeError'],
  ["{{ d.values() - ['a'] }}", 'TypeError'],
  ["{{ d.items() - [('a', 1)] }}", 'TypeError'],
  ["{{ (d.keys() - ['a']) - ['b'] }}", 'TypeError'],
  ["{{ d.keys() < ['a'] }}", 'TypeError'],
  ['{{ {d.keys() - d: 1} }}', 'TypeError'],
  ["{{ (d.keys()-['a','b'])|tojson }}", 'TypeError'],
  ['{{ nope - d.keys() }}', 'UndefinedError'],
])('%s is refused', (template, kind) => {
  expect(() => render(template)).toThrow(expect.objectContaining({ kind }));
});
