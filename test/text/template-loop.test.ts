// The variable "loop" as an iterable, as jinja2 has it: it takes items from the loop.
import { Template } from '../../lib/text/template/template.js';

const render = (template: string, options: object = {}): string =>
  new Template(template).render({ ...options }).text;

test.each<[string, string, string]>([
  [
    'is iterable, and a search empties it',
    '{% for x in [1,2,3] %}{{ x }}{{ loop is iterable }}{{ 7 in loop }};{% endfor %}',
    '1TrueFalse;',
  ],
  [
    'lists the items that are left, each beside itself',
    "{% for x in ['a','b','c'] %}{{ loop|list }}{% endfor %}",
    "[('b', <LoopContext 3/3>), ('c', <LoopContext 3/3>)]",
  ],
  [
    'goes on behind an inner loop that took some items',
    '{% for x in [1,2,3,4] %}{{ x }}{% for y, outer in loop %}{{ y }}{{ outer.index }}{% if y == 3 %}{% break %}{% endif %}{% endfor %};{% endfor %}',
    '12233;4;',
  ],
  [
    'gives filters its pairs',
    "{% for x in 'abc' %}{{ x }}{{ loop|map('first')|join(',') }}{% endfor %}",
    'ab,c',
  ],
  [
    'yields an item that was looked at',
    '{% for x in [1,2] %}{{ loop.nextitem }}{{ loop|first }}{% endfor %}',
    '2(2, <LoopContext 2/2>)',
  ],
])('it %s', (_, template, text) => expect(render(template)).toBe(text));

test('filesizeformat of NaN has a binary unit', () => {
  const template = '{{ nan|filesizeformat }} {{ nan|filesizeformat(true) }}';
  expect(render(template, { nan: Number.NaN })).toBe('nan YB nan YiB');
});
