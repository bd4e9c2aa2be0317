// Links between the pages of the documentation, and into the sources, lead somewhere.
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { packageRoot } from '../../../lib/runtime/package-root.js';
import { pages, readPage } from './snippets.js';

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

/** Headings of a page as links call them. Source: GitHub's rule. */
function headingsOf(page: string): string[] {
  const titles = Array.from(readPage(page).matchAll(/^#+ (.*)$/gm), ([, title = '']) => title);
  return titles.map((title) =>
    title
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );
}

test.each(pages())('the links of %s lead somewhere', (page) => {
  const dead = linksOf(page).filter(({ file, heading }) => {
    if (!existsSync(join(packageRoot(), file))) return true;
    return heading !== '' && !headingsOf(file).includes(heading);
  });
  expect(dead).toEqual([]);
});

test('the documentation has links', () => {
  expect(pages().flatMap(linksOf).length).toBeGreaterThan(20);
});
