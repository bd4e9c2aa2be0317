// The lint of words finds the constructions, long sentences, wide cells and wide lines of a text.
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

interface Found {
  words: number;
  index: number;
  hits: number;
  p90: number;
  sentences: number;
  cells: number;
  lines: number;
  worst: string[];
}

function measure(kind: 'page' | 'script' | 'cpp', text: string): Found {
  const program = `
    import { Group, addPage, addComments } from './scripts/words/prose.mjs';
    import { commentsOfCpp, wordsOfScript } from './scripts/words/sources.mjs';
    const [kind, text] = JSON.parse(process.argv[1]);
    const group = new Group();
    if (kind === 'page') addPage(group, 'x', text);
    if (kind === 'cpp') addComments(group, 'x', commentsOfCpp(text));
    if (kind === 'script') {
      const { comments, messages } = wordsOfScript('x.ts', text);
      addComments(group, 'x', comments);
      for (const { line, text } of messages) group.add('x', line, text);
    }
    console.log(JSON.stringify({ ...group.measure(), worst: group.worst(9) }));`;
  const args = ['--input-type=module', '-e', program, JSON.stringify([kind, text])];
  return JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8' }));
}

const bad = 'Nobody knows whose weights those of the engine are.';

test('a page: prose counts, code and headings do not', () => {
  const found = measure('page', `# Nobody\n\n\`nobody\`\n\n${bad}\n\n\`\`\`\n${bad}\n\`\`\`\n`);
  expect(found.words).toBe(10);
  expect(found).toMatchObject({ index: 400, hits: 4 });
  expect(found.worst).toEqual([expect.stringMatching(/^x:5: whose, those that, .*Nobody/)]);
});

test('a page: wide cells and lines, but not the targets of links', () => {
  const wide = 'word '.repeat(30);
  const link = `[short](${'a'.repeat(200)})`;
  const found = measure(
    'page',
    `${wide}\n\n${link}\n\n| a | b |\n| - | - |\n| ${wide} | ${link} |\n`,
  );
  expect(found).toMatchObject({ cells: 1, lines: 1 });
});

test('a sentence of more than 40 words', () => {
  const found = measure('page', `${'Word word '.repeat(21)}end.`);
  expect(found.sentences).toBe(1);
  expect(measure('page', `${'Word word '.repeat(19)}end.`).sentences).toBe(0);
});

test('TypeScript: comments and messages', () => {
  const source = [
    `const url = 'http://nobody';`,
    `// ${bad}`,
    `throw new Error(\`expected weights, got \${x} that nobody \` + 'has asked for');`,
  ].join('\n');
  const found = measure('script', source);
  expect(found.worst.map((place) => place.slice(0, 4))).toEqual(['x:2:', 'x:3:']);
});

test('C++: comments, not literals', () => {
  const found = measure('cpp', `auto s = "// nobody knows";\nint x;  // ${bad}\n/* ${bad} */\n`);
  expect(found.words).toBe(18);
});

test('the hook accepts only "area: imperative"', () => {
  const folder = mkdtempSync(join(tmpdir(), 'subject-'));
  const code = (subject: string) => {
    const file = join(folder, 'message');
    writeFileSync(file, `${subject}\n\nBody.\n`);
    return spawnSync(resolve('scripts/hooks/commit-msg'), [file]).status;
  };
  expect(code('zero: free gradients after the step')).toBe(0);
  expect(code('Free gradients')).toBe(1);
  expect(code('zero: free gradients.')).toBe(1);
  expect(code(`zero: ${'free '.repeat(20)}`)).toBe(1);
  rmSync(folder, { recursive: true });
});
