// The interpreter of chat templates, held to Python's jinja2 (scripts/record-templates.py) and to
// its bounds.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { TemplateFault, TemplateLimit } from '../../lib/text/template/fault.js';
import { Template } from '../../lib/text/template/template.js';

interface Case {
  group: string;
  template: string;
  text?: string;
  error?: string;
}

const { given, cases } = JSON.parse(
  readFileSync(join(__dirname, '../golden/templates.json'), 'utf8'),
) as {
  given: Record<string, unknown>;
  cases: readonly Case[];
};
const GROUPS = [...new Set(cases.map(({ group }) => group))];

/** The text, or the name of the refusal. Other errors are thrown. */
function outcome(template: string, variables: Record<string, unknown>): Partial<Case> {
  try {
    return { text: new Template(template).render(variables).text };
  } catch (error) {
    if (error instanceof TemplateFault) return { error: error.kind };
    throw error;
  }
}

test('there are as many cases as were recorded', () => {
  expect(cases.length).toBeGreaterThan(400);
  expect(cases.filter(({ error }) => error !== undefined).length).toBeGreaterThan(150);
});

test.each(GROUPS)('%s equal those of jinja2, including errors', (group) => {
  const localCases = cases.filter((item) => item.group === group);
  const found = localCases.map(({ template }) => ({
    group,
    template,
    ...outcome(template, given),
  }));
  expect(found).toEqual(localCases);
});

test.each([
  ['{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}', "<Namespace {'x': <Namespace {...}>}>"],
  ['{% set n = namespace() %}{% set n.x = [n] %}{{ n.x }}', "[<Namespace {'x': [...]}>]"],
  ["{% set b | tojson('a' or loop) %}x{% endset %}{{ b }}", '"x"'],
  ['{% for x in [4, 5] %}{{ loop|length }}{% endfor %}', '22'],
  ['{{ (5).is_integer() }}{{ true.is_integer() }}', 'TrueTrue'],
  ['{{ 10[1:] }}|{{ [10[1:]] }}', '|[Undefined]'],
  [
    '{{ 1.7 ** 11 }} {{ 0.7 ** 20 }} {{ 3.7 ** 5 }}',
    '342.7189630763299 0.0007979226629761189 693.4395700000001',
  ],
  [
    '{{ 2.5 ** 0.5 }} {{ 0.1 ** -3 }} {{ (-1.3) ** 3 }}',
    '1.5811388300841898 999.9999999999999 -2.197',
  ],
  ["{{ '\x1c5'|int }}{{ '\x855\u3000'|int }}{{ '\x1c5'|float }}", '050.0'],
])('%s is %s', (template, text) => {
  expect(outcome(template, {})).toEqual({ text });
});

test.each(['{% set x = 10[1:] %}', '{{ 2.5[1:] or x }}', "{{ ('a' // 1.0)[:] }}"])(
  '%s is a TypeError',
  (template) => {
    expect(outcome(template, {})).toEqual({ error: 'TypeError' });
  },
);

test('an address in the text of an object has as many digits as Python prints', () => {
  const { text } = new Template('{{ [1]|items|string|length }}').render({});
  expect(text).toBe('<generator object do_items at 0x7f19e5a18110>'.length.toString());
});

test('a template is compiled once and renders with any variables', () => {
  const template = new Template('{{ a }}{% set a = 3 %}{{ a }}');
  expect(template.render({ a: 1 }).text).toBe('13');
  expect(template.render({ a: 'x' }).text).toBe('x3');
  expect(template.render({}).text).toBe('3');
});

describe('variables of the caller', () => {
  const renderValue = (x: unknown): string => new Template('{{ x }}').render({ x }).text;

  test.each<[unknown, string]>([
    [1, '1'],
    [-0, '0'],
    [1.5, '1.5'],
    [2 ** 60, '1152921504606846976'],
    [1e300, '1e+300'],
    [10n, '10'],
    [null, 'None'],
    [[undefined, 1], '[None, 1]'],
    [{ a: undefined, b: 1 }, "{'b': 1}"],
    [new Map([['k', [true]]]), "{'k': [True]}"],
    [new Uint8Array([1, 2]), '[1, 2]'],
    [new Date(0), '1970-01-01T00:00:00.000Z'],
    [JSON.parse('{"__proto__": 1}'), "{'__proto__': 1}"],
    ['\ud800', '\ud800'],
  ])('%p prints as Python prints what JSON makes of it', (value, text) => {
    expect(renderValue(value)).toBe(text);
  });

  test('undefined is not a variable', () => {
    expect(new Template('{{ x is defined }}').render({ x: undefined }).text).toBe('False');
  });

  test('functions and circular values are refused', () => {
    const circle: unknown[] = [];
    circle.push(circle);
    expect(() => renderValue(() => 1)).toThrow(/variables must be JSON values, not the function/);
    expect(() => renderValue(circle)).toThrow(/values nested more than 500 levels deep/);
  });
});

