// File I/O through the addon: checksums, ranges, errors, and environments that end while it runs.
import { spawnSync } from 'node:child_process';
import {
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Buffer as DeviceBuffer } from '../../lib/runtime/buffer.js';
import { cpu } from '../../lib/runtime/device.js';
import {
  fileEngineName,
  type HostRange,
  setFileEngine,
  syncPath,
  writeFile,
} from '../../lib/runtime/file.js';
import { InputFile } from '../../lib/runtime/input-file.js';
import { checksumFile } from '../support/checksum.js';

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-file-'));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

function toPinned(bytes: Uint8Array): DeviceBuffer {
  const buffer = DeviceBuffer.allocatePinned(cpu(), bytes.length);
  buffer.write(0, bytes);
  return buffer;
}

async function readFile(path: string, offset: number, into: HostRange): Promise<void> {
  const file = await InputFile.open(path);
  const reading = file.read(offset, into);
  await Promise.all([reading, file.close()]); // The pending read holds its own descriptor.
}

const bytes = Uint8Array.from({ length: 9_000_001 }, (_, i) => Math.imul(i, 2654435761) >>> 24);

const kernelHasRing = fileEngineName() === 'io_uring';
const engines = kernelHasRing ? (['io_uring', 'threads'] as const) : (['threads'] as const);

describe.each(engines)('%s', (name) => {
  beforeAll(() => setFileEngine(name));

  test('is the engine', () => {
    expect(fileEngineName()).toBe(name);
  });

  test('the checksum is CRC-32C', async () => {
    const path = join(dir, 'check');
    writeFileSync(path, '123456789');
    expect(await checksumFile(path)).toBe(0xe3069283);
    writeFileSync(path, '');
    expect(await checksumFile(path)).toBe(0);
  });

  test('ranges are written one after another and read back, in one call or several', async () => {
    const path = join(dir, 'ranges');
    const buffer = toPinned(bytes);
    const head = new TextEncoder().encode('head');
    const range = (offset: number, count: number) => ({ buffer, offset, bytes: count });
    const ranges = [range(5, 3), range(0, 0), range(100, bytes.length - 100)];
    const fullValue = await writeFile(path, { offset: 0, head, ranges });
    const expected = Buffer.concat([head, bytes.subarray(5, 8), bytes.subarray(100)]);
    expect(Buffer.compare(readFileSync(path), expected)).toBe(0);
    expect(await checksumFile(path)).toBe(fullValue);

    const first = await writeFile(path, { offset: 0, head, ranges: ranges.slice(0, 1) });
    const rest = { offset: 7, ranges: ranges.slice(1), crc: first };
    expect(await writeFile(path, rest)).toBe(fullValue);
    expect(await checksumFile(path)).toBe(fullValue);
    await syncPath(path);
    await syncPath(dir);

    const into = DeviceBuffer.allocatePinned(cpu(), bytes.length);
    await readFile(path, 7, { buffer: into, offset: 100, bytes: bytes.length - 100 });
    const back = new Uint8Array(bytes.length);
    into.read(0, back);
    expect(Buffer.compare(back.subarray(100), bytes.subarray(100))).toBe(0);
  });

  test('errors name the operation, the path, the reason and a cure', async () => {
    const buffer = toPinned(bytes);
    const all = { buffer, offset: 0, bytes: bytes.length };
    const path = join(dir, 'short');
    writeFileSync(path, bytes);
    truncateSync(path, 1000);
    const io = (fields: object) => expect.objectContaining({ code: 'DS_IO', ...fields });
    await expect(readFile(path, 0, all)).rejects.toEqual(
      io({ op: `read ${path}`, got: 'the end of the file' }),
    );
    await expect(writeFile('/dev/full', { offset: 0, ranges: [all] })).rejects.toEqual(
      io({ op: 'write /dev/full', hint: expect.stringContaining('Free space') }),
    );
    const nowhere = join(dir, 'no', 'file');
    await expect(writeFile(nowhere, { offset: 0 })).rejects.toEqual(io({ op: `open ${nowhere}` }));
    await expect(syncPath(nowhere)).rejects.toEqual(io({ op: `open ${nowhere}` }));
    await expect(checksumFile(dir)).rejects.toEqual(io({ op: expect.stringContaining(dir) }));
    await expect(readFile(path, 0, { ...all, offset: 1 })).rejects.toEqual(
      expect.objectContaining({ code: 'DS_BOUNDS' }),
    );
  });

  test('hundreds of calls at once', async () => {
    const path = join(dir, 'many');
    writeFileSync(path, bytes);
    const into = DeviceBuffer.allocatePinned(cpu(), bytes.length);
    const piece = 30_000;
    const calls: Promise<void>[] = [];
    for (let at = 0; at < bytes.length; at += piece) {
      const count = Math.min(piece, bytes.length - at);
      calls.push(readFile(path, at, { buffer: into, offset: at, bytes: count }));
    }
    await Promise.all(calls);
    const back = new Uint8Array(bytes.length);
    into.read(0, back);
    expect(Buffer.compare(back, bytes)).toBe(0);
  });
});

