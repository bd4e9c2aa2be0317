// Tests that the code in the documentation compiles against the public API, and that its
// configurations load.
import { type DsConfig, resolveConfig } from '../../lib/index.js';
import { resolveInferenceConfig } from '../../lib/inference/config/index.js';
import { checkSnippets, pages, readPage, type Snippet, snippetsOf } from './snippets.js';

const find = (...languages: string[]): Snippet[] =>
  pages().flatMap((page) => snippetsOf(page, readPage(page), languages));

const code = find('ts', 'js');
const broken: Snippet[] = snippetsOf(
  'broken.md',
  [
    'text',
    '<!-- given',
    "import type { Engine } from '@ds/native';",
    'declare const engine: Engine;',
    '-->',
    '```ts',
    'engine.step();',
    'engine.stepp();',
    '```',
    '- in a list',
    '  ```js',
    "  import { initialise } from '@ds/native';",
    '  ```',
  ].join('\n'),
  ['ts', 'js'],
);
const named = namedInGuide();
const errors = checkSnippets([...code, ...broken, named]);

/** The library's names in the tables of both guides, as values that must exist. */
function namedInGuide(): Snippet {
  const page = 'docs/coming-from-deepspeed.md';
  const text = readPage(page) + readPage('docs/deepspeed-features.md');
  const ours = text.matchAll(/^\| [^|]*\| ([^|]*)\|/gm);
  const name = /\b(?:engine|optim|data|comm|checkpointing|zero|nn|job)\.[\w.]*\w/g;
  const names = new Set(Array.from(ours, ([, cell = '']) => cell.match(name) ?? []).flat());
  const input = [
    "import { checkpointing, comm, data, type Engine, nn, optim, zero } from '@ds/native';",
    'declare const engine: Engine;',
    'declare const job: comm.Distributed;\n',
  ].join('\n');
  return { page, line: 1, language: 'ts', given: input, code: [...names].join(';\n') };
}

test('the documentation has code', () => {
  expect(new Set(code.map(({ page }) => page))).toContain('README.md');
  expect(code.length).toBeGreaterThan(12);
});

test.each(code.map((snippet) => [`${snippet.page}:${snippet.line}`, snippet] as const))(
  '%s compiles',
  (_, snippet) => expect(errors.get(snippet)).toEqual([]),
);

test('names in the tables of the guide exist', () => {
  expect(named.code.split('\n').length).toBeGreaterThan(30);
  const types = ['LrSchedule', 'Optimizer'].map((name) => `Property '${name}' does not exist`);
  const missing = errors.get(named)?.filter((error) => !types.some((type) => error.includes(type)));
  expect(missing).toEqual([]);
});

test('errors are found, at their line', () => {
  const [first, second] = broken.map((snippet) => errors.get(snippet));
  expect(first).toEqual([expect.stringMatching(/^broken\.md:8: .*stepp/)]);
  expect(second).toEqual([expect.stringMatching(/^broken\.md:12: .*initialise/)]);
});

test.each(find('json').map(({ page, line, code: text }) => [`${page}:${line}`, text] as const))(
  '%s is a configuration',
  (_, text) => {
    if (/"\$schema": ".*\/ds_inference_config/.test(text)) {
      expect(resolveInferenceConfig(JSON.parse(text)).notices).toEqual([]);
      return;
    }
    const config: DsConfig = JSON.parse(text);
    const given = Object.keys(config).some((key) => /^(train_|elasticity$)/.test(key));
    const fullConfig = given ? config : { ...config, train_batch_size: 8 };
    resolveConfig(fullConfig, { worldSize: 1, strict: true });
  },
);
