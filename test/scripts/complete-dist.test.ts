// scripts/complete-dist.mjs makes a compiled package load files on first use. The tests compile a
// small package and list the files that Node has loaded.
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import ts from 'typescript';

const script = join(__dirname, '../../scripts/complete-dist.mjs');

const SOURCES: Record<string, string> = {
  'index.ts': `
    export * as shapes from './shapes/index.js';
    export { area } from './area.js';
    export { Base, run } from './run.js';
    export * from './tensor/index.js';
    export * from './stars/index.js';`,
  'area.ts': `
    import { Square } from './shapes/index.js';
    import { readFileSync } from 'node:fs';
    export const area = (side: number): number => new Square(side).area;
    export const size = (path: string): number => readFileSync(path).length;`,
  'run.ts': `
    import { Parent } from './parent.js';
    import { fail } from './fail.js';
    export class Base extends Parent {}
    export function run(): void {
      const parent = new Base().name;
      fail(parent);
    }`,
  'parent.ts': "export class Parent { name = 'parent'; }",
  'fail.ts': 'export function fail(text: string): never {\n\n  throw new Error(text);\n}',
  'shapes/index.ts': "export { Square } from './square.js';\nexport { Circle } from './circle.js';",
  'shapes/square.ts': `
    export class Square {
      constructor(readonly side: number) {}
      get area(): number { return this.side ** 2; }
    }`,
  'shapes/circle.ts':
    "import { Square } from './square.js';\nexport class Circle extends Square {}",
  'tensor/index.ts': "export { add } from './add.js';",
  'tensor/add.ts': "import { plus } from './plus.js';\nexport const add = plus;",
  'tensor/plus.ts': 'export const plus = (a: number, b: number): number => a + b;',
  'stars/index.ts': "export * from './star.js';\nexport const own = 1;",
  'stars/star.ts': 'export const own = 2;\nexport const star = 3;',
};

let dist: string;
beforeAll(() => {
  dist = mkdtempSync(join(tmpdir(), 'ds-dist-'));
  for (const [path, source] of Object.entries(SOURCES)) {
    const compilerOptions = { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2022 };
    const { outputText } = ts.transpileModule(source.trimStart(), { compilerOptions });
    mkdirSync(dirname(join(dist, path)), { recursive: true });
    writeFileSync(join(dist, path.replace('.ts', '.js')), outputText);
  }
  execFileSync('node', [script, dist]);
});
afterAll(() => rmSync(dist, { recursive: true, force: true }));

/** Output of a program with `ds`, the package, and `read()`, the files loaded so far. */
function printedValue(program: string, load: string): unknown {
  const text = `
    import { createRequire } from 'node:module';
    const require = createRequire('${dist}/x.js');
    const read = () => Object.keys(require.cache).map((file) => file.slice(${dist.length + 1}));
    const ds = ${load};
    ${program}`;
  const args = ['--input-type=module', '-e', text];
  return JSON.parse(execFileSync('node', args, { cwd: dist, encoding: 'utf8' }));
}
const REQUIRE = "require('./index.js')";
const IMPORT = "await import('./index.mjs')";

const SAY_READ = 'console.log(JSON.stringify(read().sort()))';

test('a require reads only the entry points of sections', () => {
  expect(printedValue(SAY_READ, REQUIRE)).toEqual(['index.js', 'shapes/index.js']);
});

test('an import reads the files of its names and of their base classes', () => {
  const tensor = ['tensor/add.js', 'tensor/index.js', 'tensor/plus.js'];
  const stars = ['stars/index.js', 'stars/star.js'];
  const localTexts = ['area.js', 'index.js', 'parent.js', 'run.js', 'shapes/index.js'];
  expect(printedValue(SAY_READ, IMPORT)).toEqual([...localTexts, ...stars, ...tensor]);
});

test.each([REQUIRE, IMPORT])(
  '%s: every name has its value, of which the nearest counts',
  (door) => {
    const program = `
    const { shapes, area, Base, add, star, own } = ds;
    const circle = new shapes.Circle(3);
    console.log(JSON.stringify([area(2), new Base().name, add(1, 2), star, own, circle.area,
      circle instanceof shapes.Square, Object.keys(shapes)]));`;
    const names = ['Square', 'Circle'];
    expect(printedValue(program, door)).toEqual([4, 'parent', 3, 3, 1, 9, true, names]);
  },
);

test('a file is read once, where its name is first used', () => {
  const program = `
    const before = read().includes('shapes/square.js');
    ds.area(2);
    ds.area(3);
    console.log(JSON.stringify([before, read().includes('shapes/square.js')]));`;
  expect(printedValue(program, IMPORT)).toEqual([false, true]);
});

test('a stack names the lines that the compiler wrote', () => {
  const program = `
    try { ds.run(); } catch ({ message, stack }) {
      console.log(JSON.stringify([message, ...stack.matchAll(/(fail|run)\\.js:(\\d+)/g)].map(String)));
    }`;
  const [message, thrown, called] = printedValue(program, REQUIRE) as string[];
  expect(message).toBe('parent');
  expect(thrown).toBe('fail.js:5,fail,5');
  expect(called).toMatch(/^run\.js:\d+,run,/);
});

test('completing it twice changes nothing', () => {
  const before = printedValue(SAY_READ, IMPORT);
  execFileSync('node', [script, dist]);
  expect(printedValue(SAY_READ, IMPORT)).toEqual(before);
});
