// The headings of a page as links name them. Source: GitHub's rule.
import { readPage } from './snippets.js';

/** Returns the anchors of all headings of `page`. */
export function headingsOf(page: string): string[] {
  const titles = Array.from(readPage(page).matchAll(/^#+ (.*)$/gm), ([, title = '']) => title);
  return titles.map((title) =>
    title
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  );
}
