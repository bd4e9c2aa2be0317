// Tests connections between ranks against garbage and idle clients; nothing stays open or running.
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { GuardedReport } from './guarded-process.js';
import { listeningAddresses } from './listening.js';
import { reportsOf, runRanks } from './ranks.js';

const sleep = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** Addresses where rank 0 waits for other ranks: all except the store, which comes first. */
async function waitingPlaces(pid: number): Promise<string[]> {
  for (let i = 0; i < 5000; ++i) {
    const all = listeningAddresses(pid);
    if (all.length > 1) return all;
    await sleep(20);
  }
  throw new Error('rank 0 never listened for the others');
}

/** Sends `bytes` and leaves the connection open; without bytes it stays idle. */
function disturb(address: string, bytes: Buffer): Promise<void> {
  const [host, port] = address.split(':');
  return new Promise((resolve) => {
    const socket = connect(Number(port), host, () => socket.write(bytes, () => resolve()));
    socket.on('error', () => resolve());
    socket.unref();
  });
}

test('unauthenticated clients neither join nor delay the ranks, and the job leaves no leftovers', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'ds-strangers-'));
  const gate = join(folder, 'gate');
  let attacked: string[] = [];
  try {
    const results = await runRanks('guarded-process', 3, {
      job: { gate },
      started: async ([first]) => {
        attacked = await waitingPlaces(first?.pid as number);
        for (const address of attacked) {
          for (const size of [0, 1, 36, 48, 100_000]) {
            await Promise.all(
              Array.from({ length: 20 }, () => disturb(address, randomBytes(size))),
            );
          }
          await disturb(address, Buffer.alloc(4096)); // zeros: a plausible opcode and length
        }
        writeFileSync(gate, '');
      },
    });
    const reports = reportsOf<GuardedReport>(results);
    expect(reports.map(({ sum }) => sum)).toEqual([18, 18, 18]);
    expect(attacked).toHaveLength(2);
    for (const address of attacked) expect(address).toMatch(/^127\.0\.0\.1:/);
    // After the ranks are connected, only the store still listens.
    expect(reports.map(({ addresses }) => addresses.length)).toEqual([1, 0, 0]);
    expect(attacked).toContain(reports[0]?.addresses[0]);
    for (const { threads } of reports) expect(threads).toBeLessThanOrEqual(0);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