describe('the bounds of the sandbox', () => {
  test.each([
    ['loops', '{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}'],
    ['a filtered loop', '{% for a in range(99999) for b in a %}{% endfor %}'],
    [
      'a text',
      "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
    ],
    ['a product', "{{ 'a' * 10 ** 12 }}"],
    ['a list', '{{ [1] * 10 ** 9 }}'],
    ['an integer', '{{ 2 ** (10 ** 9) }}'],
    [
      'integers',
      '{% set ns = namespace(t=3) %}{% for i in range(99) %}{% set ns.t = ns.t * ns.t %}{% endfor %}',
    ],
    ['an output', "{% for i in range(99999) %}{{ 'abcdefghij' * 100000 }}{% endfor %}"],
    ['a width', "{{ 'a'.center(10 ** 10) }}"],
    ['a format', "{{ '%*d' % (10 ** 9, 1) }}{{ '{:999999999}'.format(1) }}"],
    ['a replacement', "{{ ('a' * 10 ** 6).replace('', 'b' * 1000) }}"],
    ['a joint', "{{ range(99999)|join('a' * 10000) }}"],
    ['an indentation', "{{ ('a\\n' * 10 ** 6)|indent(1000) }}"],
    [
      'a nested value',
      '{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}',
    ],
    [
      'a comparison',
      '{% set a = namespace(l=[1]) %}{% set b = namespace(l=[1]) %}{% for i in range(60) %}{% set a.l = [a.l, a.l] %}{% set b.l = [b.l, b.l] %}{% endfor %}{{ a.l == b.l }}',
    ],
    [
      'JSON',
      '{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}',
    ],
    [
      'a wrapped text',
      "{% for i in range(99999) %}{{ ('a-' * 9999)|wordwrap(9)|length }}{% endfor %}",
    ],
  ])('%s that grows without end is refused', (name, template) => {
    const run = () => new Template(template).render({});
    if (name === 'a filtered loop') expect(run).toThrow(TemplateFault);
    else expect(run).toThrow(TemplateLimit);
  });

  test.each([
    ['macros', '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}'],
    ['a loop', '{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}'],
    [
      'lists',
      '{% set ns = namespace(l=[]) %}{% for i in range(900) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l == [ns.l] }}{{ ns.l|tojson }}',
    ],
  ])('%s within themselves are refused as Python refuses them', (_, template) => {
    expect(outcome(template, {})).toEqual({ error: 'RecursionError' });
  });

  test.each([
    ['parentheses', `{{ ${'('.repeat(5000)}1${')'.repeat(5000)} }}`],
    ['lists', `{{ ${'['.repeat(5000)}${']'.repeat(5000)} }}`],
    ['signs', `{{ ${'-'.repeat(5000)}1 }}`],
    ['conditions', '{% if 1 %}'.repeat(5000)],
    ['a chain', `{{ 1${'.x'.repeat(100_000)} }}`],
    ['a sum', `{{ 1${'+1'.repeat(100_000)} }}`],
  ])('%s within each other end with a fault', (_, template) => {
    expect(outcome(template, {}).error).toMatch(
      /TemplateSyntaxError|RecursionError|UndefinedError/,
    );
  });

  test.each([
    ["{% filter list|join('-') %}abc{% endfilter %}{% filter safe %}d{% endfilter %}", 'a-b-cd'],
    ['{% if false %}{% filter count %}a{% endfilter %}{% endif %}b', 'b'],
    ['{% filter count %}abc{% endfilter %}', null],
    ['{% filter first %}{% endfilter %}', null],
    ['{% filter default(1, true) %}{% endfilter %}', null],
    ["{% filter attr('upper') %}a{% endfilter %}", null],
    ['{% set x %}{% filter float(1.5) %}a{% endfilter %}{% endset %}b', null],
    ['{% filter upper %}{% filter count %}a{% endfilter %}{% endfilter %}', null],
  ])('%s writes texts only', (template, text) =>
    expect(outcome(template, {})).toEqual(text === null ? { error: 'TypeError' } : { text }),
  );

  test('a fault names its line', () => {
    const lineOf = (template: string): number => {
      try {
        new Template(template).render({});
      } catch (error) {
        return (error as TemplateFault).line;
      }
      return -1;
    };
    expect(lineOf('a\n{% if 1 %}\n{{ 1 + "a" }}{% endif %}')).toBe(3);
    expect(lineOf('a\n{% if 1 %}\n{{ 1 | nosuch }}{% endif %}')).toBe(3);
    expect(lineOf('a\n\n{{ $ }}')).toBe(3);
    expect(lineOf('\n{% for i in range(1000000) %}{% endfor %}')).toBe(2);
  });
});

describe('what {% generation %} writes', () => {
  const partsOf = (template: string): string[] | null => {
    const { text, spans } = new Template(template).render({ x: ['a', '😀b'] });
    return spans?.map(({ start, end }) => text.slice(start, end)) ?? null;
  };

  test('is found in the text', () => {
    const template = '{% for m in x %}<{% generation %}{{ m }}!{% endgeneration %}>{% endfor %}';
    expect(partsOf(template)).toEqual(['a!', '😀b!']);
    expect(partsOf('{% generation %}{% endgeneration %}')).toEqual(['']);
    expect(partsOf('none')).toEqual([]);
  });

  test('is marked where a macro passes it on', () => {
    const template =
      '{% macro f(m) %}<{% generation %}{{ m }}{% endgeneration %}>{% endmacro %}{{ f(x[0]) }}';
    expect(partsOf(template)).toBeNull();
    const marks = { open: '\uf8f0', close: '\uf8f1' };
    expect(new Template(template).render({ x: ['a'] }, marks).text).toBe('<\uf8f0a\uf8f1>');
  });
});
