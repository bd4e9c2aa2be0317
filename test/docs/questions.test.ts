// Each question in questions.md has an answer on the site: its link leads to a heading of a page.
import { join } from 'node:path';
import { headingsOf } from './headings.js';
import { pages, readPage } from './snippets.js';

interface Question {
  number: number;
  text: string;
  page: string;
  heading: string;
}

const LIST = 'test/docs/questions.md';
const ROW = /^\| (\d+) \| (.+) \| \[([\w-]+)\]\(([^)#]+)#?([^)]*)\) \|$/;

function questions(): Question[] {
  const rows = readPage(LIST)
    .split('\n')
    .filter((line) => /^\| \d/.test(line));
  return rows.map((row) => {
    const found = ROW.exec(row);
    if (!found) throw new Error(`${LIST}: expected "| N | question | [page](link) |", got ${row}`);
    const [, number, text = '', name, file = '', heading = ''] = found;
    expect(file).toBe(`../../docs/${name}.md`);
    return { number: Number(number), text, page: join('test/docs', file), heading };
  });
}

/** Questions without an existing page or heading. */
function unanswered(list: readonly Question[]): string[] {
  const known = new Set(pages());
  return list
    .filter(
      ({ page, heading }) =>
        !known.has(page) || (heading !== '' && !headingsOf(page).includes(heading)),
    )
    .map(({ text, page, heading }) => `${text} ${page}#${heading}`);
}

test('each question leads to a page and a heading', () => {
  expect(unanswered(questions())).toEqual([]);
});

test('there are at least 60 distinct, numbered questions', () => {
  const list = questions();
  expect(list.length).toBeGreaterThanOrEqual(60);
  expect(list.map(({ number }) => number)).toEqual(list.map((_, i) => i + 1));
  expect(new Set(list.map(({ text }) => text)).size).toBe(list.length);
  for (const { text } of list) expect(text).toMatch(/\?/);
});

test('finds a question without an answer', () => {
  const [first] = questions() as [Question];
  expect(unanswered([{ ...first, heading: 'nowhere' }])).toHaveLength(1);
  expect(unanswered([{ ...first, page: 'docs/nowhere.md' }])).toHaveLength(1);
});
