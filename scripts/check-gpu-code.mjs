#!/usr/bin/env node
// Checks that each source file's container in libds_cuda.so has code for every architecture, and
// the code for each one has every kernel: a GPU without one of them fails at the first launch.
//
//   check-gpu-code.mjs FILE [ARCHITECTURES]   default: those of the release, of CMakeLists.txt
//
// Needs dist/, and the program zstd where Node has no Zstandard (before 22.15).
import { execFileSync } from 'node:child_process';
import { readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import zlib from 'node:zlib';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const STATIC_LIMIT = 48 * 1024; // bytes of static shared memory that any launch may have

/** "sm_90a" and "compute_90" for CMake's list "90a-real;90-virtual". */
export function codesOf(list) {
  return list.split(';').map((word) => {
    const [, number, kind] = /^(\d+a?)-(real|virtual)$/.exec(word) ?? [];
    if (!number) throw new Error(`expected architectures such as 90a-real;80-virtual, got ${word}`);
    return `${kind === 'real' ? 'sm' : 'compute'}_${number}`;
  });
}

/** The list of DS_ALL_GPUS in CMakeLists.txt. */
export function releaseList() {
  const text = readFileSync(join(root, 'CMakeLists.txt'), 'utf8');
  const list = /if\(DS_ALL_GPUS\)\s+set\(DS_CUDA_ARCHS "([^"]+)"\)/.exec(text)?.[1];
  if (!list) throw new Error('CMakeLists.txt: expected the architectures of DS_ALL_GPUS');
  return list;
}

const isPacked = ({ payload }) => payload.length >= 4 && payload.readUInt32LE(0) === 0xfd2fb528;

/** The code of all entries. Without Zstandard in Node, one program unpacks them in a row. */
function unpackAll(entries) {
  if (zlib.zstdDecompressSync)
    return entries.map((one) =>
      isPacked(one) ? zlib.zstdDecompressSync(one.payload) : one.payload,
    );
  const packed = entries.filter(isPacked);
  const input = Buffer.concat(packed.map(({ payload }) => payload));
  const options = { input, maxBuffer: 2 ** 31 - 1 };
  const whole = packed.length > 0 ? execFileSync('zstd', ['-dcq'], options) : input;
  let at = 0;
  return entries.map((one) => {
    if (!isPacked(one)) return one.payload;
    at += one.unpacked;
    return whole.subarray(at - one.unpacked, at);
  });
}

/** Kernels of machine code or PTX, each with its bytes of static shared memory (0 for PTX). */
function kernelsOf(kind, code, elfSections) {
  if (kind === 'ptx') {
    const names = code.toString('latin1').matchAll(/\.entry\s+([\w$]+)/g);
    return new Map([...names].map(([, name]) => [name, 0]));
  }
  const sections = elfSections((offset, bytes) => code.subarray(offset, offset + bytes)) ?? [];
  const sizes = new Map(sections.map(({ name, bytes }) => [name, bytes]));
  const kernels = sections.flatMap(({ name }) => /^\.nv\.constant0\.(.+)$/.exec(name)?.[1] ?? []);
  return new Map(kernels.map((name) => [name, sizes.get(`.nv.shared.${name}`) ?? 0]));
}

/** The containers of a library: an architecture's bytes and kernels. */
export function inventory(file) {
  const require = createRequire(import.meta.url);
  const { elfSections, readGpuEntries } = require(join(root, 'dist', 'runtime', 'gpu-code.js'));
  return readGpuEntries(file).map((entries) => {
    const codes = unpackAll(entries);
    return entries.map(({ kind, architecture, payload }, index) => ({
      architecture,
      bytes: payload.length,
      kernels: Object.fromEntries(kernelsOf(kind, codes[index], elfSections)),
    }));
  });
}

/** Returns a sentence for each missing kernel and each too large one. */
export function faultsOf(containers, codes) {
  const faults = containers.length === 0 ? ['expected GPU code, got a library without it'] : [];
  for (const [index, entries] of containers.entries()) {
    const all = new Set(entries.flatMap(({ kernels }) => Object.keys(kernels)));
    const where = `container ${index} (${[...all][0] ?? 'no kernel'})`;
    const found = entries.map(({ architecture }) => architecture);
    if ([...found].sort().join() !== [...codes].sort().join())
      faults.push(`${where}: expected ${codes.join(', ')}, got ${found.join(', ') || 'nothing'}`);
    for (const { architecture, kernels } of entries) {
      for (const name of all)
        if (!(name in kernels)) faults.push(`${where}: ${architecture} has no kernel ${name}`);
      for (const [name, bytes] of Object.entries(kernels))
        if (bytes > STATIC_LIMIT)
          faults.push(
            `${name}: expected ${STATIC_LIMIT} bytes of static shared memory or less, got ${bytes}`,
          );
    }
  }
  return faults;
}

/** A line for each architecture: bytes, containers, kernels, the most static shared memory. */
export function summary(containers, codes) {
  return codes.map((code) => {
    const entries = containers.flat().filter(({ architecture }) => architecture === code);
    const bytes = entries.reduce((sum, entry) => sum + entry.bytes, 0);
    const shared = entries.flatMap(({ kernels }) => Object.values(kernels));
    const words = [`${bytes} bytes`, `${entries.length} containers`, `${shared.length} kernels`];
    if (code.startsWith('sm')) words.push(`static shared memory up to ${Math.max(0, ...shared)}`);
    return `${code.padEnd(12)}${words.join(', ')}`;
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [file, list = releaseList()] = process.argv.slice(2);
  if (!file) throw new Error('usage: check-gpu-code.mjs FILE [ARCHITECTURES]');
  const containers = inventory(file);
  const codes = codesOf(list);
  console.log(`${file}: ${statSync(file).size} bytes`);
  for (const line of summary(containers, codes)) console.log(line);
  const faults = faultsOf(containers, codes);
  for (const fault of faults.slice(0, 20)) console.error(fault);
  if (faults.length > 0) process.exit(1);
}
