// Tests that the addon exports exactly the functions of types/addon.generated.d.ts.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { addon } from '../../lib/runtime/addon.js';
import { dtypeSize } from '../../lib/runtime/dtype.js';
import { dtypes } from '../../lib/runtime/dtypes.generated.js';

const ROOT = join(__dirname, '..', '..');

/** The methods of the interface Addon. */
function declaredFunctions(): string[] {
  const text = readFileSync(join(ROOT, 'types', 'addon.generated.d.ts'), 'utf8');
  const body = /export interface Addon \{\n([\s\S]*?)^\}/m.exec(text)?.[1] ?? '';
  return [...body.matchAll(/^ {2}(\w+)\(/gm)].map(([, name]) => name as string);
}

test('the addon has the functions that its types name', () => {
  const names = declaredFunctions();
  expect(names.length).toBeGreaterThan(50);
  expect(Object.keys(addon).sort()).toEqual([...names].sort());
});

test('dtypes have the sizes of the C++ types', () => {
  const words = { f32: 4, f16: 2, bf16: 2, i32: 4, i64: 8, u8: 1, bool: 1, f64: 8 };
  expect(Object.fromEntries(dtypes.map((dtype) => [dtype, dtypeSize(dtype)]))).toEqual(words);
});
