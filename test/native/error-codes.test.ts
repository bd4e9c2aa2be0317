// Tests that native code compiles only with the error codes of lib/errors.ts.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

/** Compiles C++ that throws `code`; returns the status and the compiler's output. */
function compileCode(code: string): { status: number | null; stderr: string } {
  const words = [
    '-std=c++20',
    '-fsyntax-only',
    '-x',
    'c++',
    '-I',
    join(packageRoot(), 'csrc'),
    '-',
  ];
  const input = `#include "core/error.h"
    void fail() { throw ds::Error("${code}", "op", "one", "two"); }`;
  return spawnSync('g++', words, { input, encoding: 'utf8' });
}

test('a declared error code compiles', () => {
  expect(compileCode('DS_CHECKPOINT')).toMatchObject({ status: 0, stderr: '' });
});

test.each(['DS_SHAPES', 'DS_SHAP', ''])('the error code %p does not compile', (code) => {
  const { status, stderr } = compileCode(code);
  expect(status).not.toBe(0);
  expect(stderr).toContain('not_a_code_of_lib_errors_ts');
});
