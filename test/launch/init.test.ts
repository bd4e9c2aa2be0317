// Tests `ds init`: the files of every template, names for npm, and the folders that it refuses.
import fs, {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { resolveConfig } from '../../lib/config/index.js';
import { createProject, toPackageName } from '../../lib/launch/init.js';
import { TEMPLATES, type Template } from '../../lib/launch/templates.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { version } from '../../lib/version.js';

const templates = Object.keys(TEMPLATES) as Template[];

let parent: string;
beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), 'ds-init-'));
});
afterEach(() => rmSync(parent, { recursive: true }));

/** Paths of all files below `folder`, sorted. */
const filesIn = (folder: string): string[] =>
  readdirSync(folder, { encoding: 'utf8', recursive: true })
    .filter((name) => statSync(join(folder, name)).isFile())
    .sort();

const read = (...path: string[]): string => readFileSync(join(...path), 'utf8');

test('every folder of templates/ belongs to a template, and every template has one', () => {
  const used = templates.flatMap((name) => TEMPLATES[name].sources.map(([from]) => from as string));
  const folders = readdirSync(join(packageRoot(), 'templates')).map((name) => `templates/${name}`);
  expect([...new Set(used)].filter((from) => from.startsWith('templates/')).sort()).toEqual(
    folders.sort(),
  );
});

test.each(['docs/first-ten-minutes.md', 'test/tarball/projects.sh'])(
  '%s names all templates',
  (file) => {
    const text = read(packageRoot(), file);
    for (const name of templates) expect(text).toMatch(new RegExp(`(\\| \`|[ ;])${name}\\b`));
  },
);

