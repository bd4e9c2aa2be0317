// Every error code that native code throws is one that the library declares.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const read = (file: string): string => readFileSync(join(packageRoot(), file), 'utf8');
const declared = new Set(
  read('lib/errors.ts')
    .match(/'DS_[A-Z_]+'/g)
    ?.map((code) => code.slice(1, -1)),
);

function thrown(): Map<string, string> {
  const files = readdirSync(join(packageRoot(), 'csrc'), { recursive: true, encoding: 'utf8' });
  const sources = files.filter((file) => /\.(cc|cu|cuh|h)$/.test(file));
  const pairs = sources.flatMap((file) =>
    Array.from(read(join('csrc', file)).matchAll(/"(DS_[A-Z_]+)",/g), ([, code = '']) => {
      return [code, file] as const;
    }),
  );
  return new Map(pairs);
}

test('native code throws', () => {
  expect(thrown().size).toBeGreaterThan(10);
});

test.each([...thrown()])('%s, thrown by %s, is declared', (code) => {
  expect(declared).toContain(code);
});
