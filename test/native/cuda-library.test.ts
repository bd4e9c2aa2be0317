// libds_cuda.so exports every function of its C API: a definition that does not see the declaration
// gets a C++ name, and the addon finds no GPU.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const library = join(packageRoot(), 'build', 'Release', 'libds_cuda.so');
const header = readFileSync(join(packageRoot(), 'csrc', 'cuda', 'entry.h'), 'utf8');
const names = [...header.matchAll(/^DS_CUDA_EXPORT .*?\b(ds_\w+)\(/gm)].map(([, name]) => name);

test('the header declares the functions that the addon asks for', () => {
  expect(names.length).toBeGreaterThan(3);
});

const maybe = existsSync(library) ? test : test.skip;
maybe('the library exports them', () => {
  // Names of exported symbols end with a zero in the table of names.
  const bytes = readFileSync(library);
  expect(names.filter((name) => !bytes.includes(`\0${name}\0`))).toEqual([]);
});
