// Reads the listening addresses of a process from /proc.
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';

const LISTEN = '0A';

/** The listening IPv4 addresses of the running process `pid`, as "host:port". */
export function listeningAddresses(pid: number): string[] {
  const inodes = new Set<string>();
  for (const fd of readdirSync(`/proc/${pid}/fd`)) {
    const inode = /^socket:\[(\d+)\]$/.exec(target(`/proc/${pid}/fd/${fd}`))?.[1];
    if (inode) inodes.add(inode);
  }
  const lines = readFileSync(`/proc/${pid}/net/tcp`, 'utf8').trim().split('\n').slice(1);
  return lines
    .map((line) => line.trim().split(/\s+/))
    .filter((words) => words[3] === LISTEN && inodes.has(words[9] ?? ''))
    .map((words) => words[1] as string)
    .map((hex) => {
      const bytes = [6, 4, 2, 0].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
      return `${bytes.join('.')}:${Number.parseInt(hex.slice(9), 16)}`;
    });
}

/** The target of a link; '' if it is gone, like the descriptor that lists its own folder. */
function target(link: string): string {
  try {
    return readlinkSync(link);
  } catch {
    return '';
  }
}
