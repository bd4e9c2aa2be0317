// `ds io`: measures the disk of a folder for optimizer state, and prints the fastest `aio` section.
import { DsError } from '../errors.js';
import { makeFolderNow } from '../runtime/make-folder.js';
import { onDisk } from '../runtime/on-disk.js';
import { SWAP_ALIGNMENT } from '../runtime/swap-file.js';
import { formatBytes } from './byte-size.js';
import { type AioSetting, type MeasuredSetting, MIN_BLOCKS, measureDisk } from './measure-disk.js';
import type { IoFlags } from './tool-options.js';

/** Bytes per parameter: master weight and Adam's two moments, in f32. */
const STATE_BYTES = 12;
const SECONDS_PER_DAY = 86_400;

/**
 * Measures the settings and returns the fastest `aio` section as JSON; calls `print` with each
 * measurement. Throws DS_IO if the folder does not exist or is full, DS_ARGUMENT for blocks that
 * are too large for the file.
 */
export function ioCommand(path: string, flags: IoFlags, print: (line: string) => void): string {
  const blocks = flags.block_size ?? chooseBlocks(flags.size);
  for (const block of blocks) requireBlocks(block, flags.size);
  createFolder(path);
  const [firstThreads = 1] = flags.threads;
  const settings = blocks.map(roundToAlignment).flatMap((block_size) =>
    flags.queue_depth.map((queue_depth) => ({
      block_size,
      queue_depth,
      intra_op_parallelism: firstThreads,
    })),
  );
  const measured: MeasuredSetting[] = [];
  const measure = (setting: AioSetting): void => {
    const item = measureDisk(path, flags.size, setting);
    if (measured.length === 0) for (const line of formatHeading(path, item, flags)) print(line);
    print(formatRow(item));
    measured.push(item);
  };
  for (const setting of settings) measure(setting);
  const { setting: bestSetting } = findFastest(measured);
  for (const intra_op_parallelism of flags.threads.slice(1)) {
    measure({ ...bestSetting, intra_op_parallelism });
  }
  const best = findFastest(measured);
  if (flags.parameters) for (const line of describeStepCosts(best, flags.parameters)) print(line);
  return JSON.stringify({ aio: best.setting }, null, 2);
}

/** Rounds bytes up to the alignment of swap files. */
const roundToAlignment = (bytes: number): number =>
  Math.ceil(bytes / SWAP_ALIGNMENT) * SWAP_ALIGNMENT;

const BLOCKS = [2 ** 20, 2 ** 22, 2 ** 24];

/** Returns the block sizes to measure, at least one even for a small file. */
function chooseBlocks(size: number): number[] {
  const max = Math.floor(size / MIN_BLOCKS);
  const fitting = BLOCKS.filter((block) => block <= max);
  return fitting.length > 0 ? fitting : [Math.max(max, 1)];
}

/**
 * Throws DS_ARGUMENT for a block size that would make the file, and the memory, larger than `size`.
 */
function requireBlocks(block: number, size: number): void {
  const max = Math.floor(size / MIN_BLOCKS);
  if (block <= max) return;
  throw new DsError({
    code: 'DS_ARGUMENT',
    op: 'ds io --block_size',
    expected: `at most ${max} bytes, because the file has ${size} and ${MIN_BLOCKS} blocks at least`,
    got: `${block}`,
    hint: 'Lower --block_size, or raise --size.',
  });
}

function createFolder(path: string): void {
  const purpose = { op: `ds io ${path}`, expected: 'a folder, or the right to make it' };
  onDisk(purpose, () => makeFolderNow(path));
}

/**
 * Returns the setting with the fastest mixed transfers, because updates read and write at the same
 * time.
 */
export function findFastest(measured: readonly MeasuredSetting[]): MeasuredSetting {
  return measured.reduce((best, measured) =>
    measured.rates.mixed > best.rates.mixed ? measured : best,
  );
}

function formatHeading(path: string, { info }: MeasuredSetting, { size }: IoFlags): string[] {
  const { fileSystem, direct, engine } = info;
  const access = direct ? 'O_DIRECT' : 'through the page cache: O_DIRECT is refused';
  return [
    `${path}: ${fileSystem}, ${engine}, ${access}; ${formatBytes(size)}, rates in GB/s`,
    'block_size  queue_depth  threads   read  write  both ways at once, each',
  ];
}

function formatRow({ setting, rates }: MeasuredSetting): string {
  const { block_size, queue_depth, intra_op_parallelism } = setting;
  const rate = (bytes: number): string => (bytes / 1e9).toFixed(2);
  return [
    String(block_size).padStart(10),
    String(queue_depth).padStart(11),
    String(intra_op_parallelism).padStart(7),
    rate(rates.read).padStart(5),
    rate(rates.write).padStart(5),
    rate(rates.mixed),
  ].join('  ');
}

/** Describes one step: its bytes, its time, and the bytes written per day. */
function describeStepCosts({ rates }: MeasuredSetting, parameters: number): string[] {
  const bytes = STATE_BYTES * parameters;
  const seconds = bytes / rates.mixed;
  const perDay = (bytes / seconds) * SECONDS_PER_DAY;
  return [
    `${parameters.toLocaleString('en')} parameters with Adam: ${formatBytes(bytes)} of state, which a step reads and writes in ${seconds.toFixed(2)} s`,
    `At one step after the other that writes ${formatBytes(perDay)} a day: compare it with the endurance (TBW) of the disk.`,
  ];
}