describe.each(templates)('the template %s', (template) => {
  let folder: string;
  let output: string;
  beforeEach(() => {
    folder = join(parent, 'hello');
    output = createProject(folder, template);
  });

  test('has the files of a project', () => {
    const files = filesIn(folder);
    const expected = ['.gitignore', 'README.md', 'ds_config.json', 'jsconfig.json', 'package.json'];
    expect(files).toEqual(expect.arrayContaining(expected));
    expect(files.filter((name) => name.startsWith('data/'))).not.toEqual([]);
    expect(output).toContain(`${files.length} files`);
    expect(output).toContain('npm start');
    const bytes = files.filter((name) => !name.startsWith('tokenizer/'));
    const size = bytes.reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
    expect(size).toBeLessThan(20_000);
  });

  test('depends on the installed version, and its scripts name programs that it has', () => {
    const manifest = JSON.parse(read(folder, 'package.json'));
    expect(manifest).toMatchObject({ name: 'hello', private: true, type: 'module' });
    expect(manifest.dependencies).toEqual({ '@ds/native': `^${version}` });
    const scripts: Record<string, string> = manifest.scripts;
    const programs =
      Object.values(scripts)
        .join(' ')
        .match(/[\w-]+\.mjs/g) ?? [];
    expect(programs.length).toBeGreaterThan(0);
    for (const program of programs) expect(existsSync(join(folder, program))).toBe(true);
    for (const [, name = ''] of read(folder, 'README.md').matchAll(/`npm run (\w+)/g)) {
      expect(Object.keys(scripts)).toContain(name);
    }
  });

  test('has programs with types, and a configuration that explains itself', () => {
    const programs = filesIn(folder).filter((name) => name.endsWith('.mjs'));
    for (const program of programs) {
      const lines = read(folder, program).trimEnd().split('\n');
      expect(lines[0]).toBe('// @ts-check');
      expect([program, lines.length < 45]).toEqual([program, true]);
    }
    expect(read(folder, 'ds_config.json')).toMatch(/^ +\/\/ /m);
    const path = join(folder, 'ds_config.json');
    const { notices } = resolveConfig(path, { worldSize: 1, strict: true });
    expect(notices).toEqual([]);
    expect(read(folder, 'README.md').trimEnd().split('\n').length).toBeLessThan(20);
  });
});

test('fills an empty folder, also one with the files of git', () => {
  mkdirSync(join(parent, '.git'));
  createProject(parent, 'chat');
  expect(existsSync(join(parent, 'train.mjs'))).toBe(true);
});

test('the printed commands omit npm install if the package is installed', () => {
  expect(createProject(join(parent, 'a'), 'chat')).toMatch(
    / {2}cd \S+a\n {2}npm install\n {2}npm start/,
  );
  mkdirSync(join(parent, 'node_modules/@ds'), { recursive: true });
  symlinkSync(packageRoot(), join(parent, 'node_modules/@ds/native'));
  const output = createProject(join(parent, "it's b"), 'chat');
  expect(output).not.toContain('npm install');
  expect(output).toContain(`cd '${parent}/it'\\''s b'`);
});

test('a folder with files is refused, and stays as it is', () => {
  writeFileSync(join(parent, 'mine.txt'), 'mine');
  writeFileSync(join(parent, 'train.mjs'), 'mine too');
  expect(() => createProject(parent, 'chat')).toThrow(
    'expected a folder that is new or empty, got a folder with mine.txt and 1 more. Name another',
  );
  expect(filesIn(parent)).toEqual(['mine.txt', 'train.mjs']);
  expect(read(parent, 'train.mjs')).toBe('mine too');
});

test('the path of a file is refused', () => {
  const file = join(parent, 'file');
  writeFileSync(file, 'mine');
  expect(() => createProject(file, 'chat')).toThrow('got the path of a file');
  expect(() => createProject(join(file, 'below'), 'chat')).toThrow(
    'a folder that can be written, got ENOTDIR',
  );
  expect(read(file)).toBe('mine');
});

test.each([
  ['', 'expected the path of a folder, got ""'],
  ['/proc/ds-init', 'expected a folder that can be written'],
])('the folder %j is refused', (folder, message) => {
  expect(() => createProject(folder, 'chat')).toThrow(message);
});

/** Runs `body`; the fifth file is not written, and `before` runs in its place. */
function withFullDisk(body: () => void, before: () => void = () => {}): void {
  const write = fs.writeFileSync;
  let count = 0;
  const full = jest.spyOn(fs, 'writeFileSync').mockImplementation((...args) => {
    if (++count < 5) return write(...args);
    full.mockRestore();
    before();
    throw Object.assign(new Error('ENOSPC: no space left'), { code: 'ENOSPC' });
  });
  try {
    expect(body).toThrow('got ENOSPC: no space left. Name a');
  } finally {
    full.mockRestore();
  }
  expect(count).toBe(5);
}

test.each([
  ['a new folder', 'new/deep'],
  ['an empty folder', '.'],
])('a full disk leaves %s as it was', (_, folder) => {
  withFullDisk(() => createProject(join(parent, folder), 'chat'));
  expect(readdirSync(parent)).toEqual([]);
});

test('after an error, a file that another process wrote meanwhile stays', () => {
  const other = join(parent, 'new/tokenizer/other');
  const meanwhile = () => writeFileSync(other, 'other');
  withFullDisk(() => createProject(join(parent, 'new'), 'chat'), meanwhile);
  expect(filesIn(parent)).toEqual(['new/tokenizer/other']);
});

test('a broken link is refused, and nothing is written', () => {
  symlinkSync(join(parent, 'nowhere/deep'), join(parent, 'link'));
  expect(() => createProject(join(parent, 'link'), 'chat')).toThrow('a folder that can be written');
  expect(readdirSync(parent)).toEqual(['link']);
});

test.each([
  ['/a/hello', 'hello'],
  ['/a/My First Model', 'my-first-model'],
  ['/a/.hidden', 'hidden'],
  ['/a/_x_', 'x'],
  ['/a/@scope', 'scope'],
  ['/a/Café', 'cafe'],
  ['/a/日本', 'my-project'],
  ['/a/node_modules', 'my-project'],
  ['/', 'my-project'],
  ['/a/a"b\n$c', 'a-b-c'],
  [`/a/${'x'.repeat(300)}`, 'x'.repeat(214)],
])('the folder %j becomes the package %j', (folder, name) => {
  expect(toPackageName(folder)).toBe(name);
});
