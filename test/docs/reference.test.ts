// Tests that every exported name has a text in the API reference, and that it includes the names of
// the pages.

import { methods } from '../../lib/tensor/methods.generated.js';
import { type Entry, propertiesOf, surfaceOf } from './reference.js';
import { pages, readPage, snippetsOf } from './snippets.js';

const surface = surfaceOf('lib/index.ts').filter(({ isInternal }) => !isInternal);
const reference = new Map(surface.map((entry) => [entry.path, entry]));
const namespaces = 'nn|optim|data|comm|monitor|zero|profiler|checkpointing|text';

const silent = (entries: readonly Entry[]): string[] =>
  entries.filter(({ text }) => text === '').map(({ path, place }) => `${path} (${place})`);

/** The library's names in a page: imports of its code, members of namespaces, and of the engine. */
function namesIn(page: string): string[] {
  const text = readPage(page);
  const blocks = snippetsOf(page, text, ['ts', 'js']).map(({ given, code }) => given + code);
  const imported = blocks.flatMap((code) => {
    const names = importedIn(code);
    return [...names, ...membersIn(code).filter((name) => isOf(names, name))];
  });
  // Three pages list names of other libraries in the first column of their tables.
  const isGuide = /(coming-from-deepspeed|deepspeed-features|pytorch)\.md$/.test(page);
  const ours = isGuide ? text.replace(/^\|[^|]*/gm, '') : text;
  const inline = Array.from(ours.matchAll(/(?<!`)`([^`\n]+)`(?!`)/g), ([, code = '']) => code);
  return [...imported, ...inline.flatMap(membersIn)].filter((name) => !name.endsWith('.ts'));
}

/** Whether a member's namespace is one of the imported names. */
function isOf(imported: readonly string[], member: string): boolean {
  const [owner = ''] = member.split('.');
  return owner === 'Engine' || imported.includes(owner);
}

function importedIn(code: string): string[] {
  const lists = code.matchAll(/import (?:type )?\{([^}]*)\} from '@ds\/native'/g);
  const names = Array.from(lists, ([, list = '']) => list.split(',')).flat();
  return names.map((name) => name.replace(/\btype\b|\bas .*/g, '').trim()).filter(Boolean);
}

function membersIn(code: string): string[] {
  // engine.json is a file.
  const names = `(?<![\\w./])(${namespaces}|engine)\\.(?!json\\b)(\\w+)`;
  const found = code.matchAll(new RegExp(names, 'g'));
  return Array.from(found, ([, owner = '', name = '']) =>
    owner === 'engine' ? `Engine.${name}` : `${owner}.${name}`,
  );
}

test('every exported name has a description', () => {
  const exported = surface.filter(({ isMember }) => !isMember);
  expect(exported.length).toBeGreaterThan(400);
  for (const namespace of namespaces.split('|')) expect(reference.has(namespace)).toBe(true);
  expect(silent(exported)).toEqual([]);
});

/** Generated from C++; operands and scalars of kernels have their texts in the op. */
const isGenerated = ({ place }: Entry): boolean => /\.generated\.ts:|addon\.d\.ts:/.test(place);

test('every member of an exported class or interface has a description', () => {
  const members = surface.filter((entry) => entry.isMember && !isGenerated(entry));
  expect(members.length).toBeGreaterThan(1000);
  expect(silent(members)).toEqual([]);
});

test('methods of tensors have the comments of their functions', () => {
  const properties = propertiesOf('lib/index.ts', 'Tensor');
  const texts = new Map(properties.map(({ path, text }) => [path, text]));
  // An alias (var is variance) has no text of its own.
  const names = Object.keys(methods).filter((name) => name !== 'var');
  for (const name of names) {
    expect([name, texts.get(`Tensor.${name}`)]).toEqual([name, reference.get(name)?.text]);
  }
});

test.each(pages())('the names on %s are in the reference with a description', (page) => {
  // A PipelineEngine and an InferenceEngine are engines too.
  const engines = ['Engine.', 'PipelineEngine.', 'InferenceEngine.'];
  const isKnown = (name: string): boolean =>
    engines.some((engine) => reference.get(name.replace(/^Engine\./, engine))?.text);
  const unknown = [...new Set(namesIn(page))].filter((name) => !isKnown(name));
  expect(unknown).toEqual([]);
});

test('finds names in code and in text', () => {
  expect(namesIn('README.md')).toEqual(
    expect.arrayContaining(['initialize', 'nn.models', 'Tensor', 'Engine.step']),
  );
});
