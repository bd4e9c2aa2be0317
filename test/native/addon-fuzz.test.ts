// Calls the addon directly, without the typed wrappers: missing operands, wrong handles, invalid
// numbers.
import { setImmediate } from 'node:timers/promises';
import { block, addon as typed } from '../../lib/runtime/addon.js';
import { Buffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import { opNames } from '../../lib/runtime/kernels.generated.js';
import { collectGarbage } from '../support/quiet.js';

const addon = typed as unknown as Record<string, (...args: unknown[]) => unknown>;
const call = (name: string, ...args: unknown[]) =>
  (addon[name] as (...a: unknown[]) => unknown)(...args);
const device = cpu();

/** A handle of a released buffer. */
function releasedHandle(): number {
  const buffer = Buffer.allocate(device, 64);
  const { handle } = buffer;
  buffer.release();
  return handle;
}

// No handle may be live. Earlier tests in this process may still hold buffers, and small numbers
// such as 1 and 3 are the first handles of a process.
const wrong = [0, -1, 0.5, 2 ** 24 - 1, 2 ** 31, 2 ** 53, 2 ** 62, 1e300, NaN, Infinity];

/** Calls allocate() with the two words where it reads them. */
function allocate(stream: number, bytes: number): void {
  block.set([stream, bytes], block.length - 2);
  call('allocate');
}

/** Runs an op with the operands in the block, on a stream or on the host. */
function run(way: 'run' | 'runOnHost', op: number, stream: number = device.compute.handle): void {
  block.set([stream, op], block.length - 2);
  if (way === 'run') call('run');
  else call('runOnHost', op, stream);
}

/** The error code that `body` throws; only errors of the addon have a code. */
function codeOf(body: () => unknown): string {
  try {
    body();
    return '';
  } catch (error) {
    return String((error as { code?: string }).code);
  }
}

describe('an op without operands', () => {
  test.each(opNames.map((name, id) => [name, id] as const))('%s', (_, id) => {
    for (const way of ['run', 'runOnHost'] as const) {
      block.fill(0);
      expect(codeOf(() => run(way, id))).toBe('DS_ARGUMENT');
      for (const number of [...wrong, releasedHandle()]) {
        block.fill(number);
        expect(codeOf(() => run(way, id))).toMatch(/^DS_/);
      }
    }
  });

  test('any single missing operand', () => {
    const buffer = Buffer.allocate(device, 64);
    const view = [buffer.handle, 0, 1, 0, 4, 1];
    for (let id = 0; id < opNames.length; ++id) {
      for (let absent = 0; absent < 4; ++absent) {
        block.fill(0);
        let at = 0;
        for (let i = 0; i < absent; ++i) for (const word of view) block[at++] = word;
        expect(codeOf(() => run('run', id))).not.toBe('undefined');
      }
    }
    buffer.release();
  });
});

test.each([...wrong.slice(1), opNames.length])('the op %d', (op) => {
  block.fill(0);
  expect(codeOf(() => run('run', op))).toBe('DS_ARGUMENT');
});

test.each([...wrong.filter(Number.isFinite), NaN])('an op on the stream %d', (stream) => {
  block.fill(0);
  expect(codeOf(() => run('run', 0, stream))).toBe('DS_RELEASED');
});

test('every function answers invalid numbers with an error or a result', () => {
  for (const name of Object.keys(addon)) {
    for (const value of [NaN, -1, 0.5, 1e300, 2 ** 40, 'text', null, undefined, {}, []]) {
      const result = codeOf(() => {
        const answer = call(name, value, value, value, value, value, value);
        if (answer instanceof Promise) answer.catch(() => {});
        return answer;
      });
      expect([name, result]).not.toEqual([name, 'undefined']);
    }
  }
});

describe('sizes', () => {
  test.each([-1, -8, 0.5, NaN, Infinity, 2 ** 54, 1e300])('%d bytes', (bytes) => {
    for (const body of [
      () => allocate(device.compute.handle, bytes),
      () => call('allocatePinned', 0, bytes),
    ]) {
      expect(codeOf(body)).toBe('DS_ARGUMENT');
    }
  });

  test('2^53 bytes are refused', () => {
    expect(codeOf(() => allocate(device.compute.handle, 2 ** 53))).toBe('DS_OUT_OF_MEMORY');
  });

  test.each([...wrong.filter(Number.isFinite), NaN])('on the stream %d', (stream) => {
    expect(codeOf(() => allocate(stream, 64))).toBe('DS_RELEASED');
  });

  test('without a block that has room for them', () => {
    call('setArguments', new Float64Array(1));
    expect(codeOf(() => call('allocate'))).toBe('DS_INTERNAL');
    expect(codeOf(() => call('run'))).toBe('DS_INTERNAL');
    call('setArguments', block);
  });
});

test('a group and a job that never opened', () => {
  for (const name of ['synchronizeCollective', 'waitCollective', 'collectiveDone']) {
    expect(codeOf(() => call(name, 1, 1, device.compute.handle))).toMatch(/^DS_/);
  }
});

test('a failed host call is reported once', () => {
  block.fill(0);
  const buffer = Buffer.allocate(device, 64);
  [buffer.handle, 0, 1, 0, 4, 1].forEach((word, i) => {
    block[i] = word;
    block[6 + i] = word;
  });
  const codes = opNames.map((_, id) => codeOf(() => run('runOnHost', id)));
  expect(codes.every((code) => code === '' || code.startsWith('DS_'))).toBe(true);
  expect(codeOf(() => call('synchronizeDevice', 0))).toBe('');
  buffer.release();
});

test('the argument block lives as long as the addon writes there', async () => {
  // Created and read in separate jobs: deref() keeps its target alive until the job ends.
  const held = (() => {
    const values = new Float64Array(512);
    call('setArguments', values);
    return new WeakRef(values);
  })();
  const whenCollected = async (turns: number): Promise<boolean> => {
    for (let i = 0; i < turns; ++i) {
      await setImmediate();
      collectGarbage();
      await setImmediate();
      if (held.deref() === undefined) return true;
    }
    return false;
  };
  expect(await whenCollected(10)).toBe(false);
  call('setArguments', block);
  expect(await whenCollected(200)).toBe(true);
});
