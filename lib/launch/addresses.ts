// Finds addresses of nodes: whether a host is this machine, and where the ranks of a job meet.
import { lookup } from 'node:dns/promises';
import { createServer } from 'node:net';
import { hostname, networkInterfaces } from 'node:os';

import { refuse } from './argument-error.js';

const LOOPBACK = /^(127\.|::1$|localhost$)/;

/** Returns whether `host` names this machine. False for "user@host". */
export async function isThisMachine(host: string): Promise<boolean> {
  if (LOOPBACK.test(host) || host === hostname()) return true;
  const address = await lookUpAddress(host);
  return address !== null && (LOOPBACK.test(address) || listOwnAddresses().includes(address));
}

/**
 * Returns the address of `host` for other nodes. Throws DS_ARGUMENT if the address is unknown:
 * other nodes cannot use a name of ssh's configuration or of the loopback interface.
 */
export async function findReachableAddress(host: string): Promise<string> {
  const address = await lookUpAddress(host.replace(/^.*@/, ''));
  if (address !== null && !LOOPBACK.test(address)) return address;
  const ownAddress = (await isThisMachine(host)) ? listOwnAddresses()[0] : undefined;
  return (
    ownAddress ?? refuse('--master_addr', `the address of ${host}`, 'none', 'Pass --master_addr.')
  );
}

async function lookUpAddress(host: string): Promise<string | null> {
  try {
    return (await lookup(host.replace(/^\[(.*)\]$/, '$1'))).address;
  } catch {
    return null;
  }
}

/** Returns the addresses of this machine's external interfaces, IPv4 first. */
function listOwnAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  const external = all.filter(({ internal }) => !internal);
  return [
    ...external.filter(({ family }) => family === 'IPv4'),
    ...external.filter(({ family }) => family !== 'IPv4'),
  ].map(({ address }) => address);
}

/** Range of ports to try. Systems use higher ports for outgoing connections. */
const PORTS = { first: 20_000, count: 12_000 };

/**
 * Returns a free port of `host`. The search starts at a random port, so two jobs rarely choose the
 * same.
 */
export async function findFreePort(host: string): Promise<number> {
  const start = Math.floor(Math.random() * PORTS.count);
  for (let i = 0; i < PORTS.count; i++) {
    const port = PORTS.first + ((start + i) % PORTS.count);
    if (await canListen(host, port)) return port;
  }
  return refuse('--master_port', 'a free port on this machine', 'none', 'Pass --master_port.');
}

function canListen(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, host, () => server.close(() => resolve(true)));
  });
}