describe('an open file', () => {
  const io = (fields: object) => expect.objectContaining({ code: 'DS_IO', ...fields });

  test('is the opened file, even if another one takes its name', async () => {
    const path = join(dir, 'named');
    writeFileSync(path, '123456789');
    const file = await InputFile.open(path);
    writeFileSync(`${path}.new`, 'another one');
    renameSync(`${path}.new`, path);
    expect(await file.checksum()).toBe(0xe3069283);
    expect(await file.text(9)).toBe('123456789');
    await file.requireUnchanged();
    await expect(file.text(8)).rejects.toEqual(io({ expected: 'at most 8 bytes', got: '9' }));
    await expect(file.slice(5, 5)).rejects.toEqual(io({ op: `read ${path}`, got: 'its end' }));
    await file.close();
    await file.close();
    await expect(file.slice(0, 1)).rejects.toEqual(io({ got: 'a closed file' }));
    await expect(file.checksum()).rejects.toEqual(io({ got: 'a closed file' }));
  });

  test('detects a write after the open', async () => {
    const path = join(dir, 'written');
    writeFileSync(path, '123456789');
    const file = await InputFile.open(path);
    await file.requireUnchanged();
    writeFileSync(path, '987654321');
    // At another time for certain: the clocks of file systems are coarse.
    utimesSync(path, new Date(), new Date(Date.now() + 1000));
    await expect(file.requireUnchanged()).rejects.toEqual(io({ op: `read ${path}` }));
    await file.close();
  });

  test('refuses folders, pipes, devices and broken links at once', async () => {
    const pipe = join(dir, 'pipe');
    spawnSync('mkfifo', [pipe]);
    symlinkSync(join(dir, 'nowhere'), join(dir, 'link'));
    await expect(InputFile.open(pipe)).rejects.toEqual(io({ op: `open ${pipe}`, got: 'a pipe' }));
    await expect(InputFile.open(dir)).rejects.toEqual(io({ got: 'a folder' }));
    await expect(InputFile.open('/dev/zero')).rejects.toEqual(io({ got: 'a device' }));
    for (const name of ['link', 'none', 'a\0b']) {
      await expect(InputFile.open(join(dir, name))).rejects.toEqual(io({}));
    }
  });

  test('follows links only on request', async () => {
    const path = join(dir, 'to-file');
    writeFileSync(join(dir, 'target'), 'x');
    symlinkSync(join(dir, 'target'), path);
    await (await InputFile.open(path)).close();
    await expect(InputFile.open(path, { followLinks: false })).rejects.toEqual(io({}));
  });
});

test('an unknown engine is refused', () => {
  expect(() => setFileEngine('dma' as 'threads')).toThrow(/io_uring or threads, got dma/);
});

const HOOK = join(__dirname, '..', 'support', 'run-typescript.cjs');
const FILE = join(__dirname, '..', '..', 'lib', 'runtime', 'file.ts');
const CHECKSUM = join(__dirname, '..', 'support', 'checksum.ts');

function runScript(script: string) {
  const args = ['-r', HOOK, '-e', script];
  return spawnSync(process.execPath, args, { encoding: 'utf8', timeout: 300_000 });
}

test('a pending call keeps the process alive, and it ends afterwards', () => {
  const { status, stdout } = runScript(`
    const { checksumFile } = require(${JSON.stringify(CHECKSUM)});
    checksumFile(process.execPath).then(() => console.log('done'));
  `);
  expect({ status, stdout }).toEqual({ status: 0, stdout: 'done\n' });
});

test('the addon stays in its place when the only worker that has it ends', () => {
  const { status, stdout, stderr } = runScript(`
    const { readFileSync } = require('node:fs');
    const { Worker } = require('node:worker_threads');
    const body = \`
      require(${JSON.stringify(HOOK)});
      const { checksumFile } = require(${JSON.stringify(CHECKSUM)});
      checksumFile(process.execPath);
    \`;
    const worker = new Worker(body, { eval: true });
    worker.on('exit', (code) => {
      // The file engine's threads go on running in it.
      const maps = readFileSync('/proc/self/maps', 'utf8');
      console.log(code, /ds_native.*[.]node/.test(maps));
    });
  `);
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '0 true\n', stderr: '' });
});

test('process.exit and terminated workers during calls end cleanly', () => {
  const { status, stdout, stderr } = runScript(`
    const { Worker } = require('node:worker_threads');
    const body = \`
      require(${JSON.stringify(HOOK)});
      const { syncPath } = require(${JSON.stringify(FILE)});
      const { checksumFile } = require(${JSON.stringify(CHECKSUM)});
      for (let i = 0; i < 4; ++i) checksumFile(process.execPath);
      for (let i = 0; i < 40; ++i) syncPath('/tmp');
    \`;
    async function main() {
      for (let k = 0; k < 6; ++k) {
        const worker = new Worker(body, { eval: true });
        await new Promise((resolve) => setTimeout(resolve, 60 + 25 * k));
        await worker.terminate();
      }
      const { checksumFile } = require(${JSON.stringify(CHECKSUM)});
      for (let i = 0; i < 8; ++i) checksumFile(process.execPath);
      console.log('ends');
      setTimeout(() => process.exit(0), 5);
    }
    main();
  `);
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'ends\n', stderr: '' });
});
