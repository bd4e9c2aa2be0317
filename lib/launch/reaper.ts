// The reaper: a shell that ends the ranks if their launcher is killed.
import { type ChildProcess, spawn } from 'node:child_process';

/**
 * Reads "+ GROUP" and "- GROUP": process groups to guard and to release. When its input ends with
 * the launcher, it sends SIGTERM to the guarded groups and kills them $1 seconds later. It is a
 * separate process, so neither a stuck rank nor a signal to the launcher's group stops it.
 */
const SCRIPT = `
trap '' HUP INT TERM
groups=
while read -r sign group; do
  kept=
  for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done
  groups=$kept
  [ "$sign" = + ] && groups="$groups $group"
done
[ -n "$groups" ] || exit 0
for g in $groups; do kill -s TERM -- "-$g"; done 2>/dev/null
left=$1
while [ "$left" -gt 0 ]; do
  alive=
  for g in $groups; do kill -s 0 -- "-$g" 2>/dev/null && alive=yes; done
  [ -n "$alive" ] || exit 0
  sleep 1
  left=$((left - 1))
done
for g in $groups; do kill -s KILL -- "-$g"; done 2>/dev/null
`;

export class Reaper {
  private readonly shell: ChildProcess;
  private readonly shellExited: Promise<void>;

  /**
   * `grace` is in seconds. `failed` is called if the shell cannot start: ranks then survive a
   * killed launcher.
   */
  constructor(grace: number, failed: (reason: string) => void) {
    const args = ['-c', SCRIPT, 'ds-reaper', String(Math.ceil(grace))];
    this.shell = spawn('/bin/sh', args, { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
    this.shell.stdin?.on('error', () => {});
    this.shellExited = new Promise((resolve) => {
      this.shell.on('exit', () => resolve());
      this.shell.on('error', (error) => {
        failed(error.message);
        resolve();
      });
    });
  }

  guard(group: number): void {
    this.shell.stdin?.write(`+ ${group}\n`);
  }

  forget(group: number): void {
    this.shell.stdin?.write(`- ${group}\n`);
  }

  /** Ends the reaper and the groups that it still guards. */
  async close(): Promise<void> {
    this.shell.stdin?.end();
    await this.shellExited;
  }
}
