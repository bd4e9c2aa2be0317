// Parses and formats lists of CPU numbers such as "0-3,8", Linux's notation.
import { refuse } from './argument-error.js';

const MAX_CPU = 65_535;

/**
 * Returns the numbers in ascending order without duplicates; an empty text is an empty list. Throws
 * DS_ARGUMENT, naming `location`.
 */
export function parseCpuList(text: string, location: string): number[] {
  const cpus = new Set<number>();
  for (const range of text.trim() === '' ? [] : text.trim().split(',')) {
    const [, low, high = low] = /^\s*(\d+)(?:-(\d+))?\s*$/.exec(range) ?? [];
    const [first, last] = [Number(low), Number(high)];
    if (!(first <= last && last <= MAX_CPU)) {
      return refuse(location, 'CPU numbers such as "0-3,8"', JSON.stringify(text));
    }
    for (let cpu = first; cpu <= last; cpu++) cpus.add(cpu);
  }
  return [...cpus].sort((a, b) => a - b);
}

export function formatRanges(cpus: readonly number[]): string {
  const ranges: [number, number][] = [];
  for (const cpu of [...cpus].sort((a, b) => a - b)) {
    const last = ranges.at(-1);
    if (last && cpu === last[1] + 1) last[1] = cpu;
    else ranges.push([cpu, cpu]);
  }
  return ranges.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(',');
}
