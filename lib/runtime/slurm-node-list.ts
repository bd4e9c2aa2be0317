// Slurm's compressed lists of host names: "gpu[01-03,07],login1".
import { DsError } from '../errors.js';

/** The largest number of hosts in a list, which comes from the environment. */
const MAX_NODES = 65_536;

/**
 * Returns the host names of `list` in order. Numbers keep their leading zeros, and several brackets
 * in a name multiply ("r[1-2]n[1-2]"). Throws DS_ARGUMENT for invalid lists.
 */
export function expandNodeList(list: string): string[] {
  const names = splitOutsideBrackets(list).flatMap((item) => expandItem(item, list));
  if (names.length > MAX_NODES) throw badList(list);
  return names;
}

function splitOutsideBrackets(list: string): string[] {
  return list.match(/(?:[^,[\]]|\[[^[\]]*\]|[[\]])+/g) ?? [];
}

function expandItem(item: string, list: string): string[] {
  const parts = /^([^[\]]*)\[([^[\]]*)\](.*)$/.exec(item);
  if (!parts) {
    if (/[[\]]/.test(item)) throw badList(list);
    return [item];
  }
  const [, head, ranges, rest] = parts as unknown as [string, string, string, string];
  const tails = expandItem(rest, list);
  const numbers = ranges.split(',').flatMap((range) => expandRange(range, list));
  if (numbers.length * tails.length > MAX_NODES) throw badList(list);
  return numbers.flatMap((number) => tails.map((tail) => head + number + tail));
}

function expandRange(range: string, list: string): string[] {
  const [, first, last = first] = /^(\d+)(?:-(\d+))?$/.exec(range) ?? [];
  const count = Number(last) - Number(first) + 1;
  if (first === undefined || !(count >= 1 && count <= MAX_NODES)) throw badList(list);
  return Array.from({ length: count }, (_, i) =>
    String(Number(first) + i).padStart(first.length, '0'),
  );
}

function badList(list: string): DsError {
  return new DsError({
    code: 'DS_ARGUMENT',
    op: 'SLURM_NODELIST',
    expected: 'host names in the format of Slurm, such as "gpu[01-03,07]"',
    got: JSON.stringify(list),
    hint: 'Set MASTER_ADDR to the address of the node of rank 0.',
  });
}
