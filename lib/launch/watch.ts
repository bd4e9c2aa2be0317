// `ds watch`: serves a page of finished and running training runs until a signal ends it.
import type { Command } from 'commander';

import { isLoopback } from '../runtime/loopback.js';
import { addGroups, type RunToExitCode, readFlags } from './declared-flags.js';
import { onNpmEnd } from './npm-parent.js';
import { WATCH, type WatchFlags } from './tool-options.js';

/** Default port of the page, the same as TensorBoard's. */
const DEFAULT_PORT = 6006;

const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;

/** Adds the command under the heading `group`; `finish` ends the process with its exit code. */
export function addWatchCommand(program: Command, group: string, finish: RunToExitCode): void {
  addGroups(program.command('watch').helpGroup(group), WATCH)
    .description('show runs on a local web page: losses, speed, memory, samples')
    .argument('<dir...>', 'folders of runs, such as the --output of ds train')
    .action((dirs: string[], flags: object) =>
      finish(() => watchCommand(dirs, readFlags(WATCH, flags))),
    );
}

/**
 * Serves the runs until the first signal. Throws DS_IO for a folder without a run, and for a given
 * port that is not free.
 */
export async function watchCommand(dirs: readonly string[], flags: WatchFlags): Promise<number> {
  // Import the file: import() of index.js does not find names of its lazy re-exports.
  const { WatchServer } = await import('../watch/server.js');
  const { port, host } = flags;
  const start = (value: number) =>
    WatchServer.start({ dirs, port: value, host, requireRuns: true });
  const server = await (port === undefined
    ? start(DEFAULT_PORT).catch(() => start(0))
    : start(port));
  console.log(`watch ${dirs.join(', ')} at ${server.url}`);
  if (!isLoopback(host)) {
    console.error('ds: the page is not encrypted. Use an ssh tunnel to 127.0.0.1 for encryption.');
  }
  await waitForSignal();
  await server.close();
  return 0;
}

/** Resolves with the first signal, or when npm has ended. */
function waitForSignal(): Promise<void> {
  return new Promise((resolve) => {
    for (const signal of SIGNALS) process.once(signal, () => resolve());
    onNpmEnd(resolve);
  });
}
