// Links between the pages of the documentation, and into the sources, lead somewhere, also from the
// package.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { headingsOf } from './headings.js';
import { pages, readPage } from './snippets.js';

const root = packageRoot();
const { files, homepage } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const repository: string = homepage.replace('#readme', '');

/** Relative links of a page: its file, and the heading in it. */
function linksOf(page: string): { file: string; heading: string }[] {
  const targets = Array.from(
    readPage(page).matchAll(/\]\((?!https?:)([^)\s]+)\)/g),
    ([, to]) => to,
  );
  return targets.map((target = '') => {
    const [file = '', heading = ''] = target.split('#');
    return { file: file === '' ? page : join(dirname(page), file), heading };
  });
}

/** Files of the repository that a page links to by their address there. */
function linksToRepository(page: string): string[] {
  const links = readPage(page).matchAll(/\]\((https:[^)\s]+)\)/g);
  const ours = Array.from(links, ([, to = '']) => to).filter((to) => to.startsWith(repository));
  return ours.map((to) => to.slice(repository.length).replace(/^\/(tree|blob)\/main\//, ''));
}

/** Whether the package's `files` carry it. */
function isPacked(file: string): boolean {
  if (['README.md', 'LICENSE', 'package.json'].includes(file)) return true;
  return files.some((entry: string) => {
    const pattern = entry.slice(1);
    return file === pattern || file.startsWith(`${pattern}/`) || matches(pattern, file);
  });
}

/** `docs/*.md` */
function matches(pattern: string, file: string): boolean {
  const [before = '', after] = pattern.split('*');
  if (after === undefined || !file.startsWith(before) || !file.endsWith(after)) return false;
  return !file.slice(before.length, -after.length).includes('/');
}

test.each(pages())('the links of %s lead somewhere', (page) => {
  const dead = linksOf(page).filter(({ file, heading }) => {
    if (!existsSync(join(root, file))) return true;
    return heading !== '' && !headingsOf(file).includes(heading);
  });
  expect(dead).toEqual([]);
});

test.each(pages())(
  'what %s links to is in the package, or has its address in the repository',
  (page) => {
    const left = linksOf(page).map(({ file }) => file);
    expect(left.filter((file) => !isPacked(file))).toEqual([]);
    expect(linksToRepository(page).filter((file) => !existsSync(join(root, file)))).toEqual([]);
  },
);

const rooms = readdirSync(join(root, 'lib'));

/** Sources that a page names by their paths. Paths of lib/ may begin with the room. */
function pathsIn(page: string): string[] {
  const text = readPage(page);
  const paths = text.matchAll(/`((?:lib|csrc|test|scripts|bench|examples|docs)\/[\w./-]+)`/g);
  const files = text.matchAll(/`([\w-]+)(\/[\w./-]+\.ts)`/g);
  const inRooms = Array.from(files, ([, room = '', rest = '']) => [room, rest] as const)
    .filter(([room]) => rooms.includes(room))
    .map(([room, rest]) => `lib/${room}${rest}`);
  return [...Array.from(paths, ([, path = '']) => path), ...inRooms];
}

test.each([...pages(), 'CONTRIBUTING.md'])('the sources that %s names exist', (page) => {
  expect(pathsIn(page).filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

test('pages name sources', () => {
  expect(pathsIn('CONTRIBUTING.md')).toContain('test/config/obeyed.test.ts');
  expect(pathsIn('docs/architecture.md')).toContain('lib/zero/stage.ts');
});

test('finds a link to a file outside the package', () => {
  expect(isPacked('docs/data.md')).toBe(true);
  expect(isPacked('docs/api/index.html')).toBe(false);
  expect(isPacked('bench/results/gpu-tests.json')).toBe(false);
  expect(linksToRepository('README.md')).toContain('bench/results');
});

test('the documentation has links', () => {
  expect(pages().flatMap(linksOf).length).toBeGreaterThan(20);
});
