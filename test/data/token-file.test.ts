// Tests token files of every kind, valid and hostile: the result is always tokens or a DsError.
import fs, { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  DataLoader,
  TokenDataset,
  TokenFileDataset,
  writeTokenFile,
} from '../../lib/data/index.js';
import { DsError } from '../../lib/errors.js';
import { random } from '../support/random.js';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'ds-tokens-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

const at = (name: string): string => join(dir, name);
const bad = (message: RegExp) =>
  expect.objectContaining({ code: 'DS_DATA', message: expect.stringMatching(message) });

function randomTokens(count: number, limit: number): number[] {
  return Array.from({ length: count }, () => Math.floor(random() * limit));
}

/** Every window of a file equals that of the same tokens in memory. */
function expectWindows(dataset: TokenFileDataset, tokens: readonly number[], seq: number): void {
  const expected = new TokenDataset(Int32Array.from(tokens), seq);
  expect(dataset.length).toBe(expected.length);
  for (let i = 0; i < expected.length; ++i) expect(dataset.get(i)).toEqual(expected.get(i));
  dataset.close();
}

type Width = 'u8' | 'i8' | 'i16' | 'u16' | 'i32' | 'u32' | 'i64' | 'u64';

function bytesOf(tokens: readonly number[], dtype: Width): Buffer {
  const size = Number(dtype.slice(1)) / 8;
  const out = Buffer.alloc(tokens.length * size);
  tokens.forEach((token, i) => {
    if (size === 8) out.writeBigInt64LE(BigInt(token), i * 8);
    else if (token < 0) out.writeIntLE(token, i * size, size);
    else out.writeUIntLE(token, i * size, size);
  });
  return out;
}

