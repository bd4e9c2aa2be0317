// Tests declared options: checks, defaults, names of other places, and comments in editors.
import { join } from 'node:path';
import ts from 'typescript';

import {
  boolean,
  type Declared,
  declareOption,
  defaultText,
  integer,
  number,
  object,
  oneOf,
  plainText,
  readDeclared,
  string,
} from '../../lib/runtime/option.js';

const SAVE = {
  dir: string('folder', { required: true, elsewhere: '`output_dir`' }),
  keep: integer('checkpoints', { min: 1, default: null, flag: 'save_total_limit' }),
};
const TRAIN = {
  lr: number('rate', { min: 0, default: 5e-5, flag: 'learning_rate', also: ['rate'] }),
  smoothing: number('share', { min: 0, below: 1, default: 0 }),
  topP: number('mass', { above: 0, max: 1, fix: 'Leave it out.' }),
  penalty: number('divisor', { min: 0.01, f32: true }),
  half: boolean('fp16', { default: false }),
  order: oneOf(['random', 'sequential'])('order', { default: 'random' }),
  log: object<{ every?: number }>()({ every: integer('when', { min: 1, default: 10 }) }),
  save: declareOption((op, save: object) => readDeclared(op, save, SAVE, '.'), '', {
    default: null,
    fields: SAVE,
  }),
};

test('absent options have their defaults, also inside an object', () => {
  expect(readDeclared('Trainer', undefined, TRAIN)).toEqual({
    lr: 5e-5,
    smoothing: 0,
    topP: undefined,
    penalty: undefined,
    half: false,
    order: 'random',
    log: { every: 10 },
    save: null,
  });
});

test('undefined means absent, and so does null if it is the default', () => {
  const read = readDeclared('Trainer', { lr: undefined, save: null }, TRAIN);
  expect([read.lr, read.save]).toEqual([5e-5, null]);
});

test('names in snake_case are the same options', () => {
  expect(readDeclared('Trainer', { top_p: 0.5 }, TRAIN).topP).toBe(0.5);
});

test.each<[object, string]>([
  [
    { smoothing: 1 },
    'Trainer smoothing: expected a finite number of at least 0 and below 1, got 1',
  ],
  [
    { topP: 0 },
    'Trainer topP: expected a finite number above 0 and at most 1, got 0. Leave it out.',
  ],
  [{ penalty: 1e39 }, 'Trainer penalty: expected a number in the range of f32'],
  [{ lr: Number.NaN }, 'Trainer lr: expected a finite number of at least 0, got NaN'],
  [{ lr: null }, 'Trainer lr: expected a finite number of at least 0, got null'],
  [{ half: 1 }, 'Trainer half: expected true or false, got 1'],
  [{ order: 'grouped' }, 'Trainer order: expected "random", "sequential", got "grouped"'],
  [{ log: { every: 0 } }, 'Trainer log.every: expected an integer of at least 1, got 0'],
  [{ save: {} }, 'Trainer save.dir: expected a string, got undefined'],
  [{ save: { dir: 'd', keep: 0.5 } }, 'Trainer save.keep: expected an integer of at least 1'],
  [{ log: { evry: 1 } }, 'Did you mean "every"?'],
  [{ learning_rate: 1 }, 'Did you mean "lr"?'],
  [{ rate: 1 }, 'Did you mean "lr"?'],
  [{ save_total_limit: 1 }, 'Did you mean "save.keep"?'],
  [{ outputDir: 'd' }, 'Did you mean "save.dir"?'],
])('%j is refused', (options, message) => {
  expect(() => readDeclared('Trainer', options, TRAIN)).toThrow(message);
});

test('a default is shown as it is typed; help of a command has no Markdown', () => {
  const { lr, order, topP }: Declared = TRAIN;
  expect([lr, order, topP].map((option) => defaultText(option!))).toEqual([
    '5e-5',
    '"random"',
    null,
  ]);
  expect(plainText('a [schedule](#schedules), `"linear"`')).toBe('a schedule, "linear"');
});

test('members of an options type keep the comments of their declarations', () => {
  const file = join(__dirname, 'declared.ts');
  const text = `
    import { number, type Options } from '../../lib/runtime/option.js';
    const DECLARED = {
      /** The rate of learning. */
      lr: number('rate', { default: 1 }),
    };
    export interface Own extends Options<typeof DECLARED> {}
  `;
  const host = ts.createCompilerHost({});
  const { getSourceFile, fileExists } = host;
  host.fileExists = (name) => name === file || fileExists(name);
  host.getSourceFile = (name, version) =>
    name === file ? ts.createSourceFile(name, text, version, true) : getSourceFile(name, version);
  const options = { strict: true, types: [], module: ts.ModuleKind.NodeNext };
  const program = ts.createProgram([file], options, host);
  const checker = program.getTypeChecker();
  const localDeclaration = program.getSourceFile(file)!.statements.find(ts.isInterfaceDeclaration)!;
  const member = checker.getTypeAtLocation(localDeclaration).getProperty('lr')!;
  expect(ts.displayPartsToString(member.getDocumentationComment(checker))).toBe(
    'The rate of learning.',
  );
  expect(checker.typeToString(checker.getTypeOfSymbol(member))).toBe('number | undefined');
});
