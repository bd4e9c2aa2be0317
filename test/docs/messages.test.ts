// The messages in the tables of pages are messages of the sources.
import { isMade, partsOf, quotesOf, textsOfSources } from './messages.js';
import { pages, readPage } from './snippets.js';

const texts = textsOfSources();

test.each(pages())('the messages that %s quotes are in the sources', (page) => {
  const lost = quotesOf(readPage(page)).flatMap((quote) =>
    partsOf(quote)
      .filter((part) => !isMade(part, texts))
      .map((part) => `${page}:${quote.line}: ${part}`),
  );
  expect(lost).toEqual([]);
});

test('a message that changed is found', () => {
  const table = (message: string) =>
    `| message | fix |\n| --- | --- |\n| \`DS_X\` \`${message}\` | a |`;
  const lost = (message: string) =>
    quotesOf(table(message))
      .flatMap(partsOf)
      .filter((part) => !isMade(part, texts));
  expect(lost('engine.trace: expected one trace at a time')).toEqual([]);
  expect(lost('engine.trace: expected a single trace at once, got 2')).toEqual([
    'a single trace at once',
  ]);
});

test('pages quote messages', () => {
  const quotes = pages().flatMap((page) => quotesOf(readPage(page)));
  expect(quotes.flatMap(partsOf).length).toBeGreaterThan(150);
});