describe('raw files', () => {
  test.each([
    ['u16', 65536],
    ['u32', 2 ** 31],
  ] as const)('%s tokens are read from the file on each access', (dtype, limit) => {
    for (const count of [6, 7, 50, 1001]) {
      const tokens = [0, limit - 1, ...randomTokens(count - 2, limit)];
      writeTokenFile(at('t.bin'), tokens, dtype);
      expectWindows(TokenFileDataset.open({ path: at('t.bin'), seq: 5, dtype }), tokens, 5);
    }
  });

  test('bad tokens are refused before anything is written', () => {
    for (const token of [-1, 65536, 1.5, Number.NaN]) {
      expect(() => writeTokenFile(at('t.bin'), [1, token])).toThrow(
        bad(/token 1: expected an integer/),
      );
    }
    expect(() => TokenFileDataset.open({ path: at('t.bin'), seq: 1 })).toThrow(bad(/ENOENT/));
    expect(() => writeTokenFile(join(dir, 'no', 't.bin'), [1])).toThrow(
      expect.objectContaining({ code: 'DS_IO' }),
    );
    const nothing = new DataView(new ArrayBuffer(4)) as never;
    expect(() => writeTokenFile(at('t.bin'), nothing)).toThrow(/a list of numbers/);
    writeTokenFile(at('t.bin'), { length: 2, 0: 5, 1: 6 });
    expect(() => writeTokenFile(at('t.bin'), [1], 'i8' as never)).toThrow(/"u16" or "u32"/);
  });

  test('a full disk leaves the old file intact, without other files', () => {
    writeTokenFile(at('t.bin'), [7, 8, 9]);
    const write = jest.spyOn(fs, 'writeSync');
    write.mockImplementationOnce((file) => fs.writevSync(file, [Buffer.alloc(2)]));
    write.mockImplementationOnce(() => {
      throw new Error('ENOSPC: no space left on device');
    });
    expect(() => writeTokenFile(at('t.bin'), randomTokens(100, 65536))).toThrow(
      expect.objectContaining({ code: 'DS_IO', got: 'ENOSPC: no space left on device' }),
    );
    write.mockRestore();
    expectWindows(TokenFileDataset.open({ path: at('t.bin'), seq: 2 }), [7, 8, 9], 2);
    expect(fs.readdirSync(dir)).toEqual(['t.bin']);
  });

  test('files that are odd, empty, short, missing or folders are refused', () => {
    writeFileSync(at('odd.bin'), Buffer.alloc(101));
    writeFileSync(at('empty.bin'), '');
    writeTokenFile(at('short.bin'), [1, 2, 3]);
    const open = (name: string, dtype?: 'u16' | 'u32') => () =>
      TokenFileDataset.open({ path: at(name), seq: 8, dtype });
    expect(open('odd.bin')).toThrow(bad(/odd.bin: expected 100 bytes of tokens, got 101/));
    expect(open('empty.bin')).toThrow(bad(/at least 9 tokens, got 0/));
    expect(open('short.bin')).toThrow(bad(/at least 9 tokens, got 3/));
    expect(open('short.bin', 'u32')).toThrow(bad(/4 bytes of tokens, got 6/));
    expect(open('missing.bin')).toThrow(bad(/got ENOENT/));
    expect(open('.')).toThrow(bad(/expected a file/));
  });

  test('a relative path is that of the working directory in which the file was opened', () => {
    const working = process.cwd();
    mkdirSync(at('elsewhere'));
    writeTokenFile(at('t.bin'), [1, 2, 3, 4, 5, 6]);
    writeTokenFile(at('elsewhere/t.bin'), [9, 9, 9, 9, 9, 9]);
    try {
      process.chdir(dir);
      const dataset = TokenFileDataset.open({ path: 't.bin', seq: 5 });
      process.chdir('elsewhere');
      expectWindows(dataset, [1, 2, 3, 4, 5, 6], 5);
      // The file that workers open.
      expect(dataset.source.args).toMatchObject([{ path: at('t.bin') }]);
    } finally {
      process.chdir(working);
    }
  });

  test('a file that is truncated while it is open is an error, not a crash', () => {
    const tokens = randomTokens(1000, 50257);
    writeTokenFile(at('t.bin'), tokens);
    const dataset = TokenFileDataset.open({ path: at('t.bin'), seq: 99 });
    dataset.get(9);
    truncateSync(at('t.bin'), 1000);
    expect([...dataset.get(4).tokens]).toEqual(tokens.slice(396, 495));
    expect(() => dataset.get(5)).toThrow(bad(/200 bytes at 990, got its end after 10.*truncated/));
    dataset.close();
  });

  test('the error names a u32 value that is not a token', () => {
    writeFileSync(at('t.bin'), bytesOf([1, 2, 2 ** 31 + 5, 4], 'u32'));
    const dataset = TokenFileDataset.open({ path: at('t.bin'), seq: 3, dtype: 'u32' });
    expect(() => dataset.get(0)).toThrow(bad(/window 0, token 2: expected an integer in/));
    for (const index of [-1, 1, 0.5]) expect(() => dataset.get(index)).toThrow(/\[0, 1\)/);
  });

  test('a sparse file of 8 GiB, larger than one read', () => {
    writeFileSync(at('t.bin'), '');
    truncateSync(at('t.bin'), 8 * 2 ** 30);
    const dataset = TokenFileDataset.open({ path: at('t.bin'), seq: 1024 });
    expect(dataset.length).toBe(2 ** 22 - 1);
    expect(dataset.get(dataset.length - 1).targets).toEqual(new Int32Array(1024));
    dataset.close();
  });
});

