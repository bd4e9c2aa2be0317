// Keeps the matrix algorithms that GPUs selected by timing, in one file of the user for each GPU
// model. csrc/cuda/gemm_choices.h defines the lines.
import { lstatSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { makeFolderNow } from './make-folder.js';
import { writeOwn } from './whole-file.js';

/** Maximum number of lines of a file. The oldest lines are dropped. */
const REMEMBERED = 4096;
const SUFFIX = '.txt';
/** A line: library, product, algorithm, and two times. */
const LINE = /^[\d.]+ \w+ [0-9a-f]+ [\d.]+ [\d.]+$/;

/** Returns the folder of algorithm files. */
export function algorithmFolder(): string {
  return join(homedir(), '.cache', 'ds-native', 'matmul');
}

/** Returns the file of a GPU model. */
export function algorithmFile(gpu: string, folder = algorithmFolder()): string {
  return join(folder, `${gpu.replace(/[^A-Za-z0-9.]+/g, '-')}${SUFFIX}`);
}

/** Returns the lines of a file; empty for a link, a pipe, and a file with other lines. */
export function readAlgorithms(file: string): string {
  try {
    const text = lstatSync(file).isFile() ? readFileSync(file, 'utf8') : '';
    return linesOf(text).every((line) => LINE.test(line)) ? text : '';
  } catch {
    return '';
  }
}

/**
 * Adds lines to a file. A new line replaces the line of the same library and product. If the folder
 * is not writable, it stores nothing, and each process times the algorithms itself.
 */
export function keepAlgorithms(file: string, timed: string): void {
  const lines = linesOf(timed);
  if (lines.length === 0) return;
  const kept = new Map<string, string>();
  for (const line of [...linesOf(readAlgorithms(file)), ...lines]) {
    const key = line.split(' ', 2).join(' ');
    kept.delete(key);
    kept.set(key, line);
  }
  const text = `${[...kept.values()].slice(-REMEMBERED).join('\n')}\n`;
  try {
    makeFolderNow(dirname(file));
    writeOwn(
      file,
      (draft) => writeFileSync(draft, text),
      (name) => name.endsWith(SUFFIX),
    );
  } catch {
    // The folder may be a file, or full.
  }
}

function linesOf(text: string): string[] {
  return text.split('\n').filter((line) => line !== '');
}

/** The kept algorithms of one GPU model. */
export interface KeptAlgorithms {
  /** Name of the file without its suffix: "NVIDIA-H200". */
  gpu: string;
  /** Number of matrix products. */
  products: number;
}

/** Returns the algorithm files of a folder. */
export function algorithmFiles(folder = algorithmFolder()): KeptAlgorithms[] {
  return filesOf(folder).map((name) => ({
    gpu: name.slice(0, -SUFFIX.length),
    products: linesOf(readAlgorithms(join(folder, name))).length,
  }));
}

/**
 * Removes the files with products, and returns their contents. Later processes time the algorithms
 * again.
 */
export function forgetAlgorithms(folder = algorithmFolder()): KeptAlgorithms[] {
  const held = algorithmFiles(folder);
  for (const name of filesOf(folder)) rmSync(join(folder, name), { force: true });
  return held;
}

/** Returns the names of the files with lines of products. */
function filesOf(folder: string): string[] {
  try {
    return readdirSync(folder)
      .filter((name) => name.endsWith(SUFFIX) && readAlgorithms(join(folder, name)) !== '')
      .sort();
  } catch {
    return [];
  }
}
