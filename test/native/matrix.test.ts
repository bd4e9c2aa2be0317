// Runs the even cases of the native op matrix on the CPU, and tests the errors for missing
// operands.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { cpu } from '../../lib/runtime/device.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';
import { testOnCpu } from '../support/jest-cases.js';
import { thrownBy } from '../support/refusal.js';
import { cases, opCases } from './matrix/index.js';

test.each(opNames)('%s has cases', (op) => {
  expect(opCases.filter((matrixCase) => matrixCase.op === op).length).toBeGreaterThan(0);
});

/** "Sgd.weight" for each operand that its struct declares optional. */
function optionalOperands(): Set<string> {
  const folder = join(__dirname, '../../csrc/ops');
  const headers = readdirSync(folder).filter((name) => name.endsWith('.h'));
  const camel = (name: string) => name.replace(/_(\w)/g, (_, c: string) => c.toUpperCase());
  const found = headers.flatMap((header) => {
    const text = readFileSync(join(folder, header), 'utf8');
    return Array.from(text.matchAll(/^struct (\w+) \{\n(.*?)^\};/gms), ([, op, body = '']) =>
      Array.from(
        body.matchAll(/OptionalView\s+(\w+);/g),
        ([, name = '']) => `${op}.${camel(name)}`,
      ),
    ).flat();
  });
  return new Set(found);
}

const optional = optionalOperands();

test('operands are optional in the type', () => {
  expect(optional).toContain('LayerNorm.residual');
  expect(optional.size).toBeGreaterThan(15);
});

const withOperands = opNames.map((op) => {
  const all = opCases.filter((matrixCase) => matrixCase.op === op && !matrixCase.skip?.(cpu()));
  return [op, all.find((matrixCase) => matrixCase.operands().length > 0)] as const;
});

test.each(withOperands)('%s is refused without an operand that it needs', (op, matrixCase) => {
  for (const name of matrixCase?.operands() ?? []) {
    if (optional.has(`${op}.${name}`)) continue;
    const snake = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    const error = thrownBy(() => matrixCase?.runWithout(name, cpu()));
    expect(error).toMatchObject({ code: 'DS_ARGUMENT', expected: `a tensor as ${snake}` });
  }
});

testOnCpu(
  'native matrix, even cases', // matrix-odd.test.ts runs the odd cases.
  cases.filter((_, i) => i % 2 === 0),
);