describe('files of llm.c', () => {
  function header(fields: number[]): Buffer {
    const out = Buffer.alloc(1024);
    fields.forEach((field, i) => {
      out.writeInt32LE(field, 4 * i);
    });
    return out;
  }

  test.each([
    [20240520, 1, 'u16', 50257],
    [20240801, 7, 'u32', 128256],
  ] as const)('magic %d, version %d is %s', (magic, version, dtype, limit) => {
    const tokens = randomTokens(777, limit);
    const head = header([magic, version, tokens.length]);
    writeFileSync(at('t.bin'), Buffer.concat([head, bytesOf(tokens, dtype)]));
    expectWindows(TokenFileDataset.open({ path: at('t.bin'), seq: 10 }), tokens, 10);
    const other = dtype === 'u16' ? 'u32' : 'u16';
    expect(() => TokenFileDataset.open({ path: at('t.bin'), seq: 10, dtype: other })).toThrow(
      bad(/a header with dtype/),
    );
  });

  test.each([
    [[20240520, 2, 4], /version 1 in its header, got 2/],
    [[20240520, 1, 5], /10 bytes of tokens, got 8/],
    [[20240520, 1, 3], /6 bytes of tokens, got 8/],
    [[20240520, 1, -4], /a number of tokens from 0 in its header, got -4/],
    [[20240801, 7, 4], /16 bytes of tokens, got 8/],
  ])('a header of %j', (fields, message) => {
    const tokens = bytesOf([1, 2, 3, 4], 'u16');
    writeFileSync(at('t.bin'), Buffer.concat([header(fields), tokens]));
    expect(() => TokenFileDataset.open({ path: at('t.bin'), seq: 1 })).toThrow(bad(message));
  });
});

interface Index {
  magic?: string;
  version?: bigint;
  code: number;
  lengths: number[];
  pointers?: number[];
  documents?: number[];
  sequences?: bigint;
  modes?: boolean;
}

function indexBytes(index: Index, size: number): Buffer {
  const { code, lengths, documents = [0, lengths.length] } = index;
  const before = [0];
  for (const n of lengths) before.push((before.at(-1) as number) + n * size);
  const pointers = index.pointers ?? before.slice(0, -1);
  const head = Buffer.alloc(25);
  head.writeBigUInt64LE(index.version ?? 1n, 0);
  head.writeUInt8(code, 8);
  head.writeBigUInt64LE(index.sequences ?? BigInt(lengths.length), 9);
  head.writeBigUInt64LE(BigInt(documents.length), 17);
  return Buffer.concat([
    Buffer.from(index.magic ?? 'MMIDIDX\0\0', 'latin1'),
    head,
    bytesOf(lengths, 'i32'),
    bytesOf(pointers, 'i64'),
    bytesOf(documents, 'i64'),
    Buffer.alloc(index.modes ? lengths.length : 0),
  ]);
}

describe("Megatron's indexed datasets", () => {
  const lengths = [3, 0, 7, 12, 1];
  const count = lengths.reduce((a, b) => a + b);
  const open = (seq = 4) => TokenFileDataset.openIndexed({ path: at('d'), seq });

  function write(index: Index, dtype: Width, tokens: readonly number[]): void {
    writeFileSync(at('d.bin'), bytesOf(tokens, dtype));
    writeFileSync(at('d.idx'), indexBytes(index, Number(dtype.slice(1)) / 8));
  }

  test.each([
    [1, 'u8', 256],
    [2, 'i8', 128],
    [3, 'i16', 32768],
    [4, 'i32', 2 ** 31],
    [5, 'i64', 2 ** 31],
    [8, 'u16', 65536],
    [6, 'u16', 65536],
    [7, 'u32', 2 ** 31],
    [8, 'u64', 2 ** 31],
  ] as const)('the dtype code %d is read as %s', (code, dtype, limit) => {
    const tokens = [limit - 1, ...randomTokens(count - 1, limit)];
    write({ code, lengths, modes: code === 4 }, dtype, tokens);
    expectWindows(open(), tokens, 4);
    for (const path of ['d.bin', 'd.idx']) {
      expectWindows(TokenFileDataset.openIndexed({ path: at(path), seq: 4 }), tokens, 4);
    }
  });

  test('an index of more entries than are read at a time', () => {
    const many = Array.from({ length: 70_001 }, (_, i) => i % 3);
    const tokens = randomTokens(
      many.reduce((a, b) => a + b),
      50257,
    );
    const documents = Array.from({ length: 35_001 }, (_, i) => 2 * i);
    write({ code: 8, lengths: many, documents: [...documents, 70_001] }, 'u16', tokens);
    expectWindows(open(1000), tokens, 1000);
  });

  test.each<[string, Partial<Index>, RegExp]>([
    ['magic', { magic: 'MMIDIDX\0\x01' }, /the magic/],
    ['version', { version: 2n }, /version 1, got 2/],
    ['dtype', { code: 9 }, /a dtype code of 1 to 8, got 9/],
    ['dtype 0', { code: 0 }, /a dtype code/],
    ['float64', { code: 6, lengths: [4, 4] }, /a .bin file of 16 \(u16\) bytes, got 46/],
    ['sequence count', { sequences: 6n }, /bytes for 6 sequences/],
    ['huge count', { sequences: 2n ** 63n }, /bytes for 9.* sequences/],
    ['negative length', { lengths: [3, -1, 8, 12, 1] }, /length 1 at least 0, got -1/],
    ['first pointer', { pointers: [2, 6, 6, 20, 44] }, /pointer 0 0, got 2/],
    ['middle pointer', { pointers: [0, 6, 6, 2 ** 40, 44] }, /pointer 3 20, got 1099511627776/],
    ['first document', { documents: [1, 5] }, /document 0 of \[0, 5\], got 1/],
    ['falling documents', { documents: [0, 3, 2] }, /document 2 of \[3, 5\], got 2/],
    ['document beyond', { documents: [0, 6] }, /document 1 of \[0, 5\], got 6/],
  ])('a bad %s', (_name, change, message) => {
    write({ code: 8, lengths, ...change }, 'u16', randomTokens(count, 1000));
    expect(open).toThrow(bad(message));
  });

  test('a .bin file of another length, a missing one, a short index', () => {
    write({ code: 8, lengths }, 'u16', randomTokens(count, 1000));
    truncateSync(at('d.bin'), 2 * count - 2);
    expect(open).toThrow(bad(/a .bin file of 46 \(u16\) or 184 \(u64\) bytes, got 44/));
    truncateSync(at('d.idx'), 20);
    expect(open).toThrow(bad(/a header of 34 bytes, got 20 bytes/));
    rmSync(at('d.bin'));
    expect(open).toThrow(bad(/ENOENT/));
  });

  test('a negative token is named', () => {
    write({ code: 4, lengths: [5] }, 'i32', [1, 2, -7, 4, 5]);
    expect(() => open(4).get(0)).toThrow(bad(/token 2: .*got -7/));
  });

  test('a damaged index gives tokens or a DsError', () => {
    const tokens = randomTokens(count, 1000);
    write({ code: 8, lengths }, 'u16', tokens);
    const fullBytes = indexBytes({ code: 8, lengths }, 2);
    let refused = 0;
    for (let round = 0; round < 3000; ++round) {
      const damaged = Buffer.from(fullBytes);
      for (let hit = 0; hit <= round % 3; ++hit) {
        damaged[Math.floor(random() * damaged.length)] = Math.floor(random() * 256);
      }
      const end = round % 5 === 0 ? Math.floor(random() * damaged.length) : damaged.length;
      writeFileSync(at('d.idx'), damaged.subarray(0, end));
      try {
        const dataset = open();
        for (let i = 0; i < dataset.length; ++i) dataset.get(i);
        dataset.close();
      } catch (error) {
        expect(error).toBeInstanceOf(DsError);
        expect((error as DsError).code).toBe('DS_DATA');
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(2000);
  });

  test('a damaged header of llm.c and a file of noise give tokens or a DsError', () => {
    for (let round = 0; round < 1000; ++round) {
      const bytes = Buffer.from(randomTokens(Math.floor(random() * 3000), 256));
      if (round % 2 && bytes.length >= 12) {
        bytes.writeInt32LE(round % 4 === 1 ? 20240520 : 20240801, 0);
        if (round % 8 > 3) bytes.writeInt32LE(round % 4 === 1 ? 1 : 7, 4);
      }
      writeFileSync(at('t.bin'), bytes);
      try {
        const dataset = TokenFileDataset.open({ path: at('t.bin'), seq: 3 });
        for (let i = 0; i < dataset.length; i += 50) dataset.get(i);
        dataset.close();
      } catch (error) {
        expect(error).toMatchObject({ name: 'DsError', code: 'DS_DATA' });
      }
    }
  });
});

test('worker threads read the same windows', () => {
  const tokens = randomTokens(500, 50257);
  writeTokenFile(at('t.bin'), tokens);
  const dataset = TokenFileDataset.open({ path: at('t.bin'), seq: 10 });
  const workerThread = { execArgv: ['-r', join(__dirname, '..', 'support', 'run-typescript.cjs')] };
  const [expected, got] = [0, 2].map((numWorkers) => {
    const loader = new DataLoader(dataset, { batchSize: 4, numWorkers, workerThread });
    return [...loader].map((batch) => [batch.tokens.toArray(), batch.targets.toArray()]);
  });
  expect(got).toEqual(expected);
  truncateSync(at('t.bin'), 400);
  const loader = new DataLoader(dataset, { numWorkers: 2, workerThread });
  expect(() => [...loader]).toThrow(bad(/worker \d, in sample \d+: .*DsError: .*truncated/));
  dataset.close();
});

describe('JSON Lines', () => {
  const encode = (text: string): number[] => [...text].map((c) => c.charCodeAt(0));
  const read = (text: string | Buffer, more: object = {}): number[] => {
    writeFileSync(at('t.jsonl'), text);
    const dataset = TokenDataset.fromJsonl({ path: at('t.jsonl'), encode, seq: 1, ...more });
    return [...dataset.tokens];
  };

  test('texts follow one another, with a mark between them', () => {
    const lines = '{"text":"AB","n":1}\n\n{"text":""}\r\n{"text":"C\\n"}';
    expect(read(lines)).toEqual(encode('ABC\n'));
    expect(read(lines, { endOfText: 0 })).toEqual([65, 66, 0, 0, 67, 10, 0]);
    expect(read('{"body":"xy"}\n', { key: 'body' })).toEqual(encode('xy'));
  });

  test('lines longer than one read', () => {
    const long = 'é'.repeat(1_500_000);
    const text = JSON.stringify({ text: long });
    expect(read(`${text}\n{"text":"b"}\n${text}`)).toEqual(encode(`${long}b${long}`));
  });

  test.each<[string, string | Buffer, RegExp]>([
    ['not JSON', '{"text":"a"}\n{"text":\n', /t.jsonl:2: expected a JSON object, got Un/],
    [
      'no object',
      '{"text":"a"}\n\n7\n',
      /t.jsonl:3: expected an object with a string "text", got 7/,
    ],
    ['null', 'null\n', /t.jsonl:1: /],
    ['no such key', '{"body":"a"}', /t.jsonl:1: .*Set `key`/],
    ['an inherited key', '{"a":1}', /t.jsonl:1/],
    ['another type', '{"text":["a"]}', /string "text", got \["a"\]/],
    ['bytes', Buffer.from([0x7b, 0xff, 0x7d, 10]), /t.jsonl:1: expected UTF-8/],
    ['nothing', '', /at least 2 tokens, got 0/],
  ])('%s', (_name, text, message) => {
    expect(() => read(text)).toThrow(bad(message));
    if (_name === 'an inherited key')
      expect(() => read(text, { key: 'toString' })).toThrow(bad(message));
  });

  test('a missing file', () => {
    expect(() => TokenDataset.fromJsonl({ path: at('no'), encode, seq: 1 })).toThrow(bad(/ENOENT/));
  });
});
